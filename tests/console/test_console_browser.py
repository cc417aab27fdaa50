"""The console's pages in a browser: each page, the keyboard, dark mode, and records that try to be more than text."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import spark_log
from spark_log.console.of_coordinator import pages_of
from spark_log.model import TopicPartition
from spark_log.serve.serve import Running
from tests.console.browser import Browser
from tests.console.conftest import HOSTILE, READY, arrive, go, sign_in
from tests.server.asking import ADMIN, READ, TOKENS
from tests.services import Services

SCRIPT = "</td><script>alert(2)</script><style>*{display:none}</style>"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    services = Services()
    found = services.start(tmp_path_factory.mktemp("console") / "log", pages=pages_of, tokens=TOKENS)
    with spark_log.connect(f"pylog://{found.coordinator.address}", token=ADMIN) as log:
        log.admin.create_topics([spark_log.NewTopic("orders", 2)])
        for n in range(3):
            value = json.dumps({"order": 12345678901234567890 + n, "note": SCRIPT, "items": [{"n": n}, []]})
            log.append("orders", [{"key": HOSTILE, "value": value, "headers": [(HOSTILE, SCRIPT.encode())]}])
        log.admin.alter_consumer_group_offsets(HOSTILE, {TopicPartition("orders", n): 0 for n in range(2)})
        with log.transaction(SCRIPT) as txn:
            txn.append("orders", [{"value": "in a transaction, turned \u202e around"}])
    yield found
    services.close()


@pytest.fixture(scope="module")
def page(running: Running, chrome: Browser) -> Iterator[Browser]:
    """Signed in, with a token that may read."""
    chrome.size(1280, 800)
    chrome.scheme("light")
    arrive(chrome, running)
    chrome.value(f"document.querySelector('#token').value = {READ!r}; document.querySelector('form').requestSubmit()")
    chrome.until(READY)
    chrome.hosts.clear()
    chrome.problems.clear()  # the browser logs the answer that asks for a token
    yield chrome
    chrome.scheme("")


PAGES = {
    "#/": "Records per second",
    "#/topics": "orders",
    "#/topics/orders": HOSTILE,
    "#/topics/orders/records": HOSTILE,
    "#/topics/orders/partitions": "In sync",
    "#/topics/orders/segments": "By time and offset",
    "#/topics/orders/configs": "retention.ms",
    "#/topics/orders/groups": HOSTILE,
    "#/groups": HOSTILE,
    f"#/groups/{HOSTILE.replace('<', '%3C').replace('>', '%3E').replace(' ', '%20')}": "Positions",
    "#/queries": "No query publishes its progress",
    "#/transactions": SCRIPT,
    "#/brokers": "Root",
    "#/health": "coordinator",
}


# Promise: console.md#see-how-a-log-is-doing, console.md#the-console, console.md#what-it-may-do
def test_each_page_shows_its_part_and_hostile_text_as_text(page: Browser, running: Running) -> None:
    """No script of a record runs, none is refused either since none is made, and nothing comes from elsewhere."""
    for to, text in PAGES.items():
        go(page, to)
        page.shows(text)
        assert page.value("document.querySelectorAll('main img, main script, main style').length") == 0, to
    go(page, "#/topics/orders/records")
    page.shows(r"turned \u202e around")  # a character that would turn the rest of its line
    assert page.problems == []
    assert page.hosts == {running.coordinator.address}


# Promise: console.md#read-records, console.md#use-the-keyboard
def test_a_record_is_opened_with_the_keyboard(page: Browser) -> None:
    """j, then Enter: JSON with all digits of its numbers, headers, and what could be HTML as text."""
    go(page, "#/topics/orders/records?partition=0&from=earliest")
    page.until("document.querySelectorAll('tbody tr').length")
    page.press("j", "Enter")
    page.until("document.querySelector('tr.detail pre')")
    shown = page.value("document.querySelector('tr.detail pre').textContent")
    assert '\n  "order": 1234567890123456789' in shown and SCRIPT in shown
    assert json.loads(shown)["items"][1] == []
    assert page.value("document.querySelector('tr.detail dl.list dt').textContent") == "partition"
    assert SCRIPT in page.value("document.querySelector('tr.detail').textContent")
    page.press("Enter")
    page.until("!document.querySelector('tr.detail')")
    assert page.problems == []


# Promise: console.md#read-records
def test_a_search_is_a_link(page: Browser) -> None:
    """The form puts it into the address."""
    go(page, "#/topics/orders/records")
    page.value(
        "document.querySelector('[name=search]').value = 'in a transaction';"
        "document.querySelector('[name=to-kind]').value = 'offset'; document.querySelector('[name=to]').value = '100';"
        "document.querySelector('main form').requestSubmit()"
    )
    page.until("location.hash.includes('to=100&search=in+a+transaction')")
    page.shows("1 found in 4 records")


# Promise: console.md#use-the-keyboard
def test_keys_lead_to_pages_and_topics(page: Browser) -> None:
    """g t, j and Enter, u, and / with a name."""
    go(page, "#/")
    page.press("g", "t")
    page.until("location.hash === '#/topics'")
    page.until(READY)
    page.press("j", "Enter")
    page.until("location.hash.startsWith('#/topics/orders')")
    page.press("u")
    page.until("location.hash === '#/topics'")
    page.press("/")
    page.until("document.activeElement.id === 'find'")
    page.send("Input.insertText", text="orde")
    page.until("document.querySelector('.choices a')?.textContent.startsWith('orders')")
    page.press("Enter")
    page.until("location.hash === '#/topics/orders'")
    page.until(f"document.activeElement.id !== 'find' && {READY}")
    page.press("?")
    page.until("document.querySelector('dialog[open]')")
    page.value("document.querySelector('dialog[open]').close()")


# Promise: console.md#the-console
def test_dark_follows_the_system_and_d_turns_it(page: Browser) -> None:
    """And the choice is kept."""
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.value(ground)
    page.scheme("dark")
    page.until(f"{ground} !== {light!r}")
    page.value("document.activeElement.blur()")
    page.press("d")
    page.until(f"{ground} === {light!r}")
    page.value("window.isOld = true; location.reload()")
    page.until(f"!window.isOld && {READY} && {ground} === {light!r}")
    page.value("localStorage.clear()")
    page.scheme("light")


# Promise: console.md#what-it-may-do
def test_the_policy_refuses_what_a_record_would_need(page: Browser) -> None:
    """Even if a page tried to parse text as HTML."""
    assert (
        page.value(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'parsed'; } catch { return 'refused'; } })()"
        )
        == "refused"
    )
    page.problems.clear()


# Promise: console.md#what-it-may-do
def test_a_config_is_changed_with_the_token_of_an_admin(page: Browser, running: Running) -> None:
    """A reader is offered no change; a value that is wrong is named."""
    go(page, "#/topics/orders/configs")
    page.shows("retention.ms")
    assert "Change" not in page.text()
    sign_in(page, ADMIN)
    page.until("document.body.innerText.includes('may change the log')")
    row = "[...document.querySelectorAll('tbody tr')].find((row) => row.textContent.startsWith('retention.ms'))"
    page.until(f"{row}?.querySelector('button')")

    def change(value: str) -> None:
        page.value(
            f"document.querySelector('#config-value').value = {value!r}; document.querySelector('dialog form').requestSubmit()"
        )

    page.value(f"{row}.querySelector('button').click()")
    change("soon")
    page.until("document.querySelector('dialog .notice')?.textContent.includes('retention.ms')")
    change("86400000")
    page.until("!document.querySelector('dialog')")
    page.until(f"{row}?.textContent.includes('1 d')")
    assert (
        running.coordinator.state.topics[running.coordinator.state.names["orders"]].configs["retention.ms"]
        == "86400000"
    )
    sign_in(page, READ)
