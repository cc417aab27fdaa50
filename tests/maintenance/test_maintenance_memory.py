"""The memory of maintenance is saved, and the first round of the next process continues with it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import pytest

from simulation.harness.clocks import ManualClock
from simulation.harness.stores import Wrapper
from spark_log import Log, NewTopic
from spark_log.errors import CorruptObject, StorageError
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.maintenance.maintain import Maintainer, maintain_once, maintain_round
from spark_log.maintenance.memory_file import MEMORY, decode_memory, encode_memory
from spark_log.metadata.commands import MarkCleaned
from spark_log.metadata.formats.checkpoint_format import check_checkpoint
from spark_log.metadata.records import Cleaned
from spark_log.metadata.topics.decide_topics import decide_trim
from spark_log.rewriting.maintenance_memory import NEVER, MaintenanceMemory, NotDue
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import CHECKPOINTS, DATA, checkpoint_version
from tests.maintenance.logs import HOUR_MS

TOPICS = ("a", "b")


class Recorded(Wrapper):
    """Records gets and listings; puts of one name fail."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked: list[str] = []
        self.refused = ""

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.asked.append(f"get {key}")
        return self.inner.get(key, start, end)

    def list(self, prefix: str) -> list[str]:
        self.asked.append(f"list {prefix}")
        return self.inner.list(prefix)

    def put(self, key: str, chunks: Bytes) -> None:
        if key == self.refused:
            raise StorageError(f"{key}: access denied")
        self.inner.put(key, chunks)

    def indexes(self) -> list[str]:
        """The slice indexes that were read, and the listings of all objects, since the last call."""
        found = [asked for asked in self.asked if asked.endswith(".idx") or asked == f"list {DATA}"]
        self.asked.clear()
        return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> Recorded:
    return Recorded(MemoryStore(uuid.uuid4().hex))


def process(store: ObjectStore, clock: ManualClock) -> Log:
    """The log, as a new process opens it."""
    return Log(Journal.open(store, create=True, clock=clock, limits=StepLimits(remembered_slices=0)))


def written(store: ObjectStore, clock: ManualClock) -> Log:
    """A log whose slices are in indexes, and in which rounds have left nothing to do."""
    log = process(store, clock)
    for name in TOPICS:
        log.create_topic(NewTopic(name, 20, {"segment.ms": str(HOUR_MS), "retention.ms": str(1000 * HOUR_MS)}))
    append(log, clock, "b", 1)
    for _ in range(15):
        append(log, clock)
        clock.sleep_ms(HOUR_MS)
    while maintain_once(log).version != log.journal.refresh().version or maintain_once(log).merged_slices:
        pass
    maintain_once(log)
    return log


def append(log: Log, clock: ManualClock, name: str = "a", partitions: int = 20) -> None:
    rows = [{"value": b"x", "timestamp": clock.now_ms(), "partition": number} for number in range(partitions)]
    log.append(name, rows)


def test_a_first_round_without_changes_reads_no_slice_index(store: Recorded, clock: ManualClock) -> None:
    """Nor does it list the objects: each run from cron costs what has changed."""
    written(store, clock)
    log = process(store, clock)
    store.indexes()
    Maintainer(log).round_or_raise()
    assert store.indexes() == []
    store.inner.delete([MEMORY])
    Maintainer(log).round_or_raise()
    assert len(store.indexes()) > 1


def test_a_first_round_reads_the_indexes_of_what_has_changed(store: Recorded, clock: ManualClock) -> None:
    """Of one partition of forty, by which two slices are merged."""
    log = written(store, clock)
    for _ in range(2):
        append(log, clock, "b", 1)
    store.indexes()
    assert maintain_once(process(store, clock)).merged_slices == 2
    assert [asked for asked in store.indexes() if f"list {DATA}" == asked] == []


def delete_it(store: Recorded) -> None:
    store.inner.delete([MEMORY])


def cut_it(store: Recorded) -> None:
    store.inner.put(MEMORY, [store.inner.get(MEMORY)[:-20]])


def damage_it(store: Recorded) -> None:
    data = bytearray(store.inner.get(MEMORY))
    data[len(data) // 2] ^= 1
    store.inner.put(MEMORY, [bytes(data)])


def renew_it(store: Recorded) -> None:
    store.inner.put(MEMORY, [store.inner.get(MEMORY).replace(b"maintenance 1\n", b"maintenance 2\n")])


# Promise: format/metadata.md#the-memory-of-maintenance
@pytest.mark.parametrize(
    ("change", "warning"),
    [(delete_it, ""), (cut_it, "is damaged"), (damage_it, "is damaged"), (renew_it, "has another format")],
)
def test_without_a_readable_memory_the_whole_log_is_looked_at(
    store: Recorded,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Recorded], None],
    warning: str,
) -> None:
    """It is written again, and a warning says why, unless there was none."""
    written(store, clock)
    whole = len(store.inner.get(MEMORY))
    change(store)
    store.indexes()
    maintain_once(process(store, clock))
    assert len(store.indexes()) > 1
    assert warning in caplog.text and bool(warning) == ("maintenance looks at the whole log" in caplog.text)
    assert abs(len(store.inner.get(MEMORY)) - whole) < 100
    maintain_once(process(store, clock))
    assert store.indexes() == []


