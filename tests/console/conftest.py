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
from tests.console.console_requests import Asking
from tests.server.asking import ADMIN, BILLING, READ, TOKENS
from tests.services import Services

WIDTHS = (390, 1280)
READY = "document.querySelector('main')?.dataset.ready === location.hash"
SCHEMA = "id BIGINT, country STRING, address STRUCT<city: STRING, zip: INT>"
HOSTILE = "<img src=x onerror=alert(1)>"
LONG = "a.topic.with-a-rather-long-name.of-a-team.dead-letters"


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A coordinator with tokens, and topics that some of them may see."""
    services = Services()
    found = services.start(tmp_path_factory.mktemp("console") / "log", pages=pages_of, tokens=TOKENS)
    with spark_log.connect(f"pylog://{found.coordinator.address}", token=ADMIN) as log:
        log.admin.create_topics(
            [spark_log.NewTopic("orders", 2), spark_log.NewTopic("billing.in"), spark_log.NewTopic("empty")]
        )
        for number in range(10):
            log.append(
                "orders",
                [
                    {
                        "key": f"k{number}-{n}",
                        "value": f"value {number} {n}",
                        "timestamp": 1000 * (10 * number + n),
                        "partition": n % 2,
                    }
                    for n in range(10)
                ],
            )
        log.append("billing.in", [{"key": HOSTILE, "value": b"\xff\x00", "headers": [(HOSTILE, HOSTILE.encode())]}])
        log.admin.alter_consumer_group_offsets(
            "billing.g", {TopicPartition("billing.in", 0): 0, TopicPartition("orders", 0): 10}
        )
        log.admin.alter_consumer_group_offsets("reporting", {TopicPartition("orders", 1): 0})
        with log.transaction("secret") as txn:
            txn.append("orders", [{"value": "in a transaction", "timestamp": 200_000, "partition": 0}])
    yield found
    services.close()


@pytest.fixture(scope="session")
def reader(running: Running) -> Asking:
    return Asking(running.coordinator.address, READ)


@pytest.fixture(scope="session")
def billing(running: Running) -> Asking:
    """With a token for the topics and groups of billing."""
    return Asking(running.coordinator.address, BILLING)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[spark_log.Log]:
    with spark_log.connect(tmp_path_factory.mktemp("embedded") / "log", durability="os") as found:
        found.create_topic(spark_log.NewTopic("t", 2))
        yield found


@pytest.fixture(scope="session")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The one browser of all files."""
    if chromium() is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def window(served: Running, chrome: Browser) -> Browser:
    """Signed in, with a token that may read."""
    chrome.size(WIDTHS[0], 800)
    arrive(chrome, served)
    sign_in(chrome, READ)
    chrome.problems.clear()  # the browser logs the answer that asks for a token
    return chrome


def arrive(page: Browser, server: Running) -> None:
    """Open the first page of a server: it asks for a token, unless this browser has signed in before."""
    address = server.coordinator.address
    page.open(f"http://{address}/")
    page.until(f"location.host === {address!r} && (document.querySelector('#token') || {READY})")


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
