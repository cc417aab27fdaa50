"""State by key: what a function gets and returns, and that it is exactly once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import spark_log
from simulation.harness.broker_roots import commit_on_leader, register_broker
from simulation.harness.stores import Faults, FaultyStore
from spark_log import NewTopic, OffsetAndMetadata, TopicPartition
from spark_log.errors import FunctionFailed, InvalidRequest, UnknownTopicOrPartition
from spark_log.flows.flow import Flow
from spark_log.flows.flow_options import flow_options
from spark_log.journal.journal import Journal
from spark_log.replication.replicator import Replicator
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.store_wrapper import Result, StoreWrapper
from tests.processes import eventually
from tests.restored import copy_of, restored

WAIT_S = 60.0
REQUESTS = 60
"""More than a start, a batch and its commit take."""
LOGS = 6
"""Logs in which processes die at the same time."""
COUNTS = spark_log.keyed("counts", pa.schema([("n", pa.int64())]))


def made(url: str, partitions: int = 2) -> spark_log.Log:
    log = spark_log.connect(url)
    log.create_topic(NewTopic("words", partitions))
    log.create_topic(NewTopic("out", 1, schema=pa.schema([("n", pa.int64())])))
    return log


def write(log: spark_log.Log, words: str) -> None:
    log.append("words", [{"key": word, "value": ""} for word in words.split()])


def count(words: pa.Table, counts: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The counts that have changed, as output and as state."""
    new = words.group_by("key").aggregate([([], "count_all")]).rename_columns(["key", "n"])
    total = pa.concat_tables([new, counts]).group_by("key").aggregate([("n", "sum")]).rename_columns(["key", "n"])
    return total, total


def start(url: str, function: Any = count, state: Any = COUNTS, **more: Any) -> Flow:
    return spark_log.flow(url, name="count", source="words", target="out", function=function, state=state, **more)


def counts(log: spark_log.Log) -> dict[str, int]:
    table = log.table("counts")
    return dict(zip((key.decode() for key in table["key"].to_pylist()), table["n"].to_pylist(), strict=True))


def last_outputs(log: spark_log.Log) -> dict[str, int]:
    """The outputs, each of which is higher than the one before of its key."""
    found: dict[str, int] = {}
    for row in log.read("out").to_pylist():
        key = row["key"].decode()
        assert row["n"] > found.get(key, 0), f"{key} is counted twice, or is lost"
        found[key] = row["n"]
    return found


def check(log: spark_log.Log, words: str) -> None:
    assert counts(log) == last_outputs(log) == Counter(words.split())


def change_state(log: spark_log.Log, how: str, key: str, n: int) -> None:
    """Write another state of a key, or erase the key from the state's topic."""
    if how == "write":
        log.append("counts", [{"key": key, "value": {"n": n}}])
    else:
        assert log.admin.erase_records("counts", [key]).flows == ("count",)