# Promise: format/metadata.md#the-memory-of-maintenance
def test_an_old_memory_is_not_used(store: Recorded, clock: ManualClock) -> None:
    """Once in `gc.fence.age.ms` a round looks at the whole log, also if each one is that of another process."""
    log = written(store, clock)
    looks = 0
    for _ in range(3 * 24):
        clock.sleep_ms(HOUR_MS)
        append(log, clock, "b", 1)
        store.indexes()
        maintain_once(process(store, clock))
        looks += f"list {DATA}" in store.indexes()
    assert looks in (3, 4)


# Promise: format/metadata.md#the-memory-of-maintenance
def test_a_memory_of_a_later_version_is_not_used(store: Recorded, clock: ManualClock) -> None:
    """An older copy of the metadata was restored, but not of this object."""
    log = written(store, clock)
    before = {key: store.inner.get(key) for key in store.inner.list("meta/")}
    append(log, clock)
    maintain_once(log)
    later = store.inner.get(MEMORY)
    store.inner.delete(store.inner.list("meta/"))
    for key, data in before.items():
        store.inner.put(key, [later if key == MEMORY else data])
    store.indexes()
    maintain_once(process(store, clock))
    assert len(store.indexes()) > 1


def test_a_damaged_checkpoint_is_replaced_by_the_next_process(store: Recorded, clock: ManualClock) -> None:
    """Also if the log has not changed since the last run: a process that opens the log finds the damage."""
    written(store, clock)
    newest = max(store.inner.list(CHECKPOINTS))
    store.inner.put(newest, [store.inner.get(newest)[:-30]])
    maintain_once(process(store, clock))
    replaced = max(name for name in store.inner.list(CHECKPOINTS) if name != newest)
    assert checkpoint_version(replaced) == checkpoint_version(newest)
    check_checkpoint(store.inner.get(replaced), replaced)


def test_a_memory_that_cannot_be_saved_is_reported(store: Recorded, clock: ManualClock) -> None:
    """The round has done all else."""
    log = written(store, clock)
    for _ in range(2):
        append(log, clock, "b", 1)
    store.refused = MEMORY
    report = maintain_round(process(store, clock))
    assert report.problems == ("saving the memory of maintenance failed: meta/maintenance: access denied",)
    assert report.merged_slices == 2


# Promise: format/metadata.md#the-memory-of-maintenance
def test_a_saved_memory_is_read_back(store: Recorded, clock: ManualClock) -> None:
    """All of it, and without what is outdated: a topic with other configs."""
    log = written(store, clock)
    memory, state = decode_memory(store.inner.get(MEMORY), log.journal.refresh()), log.journal.state
    assert encode_memory(memory, state) == store.inner.get(MEMORY)
    known = {one.key: one for one in memory.known(state)}
    assert len(known) == len(state.partitions) == 40
    assert all(one.merged and (one.kept_ms is not None) == bool(one.objects) for one in known.values())
    assert sum(memory.live.bytes.values()) == sum(sum(one.lengths) for one in known.values()) > 0
    log.admin.incremental_alter_configs({"a": {"segment.ms": str(2 * HOUR_MS)}})
    state = log.journal.refresh()
    left = decode_memory(store.inner.get(MEMORY), state)
    assert {one.key[0] for one in left.known(state)} == {state.names["b"]}
    assert left.unmerged(state) == [(state.names["a"], number) for number in range(20)]


def test_the_memory_of_a_small_log_is_not_saved(store: Recorded, clock: ManualClock) -> None:
    """All of it is planned in some requests, and a log that nobody uses has no puts."""
    log = Log(Journal.open(store, create=True, clock=clock))
    log.create_topic(NewTopic("a", 20))
    append(log, clock)
    maintain_once(log)
    assert MEMORY not in store.inner.list("meta/")
    maintain_once(process(store, clock))
    assert MEMORY in store.inner.list("meta/")


