"""Each input record has its effect once, or the flow ends with the error that says why."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_log
from simulation.harness.stores import Faults, FaultyStore, Wrapper
from spark_log import NewTopic, TopicPartition
from spark_log.client.consumer.membership import Membership, SessionRequest
from spark_log.errors import IllegalGeneration, OffsetOutOfRange, UnknownTopicOrPartition
from spark_log.flows.flow import Flow
from spark_log.flows.flow_options import FlowOptions, flow_options
from spark_log.flows.source_positions import has_processed, newest_state, set_starts
from spark_log.flows.task import BACKOFF_S, pause_s
from spark_log.journal.journal import Journal
from spark_log.recovery.repair import repair
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import LOG
from tests.processes import Started, eventually, started
from tests.restored import copy_of, restored, set_back

WAIT_S = 60.0
P0 = TopicPartition("in", 0)


def made(url: str, partitions: int = 1) -> spark_log.Log:
    log = spark_log.connect(url)
    log.admin.create_topics([NewTopic("in", partitions), NewTopic("out", 1)])
    return log


def fill(log: spark_log.Log, *numbers: int) -> None:
    log.append("in", [{"key": str(n), "value": str(n)} for n in numbers])


def out(log: spark_log.Log) -> list[int]:
    return [int(value) for value in log.read("out").column("value").to_pylist()]


class Gate:
    """A function that waits in its first batch, until it may continue."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, table: pa.Table) -> pa.Table:
        self.begun.set()
        assert self.may_go_on.wait(WAIT_S)
        return table


def same(table: pa.Table) -> pa.Table:
    return table


def start(url: str, function: Callable[[pa.Table], object] = same, **more: Any) -> Flow:
    return spark_log.flow(url, name="f", source="in", target="out", function=function, **more)


@contextmanager
def waiting(url: str, **more: Any) -> Iterator[tuple[Flow, Gate]]:
    """A flow in the middle of its first batch."""
    gate = Gate()
    flow = start(url, gate, **more)
    try:
        assert gate.begun.wait(WAIT_S), flow.exception
        yield flow, gate
    finally:
        gate.may_go_on.set()
        flow.stop(WAIT_S)


# Promise: tasks/flow.md#several-tasks-and-processes
def test_without_a_coordinator_the_newest_flow_of_a_name_fences_the_older(tmp_path: Path) -> None:
    """The batch that the older one was in has its effect once, and the older one ends with the reason."""
    log = made(str(tmp_path))
    fill(log, 1, 2)
    with waiting(str(tmp_path)) as (older, gate), start(str(tmp_path)) as newer:
        newer.process_all_available(WAIT_S)
        gate.may_go_on.set()
        with pytest.raises(IllegalGeneration, match="another process has started this flow"):
            older.await_termination(WAIT_S)
        fill(log, 3)
        newer.process_all_available(WAIT_S)
    assert out(log) == [1, 2, 3]


# Prints a line for each restart of its task, and one when it is fenced.
FLOW = """
import logging, sys, time
import spark_log
from tests.flows.test_flow_faults import start

class Printing(logging.Handler):
    def emit(self, record):
        print("restarted", flush=True)

logging.getLogger("spark_log").addHandler(Printing())
flow = start(sys.argv[1])
print("ready", flush=True)
try:
    flow.await_termination()
except spark_log.errors.IllegalGeneration:
    print("fenced", flush=True)
time.sleep(1000)
"""


# Promise: tasks/flow.md#several-tasks-and-processes
def test_an_older_process_does_not_take_a_flow_back_after_an_error(tmp_path: Path) -> None:
    """Both find their disk away, and it comes back while only the older process is running."""
    folder = tmp_path / "log"
    log = made(str(folder))
    fill(log, 1)
    with started(FLOW, tmp_path, "older") as older:
        eventually(lambda: out(log) == [1], WAIT_S)
        with older.in_trouble("stopped"):
            newer = Started(FLOW, tmp_path, "newer")
            fill(log, 2)
            eventually(lambda: out(log) == [1, 2], WAIT_S)
            folder.rename(tmp_path / "away")
            newer.wait_until(lambda: "restarted" in newer.lines())
        try:
            with newer.in_trouble("stopped"):
                older.wait_until(lambda: "restarted" in older.lines())
                (tmp_path / "away").rename(folder)
                older.wait_until(lambda: older.lines()[-1] == "fenced")
            fill(log, 3)
            eventually(lambda: out(log) == [1, 2, 3], WAIT_S)
            assert "fenced" not in newer.lines()
        finally:
            newer.kill()