class GateOnce:
    """Counts, but waits in its first call until it may continue."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, words: pa.Table, counts: pa.Table) -> tuple[pa.Table, pa.Table]:
        self.begun.set()
        assert self.may_go_on.wait(WAIT_S)
        return count(words, counts)


@contextmanager
def waiting(url: str) -> Iterator[tuple[Flow, GateOnce]]:
    """A flow in the middle of its first batch."""
    gate = GateOnce()
    flow = start(url, gate)
    try:
        assert gate.begun.wait(WAIT_S), flow.exception
        yield flow, gate
    finally:
        gate.may_go_on.set()
        flow.stop(WAIT_S)


# Promise: tasks/flow.md#keep-state-by-key
def test_a_function_gets_and_returns_the_state_of_its_keys(url: str) -> None:
    """Also in later batches, and after a restart; the topic of the state is created."""
    log = made(url)
    write(log, "a b a c")
    with start(url) as flow:
        flow.process_all_available(WAIT_S)
        write(log, "b d")
        flow.process_all_available(WAIT_S)
        assert flow.progress.state_keys == 4 and 'pylog_flow_state_keys{flow="count"} 4' in flow.metrics()
    check(log, "a b a c b d")
    with start(url) as flow:
        write(log, "a d")
        flow.process_all_available(WAIT_S)
    check(log, "a b a c b d a d")
    state = log.journal.refresh()
    topic = state.topics[state.names["counts"]]
    assert topic.configs["cleanup.policy"] == "compact" and topic.partitions == 2


# Promise: tasks/flow.md#keep-state-by-key
def test_a_state_of_bytes_is_deleted_by_null(url: str) -> None:
    """Without a schema, the table has a column `value`; the state of other keys stays."""
    log = made(url, 1)
    seen: list[dict[bytes, bytes]] = []

    def latest(words: pa.Table, state: pa.Table) -> tuple[None, pd.DataFrame]:
        assert state.column_names == ["key", "value"]
        seen.append(dict(zip(state["key"].to_pylist(), state["value"].to_pylist(), strict=True)))
        frame = words.to_pandas().drop_duplicates("key", keep="last")
        return None, frame.assign(value=[value or None for value in frame["value"]])

    with start(url, latest, spark_log.keyed("last")) as flow:
        for rows in [[("a", "1"), ("b", "2")], [("a", "")], [("a", "3"), ("b", "4")], [("a", ""), ("b", "")]]:
            log.append("words", [{"key": key, "value": value} for key, value in rows])
            flow.process_all_available(WAIT_S)
    assert seen == [{}, {b"a": b"1"}, {b"b": b"2"}, {b"a": b"3", b"b": b"4"}]
    assert log.table("last").num_rows == 0 and flow.progress.state_keys == 0


# Promise: tasks/flow.md#keep-state-by-key
def test_a_typed_state_is_deleted_by_a_row_of_nulls(url: str) -> None:
    """Beside rows that stay."""
    log = made(url, 1)

    def in_stock(words: pa.Table, counts: pa.Table) -> tuple[None, pa.Table]:
        total = count(words, counts)[1]
        return None, total.set_column(1, "n", pa.array([None if n == 2 else n for n in total["n"].to_pylist()]))

    with start(url, in_stock) as flow:
        for words in ("a b", "a b c", "a"):
            write(log, words)
            flow.process_all_available(WAIT_S)
    assert counts(log) == {"a": 1, "c": 1}
    with start(url, lambda words, counts: (None, words.select(["key"]))) as flow:
        write(log, "c")
        flow.process_all_available(WAIT_S)
    assert counts(log) == {"a": 1}


# Promise: tasks/flow.md#keep-state-by-key
def test_each_partition_has_its_own_state(url: str) -> None:
    """A call has records of one partition, and the state of its keys in the partition of that number."""
    log = made(url, 3)
    partitions: list[set[int]] = []

    def noted(words: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        partitions.append(set(words["partition"].to_pylist()))
        return count(words, state)

    for partition in range(3):
        log.append("words", [{"key": "a", "value": "", "partition": partition}] * (partition + 1))
    with start(url, noted) as flow:
        flow.process_all_available(WAIT_S)
    assert sorted(partitions, key=min) == [{0}, {1}, {2}]
    table = log.table("counts")
    assert dict(zip(table["partition"].to_pylist(), table["n"].to_pylist(), strict=True)) == {0: 1, 1: 2, 2: 3}


# Promise: tasks/flow.md#keep-state-by-key
def test_state_of_a_batch_that_is_divided_counts_each_record_once(url: str) -> None:
    """The second half sees the state that the first one has changed; the failing record has none."""
    log = made(url, 1)

    def fragile(words: pa.Table, counts: pa.Table) -> tuple[pa.Table, pa.Table]:
        if b"bad" in words["key"].to_pylist():
            raise ValueError
        return count(words, counts)

    words = "a b a bad a b c"
    write(log, words)
    with start(url, fragile, bad_records="skip") as flow:
        flow.process_all_available(WAIT_S)
    check(log, words.replace("bad", ""))


# Promise: tasks/flow.md#keep-state-by-key
def test_state_of_other_keys_is_refused(url: str) -> None:
    """It may belong to another task; so is a second row of a key, and a result that is not a pair."""
    log = made(url, 1)
    write(log, "a")
    one = pa.table({"key": ["a"], "n": [1]})
    for result, error, text in (
        (
            (None, pa.table({"key": ["x"], "n": [1]})),
            FunctionFailed,
            "state of key b'x', which is not a key of its batch",
        ),
        ((None, pa.concat_tables([one, one])), FunctionFailed, "two rows of state with one key"),
        ((None, pa.table({"key": pa.nulls(1, pa.string()), "n": [1]})), FunctionFailed, "returned state without a key"),
        (one, InvalidRequest, "with state, expected a pair"),
    ):
        with pytest.raises(error, match=text):
            start(url, lambda words, counts, result=result: result).await_termination(WAIT_S)
    assert counts(log) == {}


# Promise: tasks/flow.md#keep-state-by-key
def test_topics_that_cannot_hold_a_state_are_refused(url: str) -> None:
    """Each with the reason."""
    log = made(url)
    compact = {"cleanup.policy": "compact"}
    log.create_topic(NewTopic("kept", 2))
    log.create_topic(NewTopic("wide", 3, compact))
    log.create_topic(NewTopic("bytes", 2, compact))
    for state, text in (
        (spark_log.keyed("kept"), "must only be compacted"),
        (spark_log.keyed("wide"), "has 2 partitions, and topic 'wide' with its state has 3"),
        (spark_log.keyed("bytes", COUNTS.schema), "has no schema"),
        (spark_log.keyed("words"), "is a source, too"),
        (spark_log.keyed("new", pa.schema([("key", pa.string())])), "the schema has a column 'key', which each record"),
        (spark_log.keyed("out"), "has the state: choose another one"),
        ("counts", r"expected spark_log.keyed\(TOPIC\)"),
    ):
        with pytest.raises(InvalidRequest, match=text):
            start(url, state=state)
    with pytest.raises(InvalidRequest, match="has one source"):
        spark_log.flow(url, name="f", source=["words", "out"], function=count, state=COUNTS)


# Promise: tasks/flow.md#keep-state-by-key
def test_another_number_of_partitions_ends_a_flow_with_state(url: str) -> None:
    """The partitioner now chooses other partitions for some keys, and their state stays where it was."""
    log = made(url, 1)
    write(log, "a")
    flow = start(url)
    flow.process_all_available(WAIT_S)
    log.admin.create_partitions({"words": 2})
    write(log, "a b c d e f")
    with pytest.raises(InvalidRequest, match="has 2 partitions, and topic 'counts' with its state has 1"):
        flow.await_termination(WAIT_S)
    assert counts(log) == {"a": 1}


# Promise: tasks/flow.md#keep-state-by-key
def test_a_state_that_was_deleted_ends_the_flow(url: str) -> None:
    """Also a later start, and if the topic was created again; after a seek, it is computed again."""
    log = made(url, 1)
    write(log, "a b")
    flow = start(url)
    flow.process_all_available(WAIT_S)
    log.admin.delete_topics(["counts"])
    write(log, "a")
    with pytest.raises(UnknownTopicOrPartition, match="topic 'counts' was deleted while the flow was running"):
        flow.await_termination(WAIT_S)
    with pytest.raises(UnknownTopicOrPartition, match="topic 'counts' was deleted, or .* and with it the state"):
        start(url).await_termination(WAIT_S)
    eventually(lambda: log.admin.describe_consumer_groups(["count"])["count"].state == "Empty", WAIT_S)
    log.admin.alter_consumer_group_offsets("count", {TopicPartition("words", 0): "earliest"})
    with start(url) as flow:
        flow.process_all_available(WAIT_S)
    assert counts(log) == {"a": 2, "b": 1}


# Promise: tasks/flow.md#keep-state-by-key
@pytest.mark.parametrize("change", ["write", "erase"])
def test_a_state_that_others_change_is_read_again(url: str, change: str) -> None:
    """Written by hand, or erased: the next batch sees it."""
    log = made(url, 1)
    write(log, "a b")
    with start(url) as flow:
        flow.process_all_available(WAIT_S)
        change_state(log, change, "a", 10)

        def is_seen() -> bool:
            write(log, "a")
            flow.process_all_available(WAIT_S)
            written = Counter(log.read("words")["key"].to_pylist())[b"a"]
            return counts(log)["a"] == written - 1 + (10 if change == "write" else 0)

        eventually(is_seen, WAIT_S)


# Promise: tasks/flow.md#keep-state-by-key
def test_a_task_that_takes_partitions_over_has_their_state(url: str) -> None:
    """The batch that the other process was in has its effect once."""
    log = made(url)
    words = "a b c d e f"
    write(log, words)
    with waiting(url) as (older, gate), start(url) as newer:
        if url.startswith("pylog://"):
            log.admin.remove_members_from_consumer_group("count")
        newer.process_all_available(WAIT_S)
        gate.may_go_on.set()
        write(log, words)
        newer.process_all_available(WAIT_S)
        if not url.startswith("pylog://"):
            with pytest.raises(spark_log.errors.IllegalGeneration):
                older.await_termination(WAIT_S)
    check(log, f"{words} {words}")


# Promise: tasks/flow.md#keep-state-by-key
@pytest.mark.parametrize("copied", ["before", "between"])
def test_a_restored_log_has_the_state_of_its_positions(tmp_path: Path, copied: str) -> None:
    """The flow that runs meanwhile reads the state of the copy; also if that is from before its first batch."""
    url = str(tmp_path / "log")
    log = made(url, 1)
    if copied == "before":
        copy = copy_of(log, tmp_path / "copy")
    write(log, "a b")
    flow = start(url)
    try:
        flow.process_all_available(WAIT_S)
        if copied == "between":
            copy = copy_of(log, tmp_path / "copy")
            write(log, "a a")
            flow.process_all_available(WAIT_S)
        restored(url, copy).close()
        after = spark_log.connect(url)
        write(after, "a c")
        flow.process_all_available(WAIT_S)
        check(after, "a c" if copied == "before" else "a b a c")
    finally:
        flow.stop(WAIT_S)


def running(store: ObjectStore, seed: int = 1, **more: Any) -> Flow:
    """A flow over a store, which is not started."""
    given: dict[str, Any] = {"tasks": 1, "batch_bytes": 1 << 20, "bad_records": "fail", **more}
    options = flow_options(
        name="count", source="words", target="out", function=count, lookup=(), state=COUNTS, task_numbers=None,
        start="earliest", linger_ms=0, value_format=None, **given,
    )  # fmt: skip
    journal = Journal.open(store, create=False, clock=SystemClock(), rng=random.Random(seed))
    return Flow(journal, options, journal.finish_maintenance)


# Promise: tasks/flow.md#keep-state-by-key
def test_lost_requests_and_answers_change_nothing(tmp_path: Path) -> None:
    """The state is that of the log, whether or not a commit was applied."""
    log = made(str(tmp_path), 3)
    faults = Faults(lost_request=0.04, lost_answer=0.04)
    flow = running(FaultyStore(LocalStore(str(tmp_path), "os"), random.Random(1), faults), tasks=2, batch_bytes=500)
    rng, words = random.Random(2), list[str]()
    flow.start()
    try:
        for _ in range(30):
            words += (some := [f"w{rng.randrange(20)}" for _ in range(10)])
            write(log, " ".join(some))
        eventually(lambda: sum(counts(log).values()) >= 300 or not flow.is_active, WAIT_S)
    finally:
        flow.stop(WAIT_S)
    flow.await_termination()
    check(log, " ".join(words))


class Killed(Exception):
    """Nothing is tried again."""


class DyingStore(StoreWrapper):
    """Answers no request after some: its process is dead for the log."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.left = 1 << 62

    @property
    def is_dead(self) -> bool:
        return self.left <= 0

    def _ask(self, request: Callable[[ObjectStore], Result]) -> Result:
        self.left -= 1
        if self.is_dead:
            raise Killed
        return request(self.inner)


