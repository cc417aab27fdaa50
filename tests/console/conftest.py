"""Logs behind the console's pages, and a browser that shows them, as wide as a desk's screen and as a telephone's."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import spark_log
from spark_log.console.of_coordinator import pages_of
from spark_log.model import TopicPartition
from spark_log.serve.serve import Running
from tests.console.browser import NAMES, Browser, browser, chromium
from tests.server.asking import ADMIN, READ, TOKENS
from tests.services import Services

WIDTHS = (390, 1280)
READY = "document.querySelector('main')?.dataset.ready === location.hash"
SCHEMA = "id BIGINT, country STRING, address STRUCT<city: STRING, zip: INT>"
LONG = "a.topic.with-a-rather-long-name.of-a-team.dead-letters"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A coordinator with tokens: `orders` of JSON, `typed` with a schema, a long name, and a group."""
    services = Services()
    found = services.start(tmp_path_factory.mktemp("pages") / "log", pages=pages_of, tokens=TOKENS)
    with spark_log.connect(f"pylog://{found.coordinator.address}", token=ADMIN) as log:
        topics = [spark_log.NewTopic("orders", 2), spark_log.NewTopic(LONG), spark_log.NewTopic("typed", schema=SCHEMA)]
        log.admin.create_topics(topics)
        for n in range(30):
            value = json.dumps({"order": n, "status": "paid" if n % 2 else "open", "customer": {"id": f"c{n}"}})
            log.append("orders", [{"key": f"k{n}", "value": value, "timestamp": 1_767_225_600_000 + 1000 * n}])
        rows = [{"id": n, "country": "NZ", "address": {"city": "Wellington", "zip": n}} for n in range(3)]
        log.append("typed", [*rows, {"id": 3, "country": None, "address": None}])
        log.admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", n): 0 for n in range(2)})
    yield found
    services.close()


@pytest.fixture(scope="module")
def window(served: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Signed in, with a token that may read."""
    if chromium() is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        found.size(WIDTHS[0], 800)
        found.open(f"http://{served.coordinator.address}/")
        found.until("document.querySelector('#token')")
        sign_in(found, READ)
        found.problems.clear()  # the browser logs the answer that asks for a token
        yield found


@pytest.fixture(params=WIDTHS)
def at_width(window: Browser, request: pytest.FixtureRequest) -> Iterator[Browser]:
    """The browser at both widths.  No script fails."""
    window.size(request.param, 800)
    yield window
    assert window.problems == []


def sign_in(page: Browser, token: str) -> None:
    page.value(f"sessionStorage.setItem('pylog-token', {token!r})")
    page.value("document.body.replaceChildren()")
    page.send("Page.reload")
    page.until(READY)


def go(page: Browser, to: str) -> None:
    """Show a page, and wait for its first answer."""
    page.value(f"location.hash = {to!r}")
    page.until(f"document.querySelector('main').dataset.ready === {to!r} || {READY}")
