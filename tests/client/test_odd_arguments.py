"""Each public call accepts an odd argument, or refuses it alone: the log and its other clients continue."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from spark_log import Log, TopicPartition, connect
from spark_log.client.client_settings import CONSUMER, PRODUCER, TRANSACTION
from spark_log.client.consumer.bookmark import Bookmark
from spark_log.client.consumer.consumer import Consumer
from spark_log.client.producer.producer import Producer
from spark_log.client.producer.transaction import Transaction
from spark_log.errors import SparkLogError
from spark_log.recovery.verify import verify
from tests.client.logs import new_log


class Unshown:
    """Its repr raises."""

    def __repr__(self) -> NoReturn:
        raise RuntimeError("no repr")


class Undone(Exception):
    """Ends a transaction without a commit."""


ODD: tuple[Any, ...] = ("\udcff", "a\x1b]0;x\x07\n", "", math.nan, 10**5000, {}, Unshown())
Call = Callable[..., object]


def forms(odd: Any) -> Iterator[Any]:
    """The value in each place of an argument that has one."""
    yield odd
    yield [odd]
    if not isinstance(odd, dict):
        yield {odd: odd}
        yield {TopicPartition("t", 0): odd, TopicPartition(odd, odd): 0}
        yield [TopicPartition("t", odd)]


def given(call: Call) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments of which one is odd."""
    known = inspect.signature(call).parameters.values()
    named = [one for one in known if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    required = {one.name: usual(one.name) for one in named if one.default is one.empty}
    for one in known:
        for form in (form for odd in ODD for form in forms(odd)):
            if one.kind is one.VAR_POSITIONAL:
                yield (*required.values(), form), {}
            elif one.kind is one.VAR_KEYWORD:
                yield (), {**required, "client_id": form}
            else:
                yield (), {**required, one.name: form}


def usual(name: str) -> Any:
    match name:
        case "topic" | "name" | "group" | "transactional_id":
            return "t"
        case "partition":
            return TopicPartition("t", 0)
        case "offset":
            return 0
    return ["t"]


def public(owner: object) -> Iterator[tuple[str, Call]]:
    for name, call in inspect.getmembers(owner, inspect.ismethod):
        if not name.startswith("_"):
            yield name, call


def outcome(call: Call, *arguments: Any, **named: Any) -> Exception | None:
    """The error of a call, if it is not one of pylog's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            used(call(*arguments, **named))
    except (SparkLogError, Undone):
        return None
    except Exception as error:  # noqa: BLE001  what a user would get
        return error
    return None


def used(found: object) -> None:
    """Do with a result what its user does next."""
    match found:
        case Producer():
            with found:
                found.send("t", b"of an odd producer").result(60)
        case Consumer():
            with found:
                found.poll(0)
        case Bookmark():
            with found:
                assert found.options
        case Transaction():
            with found:
                found.send("t", b"of an odd transaction")
                raise Undone


def raw(owner: Callable[[], object], name: str, call: Call) -> Iterator[str]:
    """The errors of a public call that are not pylog's, with the arguments.

    owner:  gives the object for each attempt.
    """
    for arguments, named in given(call):
        error = outcome(getattr(owner(), name), *arguments, **named)
        if error is not None:
            yield f"{name}: {type(error).__name__} for {[type(one).__name__ for one in (*arguments, *named.values())]}"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Beside the odd calls, a producer continues to send."""
    with new_log(tmp_path, t=1) as log, log.producer() as neighbour:
        log.append("t", [{"value": b"x"}])
        yield log
        assert neighbour.send("t", b"x").result(60).topic == "t"
        assert verify(log) == []


def test_calls_of_a_log_and_its_admin(log: Log) -> None:
    """All calls are found by their names, so a new one is called, too."""
    for owner in (log, log.admin):
        found = [error for name, call in public(owner) for error in raw(lambda owner=owner: owner, name, call)]
        assert found == []


def test_calls_of_a_producer(log: Log) -> None:
    with log.producer() as first:
        assert [error for name, call in public(first) for error in raw(log.producer, name, call)] == []


def test_calls_of_a_consumer(log: Log) -> None:
    def assigned() -> Consumer:
        consumer = log.consumer(group_id="g", enable_auto_commit=False)
        consumer.assign([TopicPartition("t", 0)])
        return consumer

    def fresh() -> Consumer:
        return log.consumer(group_id="g", enable_auto_commit=False)

    for owner in (assigned, fresh):
        assert [error for name, call in public(owner()) for error in raw(owner, name, call)] == []


def test_calls_of_a_transaction(log: Log) -> None:
    def entered() -> Transaction:
        return log.transaction("etl").__enter__()

    assert [error for name, call in public(entered()) for error in raw(entered, name, call)] == []


@pytest.mark.parametrize(
    ("kind", "settings"), [("producer", PRODUCER), ("consumer", CONSUMER), ("transaction", TRANSACTION)]
)
def test_settings(log: Log, kind: str, settings: Mapping[str, object]) -> None:
    first = {"producer": (), "consumer": ("t",), "transaction": ("etl",)}[kind]
    odd = [(name, form) for name in (*settings, "\udcff", "a\x1b") for one in ODD for form in forms(one)]
    errors = [(name, error) for name, form in odd if (error := outcome(getattr(log, kind), *first, **{name: form}))]
    assert errors == []


def test_names_of_bookmarks(log: Log) -> None:
    for odd in ODD:
        assert outcome(log.bookmark, odd, "t") is None
        assert outcome(log.bookmark, "nightly", odd) is None


@pytest.mark.parametrize(
    ("call", "arguments", "said"),
    [
        ("append", {"topic": None, "data": [{"value": b"x"}]}, "append: invalid value None for topic: expected str"),
        ("fence_broker", {"broker": "x"}, "fence_broker: invalid value 'x' for broker: expected int"),
        ("fence_broker", {"broker": -5}, "fence_broker: broker: expected `int` >= 0, got -5"),
        (
            "fence_broker",
            {"broker": 1, "reason": "\udcff"},
            r"invalid value '\udcff' for reason: expected str, with text",
        ),
        ("reset_clock", {"force": None}, "reset_clock: invalid value None for force: expected bool"),
        (
            "delete_records",
            {"before": "sales"},
            "delete_records: invalid value 'sales' for before: expected Mapping[",
        ),
        ("create_partitions", {"totals": "sales"}, "create_partitions: invalid value 'sales' for totals: expected"),
        ("list_offsets", {"positions": b"orders"}, "list_offsets: invalid value b'orders' for positions: expected"),
        ("fence_producers", {"transactional_ids": ["\udcff"]}, r"invalid value '\udcff' for transactional_ids"),
    ],
)
def test_the_message_names_the_argument_and_the_value(
    log: Log, call: str, arguments: dict[str, Any], said: str
) -> None:
    """A field of a command does not allow the value, or a text is in place of several values."""
    owner = log if hasattr(log, call) else log.admin
    with pytest.raises(SparkLogError) as raised:
        getattr(owner, call)(**arguments)
    assert said in str(raised.value)


def test_no_message_is_that_of_a_codec(log: Log) -> None:
    """Each has words of pylog, for each public call."""
    words = ("codec", "Encoding objects", "got `")
    found = [
        f"{name}: {error}"
        for owner in (log, log.admin)
        for name, call in public(owner)
        for arguments, named in given(call)
        if (error := refusal(call, arguments, named)) and any(word in error for word in words)
    ]
    assert found == []


def refusal(call: Call, arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    try:
        used(call(*arguments, **named))
    except (SparkLogError, Undone) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["url", "token", "durability", "create", "client_rack", "storage_options"])
def test_connect(tmp_path: Path, name: str) -> None:
    with connect(tmp_path / "log", create=True) as log:
        own = log.admin.describe_cluster().cluster_id
    for one in ODD:
        for odd in forms(one):
            settings: dict[str, Any] = {"url": tmp_path / "log", "create": False, name: odd}
            with suppress(SparkLogError):
                connect(**settings).close()
    with connect(tmp_path / "log", create=False) as log:
        assert log.admin.describe_cluster().cluster_id == own