# Promise: tasks/flow.md#exactly-once, tasks/flow.md#keep-state-by-key
def test_a_process_may_die_at_each_request(tmp_path: Path) -> None:
    """From its join to behind its first commit: the next process continues, and each word is counted once."""
    with ThreadPoolExecutor(LOGS) as logs:  # nearly all of the time is spent waiting
        list(logs.map(lambda n: die_at(str(tmp_path / str(n)), range(1 + n, REQUESTS, LOGS)), range(LOGS)))


def die_at(url: str, numbers: Iterable[int]) -> None:
    log, words = made(url, 2), "a b c d"
    write(log, words)
    with start(url) as flow:
        flow.process_all_available(WAIT_S)
    for requests in numbers:
        store = DyingStore(LocalStore(url, "os"))
        dying = running(store, requests)
        store.left = requests
        write(log, "a b c d")
        has_started = False
        with suppress(Killed):
            dying.start()
            has_started = True
        eventually(lambda store=store: store.is_dead, WAIT_S)
        with start(url) as flow:
            flow.process_all_available(WAIT_S)
        if has_started:
            dying.stop(WAIT_S)
        words += " a b c d"
        check(log, words)


# Promise: tasks/flow.md#keep-state-by-key
def test_a_batch_that_was_not_committed_changes_no_state(tmp_path: Path) -> None:
    """The disk is away at the end of a batch, which is then processed again."""
    folder = tmp_path / "log"
    log = made(str(folder), 1)
    write(log, "a b a")
    with waiting(str(folder)) as (flow, gate):
        folder.rename(tmp_path / "away")
        gate.may_go_on.set()
        eventually(lambda: flow.progress.restarts > 0, WAIT_S)
        (tmp_path / "away").rename(folder)
        write(log, "a c")
        flow.process_all_available(WAIT_S)
    check(log, "a b a a c")


