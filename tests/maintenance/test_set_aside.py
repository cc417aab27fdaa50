"""Maintenance sets objects aside that cannot be read, and rewrites the others."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import spark_log
from simulation.harness.clocks import ManualClock
from spark_log import Log, NewTopic, TopicPartition
from spark_log.client.reader.fetch import fetch
from spark_log.errors import CorruptObject, SparkLogError
from spark_log.journal.failure_isolation import Failures, ReportedFailures
from spark_log.journal.journal import Journal
from spark_log.journal.set_aside import WAIT_MS_MAX
from spark_log.maintenance.maintain import Maintainer, compact, maintain_once, merge_share
from spark_log.maintenance.memory_file import MEMORY
from spark_log.maintenance.workers import CompactionShare
from spark_log.model import Slice
from spark_log.recovery.verify import verify
from spark_log.rewriting.compaction_rounds import CompactionTally
from spark_log.rewriting.merge import Tally
from spark_log.rewriting.merge_shares import MergeShare
from spark_log.store.base import ObjectStore
from spark_log.store.memory import MemoryStore
from tests.bombs import compressed, put_run, zeros
from tests.client.replicated import commit_copies, with_copies
from tests.logged import records_of
from tests.maintenance.logs import HOUR_MS, slices

COMPACT = {"cleanup.policy": "compact", "segment.ms": str(HOUR_MS), "min.cleanable.dirty.ratio": "0"}
MINUTE_MS = 60_000
Pairs = Sequence[tuple[str, str | None]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> ObjectStore:
    return MemoryStore(uuid.uuid4().hex)


@pytest.fixture
def log(store: ObjectStore, clock: ManualClock) -> Log:
    return opened(store, clock)


def opened(store: ObjectStore, clock: ManualClock) -> Log:
    return Log(Journal.open(store, create=True, clock=clock))


def append(log: Log, pairs: Pairs, partition: int = 0) -> None:
    """One commit, of records that are two hours old."""
    old = log.journal.context.clock.now_ms() - 2 * HOUR_MS
    log.append(
        "t",
        [
            {
                "key": key.encode(),
                "value": None if value is None else value.encode(),
                "timestamp": old,
                "partition": partition,
            }
            for key, value in pairs
        ],
    )


def append_each(log: Log, first: int, end: int, partition: int = 0) -> None:
    for number in range(first, end):
        append(log, [(f"k{number}", str(number))], partition)


class Harm:
    """Objects that were damaged or deleted, and their bytes."""

    def __init__(self, store: ObjectStore, how: str = "damaged") -> None:
        self._store, self._how = store, how
        self._was: dict[str, bytes] = {}

    def do(self, name: str) -> str:
        if name not in self._was:
            self._was[name] = data = self._store.get(name)
            self._store.delete([name]) if self._how == "missing" else self._store.put(name, [bytes(len(data))])
        return name

    def heal(self) -> None:
        for name, data in self._was.items():
            self._store.put(name, [data])
        self._was.clear()


def object_of(log: Log, offset: int, partition: int = 0) -> str:
    state = log.journal.refresh()
    entries = state.partitions[state.names["t"], partition].entries
    return next(one.object for one in entries if isinstance(one, Slice) and one.start <= offset < one.end)


def values(log: Log, partition: int = 0) -> list[bytes]:
    return [row["value"] for row in log.read("t", partition=partition, columns=["value"]).to_pylist()]


def ranges(log: Log, partition: int = 0) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in slices(log, partition)]


# --------------------------------------------------------------------------------------------------------------- merging


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_the_slices_on_both_sides_are_merged_and_the_object_is_named_once(
    store: ObjectStore, log: Log, clock: ManualClock, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_topic(NewTopic("t", 1))
    append_each(log, 0, 12)
    harm = Harm(store, how)
    bad = [harm.do(object_of(log, offset)) for offset in (4, 8)]
    maintainer = Maintainer(log)
    report = maintainer.round()
    assert ranges(log) == [(0, 4), (4, 5), (5, 8), (8, 9), (9, 12)]
    assert len(report.problems) == 2 and all(name in str(report.problems) for name in bad)
    for _ in range(5):
        append_each(log, 12, 14)
        clock.sleep_ms(10 * MINUTE_MS)
        report = maintainer.round()
        assert (report.problems, report.set_aside) == ((), tuple(sorted(bad)))
    assert len(records_of(caplog, "merging t-0 failed")) == 2
    assert set(bad) <= set(log.journal.refresh().objects)
    harm.heal()
    clock.sleep_ms(WAIT_MS_MAX)
    report = maintainer.round()
    assert (report.problems, report.set_aside) == ((), ())
    assert ranges(log)[0][1] > 9
    assert verify(log, deep=True) == []


def test_a_quiet_log_reads_it_again_and_is_idle_between(store: ObjectStore, log: Log, clock: ManualClock) -> None:
    """Nothing else changes, and it is healed."""
    log.create_topic(NewTopic("t", 1))
    append_each(log, 0, 3)
    harm = Harm(store)
    harm.do(object_of(log, 1))
    maintainer = Maintainer(log)
    maintainer.round()
    harm.heal()
    for _ in range(3):
        clock.sleep_ms(WAIT_MS_MAX)
        maintainer.round()
    assert ranges(log) == [(0, 3)]


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_an_object_that_becomes_too_large_is_set_aside(log: Log) -> None:
    log.create_topic(NewTopic("t", 1))
    append_each(log, 0, 3)
    bomb = put_run(log, "t", [compressed(zeros(200 << 20))], 1)
    append_each(log, 3, 6)
    maintainer = Maintainer(log)
    assert bomb in str(maintainer.round().problems)
    report = maintainer.round()
    assert (report.problems, report.set_aside) == ((), (bomb,))
    assert ranges(log) == [(0, 3), (3, 4), (4, 7)]


def test_small_slices_of_several_partitions_share_objects_beside_it(store: ObjectStore, log: Log) -> None:
    log.create_topic(NewTopic("t", 3))
    for number in range(6):
        log.append("t", [{"value": b"%d" % number, "partition": partition} for partition in range(3)])
    bad = Harm(store).do(object_of(log, 3))
    report = Maintainer(log).round()
    assert report.set_aside == (bad,) and len(report.problems) == 1
    assert [ranges(log, partition) for partition in range(3)] == [[(0, 3), (3, 4), (4, 6)]] * 3


def test_all_copies_of_an_object_are_damaged(tmp_path: Path) -> None:
    log = spark_log.connect(tmp_path / "log", create=True)
    with pytest.warns(UserWarning, match="on the same disk"):
        with_copies(log, [tmp_path / "disk1"])
    names = [commit_copies(log, "t", [b"%d" % number]) for number in range(7)]
    copies = [path for path in tmp_path.rglob("*.seg") if str(path).endswith(names[3])]
    assert len(copies) == 2
    for path in copies:
        path.write_bytes(bytes(path.stat().st_size))
    maintainer = Maintainer(log)
    assert names[3] in str(maintainer.round().problems)
    assert ranges(log) == [(0, 3), (3, 4), (4, 7)]
    assert maintainer.round().problems == ()


def test_it_is_forgotten_when_its_records_expire(store: ObjectStore, log: Log) -> None:
    log.create_topic(NewTopic("t", 1))
    append_each(log, 0, 6)
    bad = Harm(store).do(object_of(log, 2))
    maintainer = Maintainer(log)
    assert maintainer.round().set_aside == (bad,)
    log.admin.delete_records({TopicPartition("t", 0): 4})
    assert maintainer.round().set_aside == ()
    append_each(log, 6, 9)
    assert maintainer.round().problems == ()


# ------------------------------------------------------------------------------------------------------------ compaction


def latest(log: Log) -> dict[bytes, bytes | None]:
    return {row["key"]: row["value"] for row in log.read("t", columns=["key", "value"]).to_pylist()}


def offsets(log: Log) -> list[int]:
    """Those of the readable records, and -1 for each slice that cannot be read."""
    found = list[int]()
    for read in log.plan("t"):
        try:
            parts = [one.offsets for one in fetch(log.journal.objects, read, ("key",))]
        except CorruptObject:
            found.append(-1)
        else:
            found += [int(offset) for part in parts for offset in part]
    return found


# Promise: tasks/keep-the-latest.md#see-that-it-runs
def test_a_pass_leaves_out_what_cannot_be_read(store: ObjectStore, log: Log, clock: ManualClock) -> None:
    """Its older and newer records stay; the others are compacted, in this pass and in the next ones."""
    log.create_topic(NewTopic("t", 1, COMPACT | {"delete.retention.ms": "0"}))
    append(log, [("a", "1"), ("b", "1"), ("c", "1")])
    append(log, [("a", "2"), ("b", "2")])
    append(log, [("b", "3"), ("c", "3")])
    harm = Harm(store)
    bad = harm.do(object_of(log, 3))
    maintainer = Maintainer(log)
    report = maintainer.round()
    assert (report.uncleanable, report.cleaned_partitions, report.set_aside) == (("t-0",), 0, (bad,))
    assert offsets(log) == [0, -1, 5, 6], "a@0 may be the newest a that can be read"
    append(log, [("b", None), ("c", "4")])
    for _ in range(3):
        clock.sleep_ms(HOUR_MS)
        assert maintainer.round().problems == ()
    assert offsets(log) == [0, -1, 7, 8], "the tombstone stays, because the object has a b"
    harm.heal()
    for _ in range(3):
        clock.sleep_ms(WAIT_MS_MAX)
        report = maintainer.round()
    assert (report.uncleanable, report.set_aside) == ((), ())
    assert offsets(log) == [3, 7, 8]
    append(log, [("d", "5")])
    maintainer.round()
    assert offsets(log) == [3, 8, 9], "no b is left that the tombstone hides"
    assert verify(log, deep=True) == []


def test_a_partition_is_not_compacted_again_and_again(store: ObjectStore, log: Log) -> None:
    """Also if its cleaner point does not move; and what is new is compacted."""
    log.create_topic(NewTopic("t", 1, COMPACT))
    append(log, [("a", "1")])
    append(log, [("b", "1"), ("b", "2")])
    Harm(store).do(object_of(log, 0))
    maintainer = Maintainer(log)
    assert maintainer.round().removed_records == 1
    before = log.journal.refresh().changed
    for _ in range(3):
        assert maintainer.round().removed_records == 0
    assert log.journal.refresh().changed == before
    append(log, [("b", "3")])
    assert maintainer.round().removed_records == 1
    assert offsets(log) == [-1, 3]


# Promise: tasks/keep-the-latest.md#see-that-it-runs
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_damaged_and_healed_no_value_comes_back(seed: int) -> None:
    """Random writes, damage and rounds: what can be read is right after each round, and all is at the end."""
    rng, clock = random.Random(seed), ManualClock()
    store: ObjectStore = MemoryStore(uuid.uuid4().hex)
    log = opened(store, clock)
    log.create_topic(NewTopic("t", 1, COMPACT | {"delete.retention.ms": str(HOUR_MS)}))
    written, harm, maintainer = list[tuple[bytes, bytes | None]](), Harm(store), Maintainer(log)
    for _ in range(25):
        pairs = [(rng.choice("abcdef"), rng.choice([None, str(len(written))])) for _ in range(rng.randint(1, 4))]
        append(log, pairs)
        written += [(key.encode(), value.encode() if value else None) for key, value in pairs]
        if rng.random() < 0.3 and (found := slices(log)):
            harm.do(rng.choice(found).object)
        if rng.random() < 0.2:
            harm.heal()
        clock.sleep_ms(rng.choice([1, 2 * HOUR_MS]))
        if rng.random() < 0.1:
            maintainer = Maintainer(log)
        maintainer.round()
    harm.heal()
    for _ in range(4):
        clock.sleep_ms(2 * HOUR_MS)
        report = maintainer.round()
    assert (report.set_aside, report.uncleanable, report.problems) == ((), (), ())
    expected = {key: value for key, value in dict(written).items() if value is not None}
    assert {key: value for key, value in latest(log).items() if value is not None} == expected
    assert log.read("t").num_rows == len(latest(log)), "nothing that was superseded is left"
    assert verify(log, deep=True) == []


# ------------------------------------------------------------------------------------------------- workers and processes


class OtherProcesses:
    """Workers, each with another handle of the log."""

    def __init__(self, store: ObjectStore, clock: ManualClock) -> None:
        self._store, self._clock = store, clock

    def merge(self, shares: Sequence[MergeShare]) -> Iterator[tuple[Tally, ReportedFailures]]:
        for share in shares:
            log, failures = opened(self._store, self._clock), Failures("worker")
            yield merge_share(log, share, failures), failures.reported(share.aside)

    def compact(self, shares: Sequence[CompactionShare]) -> Iterator[tuple[CompactionTally, ReportedFailures]]:
        for share in shares:
            log, failures = opened(self._store, self._clock), Failures("worker")
            yield compact(log, share, failures=failures), failures.reported(share.aside)


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_workers_tell_the_round_and_are_told(store: ObjectStore, log: Log, clock: ManualClock) -> None:
    log.create_topic(NewTopic("t", 2))
    log.create_topic(NewTopic("c", 1, COMPACT))
    for partition in (0, 1):
        append_each(log, 0, 7, partition)
    bad = Harm(store).do(object_of(log, 3, 1))
    maintainer = Maintainer(log, workers=OtherProcesses(store, clock))
    (problem,) = maintainer.round().problems
    assert bad in problem
    assert [ranges(log, partition) for partition in (0, 1)] == [[(0, 7)], [(0, 3), (3, 4), (4, 7)]]
    for _ in range(3):
        append_each(log, 7, 9, 1)
        report = maintainer.round()
        assert (report.problems, report.set_aside) == ((), (bad,))


def test_workers_compact_beside_it(store: ObjectStore, log: Log, clock: ManualClock) -> None:
    log.create_topic(NewTopic("t", 1, COMPACT))
    append(log, [("a", "1"), ("a", "2")])
    append(log, [("b", "1")])
    append(log, [("a", "3")])
    bad = Harm(store).do(object_of(log, 2))
    maintainer = Maintainer(log, workers=OtherProcesses(store, clock))
    assert bad in str(maintainer.round().problems)
    append(log, [("a", "4")])
    report = maintainer.round()
    assert (report.problems, report.uncleanable, offsets(log)) == ((), ("t-0",), [-1, 4])
    changed = log.journal.refresh().changed
    maintainer.round()
    assert log.journal.refresh().changed == changed


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_the_next_process_knows_it(store: ObjectStore, log: Log, clock: ManualClock) -> None:
    """Also if each run is that of another process; and a day later, when it looks at the whole log."""
    log.create_topic(NewTopic("t", 1))
    append_each(log, 0, 7)
    harm = Harm(store)
    bad = harm.do(object_of(log, 3))
    with pytest.raises(SparkLogError, match=bad):
        maintain_once(opened(store, clock))
    for _ in range(3):
        clock.sleep_ms(10 * HOUR_MS)
        append_each(log, 7, 9)
        assert maintain_once(opened(store, clock)).set_aside == (bad,)
    harm.heal()
    clock.sleep_ms(HOUR_MS)
    assert maintain_once(opened(store, clock)).set_aside == ()


def test_many_do_not_stay_in_the_memory(store: ObjectStore, log: Log, clock: ManualClock) -> None:
    """It has those of the slices that the log has, and each of 500 objects is named once."""
    log.create_topic(NewTopic("t", 1))
    append_each(log, 0, 500)
    harm = Harm(store, "missing")
    for read in log.plan("t"):
        harm.do(read.slice.object)
    began = time.monotonic()
    with pytest.raises(SparkLogError):
        maintain_once(opened(store, clock))
    assert time.monotonic() - began < 30
    size = len(store.get(MEMORY))
    report = maintain_once(opened(store, clock))
    assert len(report.set_aside) >= 499 and abs(len(store.get(MEMORY)) - size) < 2000
    log.admin.delete_records({TopicPartition("t", 0): 490})
    assert 9 <= len(maintain_once(opened(store, clock)).set_aside) <= 10
    assert len(store.get(MEMORY)) < size / 2


# --------------------------------------------------------------------------------------------------------------- erasure


def test_an_erasure_is_not_done_while_an_object_may_have_the_key(store: ObjectStore, log: Log) -> None:
    log.create_topic(NewTopic("t", 1))
    for number in range(3):
        append(log, [("gone", str(number)), (f"k{number}", str(number))])
    harm = Harm(store)
    bad = harm.do(object_of(log, 2))
    for _ in range(2):
        assert bad in str(log.admin.erase_records("t", ["gone"]).problems)
    harm.heal()
    assert log.admin.erase_records("t", ["gone"]).problems == ()
    assert values(log) == [b"0", b"1", b"2"]