# Promise: tasks/flow.md#several-tasks-and-processes
def test_another_number_of_tasks_fences_all_older_tasks(tmp_path: Path) -> None:
    """Also tasks whose partitions only partly overlap, as soon as their short session has ended."""
    log = made(str(tmp_path), partitions=4)
    fill(log, *range(20))
    with waiting(str(tmp_path), tasks=2) as (older, gate), start(str(tmp_path), tasks=3) as newer:
        newer.process_all_available(WAIT_S)
        gate.may_go_on.set()
        with pytest.raises(IllegalGeneration):
            older.await_termination(WAIT_S)
    assert sorted(out(log)) == list(range(20))


def test_a_consumer_that_takes_the_group_ends_the_flow(tmp_path: Path) -> None:
    """Nothing is committed under its name any more."""
    log = made(str(tmp_path))
    fill(log, 1)
    with waiting(str(tmp_path)) as (flow, gate):
        time.sleep(1.1)  # the session of a task ends
        with log.consumer("in", group_id="f", enable_auto_commit=False) as consumer:
            consumer.poll(0)
            gate.may_go_on.set()
            with pytest.raises(IllegalGeneration):
                flow.await_termination(WAIT_S)
    assert out(log) == []


# Promise: tasks/flow.md#several-tasks-and-processes
def test_a_task_that_the_coordinator_removed_begins_its_batch_again(url: str) -> None:
    """The commit of the batch that it had is refused."""
    if not url.startswith("pylog://"):
        pytest.skip("members are removed by a coordinator")
    log = made(url)
    fill(log, 1, 2)
    with waiting(url) as (flow, gate):
        log.admin.remove_members_from_consumer_group("f")
        gate.may_go_on.set()
        flow.process_all_available(WAIT_S)
        assert flow.progress.restarts >= 1
    assert out(log) == [1, 2]


# Promise: tasks/flow.md#exactly-once
def test_records_that_were_trimmed_unread_end_the_flow(url: str) -> None:
    """The error says which; after `seek` by an administrator it continues."""
    log = made(url)
    fill(log, 1)
    with start(url) as flow:
        flow.process_all_available(WAIT_S)
    fill(log, 2, 3, 4)
    log.admin.delete_records({P0: 3})
    with pytest.raises(OffsetOutOfRange, match=r"records 1 to 2 of in-0 were removed"):
        start(url).await_termination(WAIT_S)
    eventually(lambda: log.admin.describe_consumer_groups(["f"])["f"].state == "Empty", WAIT_S)
    log.admin.alter_consumer_group_offsets("f", {P0: "earliest"})
    with start(url) as flow:
        flow.process_all_available(WAIT_S)
    assert out(log) == [1, 4]


# Promise: tasks/flow.md#exactly-once
def test_a_source_that_is_created_again_ends_the_flow(url: str) -> None:
    """The next start reads the new topic from its first record."""
    log = made(url)
    fill(log, 1)
    flow = start(url)
    flow.process_all_available(WAIT_S)
    log.admin.delete_topics(["in"])
    log.admin.create_topics([NewTopic("in", 1)])
    fill(log, 2)
    with pytest.raises(UnknownTopicOrPartition, match="source topic 'in' was deleted( and created again)? while"):
        flow.await_termination(WAIT_S)
    with start(url, start="latest") as flow:
        flow.process_all_available(WAIT_S)
    assert out(log) == [1, 2]