def test_a_memory_of_nothing_is_read_back(store: Recorded, clock: ManualClock) -> None:
    """A log without topics."""
    log = process(store, clock)
    maintain_once(log)
    memory = decode_memory(store.inner.get(MEMORY), log.journal.state)
    assert list(memory.known(log.journal.state)) == [] and memory.began_ms == clock.ms
    with pytest.raises(CorruptObject, match="has another format"):
        decode_memory(b"", log.journal.state)


@pytest.mark.parametrize("seed", range(3))
def test_processes_and_a_maintainer_that_runs_on_merge_the_same(clock: ManualClock, seed: int) -> None:
    """Rounds of one process, of processes with a saved memory, and of processes without leave the same slices."""
    rng = random.Random(seed)
    logs = [process(MemoryStore(uuid.uuid4().hex), clock) for _ in range(3)]
    kept = Maintainer(logs[0])
    for log in logs:
        log.create_topic(NewTopic("t", 4, {"retention.ms": str(48 * HOUR_MS), "segment.ms": str(4 * HOUR_MS)}))
    for step in range(60):
        number, count, drawn = rng.randrange(4), rng.randint(1, 30), rng.random()
        for log in logs:
            state = log.journal.refresh()
            key = state.names["t"], number
            part = state.partitions[key]
            rows = [{"value": b"x" * 50, "timestamp": clock.now_ms(), "partition": number}] * count
            if drawn < 0.8:
                log.append("t", rows)
            elif drawn < 0.9 and part.end > part.start:
                log.journal.propose(
                    lambda s, now, key=key, to=(part.start + part.end + 1) // 2: decide_trim(s, {key: to})
                )
            else:
                log.admin.incremental_alter_configs({"t": {"segment.ms": str((1 + step % 9) * HOUR_MS)}})
        clock.sleep_ms(rng.choice((1, 60_000, HOUR_MS, 7 * HOUR_MS)))
        if rng.random() < 0.6:
            kept.round_or_raise()
            maintain_once(logs[1])
            Maintainer(logs[2]).round_or_raise()
            layouts = [
                [
                    [(entry.start, entry.end) for entry in part.entries]
                    for _, part in sorted(log.journal.refresh().partitions.items())
                ]
                for log in logs
            ]
            assert layouts[0] == layouts[1] == layouts[2]
            assert len({len(log.journal.objects.list(DATA)) for log in logs}) == 1


# ----------------------------------------------------------------------------------------------------------- compaction


def small(store: ObjectStore, clock: ManualClock) -> Log:
    """A log of a topic with two partitions, of which one has a record."""
    log = process(store, clock)
    log.create_topic(NewTopic("a", 2))
    append(log, clock, "a", 1)
    return log


# Promise: format/metadata.md#the-memory-of-maintenance
def test_a_partition_may_be_due_by_time_and_by_changes(store: Recorded, clock: ManualClock) -> None:
    log = small(store, clock)
    state, memory = log.journal.refresh(), MaintenanceMemory()
    key, other = sorted(state.partitions)

    def may_be_due(now_ms: int) -> bool:
        return memory.may_be_due(state, key, state.partitions[key], now_ms)

    assert may_be_due(0)
    memory.set_not_due(state, key, NotDue(1_000, 0.25))
    memory.set_not_due(state, other, NotDue(2_000, 0.5))
    assert not may_be_due(999) and may_be_due(1_000)
    memory.finish(state)
    assert memory.is_idle(state, 999) and not memory.is_idle(state, 1_000)
    assert memory.dirty_ratios(state) == {key[0]: 0.5}
    log.journal.propose(MarkCleaned(partitions=(Cleaned(*key, 1),)))
    state = log.journal.refresh()
    assert may_be_due(0) and not memory.may_be_due(state, other, state.partitions[other], 0)
    memory.set_not_due(state, key, NotDue(NEVER, 0.0))
    append(log, clock, "a", 1)
    state = log.journal.refresh()
    assert may_be_due(0)


# Promise: format/metadata.md#the-memory-of-maintenance
def test_what_is_not_due_is_read_back(store: Recorded, clock: ManualClock) -> None:
    log = small(store, clock)
    state, memory = log.journal.refresh(), MaintenanceMemory()
    key, other = sorted(state.partitions)
    memory.set_not_due(state, key, NotDue(1_000, 0.25))
    memory.set_not_due(state, other, NotDue(NEVER, 0.0))
    read = decode_memory(encode_memory(memory, state), state)
    assert [(one.key, one.not_due) for one in read.known(state)] == [
        (key, NotDue(1_000, 0.25)),
        (other, NotDue(NEVER, 0.0)),
    ]
    log.journal.propose(MarkCleaned(partitions=(Cleaned(*key, 1),)))
    state = log.journal.refresh()
    assert [one.key for one in decode_memory(encode_memory(memory, state), state).known(state)] == [other]
