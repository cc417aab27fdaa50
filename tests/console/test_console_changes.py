"""Changes by the console: a dry run that says what will happen, then the command of any client, for an admin alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log.console.local_changes import LocalChanges
from spark_log.console.site import Site
from spark_log.console.standalone import ShownLog, Standalone
from spark_log.errors import AuthorizationFailed, SparkLogError
from spark_log.metadata.commands import Fence
from spark_log.model import OffsetAndMetadata, TopicPartition
from spark_log.serve.serve import Running
from spark_log.server.tokens import Grant
from tests.console.browser import Browser
from tests.console.conftest import go, sign_in
from tests.console.console_requests import Asking
from tests.server.asking import ADMIN, READ, eventually
from tests.services import Services

TOKEN, READER = "token-of-this-very-run", "token-of-the-scraper"


def send(address: str, token: str, cluster_id: str, command: str) -> dict[str, Any]:
    """The outcome of a command, as the page sends it; the failure of the request, if that fails."""
    body = f'{{"cluster_id": {json.dumps(cluster_id)}, "since": 0, "commands": [{command}]}}'.encode()
    asked = urllib.request.Request(f"http://{address}/v1/commands", body, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as found:
            outcome: dict[str, Any] = json.loads(found.read())["outcomes"][0]
            return outcome
    except urllib.error.HTTPError as error:
        with error:
            failure: dict[str, Any] = json.loads(error.read())
            return failure


@contextmanager
def local(log: spark_log.Log, *, changes: bool = True) -> Iterator[str]:
    """`pylog console`, with `--admin`.  Gives its address."""
    services = Services()
    shown = ShownLog(Site(lambda: log), str, LocalChanges(log) if changes else None)
    console = Standalone([shown], TOKEN, READER)
    try:
        yield services.run(console.start("127.0.0.1:0"))
    finally:
        services.run(console.stop())
        services.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[spark_log.Log]:
    with spark_log.connect(tmp_path / "log", durability="os") as found:
        found.create_topic(spark_log.NewTopic("orders", 2))
        found.append("orders", [{"value": f"{n}", "partition": n % 2} for n in range(10)])
        found.admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", n): 3 for n in range(2)})
        found.create_topic(spark_log.NewTopic("gone", 1))
        found.admin.alter_consumer_group_offsets("of-deleted", {TopicPartition("gone", 0): 0})
        found.admin.delete_topics(["gone"])
        yield found


# Promise: console.md#change-the-log
def test_a_dry_run_says_what_a_change_will_do_and_changes_nothing(log: spark_log.Log) -> None:
    """Its command then does that."""
    with local(log) as address:
        admin = Asking(address, TOKEN)

        def plan(**query: object) -> Any:
            before = log.journal.refresh().version
            found = admin("plan", **query)
            assert log.journal.refresh().version == before
            return found

        def make(found: Any) -> None:
            assert send(address, TOKEN, log.cluster_id, found["command"]).get("failure") is None

        found = plan(action="create", topic="clicks", partitions=3, configs="retention.ms = 5000\n", schema="id BIGINT")
        assert found["does"] == "Creates topic clicks with 3 partitions in the log's own root."
        assert {"config": "retention.ms", "value": "5000"} in found["rows"]
        make(found)
        assert len(log.admin.describe_topics(["clicks"])["clicks"].partitions) == 3
        assert len(log.admin.describe_schema("clicks")) == 1

        found = plan(action="partitions", topic="orders", partitions=5)
        assert found["does"] == "Adds 3 partitions to topic orders, which then has 5." and len(found["notes"]) == 2
        make(found)
        assert len(log.admin.describe_topics(["orders"])["orders"].partitions) == 5

        found = plan(action="reset", group="billing", topic="orders", to="earliest")
        assert found["does"].startswith("Moves group billing in 5 partitions: it reads 6 records again, and skips 0")
        found = plan(action="reset", group="billing", to="latest")
        assert "it reads 0 records again, and skips 4 records" in found["does"]
        assert found["rows"] == [{"topic": "orders", "partition": n, "from": 3, "to": 5} for n in range(2)]
        make(found)
        assert {at.offset for at in log.admin.list_consumer_group_offsets("billing").values()} == {5}

        found = plan(action="delete", topic="orders")
        assert found["does"] == (
            "Deletes topic orders with 10 records in 5 partitions, and the positions of 1 group in it."
        )
        assert found["rows"] == [{"group": "billing", "lag": 0}] and "cannot be undone" in found["notes"][0]
        make(found)
        assert log.admin.list_topics() == ["clicks"]


# Promise: tasks/flow.md#keep-state-by-key
def test_a_reset_forward_keeps_the_state_of_a_flow(log: spark_log.Log) -> None:
    """A reset back does not, so that the flow refuses to count records twice."""
    text = f"state {log.journal.refresh().names['orders']} 2"
    log.admin.alter_consumer_group_offsets("flow", {TopicPartition("orders", 0): OffsetAndMetadata(2, text)})
    with local(log) as address:
        for to, kept in (("latest", text), ("earliest", "")):
            found = Asking(address, TOKEN)("plan", action="reset", group="flow", to=to)
            assert send(address, TOKEN, log.cluster_id, found["command"]).get("failure") is None
            (at,) = log.admin.list_consumer_group_offsets("flow").values()
            assert at.metadata == kept


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"action": "nothing"}, "create, delete, partitions, reset"),
        ({"action": "create", "topic": "orders", "partitions": 1}, "exists already"),
        ({"action": "create", "topic": "new", "partitions": 0}, "0 partitions"),
        ({"action": "create", "topic": "new", "partitions": "many"}, "not a number"),
        ({"action": "create", "topic": "new", "partitions": 1, "configs": "retention.ms"}, "of the form"),
        ({"action": "create", "topic": "new", "partitions": 1, "configs": "retention.m=1"}, "retention.ms"),
        ({"action": "create", "topic": "new", "partitions": 1, "schema": "id"}, "DDL does not parse"),
        ({"action": "create", "topic": "new", "partitions": 1, "replication_factor": 3}, "3"),
        ({"action": "partitions", "topic": "orders", "partitions": 1}, "1"),
        ({"action": "partitions", "topic": "lost", "partitions": 5}, "lost"),
        ({"action": "delete", "topic": "lost"}, "lost"),
        ({"action": "reset", "group": "lost", "to": "earliest"}, "lost"),
        ({"action": "reset", "group": "billing", "to": "somewhere"}, "somewhere"),
        ({"action": "reset", "group": "of-deleted", "to": "earliest"}, "no position in a topic that exists"),
    ],
)
def test_a_dry_run_is_refused_as_the_change_would_be(log: spark_log.Log, query: dict[str, object], says: str) -> None:
    """With the same message."""
    console = Site(lambda: log)
    grant = Grant("boss", "admin")
    with pytest.raises(SparkLogError, match=says):
        console.ask(grant, "plan", {name: str(value) for name, value in query.items()})
    console.close()


# Promise: console.md#what-it-may-do
def test_a_dry_run_shows_a_limited_token_nothing_of_others(log: spark_log.Log) -> None:
    """Neither their groups, nor whether a topic or a group of others exists."""
    console = Site(lambda: log)
    grant = Grant("team", "admin", ("orders",), ("team.",))
    found = json.loads(console.ask(grant, "plan", {"action": "delete", "topic": "orders"}))
    assert (found["rows"], found["total"]) == ([], 0) and "the positions of 1 group in it" in found["does"]
    reset = {"action": "reset", "group": "team.g", "to": "earliest"}
    for query in (
        {"action": "delete", "topic": "clicks"},
        {"action": "delete", "topic": "nowhere"},
        {**reset, "topic": "nowhere"},
        {**reset, "group": "billing"},
        {**reset, "group": "nobody"},
        {**reset, "topic": "orders", "to": "group:billing"},
    ):
        with pytest.raises(AuthorizationFailed, match="the token 'team' is for"):
            console.ask(grant, "plan", query)
    with pytest.raises(AuthorizationFailed, match="groups that begin with team"):
        console.ask(grant, "records", {"topic": "orders", "from": "group:billing"})
    console.close()


# Promise: console.md#change-the-log
def test_only_the_printed_token_of_admin_changes(log: spark_log.Log) -> None:
    """A token of a file only reads, and so does each without --admin; changes that pages do not offer are refused."""
    with local(log) as address:
        command = Asking(address, TOKEN)("plan", action="delete", topic="orders")["command"]
        reader = Asking(address, READER)
        assert reader("me")["may_change"] is False and Asking(address, TOKEN)("me")["may_change"] is True
        assert reader.refused("plan", action="delete", topic="orders") == 403
        assert send(address, READER, log.cluster_id, command)["error"] == "AuthorizationFailed"
        assert send(address, "x", log.cluster_id, command)["error"] == "AuthenticationFailed"
        assert "another log" in send(address, TOKEN, "x", command)["message"]
        other = json.dumps({"type": "fence"})
        assert Fence().parts() and "no such change" in send(address, TOKEN, log.cluster_id, other)["message"]
        assert Asking(address, TOKEN).raw("/v1/commands")[0] == 405
        assert Asking(address, TOKEN).raw("/v1/commands", "POST", Host="evil.example")[0] == 421
    with local(log, changes=False) as address:
        assert Asking(address, TOKEN)("me")["may_change"] is False
        assert Asking(address, TOKEN).raw("/v1/commands", "POST")[0] == 404
    assert log.admin.list_topics() == ["orders"]


# Promise: console.md#change-the-log
def test_a_change_meanwhile_is_not_overwritten(log: spark_log.Log) -> None:
    """A new topic of the same name is not the one of the dry run."""
    with local(log) as address:
        found = Asking(address, TOKEN)("plan", action="delete", topic="orders")
        log.admin.delete_topics(["orders"])
        log.create_topic(spark_log.NewTopic("orders", 1))
        assert send(address, TOKEN, log.cluster_id, found["command"]).get("failure") is None
        assert log.admin.list_topics() == ["orders"]
        found = Asking(address, TOKEN)("plan", action="partitions", topic="orders", partitions=4)
        log.admin.delete_topics(["orders"])
        log.create_topic(spark_log.NewTopic("orders", 1))
        failure = send(address, TOKEN, log.cluster_id, found["command"])["failure"]
        assert "another one has its name" in str(failure) and len(log.admin.describe_topics()["orders"].partitions) == 1


# Promise: console.md#change-the-log
def test_back_leaves_a_dialog(at_width: Browser) -> None:
    """So that none is over the page of something else."""
    go(at_width, "#/topics")
    go(at_width, "#/groups")
    at_width.press("?")
    at_width.until("document.querySelector('dialog[open]')")
    at_width.value("history.back()")
    at_width.until("location.hash === '#/topics' && !document.querySelector('dialog')")
    go(at_width, "#/")


def submit(page: Browser, **values: str) -> None:
    for name, value in values.items():
        page.value(f"document.querySelector('dialog [name={name}]').value = {value!r}")
    page.value("document.querySelector('dialog form').requestSubmit()")


def press(page: Browser, text: str) -> None:
    page.until(f"[...document.querySelectorAll('button.change')].some((one) => one.textContent === {text!r})")
    page.value(f"[...document.querySelectorAll('button.change')].find((one) => one.textContent === {text!r}).click()")
    page.until("document.querySelector('dialog[open]')")


# Promise: console.md#change-the-log
def test_an_admin_makes_changes_in_the_browser(at_width: Browser, served: Running) -> None:
    """Each after its dry run; a topic is deleted after its name is typed; a reader sees none of the buttons."""
    go(at_width, "#/topics/orders/records")
    assert at_width.value("document.querySelectorAll('button.change').length") == 0
    sign_in(at_width, ADMIN)
    state = lambda: served.coordinator.state  # noqa: E731
    try:
        go(at_width, "#/topics")
        press(at_width, "Create topic")
        submit(at_width, topic="made", partitions="0")
        at_width.until("document.querySelector('dialog .notice')?.textContent.includes('0 partitions')")
        submit(at_width, partitions="2", configs="retention.ms=86400000")
        at_width.until("document.querySelector('#plan')?.textContent.includes('Creates topic made with 2 partitions')")
        assert "made" not in state().names
        assert at_width.value("document.querySelector('dialog').getBoundingClientRect().right <= innerWidth")
        at_width.value("document.querySelector('#make').click()")
        at_width.until("!document.querySelector('dialog')")
        assert state().topics[state().names["made"]].partitions == 2

        go(at_width, "#/topics/made/partitions")
        press(at_width, "Add partitions")
        submit(at_width, partitions="4")
        at_width.until("document.querySelector('#plan')?.textContent.includes('which then has 4')")
        at_width.value("document.querySelector('#make').click()")
        eventually(lambda: state().topics[state().names["made"]].partitions == 4)

        go(at_width, "#/groups/billing")
        press(at_width, "Reset")
        submit(at_width, to="latest")
        at_width.until("document.querySelector('#plan')?.textContent.includes('Moves group billing in 2 partitions')")
        at_width.value("document.querySelector('#make').click()")
        at_width.until("!document.querySelector('dialog')")
        assert sum(at.offset for at in state().groups["billing"].offsets.values()) == 30

        go(at_width, "#/topics/made/records")
        press(at_width, "Delete")
        at_width.until("document.querySelector('#plan')?.textContent.includes('Deletes topic made')")
        assert at_width.value("document.querySelector('#make').disabled")
        at_width.value("document.querySelector('#confirm').focus()")
        at_width.send("Input.insertText", text="made")
        at_width.until("!document.querySelector('#make').disabled")
        at_width.value("document.querySelector('#make').click()")
        at_width.until("location.hash === '#/topics'")
        assert "made" not in state().names
    finally:
        with spark_log.connect(f"pylog://{served.coordinator.address}", token=ADMIN) as client:
            client.admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", n): 0 for n in range(2)})
        sign_in(at_width, READ)