# Promise: tasks/flow.md#exactly-once
def test_a_batch_from_before_a_restore_is_read_again(tmp_path: Path) -> None:
    """The copy has the input and not the output: the flow that ran meanwhile begins again where the copy has it."""
    url = str(tmp_path / "log")
    log = made(url)
    fill(log, 1, 2)
    with waiting(url) as (flow, gate):
        copy = copy_of(log, tmp_path / "copy")
        restored(url, copy).close()
        gate.may_go_on.set()
        after = spark_log.connect(url)
        fill(after, 3)
        flow.process_all_available(WAIT_S)
        assert flow.progress.restarts >= 1
    assert out(after) == [1, 2, 3]


# Promise: tasks/flow.md#exactly-once
def test_records_that_a_restore_has_lost_have_no_effect_in_it(tmp_path: Path) -> None:
    """They are in a batch when the log is restored, and another task already knows the log as it is now."""
    url = str(tmp_path / "log")
    log = made(url)
    gate = Gate()
    fill(log, 1)
    with start(url, lambda table: gate(table) if b"2" in table["value"].to_pylist() else table, tasks=2) as flow:
        flow.process_all_available(WAIT_S)
        copy = copy_of(log, tmp_path / "copy")
        fill(log, 2)
        assert gate.begun.wait(WAIT_S)
        restored(url, copy).close()
        after = spark_log.connect(url)
        fill(after, 3)
        eventually(lambda: flow.progress.restarts >= 1, WAIT_S)
        gate.may_go_on.set()
        flow.process_all_available(WAIT_S)
    assert out(after) == [1, 3]
    key, known = (after.journal.state.names["in"], 0), options()
    assert has_processed(newest_state(after.journal, known), known, {key: 3}), "a wait for a lost record ends"
    fill(after, 4)
    assert not has_processed(newest_state(after.journal, known), known, {key: 3})


# Promise: storage-failures.md#continue-without-what-is-lost
def test_a_flow_of_a_repaired_log_says_who_removed_it(tmp_path: Path) -> None:
    """No other process has started it."""
    url = str(tmp_path / "log")
    log = made(url)
    flow = start(url)
    for number in range(4):
        fill(log, number)
    flow.process_all_available(WAIT_S)
    for path in sorted((tmp_path / "log/meta/log").iterdir())[-4:-2]:
        path.unlink()
    repair(LocalStore(url), is_alive=lambda holder: False, accept_loss=True)
    with pytest.raises(IllegalGeneration, match="members were removed when `pylog repair --accept-loss`"):
        flow.await_termination(WAIT_S)


# Promise: tasks/flow.md#exactly-once
def test_a_flow_waits_for_a_log_that_was_set_back_during_its_batch(tmp_path: Path) -> None:
    """Until others have written as many versions as it has read.  Then it continues, without the lost batch."""
    url = str(tmp_path / "log")
    log = made(url)
    shutil.copytree(url, tmp_path / "copy")
    fill(log, 1, 2)
    with waiting(url) as (flow, gate):
        before = log.journal.refresh().version
        after = set_back(url, tmp_path / "copy")
        gate.may_go_on.set()
        eventually(lambda: flow.progress.restarts > 0, WAIT_S)
        fill(after, 3)
        while after.journal.state.version <= before:
            after.admin.create_topics([NewTopic(f"new-{after.journal.state.version}", 1)])
        flow.process_all_available(WAIT_S)
    assert out(after) == [3]


# Promise: tasks/flow.md#exactly-once
def test_outputs_that_a_restore_has_lost_are_made_again(tmp_path: Path) -> None:
    """The idle flow's position is within the copy, which has an older one: it notices by the log's history."""
    url = str(tmp_path / "log")
    log = made(url)
    fill(log, 1)
    with waiting(url) as (flow, gate):
        copy = copy_of(log, tmp_path / "copy")
        gate.may_go_on.set()
        flow.process_all_available(WAIT_S)
        assert out(log) == [1]
        restored(url, copy).close()
        after = spark_log.connect(url)
        eventually(lambda: out(after) == [1], WAIT_S)
        fill(after, 2)
        flow.process_all_available(WAIT_S)
    assert out(after) == [1, 2]


def options(**more: Any) -> FlowOptions:
    given: dict[str, Any] = {
        "lookup": (),
        "state": None,
        "tasks": 1,
        "task_numbers": None,
        "start": "earliest",
        "bad_records": "fail",
        "batch_bytes": 2_000,
        "linger_ms": 0,
        "value_format": None,
        **more,
    }
    return flow_options(name="f", source="in", target="out", function=same, **given)