# Promise: tasks/flow.md#keep-state-by-key
def test_a_restore_waits_for_records_that_readers_do_not_see_yet(tmp_path: Path) -> None:
    """They may be of a batch whose positions are committed: an older state would be too old for these."""
    log = made(str(tmp_path / "log"), 1)
    register_broker(log, 1, str(tmp_path / "broker1"))
    log.create_topic(NewTopic("last", configs={"cleanup.policy": "compact"}, replica_assignment={0: (0, 1)}))
    commit_on_leader(log, "last", [{"key": "a", "value": b"5"}])
    belongs = OffsetAndMetadata(0, f"state {log.journal.refresh().names['last']} 1")
    log.admin.alter_consumer_group_offsets("count", {TopicPartition("words", 0): belongs})
    seen: list[dict[str, Any]] = []

    def noted(words: pa.Table, state: pa.Table) -> tuple[None, None]:
        seen.extend(state.to_pylist())
        return None, None

    write(log, "a")
    with start(log.url, noted, spark_log.keyed("last")) as flow:
        eventually(lambda: "is not on all in-sync replicas yet" in flow.progress.error, WAIT_S)
        assert flow.progress.records_in == 0
        Replicator(log).round()
        flow.process_all_available(WAIT_S)
    assert seen == [{"key": b"a", "value": b"5"}]


