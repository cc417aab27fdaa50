"""Records by the console's answers: pages of them in both directions, searches, fields of JSON, and their limits."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import spark_log
from spark_log.console import records
from spark_log.console.filters import Query, parse_field
from spark_log.console.site import Site
from spark_log.errors import InvalidRequest
from spark_log.serve.serve import Running
from spark_log.server.tokens import ANYBODY
from tests.console.conftest import HOSTILE
from tests.console.console_requests import Asking
from tests.server.asking import ADMIN


def at(found: Any) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in found["records"]]


# Promise: console.md#read-records
def test_the_newest_records_and_the_ones_before(reader: Asking) -> None:
    """Newest first; pages of older ones do not overlap and leave none out."""
    page = reader("records", topic="orders", limit=20)
    assert page["records"][0]["value"]["text"] == "in a transaction"
    seen, pages = at(page), 1
    while page["more"]:
        page = reader("records", topic="orders", limit=20, before=page["older"])
        seen, pages = seen + at(page), pages + 1
    assert len(seen) == len(set(seen)) == 101 and pages == 6


def test_a_page_of_more_partitions_than_rows_has_the_newest_records(running: Running, reader: Asking) -> None:
    """The page has as many records as were asked for; links lead to the others, also of many partitions."""
    count = 400
    with spark_log.connect(f"pylog://{running.coordinator.address}", token=ADMIN) as log:
        log.admin.create_topics([spark_log.NewTopic("wide", count, {"retention.ms": "-1"})])
        order = [n * 7 % count for n in range(count)]
        rows = [{"value": "x", "partition": n, "timestamp": 1_700_000_000_000 + at} for at, n in enumerate(order)]
        log.append("wide", rows)
        page = reader("records", topic="wide", limit=100)
        assert at(page) == [(n, 0) for n in reversed(order[-100:])]
        for first in range(200, -1, -100):
            page = reader("records", topic="wide", limit=100, before=page["older"])
            assert at(page) == [(n, 0) for n in reversed(order[first : first + 100])]
        assert not page["more"]
        page = reader("records", topic="wide", limit=100, **{"from": "earliest"})
        assert at(page) == [(n, 0) for n in order[:100]] and page["more"]
        page = reader("records", topic="wide", limit=100, cursor=page["newer"])
        assert at(page) == [(n, 0) for n in order[100:200]]
        log.admin.delete_topics(["wide"])


# Promise: console.md#read-records
def test_pages_forward_from_an_offset_and_a_time(reader: Asking) -> None:
    """A cursor continues where a page ended."""
    page = reader("records", topic="orders", limit=10, **{"from": "40"}, partition=0)
    assert at(page) == [(0, offset) for offset in range(40, 50)]
    assert at(reader("records", topic="orders", limit=2, partition=0, cursor=page["newer"])) == [(0, 50)]
    by_time = reader("records", topic="orders", limit=2, partition=1, **{"from": "@95000"})
    assert [row["timestamp"] for row in by_time["records"]] == [95000, 97000]
    beyond = reader("records", topic="orders", partition=0, **{"from": "999"})
    assert beyond["records"] == [] and not beyond["more"]


# Promise: console.md#read-records
def test_a_range_ends_where_it_should(reader: Asking) -> None:
    """Before an offset or a time, for pages of both directions and for a search; a cursor does not lead out of it."""
    page = reader("records", topic="orders", partition=0, to="5", **{"from": "3"})
    assert at(page) == [(0, 3), (0, 4)] and not page["more"]
    assert at(reader("records", topic="orders", partition=0, to="5", cursor="0:4")) == [(0, 4)]
    assert at(reader("records", topic="orders", partition=0, to="5", limit=2)) == [(0, 4), (0, 3)]
    by_time = reader("records", topic="orders", partition=1, to="@97000", **{"from": "@95000"})
    assert [row["timestamp"] for row in by_time["records"]] == [95000]
    found = reader("records", topic="orders", search="value 3", to="17")
    assert sorted(at(found)) == sorted((n % 2, 15 + n // 2) for n in range(4)) and not found["more"]


# Promise: console.md#read-records
def test_a_search_finds_keys_values_and_headers(reader: Asking) -> None:
    """In a range, up to a limit, and it continues behind the last one found."""
    first = reader("records", topic="orders", search="value 3", limit=3, **{"from": "earliest"})
    assert len(first["records"]) == 3 and first["more"]
    rest = reader("records", topic="orders", search="value 3", limit=50, cursor=first["newer"])
    assert sorted(at(first) + at(rest)) == sorted((n % 2, 15 + n // 2) for n in range(10))
    assert at(reader("records", topic="orders", key="k9-9")) == [(1, 49)]
    assert at(reader("records", topic="orders", key="k9")) == []
    assert at(reader("records", topic="billing.in", search="onerror")) == [(0, 0)]
    assert at(reader("records", topic="orders", search="value 3", **{"from": "20"})) == []


# Promise: console.md#read-records
def test_a_search_from_the_newest_record_goes_back_in_time(reader: Asking) -> None:
    """Unless it begins elsewhere; pages do not overlap and leave none out, and a range ends where it should."""
    page = reader("records", topic="orders", search="value", limit=7)
    assert page["records"][0]["timestamp"] == 99_000 and page["more"]
    seen, times = at(page), [row["timestamp"] for row in page["records"]]
    while page["more"]:
        page = reader("records", topic="orders", search="value", limit=7, before=page["older"])
        seen += at(page)
    assert times == sorted(times, reverse=True)
    assert len(seen) == len(set(seen)) == 100
    assert at(reader("records", topic="orders", search="value", limit=2, partition=0, to="10")) == [(0, 9), (0, 8)]
    oldest = reader("records", topic="orders", search="value", limit=2, **{"from": "earliest"})
    assert oldest["records"][0]["timestamp"] == 0


# Promise: console.md#read-records
@pytest.mark.parametrize(
    ("field", "found"),
    [
        ("status = paid", [1, 3]),
        ("status != paid", [0, 2]),
        ("customer.id=c2", [2]),
        ("n >= 2", [2, 3]),
        ("n < 10", [0, 1, 2, 3]),
        ("n = 3.0", [3]),
        ("note ~ a = b", [1]),
        ("tags.0 = red", [0, 1, 2, 3]),
        ("done = true", [0]),
        ("customer.name = x", []),
        ("n > many", []),
        ("status == paid", [1, 3]),
        ("note ~ = b", [1]),
        ("a.b = x", [0, 1]),
        ('"a <b>" ~ img', [2]),
        ('"a.b" = x', [0]),
        ("exact = 0.12345678901234567891", [3]),
        ("exact = 0.12345678901234567892", []),
        ("large = 9007199254740993.0", [3]),
    ],
)
def test_a_field_of_json_is_compared(log: spark_log.Log, field: str, found: list[int]) -> None:
    """Numbers as numbers; values that are not JSON, or lack the field, are left out."""
    log.create_topic(spark_log.NewTopic(topic := f"json-{field.encode().hex()}", 1))
    rows = [
        {"n": n, "status": "paid" if n % 2 else "open", "customer": {"id": f"c{n}"}, "tags": ["red"], "done": n == 0}
        for n in range(4)
    ]
    rows[1]["note"] = "a = b"
    rows[0]["a.b"], rows[1]["a"], rows[2]["a <b>"] = "x", {"b": "x"}, "<img>"
    values = [json.dumps(row) for row in rows]
    values[3] = values[3][:-1] + ', "exact": 0.12345678901234567891, "large": 9007199254740993.0}'
    log.append(topic, [*({"value": value} for value in values), {"value": "status n customer"}, {"value": None}])
    query = Query(field=parse_field(field))
    back = records.newest_matching(log, topic, [], None, 50, query)
    assert [row["offset"] for row in back["records"]] == found[::-1]
    forth = records.following(log, topic, [], {0: 0}, 50, query)
    assert [row["offset"] for row in forth["records"]] == found


# Promise: console.md#read-records
def test_a_field_of_a_typed_topic_is_compared(log: spark_log.Log) -> None:
    """Its columns are fields of a JSON object."""
    log.create_topic(spark_log.NewTopic("typed", 1, schema="id BIGINT, address STRUCT<city: STRING>"))
    log.append("typed", [{"id": n, "address": {"city": f"city {n}"}} for n in range(3)])
    page = records.newest_matching(log, "typed", [], None, 50, Query(field=parse_field("address.city = city 1")))
    assert at(page) == [(0, 1)]


@pytest.mark.parametrize(
    "text", ["", "status", "= paid", "n=>2", "n === 2", "status paid", "a.b.c", pytest.param(" " * 8000, id="long")]
)
def test_a_field_without_a_comparison_is_refused(text: str) -> None:
    """With an example."""
    with pytest.raises(InvalidRequest, match="status = paid"):
        parse_field(text)


# Promise: console.md#what-it-costs
def test_the_newest_of_large_records_that_are_stored_small(log: spark_log.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has the last ones, and no request of a search decodes more than its limit, from the newest record back."""
    log.create_topic(spark_log.NewTopic("large", 1))
    log.append("large", [{"value": b"x" * 1_000_000} for _ in range(40)])
    monkeypatch.setattr(records, "SEARCH_BYTES_MAX", 16 << 20)
    monkeypatch.setattr(records, "PAGE_BYTES_MAX", 4 << 20)
    page = records.newest(log, "large", [], None, 30)
    assert page["records"][0]["offset"] == 39 and page["newer"] == "0:40" and 2 < len(page["records"]) < 30
    before, requests = None, 0
    while requests == 0 or page["more"]:
        page = records.newest_matching(log, "large", [], before, 50, Query(text=b"y"))
        assert page["records"] == [] and page["read_bytes"] < records.SEARCH_BYTES_MAX + 3 * records.PAGE_BYTES_MAX
        before, requests = records.parse_cursor(page["older"]), requests + 1
    assert page["older"] == "0:0" and requests > 1


