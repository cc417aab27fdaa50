"""The console's answers, through real coordinators: what a token sees, how much is read, and what is sent with it."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log.console import http_routes
from spark_log.console.history import History
from spark_log.console.of_coordinator import pages_of
from spark_log.console.site import ROWS_MAX, Site
from spark_log.console.standalone import ShownLog, Standalone
from spark_log.errors import InvalidRequest
from spark_log.monitoring.embedded_metrics import EmbeddedMetrics
from spark_log.serve.serve import Running
from spark_log.server.tokens import ANYBODY, Grant
from tests.console.console_requests import Asking
from tests.server.asking import ADMIN, READ, TOKENS, eventually
from tests.services import Services

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
        with urllib.request.urlopen(asked, timeout=60) as found:
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