class Unreadable(StoreWrapper):
    """Fails at some objects."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.names: set[str] = set()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key in self.names:
            raise Killed
        return super().get(key, start, end)


# Promise: tasks/flow.md#records-at-which-the-function-fails
def test_an_error_of_the_state_fails_no_record(tmp_path: Path) -> None:
    """The flow ends with it, although the records at which the function fails are skipped."""
    log = made(str(tmp_path), 1)
    write(log, "a b")
    with start(str(tmp_path)) as flow:
        flow.process_all_available(WAIT_S)
    store = Unreadable(LocalStore(str(tmp_path), "os"))
    state = log.journal.refresh()
    store.names = {one.object for one in state.partitions[state.names["counts"], 0].entries}
    write(log, "a c")
    flow = running(store, bad_records="skip")
    flow.start()
    with pytest.raises(Killed):
        flow.await_termination(WAIT_S)
    with start(str(tmp_path)) as flow:
        flow.process_all_available(WAIT_S)
    check(log, "a b a c")


# Promise: tasks/flow.md#keep-state-by-key
def test_a_state_may_be_a_polars_frame(tmp_path: Path) -> None:
    """Also with rows that delete state."""
    log = made(str(tmp_path), 1)

    def in_stock(words: pa.Table, counts: pa.Table) -> tuple[None, pl.DataFrame]:
        keys = [key.decode() for key in dict.fromkeys(words["key"].to_pylist())]
        return None, pl.DataFrame(
            {"key": keys, "n": [None if key == "b" else 1 for key in keys]}, {"key": pl.String, "n": pl.Int64}
        )

    with start(str(tmp_path), in_stock) as flow:
        for words in ("a", "a b c", "b"):
            write(log, words)
            flow.process_all_available(WAIT_S)
    assert counts(log) == {"a": 1, "c": 1}


# Promise: tasks/flow.md#keep-state-by-key
def test_outputs_to_the_topic_of_the_state_are_refused(tmp_path: Path) -> None:
    """Memory would not have them."""
    log = made(str(tmp_path), 1)
    write(log, "a")
    with pytest.raises(InvalidRequest, match="outputs for topic 'counts', which has the state"):
        start(str(tmp_path), lambda words, state: ({"counts": count(words, state)[1]}, None)).await_termination(WAIT_S)