# Promise: tasks/flow.md#exactly-once
@pytest.mark.parametrize("seed", range(3))
def test_lost_requests_and_answers_of_the_storage_change_nothing(tmp_path: Path, seed: int) -> None:
    """One in twelve is lost: commits are tried again, or begun again at the committed positions."""
    log = made(str(tmp_path), partitions=3)
    faults = Faults(lost_request=0.04, lost_answer=0.04)
    store = FaultyStore(LocalStore(str(tmp_path), "os"), random.Random(seed), faults)
    journal = Journal.open(store, create=False, clock=SystemClock(), rng=random.Random(seed))
    flow = Flow(journal, options(tasks=2), journal.finish_maintenance)
    flow.start()
    try:
        for n in range(0, 300, 10):
            fill(log, *range(n, n + 10))
        eventually(lambda: len(out(log)) >= 300 or not flow.is_active, WAIT_S)
    finally:
        flow.stop(WAIT_S)
    flow.await_termination()
    assert sorted(out(log)) == list(range(300))


# Promise: tasks/flow.md#exactly-once
def test_progress_says_why_a_flow_waits_for_its_storage(tmp_path: Path) -> None:
    """The lag is what is known of it."""
    log, folder = made(str(tmp_path / "log")), tmp_path / "log"
    fill(log, 1)
    with start(str(folder)) as flow:
        flow.process_all_available(WAIT_S)
        folder.rename(tmp_path / "away")
        eventually(lambda: "is its disk mounted?" in flow.progress.error, WAIT_S)
        assert flow.progress.state == "running" and flow.progress.lag == 0
        (tmp_path / "away").rename(folder)
        fill(log, 2)
        flow.process_all_available(WAIT_S)
    assert out(log) == [1, 2]


def test_a_long_outage_does_not_end_a_flow() -> None:
    """Its pauses stay short, after any number of failures."""
    assert [pause_s(failures) for failures in (0, 1, 6, 7, 10_000)] == [0.1, 0.2, 5.0, 5.0, BACKOFF_S[-1]]


def test_a_group_that_a_stream_holds_is_waited_for(tmp_path: Path) -> None:
    """The progress says who holds it."""
    log = made(str(tmp_path))
    fill(log, 1)
    stream = Membership(log.journal, "f", SessionRequest("token", "a stream", 600_000))
    stream.join()
    flow = start(str(tmp_path))
    try:
        eventually(lambda: "held by a stream" in flow.progress.error, WAIT_S)
        assert out(log) == []
        stream.leave()
        flow.process_all_available(WAIT_S)
    finally:
        flow.stop(WAIT_S)
    assert out(log) == [1]


class RestoredOnce(Wrapper):
    """Restores the log from its copy before it puts a record of the metadata log for the first time."""

    def __init__(self, inner: ObjectStore, restore: Callable[[], spark_log.Log]) -> None:
        super().__init__(inner)
        self._restore = restore
        self.restored: spark_log.Log | None = None

    def put_new(self, key: str, data: bytes) -> bool:
        if key.startswith(LOG) and self.restored is None:
            self.restored = self._restore()
        return self.inner.put_new(key, data)


# Promise: tasks/flow.md#start-a-flow
def test_a_first_start_in_a_restored_log_begins_where_it_should(tmp_path: Path) -> None:
    """The log is restored after the flow has looked up its first positions, and before it commits them."""
    url = str(tmp_path / "log")
    log = made(url)
    fill(log, 1)
    copy = copy_of(log, tmp_path / "copy")
    fill(log, 2, 3)
    store = RestoredOnce(LocalStore(url), lambda: restored(url, copy))
    known = options(start="latest")
    set_starts(Journal.open(store, create=False), known)
    assert store.restored is not None
    with store.restored as after, start(url, start="latest") as flow:
        fill(after, 4, 5, 6)
        flow.process_all_available(WAIT_S)
        assert out(after) == [4, 5, 6]
