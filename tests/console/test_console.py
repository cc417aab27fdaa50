"""The console's answers, through real coordinators: what a token sees, how much is read, and what is sent with it."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_log
from spark_log.console import http_routes, records
from spark_log.console.filters import Query, parse_field
from spark_log.console.history import History
from spark_log.console.of_coordinator import pages_of
from spark_log.console.site import ROWS_MAX, Site
from spark_log.console.standalone import ShownLog, Standalone
from spark_log.errors import InvalidRequest
from spark_log.model import TopicPartition
from spark_log.monitoring.embedded_metrics import EmbeddedMetrics
from spark_log.serve.serve import Running
from spark_log.server.tokens import ANYBODY, Grant
from tests.server.asking import ADMIN, BILLING, READ, TOKENS, eventually
from tests.services import Services

HOSTILE = "<img src=x onerror=alert(1)>"


class Asking:
    """Requests to a console."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address, self._token = address, token

    def raw(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        asked = urllib.request.Request(f"http://{self.address}{path}", method=method, headers=headers)
        if self._token is not None:
            asked.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(asked, timeout=20) as found:
                return found.status, dict(found.headers), found.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    def __call__(self, name: str, **query: object) -> Any:
        status, _, body = self.raw(f"/console/api/{name}?{urllib.parse.urlencode(query)}")
        assert status == 200, body
        return json.loads(body)

    def refused(self, name: str, **query: object) -> int:
        return self.raw(f"/console/api/{name}?{urllib.parse.urlencode(query)}")[0]


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def reader(running: Running) -> Asking:
    return Asking(running.coordinator.address, READ)


@pytest.fixture(scope="module")
def billing(running: Running) -> Asking:
    """With a token for the topics and groups of billing."""
    return Asking(running.coordinator.address, BILLING)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[spark_log.Log]:
    with spark_log.connect(tmp_path_factory.mktemp("embedded") / "log", durability="os") as found:
        found.create_topic(spark_log.NewTopic("t", 2))
        yield found


# ----------------------------------------------------------------------------------------------------------------- rights


# Promise: console.md#what-it-may-do
@pytest.mark.parametrize("token", [None, "not-one-that-it-knows"])
@pytest.mark.parametrize(
    "name", ["me", "topics", "topic", "segments", "records", "record", "groups", "group", "cluster", "health"]
)
def test_without_a_token_there_are_no_answers(running: Running, token: str | None, name: str) -> None:
    """The pages themselves hold no data, and are served to everybody: they ask for the token."""
    asking = Asking(running.coordinator.address, token)
    assert asking.refused(name, topic="orders") == 401
    assert asking.raw("/console/")[0] == 200


# Promise: console.md#what-it-may-do
def test_a_token_of_some_topics_sees_only_those(billing: Asking, reader: Asking) -> None:
    """In lists, in the topic itself, and in its records."""
    assert [row["topic"] for row in billing("topics")["topics"]] == ["billing.in"]
    assert {"orders", "billing.in"} <= {row["topic"] for row in reader("topics")["topics"]}
    for name in ("topic", "segments", "records", "record"):
        assert billing.refused(name, topic="orders") == 403
        assert billing.refused(name, topic="billing.in") == 200


# Promise: console.md#what-it-may-do
def test_a_token_of_some_groups_sees_only_those(billing: Asking, reader: Asking) -> None:
    """And of them no position in another topic."""
    assert [row["group"] for row in billing("groups")["groups"]] == ["billing.g"]
    assert billing.refused("group", group="reporting") == 403
    assert [row["topic"] for row in billing("group", group="billing.g")["offsets"]] == ["billing.in"]
    assert {row["topic"] for row in reader("group", group="billing.g")["offsets"]} == {"billing.in", "orders"}
    assert billing("groups")["groups"][0]["lag"] == 1


# Promise: console.md#what-it-may-do
def test_transactions_are_shown_to_their_tokens(billing: Asking, reader: Asking) -> None:
    """As the coordinator would let them use the id."""
    assert billing("transactions")["transactions"] == []
    (found,) = reader("transactions")["transactions"]
    assert (found["transaction"], found["state"], found["topics"]) == ("secret", "CompleteCommit", ["orders"])


# Promise: console.md#what-it-may-do
def test_only_an_admin_may_change(running: Running, reader: Asking) -> None:
    """Without tokens, everybody reads only."""
    assert not reader("me")["may_change"]
    assert Asking(running.coordinator.address, ADMIN)("me")["may_change"]


# Promise: console.md#what-it-may-do
def test_changes_are_those_of_any_client(running: Running) -> None:
    """The page sends commands as clients do, and a bad value is rejected."""
    admin = Asking(running.coordinator.address, ADMIN)

    def change(value: str | None) -> dict[str, Any]:
        me = admin("me")
        one = {"type": "set_configs", "name": "empty", "changes": {"retention.ms": value}}
        body = json.dumps({"cluster_id": me["cluster_id"], "since": me["version"], "commands": [one]}).encode()
        asked = urllib.request.Request(
            f"http://{admin.address}/v1/commands", body, {"Authorization": f"Bearer {ADMIN}"}
        )
        with urllib.request.urlopen(asked, timeout=20) as found:
            outcome: dict[str, Any] = json.loads(found.read())["outcomes"][0]
            return outcome

    assert change("1000").get("failure") is None
    assert "retention.ms" in change("soon")["failure"]["message"]
    assert change(None).get("failure") is None


# ------------------------------------------------------------------------------------------------------------------- http


# Promise: console.md#the-console
def test_the_pages_may_run_no_script_of_others(running: Running) -> None:
    """A strict policy, also for the redirect, and no part of a page comes from elsewhere."""
    for path in ("/", "/console", "/console/", "/console/app.js", "/console/app.css"):
        status, headers, body = Asking(running.coordinator.address).raw(path)
        policy = headers["Content-Security-Policy"]
        assert status == 200 and "default-src 'none'" in policy and "unsafe" not in policy
        assert "script-src 'self'" in policy and "require-trusted-types-for 'script'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
        assert not re.search(rb"https?://(?!www\.w3\.org)", body)


# Promise: console.md#what-it-may-do
def test_the_pages_build_no_html_from_text() -> None:
    """No part of a page uses a way to parse text as HTML, or a style or script in it."""
    ways = "innerHTML|outerHTML|insertAdjacentHTML|document.write|DOMParser|createContextualFragment|eval\\(|setHTML"
    for path, file in http_routes.files().items():
        text = file.body.decode()
        assert not re.search(ways, text), path
        assert not re.search(r"<style|style=|<script>|\son[a-z]+=", text) or not path.endswith(".html"), path


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/console/nothing.js", 404),
        ("/console/../server.py", 404),
        ("/console/%2e%2e/http_routes.py", 404),
        ("/console/api/nothing", 400),
        ("/console/api/topic?topic=nothing", 400),
        ("/console/api/topic", 400),
        ("/console/api/group?group=nothing", 400),
        ("/console/api/records?topic=orders&from=yesterday", 400),
        ("/console/api/records?topic=orders&to=tomorrow", 400),
        ("/console/api/records?topic=orders&cursor=x", 400),
        ("/console/api/records?topic=orders&field=status", 400),
        ("/console/api/records?topic=orders&partition=-1", 400),
        ("/console/api/records?topic=orders&partition=9", 400),
        ("/console/api/records?topic=orders&limit=many", 400),
        ("/console/api/record?topic=orders&partition=9", 400),
    ],
)
def test_wrong_requests_are_refused(reader: Asking, path: str, status: int) -> None:
    """With an error that names what is wrong."""
    found, _, body = reader.raw(path)
    assert found == status and json.loads(body)["message"]


