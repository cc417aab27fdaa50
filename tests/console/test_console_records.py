"""Records in a browser: time zones, columns of typed topics, searches by a field, a live tail and downloads."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import spark_log
from spark_log.serve.serve import Running
from tests.console.browser import Browser
from tests.console.conftest import go
from tests.server.asking import ADMIN

ROWS = "document.querySelectorAll('main tr.row').length"
FIRST = "document.querySelector('main tr.row').textContent"
PLACES = "new Set([...document.querySelectorAll('main tr.row')].map((row) => row.cells[1].textContent + ' ' + row.cells[2].textContent)).size"
"""How many different records are shown."""


def fill(page: Browser, **values: str) -> None:
    """Fill in the form, and send it."""
    for name, value in values.items():
        page.value(f"document.querySelector('form [name=\"{name}\"]').value = {value!r}")
    page.value("document.querySelector('main form').requestSubmit()")


def choose_zone(page: Browser, name: str) -> None:
    page.value(
        f"(zone => {{ zone.value = {name!r}; zone.dispatchEvent(new Event('change')); }})(document.querySelector('#zone'))"
    )


# Promise: console.md#read-records
def test_times_are_in_the_zone_that_is_chosen(at_width: Browser) -> None:
    """It is named, also a time of the form is in it, and the choice is kept."""
    go(at_width, "#/topics/orders/records?partition=0&from=earliest")
    for name, shown in (("Asia/Tokyo", "2026-01-01 09:00:"), ("UTC", "2026-01-01 00:00:")):
        choose_zone(at_width, name)
        at_width.until(f"{FIRST}.startsWith({shown!r})")
        at_width.until(f"document.querySelector('main footer').textContent.includes('times in {name}')")
    choose_zone(at_width, "America/New_York")
    at_width.value("document.querySelector('[name=from-kind]').value = 'time'")
    fill(at_width, **{"from": "2025-12-31T19:00:20"})
    at_width.until("location.hash.includes('from=%401767225620000')")
    at_width.until(f"{FIRST}.startsWith('2025-12-31 19:00:2')")
    assert at_width.value("document.querySelector('form [name=from]').value").startswith("2025-12-31T19:00:20")
    at_width.send("Page.reload")
    at_width.until(f"{FIRST}.startsWith('2025-12-31 19:00:2')")
    choose_zone(at_width, "UTC")


# Promise: console.md#read-records
def test_a_typed_topic_has_columns_and_a_schema(at_width: Browser) -> None:
    """The table has the columns of the newest version; null is not a text."""
    go(at_width, "#/topics/typed/records?from=earliest")
    at_width.until(f"{ROWS} === 4")
    titles = at_width.value(
        "[...document.querySelectorAll('main tr.row:first-child td')].map((td) => td.dataset.title)"
    )
    assert titles[3:] == ["Key", "id", "country", "address"]
    cells = at_width.value(
        "[...document.querySelectorAll('main tr.row')].map((row) => [...row.querySelectorAll('td.field')].map((td) => td.textContent))"
    )
    assert [row[1:] for row in cells[2:]] == [["2", "NZ", '{"city":"Wellington","zip":2}'], ["3", "null", "null"]]
    go(at_width, "#/topics/typed/schema")
    at_width.shows("STRUCT<city: STRING, zip: INT>")
    at_width.shows("Versions")
    go(at_width, "#/topics/orders/schema")
    at_width.shows("pylog topic alter orders --schema")


# Promise: console.md#read-records
def test_records_are_found_by_key_and_by_field(at_width: Browser) -> None:
    """From the newest on, or from the oldest; a comparison that is not one is explained."""
    go(at_width, "#/topics/orders/records")
    fill(at_width, field="status = paid", limit="25")
    at_width.shows("15 found in 30 records")
    assert "k29" in at_width.value(FIRST)
    at_width.value("document.querySelector('[name=from-kind]').value = 'earliest'")
    fill(at_width, field="customer.id = c7")
    at_width.until(f"{ROWS} === 1")
    assert "k7" in at_width.value(FIRST)
    fill(at_width, field="", key="k8")
    at_width.until(f"{ROWS} === 1 && {FIRST}.includes('k8')")
    fill(at_width, field="status", key="")
    at_width.shows("is not a comparison")


# Promise: console.md#read-records
def test_records_are_shown_as_they_come(at_width: Browser, served: Running) -> None:
    """The newest first, none twice, and no more than the page keeps; a pause holds them back until it ends."""
    topic = f"live-{time.monotonic_ns()}"
    with spark_log.connect(f"pylog://{served.coordinator.address}", token=ADMIN) as log:

        def append(partition: int, *values: str) -> None:
            log.append(topic, [{"value": value, "partition": partition} for value in values])

        def shows(rows: int, first: str) -> None:
            at_width.until(f"{ROWS} === {rows} && {FIRST}.endsWith({first!r})")
            assert at_width.value(PLACES) == rows

        log.create_topic(spark_log.NewTopic(topic, 2))
        go(at_width, f"#/topics/{topic}/records?live=1")
        at_width.shows("Live: the last 0 records")
        append(1, "first", "second")
        shows(2, "second")
        press(at_width, "Pause")
        at_width.shows("Paused")
        append(1, "third")
        assert at_width.value(f"new Promise((done) => setTimeout(() => done({ROWS}), 1100))") == 2
        press(at_width, "Resume")
        shows(3, "third")
        append(0, *(f"many {n}" for n in range(250)))
        shows(103, "many 249")
        at_width.shows("some were left out")
        for n in range(3):
            append(0, *(f"more {n}.{one}" for one in range(200)))
            at_width.until(f"{FIRST}.endsWith('more {n}.199')")
        shows(500, "more 2.199")
        log.admin.delete_topics([topic])
        log.create_topic(spark_log.NewTopic(topic, 2))
        append(1, *(f"new {n}" for n in range(4)))
        shows(4, "new 3")
        at_width.until("!document.querySelector('main .notice')")
        log.admin.delete_topics([topic])
        go(at_width, "#/")


def press(page: Browser, text: str) -> None:
    page.value(
        f"[...document.querySelectorAll('main footer button')].find((one) => one.textContent === {text!r}).click()"
    )


# Promise: console.md#read-records
def test_what_is_shown_is_downloaded(at_width: Browser, tmp_path: Path) -> None:
    """Both forms, CSV and lines of JSON, have the records of the page."""
    at_width.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    go(at_width, "#/topics/orders/records?partition=0&from=earliest")
    at_width.until(f"{ROWS} > 5")
    shown = at_width.value(ROWS)
    for title, name in (("CSV", "orders.csv"), ("JSON lines", "orders.jsonl")):
        press(at_width, title)
        end = time.monotonic() + 30
        while not (tmp_path / name).exists():
            assert time.monotonic() < end, f"{name} was not saved"
            time.sleep(0.05)
    lines = [json.loads(line) for line in (tmp_path / "orders.jsonl").read_text().splitlines()]
    with (tmp_path / "orders.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(lines) == len(rows) == shown
    assert [row["value"] for row in rows] == [line["value"] for line in lines]
    assert lines[0]["topic"] == "orders" and json.loads(lines[0]["value"])["order"] == int(lines[0]["key"][1:])
    assert lines[0]["offset"] == 0 and lines[0]["timestamp"] == 1_767_225_600_000 + 1000 * int(lines[0]["key"][1:])
