"""Several logs in one console, in a browser."""

from __future__ import annotations

from pathlib import Path

import spark_log
from spark_log.console.site import Site
from spark_log.console.standalone import ShownLog, Standalone
from tests.console.browser import Browser
from tests.console.conftest import READY
from tests.services import Services

TOKEN = "token-of-this-very-run"


# Promise: console.md#the-console
def test_the_page_has_a_choice_of_logs(at_width: Browser, tmp_path: Path) -> None:
    """It is part of the address, and the token stays; with one log there is no choice."""
    before = at_width.value("location.href")
    kept = at_width.value("sessionStorage.getItem('pylog-token')")
    assert at_width.value("document.querySelector('#log')") is None
    urls = [str(tmp_path / name) for name in ("first", "second")]
    services = Services()
    with spark_log.connect(urls[0], durability="os") as one, spark_log.connect(urls[1], durability="os") as other:
        for n, log in enumerate((one, other)):
            log.append(f"topic-{n}", [{"value": "x"}])
        sites = [Site(lambda: one, urls=urls), Site(lambda: other, urls=urls)]
        console = Standalone([ShownLog(site, str) for site in sites], TOKEN)
        address = services.run(console.start("127.0.0.1:0"))
        try:
            at_width.open(f"http://{address}/console/#token={TOKEN}")
            at_width.until(f"{READY} && document.body.innerText.includes('topic-0')")
            at_width.value(
                "(log => { log.value = '1'; log.dispatchEvent(new Event('change')); })(document.querySelector('#log'))"
            )
            at_width.until(f"location.search === '?log=1' && {READY} && document.body.innerText.includes('topic-1')")
            assert "topic-0" not in at_width.text()
            assert at_width.value("document.querySelector('#log').getBoundingClientRect().right <= innerWidth")
            at_width.value("location.hash = '#/topics/topic-1/records'")
            at_width.until("document.querySelectorAll('main tr.row').length === 1")
        finally:
            at_width.open(before)
            at_width.until(READY)
            assert at_width.value("sessionStorage.getItem('pylog-token')") == kept
            services.run(console.stop())
            services.close()