# Promise: console.md#what-it-may-do
def test_pages_are_read_only(reader: Asking) -> None:
    """No other method."""
    assert [reader.raw("/console/api/topics", method)[0] for method in ("POST", "PUT", "DELETE")] == [405] * 3


def test_paths_beside_the_console_are_as_they_were(running: Running) -> None:
    """They are answered by the protocol."""
    assert Asking(running.coordinator.address).raw("/nothing")[0] == 404
    assert Asking(running.coordinator.address).raw("/health")[0] == 200


def test_a_standby_has_the_console_too(running: Running) -> None:
    """It shows the state that it follows."""
    services = Services()
    standby = services.start(Path("standby"), url=running.coordinator.storage, pages=pages_of, tokens=TOKENS)
    try:
        asking = Asking(standby.coordinator.address, READ)
        assert asking("me")["coordinator"] == running.coordinator.address
        eventually(lambda: "orders" in [row["topic"] for row in asking("topics")["topics"]])
        assert asking("records", topic="orders", limit=1)["records"][0]["value"]["text"] == "in a transaction"
    finally:
        services.close()


# ---------------------------------------------------------------------------------------------------------------- records


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
    """As many as were asked for; the next pages have the others, also of many partitions, by links."""
    count = 1600
    with spark_log.connect(f"pylog://{running.coordinator.address}", token=ADMIN) as log:
        log.admin.create_topics([spark_log.NewTopic("wide", count, {"retention.ms": "-1"})])
        order = [n * 7 % count for n in range(count)]
        rows = [{"value": "x", "partition": n, "timestamp": 1_700_000_000_000 + at} for at, n in enumerate(order)]
        log.append("wide", rows)
        page = reader("records", topic="wide", limit=200)
        assert at(page) == [(n, 0) for n in reversed(order[-200:])]
        for first in range(1200, -1, -200):
            page = reader("records", topic="wide", limit=200, before=page["older"])
            assert at(page) == [(n, 0) for n in reversed(order[first : first + 200])]
        assert not page["more"]
        page = reader("records", topic="wide", limit=200, **{"from": "earliest"})
        assert at(page) == [(n, 0) for n in order[:200]] and page["more"]
        page = reader("records", topic="wide", limit=200, cursor=page["newer"])
        assert at(page) == [(n, 0) for n in order[200:400]]
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


