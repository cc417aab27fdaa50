"""Compaction of real logs: passes over slices, whatever others do meanwhile."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from simulation.harness.stores import ControlledStore
from spark_log import Log, NewTopic, TopicPartition, connect
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.sealing import seal
from spark_log.journal.store_operations import Put, Steps
from spark_log.maintenance.maintain import Maintainer, maintain_once, maintain_round, merge, plan_round
from spark_log.metadata.maintenance.cleaner_point import tombstones_from
from spark_log.metadata.state import State
from spark_log.recovery.verify import verify
from spark_log.rewriting.compaction_rounds import CompactionTally, compact
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from spark_log.store.open import open_store
from tests.maintenance.logs import HOUR_MS, maintenance, pass_the_fence, tracebacks

COMPACT = {"cleanup.policy": "compact", "segment.ms": str(HOUR_MS), "min.cleanable.dirty.ratio": "0"}
LIMITS = StepLimits(inline_slices=0, inline_per_partition=2)
"""Seals all but the newest slices."""


class Record(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


def compacted(folder: Path, partitions: int = 1, **configs: str) -> Log:
    """A log with the topic "t", whose records may be compacted as soon as they are written: they are old."""
    log = connect(str(folder), durability="os")
    named = {name.replace("_", "."): text for name, text in configs.items()}
    log.admin.create_topics([NewTopic("t", partitions, COMPACT | named)])
    return log


def append(log: Log, pairs: Sequence[tuple[str, str | None]], partition: int = 0) -> None:
    """One commit, of records that are two hours old."""
    old = int(time.time() * 1000) - 2 * HOUR_MS
    log.append(
        "t",
        pa.table(
            {
                "key": pa.array([key.encode() for key, _ in pairs], pa.binary()),
                "value": pa.array([None if value is None else value.encode() for _, value in pairs], pa.binary()),
                "timestamp": [old] * len(pairs),
                "partition": [partition] * len(pairs),
            }
        ),
    )


def records(log: Log, partition: int = 0) -> list[Record]:
    table = log.read("t", partition=partition, columns=["offset", "key", "value"])
    return [Record(*row.values()) for row in table.to_pylist()]


def latest(found: Sequence[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in found}


def run_clean(
    log: Log, limits: StepLimits = LIMITS, memory: MaintenanceMemory | None = None, *, ends_passes: bool = True
) -> CompactionTally:
    def duty(state: State, context: Context) -> Steps[CompactionTally]:
        return (yield from compact(state, context, io.BytesIO, memory=memory, ends_passes=ends_passes))

    return maintenance(log.journal, duty, limits)


def cleaned_upto(log: Log, partition: int = 0) -> int:
    state = log.journal.refresh()
    point = state.cleaned.get((state.names["t"], partition))
    return point.upto if point else 0


def dumb_pass(before: Sequence[Record], dirty: int, end: int, horizon: int) -> list[Record]:
    """The rules of compaction, record by record.  Records without a key go, up to the end of the last slice."""
    newest = {one.key: one.offset for one in before if dirty <= one.offset < end and one.key is not None}
    return [
        one
        for one in before
        if one.offset >= end
        or (
            one.key is not None
            and one.offset >= newest.get(one.key, -1)
            and (one.value is not None or one.offset >= horizon)
        )
    ]


def test_the_latest_record_of_each_key_stays_at_its_offset(tmp_path: Path) -> None:
    """The others go, the end stays, and the cleaner point is there."""
    log = compacted(tmp_path)
    for number in range(9):
        append(log, [(f"k{number % 3}", str(number)), (f"k{(number + 1) % 3}", f"{number}+")])
    before = records(log)
    tally = run_clean(log)
    after = records(log)
    assert after == dumb_pass(before, 0, 18, 0)
    assert [one.offset for one in after] == [14, 16, 17]
    assert latest(after) == latest(before)
    assert (tally.partitions, tally.records, tally.left) == (1, 15, 0)
    assert cleaned_upto(log) == 18
    append(log, [("k0", "next")])
    assert records(log)[-1].offset == 18
    assert verify(log, deep=True) == []


keys = st.sampled_from(["", "a", "b", "c", "long" * 70])
batches = st.lists(st.tuples(keys, st.none() | st.text("xyz", max_size=2)), min_size=1, max_size=6)
actions = st.lists(
    st.one_of(
        batches, batches, st.sampled_from(["clean", "clean in little memory", "merge", "seal", "trim", "keep", "drop"])
    ),
    max_size=14,
)


# Promise: tasks/keep-the-latest.md#what-is-kept
@settings(max_examples=40, deadline=None)
@given(actions=actions, seed=st.integers(0, 99))
def test_passes_keep_what_a_dumb_compactor_keeps(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str | list[tuple[str, str | None]]], seed: int
) -> None:
    """Between appends, merges, seals and trims, with tombstones that are kept for a day, or not at all."""
    log, rng = compacted(tmp_path_factory.mktemp("log")), random.Random(seed)
    kept_ms, model = 24 * HOUR_MS, list[Record]()
    for action in [*actions, "drop", "clean", "clean"]:
        state = log.journal.refresh()
        key = (state.names["t"], 0)
        if isinstance(action, list):
            end = state.partitions[key].end
            append(log, action)
            model += [Record(end + at, k.encode(), v if v is None else v.encode()) for at, (k, v) in enumerate(action)]
        elif action.startswith("clean"):
            point, start = cleaned_upto(log), state.partitions[key].start
            limits = replace(LIMITS, clean_keys=3) if "little" in action else LIMITS
            run_clean(log, limits)
            horizon = tombstones_from(state.cleaned.get(key), state.time, kept_ms)
            if cleaned_upto(log) > point:
                model = dumb_pass(model, max(point, start), cleaned_upto(log), horizon)
        elif action == "trim":
            to = rng.randint(state.partitions[key].start, state.partitions[key].end)
            log.admin.delete_records({TopicPartition("t", 0): to})
            model = [one for one in model if one.offset >= to]
        elif action in ("keep", "drop"):
            kept_ms = 24 * HOUR_MS if action == "keep" else 0
            log.admin.incremental_alter_configs({"t": {"delete.retention.ms": str(kept_ms)}})
        else:
            merge(log) if action == "merge" else maintenance(log.journal, seal)
        assert records(log) == model
    assert verify(log, deep=True) == []


class HalfBlind(random.Random):
    """The first halves of the hashes of its first hasher are equal."""

    zeros = 132

    def getrandbits(self, bits: int) -> int:
        if bits != 64 or not self.zeros:
            return super().getrandbits(bits)
        self.zeros -= 1
        return 0


def test_keys_whose_hashes_half_agree_are_read_again(tmp_path: Path) -> None:
    """With other random numbers: an old record that was kept for it could outlive its tombstone."""
    log, rng = compacted(tmp_path), HalfBlind(1)
    append(log, [("a", "1"), ("b", "1"), ("a", None), ("b", "2")])

    def duty(state: State, context: Context) -> Steps[CompactionTally]:
        return (yield from compact(state, replace(context, rng=rng), io.BytesIO))

    assert maintenance(log.journal, duty, LIMITS).records == 2
    assert rng.zeros == 0
    assert [one.offset for one in records(log)] == [2, 3]


# ------------------------------------------------------------------------------------------------------- whole rounds


def test_a_round_of_maintenance_compacts_once(tmp_path: Path) -> None:
    """The report has the figures, and the plan has them before.  A second round has nothing to do."""
    log = compacted(tmp_path, partitions=3)
    for number in range(8):
        for partition in (0, 1):
            append(log, [("a", random.Random(number).randbytes(500).hex()), ("b", str(number))], partition)
    plan = plan_round(log)
    assert plan.cleaned_partitions == 2 and plan.cleaned_bytes > 0
    report = maintain_once(log)
    assert (report.cleaned_partitions, report.removed_records, report.uncleaned) == (2, 28, 0)
    assert report.removed_bytes > 0
    assert [[one.offset for one in records(log, partition)] for partition in range(3)] == [[14, 15], [14, 15], []]
    second = maintain_once(log)
    assert (second.cleaned_partitions, second.version) == (0, report.version)
    assert plan_round(log).cleaned_partitions == 0
    assert verify(log, deep=True) == []


# Promise: tasks/keep-the-latest.md#what-is-kept
@pytest.mark.parametrize(
    ("policy", "left"), [("delete", [1, 2, 3]), ("compact", [0, 2, 3]), ("compact,delete", [2, 3])]
)
def test_each_policy_removes_its_records(tmp_path: Path, policy: str, left: list[int]) -> None:
    """Of an expired record without a newer one of its key, two of one key, and a new one."""
    log = compacted(tmp_path, cleanup_policy=policy, segment_ms="1", retention_ms=str(HOUR_MS))
    now = int(time.time() * 1000)
    for key, minutes in (("a", 180), ("b", 30), ("b", 20), ("c", 0)):
        log.append("t", [{"key": key, "value": b"x", "timestamp": now - minutes * 60_000}])
    maintain_once(log)
    assert [one.offset for one in records(log)] == left


@pytest.mark.filterwarnings("ignore:topic .t. has records without a key")
def test_records_without_a_key_go(tmp_path: Path) -> None:
    """Those written before the topic was compacted, as in Kafka; a run without records keeps its offsets."""
    log = connect(str(tmp_path), durability="os")
    log.admin.create_topics([NewTopic("t")])
    log.append("t", [{"value": b"1", "timestamp": 1}, {"value": b"2", "timestamp": 1}])
    log.admin.incremental_alter_configs({"t": COMPACT})
    report = maintain_once(log)
    assert report.removed_records == 2 and records(log) == []
    append(log, [("a", "1")])
    assert records(log) == [Record(2, b"a", b"1")]
    assert verify(log, deep=True) == []


def test_small_partitions_share_an_object_before_and_after(tmp_path: Path) -> None:
    """One object has the slices of many partitions; what compaction leaves of them is in one object, too."""
    log = compacted(tmp_path, partitions=5)
    old = int(time.time() * 1000) - 2 * HOUR_MS
    numbers = range(5)
    for value in (b"1", b"2"):
        rows = {"key": [b"k"] * 5, "value": [value] * 5, "timestamp": [old] * 5, "partition": list(numbers)}
        log.append("t", pa.table(rows))
    maintain_once(log)
    assert [records(log, number) for number in numbers] == [[Record(1, b"k", b"2")]] * 5
    assert len({read.slice.object for read in log.plan("t")}) == 1
    assert verify(log, deep=True) == []


# --------------------------------------------------------------------------------------------- in steps, round by round

STEPS = replace(LIMITS, clean_bytes=1, swap_bytes=1, clean_keys=4)
"""A round reads a slice of a large partition; one with more than four dirty offsets is large."""


def test_a_large_partition_holds_up_no_other_one(tmp_path: Path) -> None:
    """Its pass continues in the next rounds of the process; a small partition is compacted in the first."""
    log, memory = compacted(tmp_path, partitions=2), MaintenanceMemory()
    for number in range(6):
        append(log, [("a", str(number)), ("b", str(number))])
    append(log, [("a", "old"), ("a", "new")], 1)
    tallies = [run_clean(log, STEPS, memory, ends_passes=False)]
    assert [one.value for one in records(log, 1)] == [b"new"]
    assert cleaned_upto(log) == 0 and tallies[0].left == 1
    while tallies[-1].left:
        tallies.append(run_clean(log, STEPS, memory, ends_passes=False))
        assert latest(records(log)) == {b"a": b"5", b"b": b"5"}
    assert len(tallies) > 6
    assert [one.offset for one in records(log)] == [10, 11]
    assert cleaned_upto(log) == 12 and memory.compaction_pass is None
    assert sum(tally.records for tally in tallies) == 11


def test_a_pass_continues_after_others_have_changed_the_partition(tmp_path: Path) -> None:
    """Appended, merged, sealed and trimmed, between any two of its steps."""
    log, memory = compacted(tmp_path), MaintenanceMemory()
    for number in range(8):
        append(log, [("a", str(number)), ("b", str(number)), (f"c{number}", "")])
    model = records(log)
    actions = iter(
        [
            lambda: append(log, [("a", "newest")]),
            lambda: merge(log),
            lambda: maintenance(log.journal, seal),
            lambda: log.admin.delete_records({TopicPartition("t", 0): 2}),
        ]
        * 5
    )
    while run_clean(log, STEPS, memory, ends_passes=False).left:
        next(actions)()
    found = records(log)
    assert {one for one in found if one.offset < 24} <= set(model)
    assert {one for one in model if (one.key or b"").startswith(b"c")} <= set(found)
    assert [one.offset for one in found if one.key == b"b"] == [22]
    assert verify(log, deep=True) == []


def test_a_slice_with_more_keys_than_fit_takes_several_passes(tmp_path: Path) -> None:
    """Each pass begins within the slice, where the one before it has ended."""
    log, ends = compacted(tmp_path), [0]
    append(log, [(f"k{number}", "") for number in range(30_000)] + [("k0", "new")])
    while (tally := run_clean(log, replace(LIMITS, clean_keys=8_000))).left:
        ends.append(cleaned_upto(log))
        assert ends[-1] > ends[-2]
    assert tally.partitions == 1 and len(ends) > 2
    assert cleaned_upto(log) == 30_001
    assert [one.offset for one in records(log)] == list(range(1, 30_001))


# Promise: tasks/keep-the-latest.md#compact-a-topic-that-exists
def test_a_pass_ends_when_its_topic_is_not_compacted_any_more(tmp_path: Path) -> None:
    """The records that it has removed stay removed, and no others go."""
    log, memory = compacted(tmp_path), MaintenanceMemory()
    for number in range(6):
        append(log, [("a", str(number)), ("b", str(number))])
    for _ in range(4):
        assert run_clean(log, STEPS, memory, ends_passes=False).left
    log.admin.incremental_alter_configs({"t": {"cleanup.policy": "delete", "retention.ms": "-1"}})
    before = records(log)
    assert run_clean(log, STEPS, memory, ends_passes=False) == CompactionTally()
    assert records(log) == before and cleaned_upto(log) == 0


def test_a_pass_that_another_process_begins_again_ends(tmp_path: Path) -> None:
    """The first one was killed after some swaps."""
    log, memory = compacted(tmp_path), MaintenanceMemory()
    for number in range(6):
        append(log, [("a", str(number)), ("b", str(number))])
    while not run_clean(log, STEPS, memory, ends_passes=False).records:
        assert cleaned_upto(log) == 0
    assert run_clean(log, STEPS).partitions == 1
    assert [one.offset for one in records(log)] == [10, 11]


# --------------------------------------------------------------------------------------------- what others do meanwhile


def at_each_put(steps: Steps[CompactionTally], action: Callable[[], object]) -> Steps[CompactionTally]:
    """The same steps; the action runs after each segment was written, before it is swapped in."""
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as stop:
            return cast(CompactionTally, stop.value)
        answer = yield request
        if any(isinstance(one, Put) for one in (request if isinstance(request, list) else [request])):
            action()


@pytest.mark.parametrize("meanwhile", ["merged", "compacted", "trimmed", "deleted", "fenced"])
def test_a_swap_that_is_void_is_not_forced(tmp_path: Path, meanwhile: str) -> None:
    """The pass compares the slices again that others have put in their place."""
    log, other = compacted(tmp_path), connect(str(tmp_path), durability="os")
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for number in range(4):
        append(log, [("a", str(number)), ("b", str(number))])
    todo = {
        "merged": lambda: merge(other),
        "compacted": lambda: run_clean(other),
        "trimmed": lambda: other.admin.delete_records({TopicPartition("t", 0): 3}),
        "deleted": lambda: other.admin.delete_topics(["t"]),
        "fenced": lambda: pass_the_fence(other),
    }
    once = iter([todo[meanwhile]])

    def act() -> None:
        for action in once:
            action()

    def duty(state: State, context: Context) -> Steps[CompactionTally]:
        return (yield from at_each_put(compact(state, context, io.BytesIO), act))

    maintenance(log.journal, duty, LIMITS)
    assert verify(log, deep=True) == []
    if meanwhile == "deleted":
        assert not log.journal.refresh().cleaned
        return
    assert [one.offset for one in records(log)] == [6, 7]
    assert cleaned_upto(log) == 8


# ------------------------------------------------------------------------------------------------------ what is damaged


def damage(folder: Path, log: Log, partition: int, how: str) -> str:
    """Damage the only slice of a partition; returns the name of its object."""
    (read,) = [read for read in log.plan("t") if read.partition == partition]
    path = folder / read.slice.object
    data = bytearray(path.read_bytes())
    data[read.slice.position + read.slice.length // 2] ^= 0x55
    path.chmod(0o600)
    path.unlink() if how == "missing" else path.write_bytes(data)
    return read.slice.object


# Promise: tasks/keep-the-latest.md#see-that-it-runs
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_slice_that_cannot_be_read_is_left_out(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is named once, without a traceback, and again by another process; the others are compacted, also those of its
    partition.  When it is trimmed, it is forgotten.
    """
    log = compacted(tmp_path, partitions=2)
    for partition in (0, 1):
        append(log, [("a", "1"), ("a", "2")], partition)
    name = damage(tmp_path, log, 0, how)
    maintainer = Maintainer(log)
    report = maintainer.round()
    assert (report.cleaned_partitions, report.uncleanable) == (1, ("t-0",))
    assert [one.offset for one in records(log, 1)] == [1]
    (problem,) = report.problems
    assert problem.startswith("compacting t-0 failed: ") and name in problem
    assert problem in caplog.text and not tracebacks(caplog, log.url)
    append(log, [("a", "3"), ("a", "4")], 0)
    again = maintainer.round()
    assert (again.problems, again.uncleanable, again.set_aside) == ((), ("t-0",), (name,))
    assert again.removed_records == 1
    assert name in str(Maintainer(log).round().problems)
    log.admin.delete_records({TopicPartition("t", 0): 2})
    later = maintainer.round()
    assert (later.problems, later.uncleanable, later.set_aside) == ((), (), ())
    assert [one.offset for one in records(log, 0)] == [3]


def test_a_full_disk_ends_compaction_in_this_round(tmp_path: Path) -> None:
    """It is reported once; when there is space, the next round compacts."""
    log, control = compacted(tmp_path / "log", partitions=3), tmp_path / "control"
    for partition in range(3):
        append(log, [("a", "1"), ("a", "2")], partition)
    store = ControlledStore(open_store(str(tmp_path / "log"), None, "os"), control)
    tight = Log(Journal.open(store, create=False))
    control.write_text("full")
    report = maintain_round(tight)
    assert report.no_space and report.cleaned_partitions == 0
    assert sum("compacting" in problem for problem in report.problems) == 1
    control.write_text("")
    assert maintain_round(tight).cleaned_partitions == 3
    assert [len(records(log, partition)) for partition in range(3)] == [1, 1, 1]