# Promise: console.md#what-it-costs
def test_a_search_for_a_field_parses_a_limited_number_of_values(
    log: spark_log.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request continues, and a value without the name of the field is not parsed."""
    log.create_topic(spark_log.NewTopic("parsed", 1))
    for n in range(6):
        log.append("parsed", [{"value": json.dumps({"n": n})}, {"value": "other"}])
    monkeypatch.setattr(records, "PARSED_MAX", 3)
    query = Query(field=parse_field("n = 0"))
    page = records.newest_matching(log, "parsed", [], None, 50, query)
    assert page["records"] == [] and page["more"] and page["read_records"] == 6
    page = records.newest_matching(log, "parsed", [], records.parse_cursor(page["older"]), 50, query)
    assert at(page) == [(0, 0)] and not page["more"]


# Promise: console.md#read-records
def test_bytes_that_are_no_text_and_html_come_as_they_are(reader: Asking) -> None:
    """The answer is JSON, whose type no browser takes for a page."""
    (row,) = reader("records", topic="billing.in")["records"]
    assert row["value"] == {"base64": "/wA=", "bytes": 2, "cut": False}
    assert row["key"]["text"] == HOSTILE and row["headers"][0][0]["text"] == HOSTILE
    _, headers, _ = reader.raw("/console/api/records?topic=billing.in")
    assert headers["Content-Type"].startswith("application/json") and headers["Cache-Control"] == "no-store"


# Promise: console.md#read-records
def test_large_values_are_cut_at_a_letter(log: spark_log.Log) -> None:
    """The page has their beginning, and one record more of it."""
    text = "é" * records.SHOWN_BYTES
    log.append("t", [{"value": "x" + text, "partition": 0}])
    page = records.newest(log, "t", [0], None, 5)
    value = page["records"][0]["value"]
    assert value == {"text": "x" + "é" * (records.SHOWN_BYTES // 2 - 1), "bytes": len(text.encode()) + 1, "cut": True}
    whole = records.one(log, "t", 0, page["records"][0]["offset"])
    assert whole is not None and whole["value"]["text"] == "x" + text
    assert records.one(log, "t", 0, 10_000) is None


# Promise: console.md#what-it-costs
def test_a_request_stops_at_its_budget_and_the_next_continues(
    log: spark_log.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of a search and of a page."""
    for n in range(6):
        log.append("t", [{"key": "k", "value": bytes(1000) + b"%d" % n, "partition": 1}])
    monkeypatch.setattr(records, "SEARCH_BYTES_MAX", 2500)
    monkeypatch.setattr(records, "PAGE_BYTES_MAX", 2500)
    found = records.following(log, "t", [1], {1: 0}, 50, Query(text=b"\x005"))
    assert found["records"] == [] and found["more"] and found["read_records"] == 3
    found = records.following(log, "t", [1], records.parse_cursor(found["newer"]), 50, Query(text=b"\x005"))
    assert at(found) == [(1, 5)]
    page = records.newest(log, "t", [1], None, 6)
    assert at(page) == [(1, 5), (1, 4)] and (page["older"], page["newer"]) == ("1:4", "1:6")


def test_pages_of_more_partitions_than_rows_go_through_all_partitions(log: spark_log.Log) -> None:
    """Each has its records in one entry, and the first records of one follow the first ones of another."""
    log.admin.create_topics([spark_log.NewTopic("wide", 12, {"retention.ms": "-1"})])
    times = [(n, 1_700_000_000_000 + 1000 * (12 * row + n)) for n in range(12) for row in range(20)]
    log.append("wide", [{"value": "x", "partition": n, "timestamp": ms} for n, ms in times])
    numbers, seen = range(12), list[tuple[int, int]]()
    page = records.newest(log, "wide", numbers, None, 4)
    for _ in range(3):
        seen += at(page)
        page = records.newest(log, "wide", numbers, records.parse_cursor(page["older"]), 4)
    assert sorted(seen) == [(n, 19) for n in numbers]
    first = records.following(log, "wide", numbers, dict.fromkeys(numbers, 0), 4, Query())
    second = records.following(log, "wide", numbers, records.parse_cursor(first["newer"]), 4, Query())
    assert at(first) + at(second) == [(n, 0) for n in range(8)]


# Promise: console.md#what-it-costs
def test_a_batch_that_is_too_large_is_named(log: spark_log.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that reads it."""
    log.append("t", [{"value": b"x", "partition": 0}])
    monkeypatch.setattr(records, "BATCH_BYTES_MAX", 10)
    with pytest.raises(InvalidRequest, match="pylog consume t -p 0"):
        records.newest(log, "t", [0], None, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1:",
        "a:1",
        "1:-1",
        "1:1,",
        "1:99999999999999999999",
        "z",
        "z!",
        "zMTox",
        pytest.param("1" * 5000 + ":1", id="long"),
    ],
)
def test_cursors_of_other_forms_are_refused(text: str) -> None:
    """They come from the address of a page, where anybody can write."""
    with pytest.raises(InvalidRequest, match="cursor"):
        records.parse_cursor(text)


def test_columns_of_a_page_are_those_of_a_scan() -> None:
    """A search reads them by name."""
    batch = pa.RecordBatch.from_pylist([], schema=spark_log.client.reader.scan_batches.SCAN_SCHEMA)
    assert records._shown(batch) == []


@pytest.mark.parametrize("query", [{}, {"search": "person"}, {"limit": "10"}])
def test_pages_and_searches_after_an_erasure_have_none_of_the_records(
    log: spark_log.Log, query: dict[str, str]
) -> None:
    """Answers with records are not kept, and a cursor of before continues in what is left."""
    topic = f"people-{len(query)}-{len(query.get('search', ''))}"
    log.create_topic(spark_log.NewTopic(topic, 1))
    for begin in range(0, 600, 100):
        log.append(topic, [{"key": b"k%d" % (n % 3), "value": b"person %d" % n} for n in range(begin, begin + 100)])
    site, asked = Site(lambda: log), {"topic": topic, **query}
    first = json.loads(site.ask(ANYBODY, "records", asked))
    assert "'k1'" in str(first["records"])
    log.admin.erase_records(topic, ["k1"])
    for more in ({}, {"before": first.get("older")}, {"cursor": first.get("newer")}):
        again = {name: cursor for name, cursor in more.items() if cursor}
        assert "'k1'" not in str(json.loads(site.ask(ANYBODY, "records", {**asked, **again}))["records"])
    site.close()