@pytest.mark.parametrize("text", ["", "status", "= paid", "status paid", "a.b.c", pytest.param(" " * 8000, id="long")])
def test_a_field_without_a_comparison_is_refused(text: str) -> None:
    """With an example."""
    with pytest.raises(InvalidRequest, match="status = paid"):
        parse_field(text)


# Promise: console.md#what-it-costs
def test_the_newest_of_large_records_that_are_stored_small(log: spark_log.Log) -> None:
    """A page has the last ones, and no request of a search decodes more than its limit, from the newest record back."""
    log.create_topic(spark_log.NewTopic("large", 1))
    log.append("large", [{"value": b"x" * 1_000_000} for _ in range(200)])
    page = records.newest(log, "large", [], None, 50)
    assert page["records"][0]["offset"] == 199 and page["newer"] == "0:200" and 10 < len(page["records"]) < 50
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
    """As JSON, whose type no browser takes for a page."""
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


# ------------------------------------------------------------------------------------------------------------------ views


# Promise: console.md#see-how-a-log-is-doing
def test_a_topic_has_its_partitions_configs_and_readers(reader: Asking) -> None:
    """From the state alone."""
    found = reader("topic", topic="orders")
    assert [(row["partition"], row["start"], row["end"]) for row in found["rows"]] == [(0, 0, 51), (1, 0, 50)]
    assert found["rows"][0]["leader"] == 0 and found["rows"][0]["isr"] == [0]
    assert {row["config"]: row["source"] for row in found["configs"]}["retention.ms"] == "default"
    assert found["readers"] == [{"group": "billing.g", "lag": 41}, {"group": "reporting", "lag": 50}]


# Promise: console.md#see-how-a-log-is-doing
def test_segments_have_their_times(reader: Asking) -> None:
    """Slices, or pieces of an index."""
    found = reader("segments", topic="orders", partition=1)
    assert sum(row["end"] - row["start"] for row in found["segments"]) == 50
    assert found["segments"][0]["min_ms"] == 1000 and found["segments"][-1]["max_ms"] == 99000


# Promise: console.md#what-it-costs
def test_lists_are_bounded_and_searched(log: spark_log.Log) -> None:
    """A log may have more topics than a page."""
    site = Site(lambda: log)
    many = ROWS_MAX + 5
    log.admin.create_topics([spark_log.NewTopic(f"many-{n}") for n in range(many)])
    found = json.loads(site.ask(ANYBODY, "topics", {"search": "MANY"}))
    assert len(found["topics"]) == ROWS_MAX and found["total"] == many
    assert [row["topic"] for row in json.loads(site.ask(ANYBODY, "topics", {"search": "many-503"}))["topics"]] == [
        "many-503"
    ]
    site.close()


# Promise: console.md#what-it-costs
def test_an_answer_is_kept_for_a_moment_and_only_for_its_token(
    log: spark_log.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a page that asks again and again costs little."""
    monkeypatch.setattr("spark_log.console.site.KEPT_S", 60.0)
    site = Site(lambda: log)
    first = site.ask(ANYBODY, "topics", {"search": "brief"})
    log.create_topic(spark_log.NewTopic("brief"))
    assert site.ask(ANYBODY, "topics", {"search": "brief"}) == first
    other = json.loads(site.ask(Grant("other", "read"), "topics", {"search": "brief"}))
    assert [row["topic"] for row in other["topics"]] == ["brief"]
    site.close()


# Promise: console.md#see-how-a-log-is-doing
def test_the_rest_answers(reader: Asking) -> None:
    """Whole log, health, maintenance, brokers, queries."""
    assert reader("cluster")["topics"] == 3
    assert reader("health")["healthy"]
    assert reader("maintenance")["moving"] == []
    assert [row["broker"] for row in reader("brokers")["brokers"]] == [0]
    assert reader("queries")["sinks"] == []


# Promise: console.md#see-how-a-log-is-doing
def test_samples_are_bounded_and_give_rates() -> None:
    """Old samples and further numbers are dropped."""
    history = History(samples_max=4, series_max=2)
    for n in range(6):
        history.note(1000 * n, {"a": 10 * n, "b": 0, "c": 1})
    assert history.of("a") == [(1000 * n, 10 * n) for n in (2, 3, 4, 5)]
    assert history.of("a", 2) == [(3000, 30), (5000, 50)]
    assert history.rate("a") == 10 and history.rate("c") is None and history.of("c") == []
    history.note(6000, {"a": 0})
    assert history.of("b") == [] and history.rate("a") == 0


# ------------------------------------------------------------------------------------------------------ without coordinator


# Promise: console.md#the-console
def test_a_console_without_a_coordinator(log: spark_log.Log) -> None:
    """It has one token, listens on this machine only, and refuses other names of it: a web page can choose those."""
    services, token = Services(), "token-of-this-very-run"
    console = Standalone([ShownLog(Site(lambda: log), EmbeddedMetrics(log).text)], token)
    address = services.run(console.start("127.0.0.1:0"))
    try:
        assert Asking(address).refused("topics") == 401
        me = Asking(address, token)("me")
        assert (me["name"], me["role"], me["may_change"], me["coordinator"]) == ("console", "read", False, "")
        assert Asking(address, token)("health")["healthy"]
        assert Asking(address).raw("/metrics")[0] == 401
        assert 'pylog_topic_records{topic="' in Asking(address, token).raw("/metrics")[2].decode()
        assert Asking(address, token).raw("/console/api/me", Host="evil.example")[0] == 421
        assert Asking(address, token).raw("/v1/commands", "POST")[0] == 404
        with pytest.raises(InvalidRequest, match="other machines"):
            services.run(Standalone([], token).start("0.0.0.0:0"))
    finally:
        services.run(console.stop())
        services.close()


class StuckSite:
    """Answers as `Site` does, from a storage that hangs until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def reads(self, name: str) -> bool | None:
        return name == "records"

    def ask(self, grant: Grant, name: str, query: Mapping[str, str]) -> bytes:
        if name == "records":
            self.released.wait(60)
        return b"{}"

    def close(self) -> None:
        self.released.set()


# Promise: console.md#what-it-costs
def test_a_storage_that_hangs_stops_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that read it fail in time, further ones are refused, and lists are answered meanwhile."""
    monkeypatch.setattr(http_routes, "ANSWER_S", 0.3)
    monkeypatch.setattr(http_routes, "WAITING_MAX", 3)
    services, site, token = Services(), StuckSite(), "token-of-this-very-run"
    console = Standalone([ShownLog(site, str)], token)
    asking = Asking(services.run(console.start("127.0.0.1:0")), token)
    try:
        assert [asking.refused("records") for _ in range(4)] == [408, 408, 408, 429]
        monkeypatch.setattr(http_routes, "ANSWER_S", 60.0)
        assert asking("topics") == {}
        site.released.set()
        eventually(lambda: asking.refused("records") == 200)
    finally:
        services.run(console.stop())
        services.close()


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
