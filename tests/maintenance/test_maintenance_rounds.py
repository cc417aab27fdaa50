"""Rounds of one maintainer cost by what has changed, and leave what rounds without a memory leave."""

from __future__ import annotations

import io
import random
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from simulation.harness.clocks import ManualClock
from simulation.harness.stores import Wrapper
from spark_log import Log, NewTopic, TopicPartition, connect
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.sealing import seal
from spark_log.journal.store_operations import Steps
from spark_log.maintenance.maintain import Maintainer, maintain_once
from spark_log.maintenance.retention import ExpiredFront, find_expired
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import decide_delete_topic, decide_trim
from spark_log.model import Slice
from spark_log.recovery.verify import verify
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from spark_log.rewriting.merge import Tally
from spark_log.rewriting.merge import merge as merge_steps
from spark_log.rewriting.merge_candidates import plan_merge
from spark_log.rewriting.merge_policy import live_bytes
from spark_log.store.base import ObjectStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import DATA, epoch_prefixes, upload_epoch
from tests.maintenance.logs import HOUR_MS, maintenance, new_log, rows, slices

DAY_MS = 24 * HOUR_MS


class Recorded(Wrapper):
    """Records gets and listings."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked: list[str] = []

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.asked.append(f"get {key}")
        return self.inner.get(key, start, end)

    def list(self, prefix: str) -> list[str]:
        self.asked.append(f"list {prefix}")
        return self.inner.list(prefix)


def simulated(store: ObjectStore, clock: ManualClock) -> Log:
    return Log(Journal.open(store, create=True, clock=clock))


def timed(clock: ManualClock, count: int, partition: int) -> list[dict[str, object]]:
    return [{"value": b"x" * 50, "timestamp": clock.now_ms(), "partition": partition} for _ in range(count)]


# --------------------------------------------------------------------------------------------------------------- costs


def test_a_round_without_changes_reads_the_end_of_the_log() -> None:
    """Neither the objects nor the slice indexes nor the checkpoints are read or listed."""
    clock = ManualClock()
    store = Recorded(MemoryStore(uuid.uuid4().hex))
    log = simulated(store, clock)
    log.create_topic(NewTopic("t", 20))
    for _ in range(15):
        for number in range(20):
            log.append("t", timed(clock, 1, number))
        clock.sleep_ms(HOUR_MS)
    maintainer = Maintainer(log)
    while maintainer.round_or_raise().version != log.journal.refresh().version or maintainer.round().merged_slices:
        pass
    maintainer.round_or_raise()
    store.asked.clear()
    maintainer.round_or_raise()
    assert len(store.asked) <= 4
    assert not [asked for asked in store.asked if DATA in asked or asked.startswith("get meta/ckpt")]


def test_slices_that_were_sealed_are_not_planned_again() -> None:
    """Another process seals what a maintainer has planned: its next round reads no slice index."""
    clock = ManualClock()
    store = Recorded(MemoryStore(uuid.uuid4().hex))
    log = simulated(store, clock)
    log.create_topic(NewTopic("t", 5, {"segment.ms": str(HOUR_MS), "retention.ms": str(100 * HOUR_MS)}))
    for _ in range(4):
        log.append("t", [row for number in range(5) for row in timed(clock, 2, number)])
        clock.sleep_ms(HOUR_MS)
    maintainer = Maintainer(simulated(store, clock))
    while maintainer.round_or_raise().version != log.journal.refresh().version:
        pass
    before = log.journal.state.partitions
    after = maintenance(log.journal, seal).partitions
    assert all(part.edition > before[key].edition for key, part in after.items())
    store.asked.clear()
    maintainer.round_or_raise()
    assert not [asked for asked in store.asked if asked.endswith(".idx")]


def expire_all(log: Log, clock: ManualClock) -> None:
    clock.sleep_ms(7 * HOUR_MS)


def keep_for_ever(log: Log, clock: ManualClock) -> None:
    log.admin.incremental_alter_configs({"t": {"retention.ms": "-1"}})
    clock.sleep_ms(7 * HOUR_MS)


@pytest.mark.parametrize("end", [expire_all, keep_for_ever])
def test_a_partition_in_which_nothing_expires_any_more_is_not_waited_for(
    end: Callable[[Log, ManualClock], None],
) -> None:
    """All of its records have expired, or its topic has lost its limits: a round that found nothing is the last one."""
    clock = ManualClock()
    log = simulated(MemoryStore(uuid.uuid4().hex), clock)
    log.create_topic(NewTopic("t", 1, {"retention.ms": str(6 * HOUR_MS)}))
    log.append("t", timed(clock, 1, 0))
    memory = MaintenanceMemory()

    def planned() -> dict[tuple[str, int], ExpiredFront]:
        state = log.journal.refresh()
        expired = log.journal.run(find_expired(state, clock.now_ms(), memory=memory))
        memory.finish(state)
        return expired

    assert planned() == {} and memory.is_idle(log.journal.state, clock.now_ms())
    end(log, clock)
    assert not memory.is_idle(log.journal.state, clock.now_ms())
    maintain_once(log)
    assert planned() == {}
    assert memory.is_idle(log.journal.state, clock.now_ms() + 365 * DAY_MS)


def test_an_object_that_several_new_objects_need_is_read_once() -> None:
    """Commits to eight partitions, of which two share a new object."""
    clock = ManualClock()
    store = Recorded(MemoryStore(uuid.uuid4().hex))
    log = simulated(store, clock)
    log.create_topic(NewTopic("t", 8))
    for _ in range(20):
        log.append("t", [row for number in range(8) for row in timed(clock, 3, number)])
    before = log.read("t")
    store.asked.clear()

    def duty(state: State, context: Context) -> Steps[Tally]:
        return merge_steps(state, context, io.BytesIO)

    assert maintenance(log.journal, duty, StepLimits(changes_max=2)).slices == 20 * 8
    assert len([asked for asked in store.asked if asked.endswith(".seg")]) == 20
    assert len(log.journal.refresh().objects) == 4
    assert log.read("t").equals(before)
    assert verify(log, deep=True) == []


def test_garbage_is_listed_by_upload_epoch() -> None:
    """A later round lists the uploads that the fence has passed since the round before, not all objects."""
    clock = ManualClock()
    store = Recorded(MemoryStore(uuid.uuid4().hex))
    log = simulated(store, clock)
    log.create_topic(NewTopic("t", 1))
    maintainer, orphans = Maintainer(log), set[str]()
    for number in range(60):
        log.append("t", timed(clock, 1, 0))
        epoch = log.journal.state.version
        orphans.add(f"{DATA}{epoch:016x}/orphan-{number}.seg")
        store.put(f"{DATA}{epoch:016x}/orphan-{number}.seg", [b"x"])
        clock.sleep_ms(HOUR_MS)
        store.asked.clear()
        maintainer.round_or_raise()
        listed = [asked for asked in store.asked if asked.startswith(f"list {DATA}")]
        assert number % 24 == 0 or f"list {DATA}" not in listed
        assert len(listed) <= 17
    fence = log.journal.refresh().fence
    left = {name for name in store.inner.list(DATA) if "orphan" in name}
    assert fence > 20
    assert left == {name for name in orphans if upload_epoch(name) > fence}


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 15), (5, 600), (255, 256), (0xFFF, 0x12345), (7, 7 + 16**5)])
def test_prefixes_cover_their_epochs(first: int, last: int) -> None:
    """All epochs of the range, in at most 17 listings."""
    prefixes = epoch_prefixes(first, last)
    assert len(prefixes) <= 17
    for epoch in {first, last, (first + last) // 2, min(last, first + 1)}:
        assert any(f"{DATA}{epoch:016x}/".startswith(prefix) for prefix in prefixes)
    assert not any(f"{DATA}{last + (last - first + 1) * 16:016x}/".startswith(prefix) for prefix in prefixes)


def test_times_are_searched_in_all_partitions_together() -> None:
    """One slice index is read for adjacent pieces of all partitions, and no slice that ends before the time."""
    clock = ManualClock()
    store = Recorded(MemoryStore(uuid.uuid4().hex))
    log = simulated(store, clock)
    log.create_topic(NewTopic("t", 10))
    began = clock.now_ms()
    for _ in range(120):
        log.append("t", [row for number in range(10) for row in timed(clock, 1, number)])
        clock.sleep_ms(1000)
    store.asked.clear()
    with log.consumer() as consumer:
        times = {TopicPartition("t", number): began + 40_500 for number in range(10)}
        found = consumer.offsets_for_times(times)
    assert {at.offset for at in found.values() if at is not None} == {41}
    assert len([asked for asked in store.asked if asked.endswith(".idx")]) <= 2
    assert len([asked for asked in store.asked if asked.endswith(".seg")]) <= 30


# -------------------------------------------------------------------------------------------------- the same as without


def layout(log: Log) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """The entries of each partition, by the name of its topic."""
    state = log.journal.refresh()
    return {
        (state.topics[topic_id].name, number): [(entry.start, entry.end) for entry in part.entries]
        for (topic_id, number), part in state.partitions.items()
    }


@pytest.mark.parametrize("seed", range(4))
def test_a_memory_changes_only_the_cost(seed: int) -> None:
    """Appends, trims, deleted topics, changed configs and days pass: a maintainer that runs all rounds and one that is
    started for each leave the same slices, the same number of objects, and the same records.
    """
    rng, clock = random.Random(seed), ManualClock()
    logs = [simulated(MemoryStore(uuid.uuid4().hex), clock) for _ in range(2)]
    kept = Maintainer(logs[0])
    topics = ["a", "b", "c"]
    for log in logs:
        for name in topics:
            log.create_topic(NewTopic(name, 4, {"retention.ms": str(2 * DAY_MS), "segment.ms": str(4 * HOUR_MS)}))
    for step in range(60):
        name, number, count = rng.choice(topics), rng.randrange(4), rng.randint(1, 30)
        drawn, age = rng.random(), rng.choice((0, 0, 0, 5 * HOUR_MS))
        for log in logs:
            state = log.journal.refresh()
            key = state.names[name], number
            if drawn < 0.75:
                data = [{**row, "timestamp": clock.now_ms() - age} for row in timed(clock, count, number)]
                log.append(name, data)
            elif drawn < 0.85:
                part = state.partitions[key]
                if part.end > part.start:
                    log.journal.propose(
                        lambda s, now, key=key, to=(part.start + part.end + 1) // 2: decide_trim(s, {key: to})
                    )
            elif drawn < 0.9:
                configs = {"segment.ms": str((1 + step % 9) * HOUR_MS)}
                log.admin.incremental_alter_configs({name: configs})
            elif drawn < 0.93:
                log.admin.delete_topics([name])
                log.create_topic(NewTopic(name, 4, {"retention.ms": str(DAY_MS)}))
        clock.sleep_ms(rng.choice((1, 60_000, HOUR_MS, 7 * HOUR_MS)))
        if rng.random() < 0.6:
            kept.round_or_raise()
            maintain_once(logs[1])
            assert layout(logs[0]) == layout(logs[1])
            assert len(logs[0].journal.objects.list(DATA)) == len(logs[1].journal.objects.list(DATA))
    for name in topics:
        assert logs[0].read(name, columns=["value"]).equals(logs[1].read(name, columns=["value"]))
    assert verify(logs[0], deep=True) == []


def test_two_maintainers_and_a_writer() -> None:
    """Each remembers rounds in which the other has merged, sealed and collected since."""
    clock, store = ManualClock(), MemoryStore(uuid.uuid4().hex)
    log = simulated(store, clock)
    log.create_topic(NewTopic("t", 3))
    maintainers = [Maintainer(simulated(store, clock)) for _ in range(2)]
    for number in range(24):
        for partition in range(3):
            log.append("t", timed(clock, 2, partition))
        clock.sleep_ms(3 * HOUR_MS)
        maintainers[number % 2].round_or_raise()
        if number % 3 == 0:
            maintainers[1 - number % 2].round_or_raise()
    assert log.read("t").num_rows == 24 * 3 * 2
    for _ in range(3):
        clock.sleep_ms(30 * HOUR_MS)
        for maintainer in maintainers:
            maintainer.round_or_raise()
    state = log.journal.refresh()
    assert set(store.list(DATA)) == {*state.objects, *state.dropped}
    assert verify(log, deep=True) == []


def test_a_clock_that_was_ahead_delays_nothing() -> None:
    """After the clock is set back, a maintainer does what a new one would do."""
    clock = ManualClock()
    log = simulated(MemoryStore(uuid.uuid4().hex), clock)
    log.create_topic(NewTopic("t", 1, {"retention.ms": str(2 * DAY_MS)}))
    log.append("t", timed(clock, 3, 0))
    maintainer = Maintainer(log)
    maintainer.round_or_raise()
    clock.ms += DAY_MS
    maintainer.round_or_raise()
    clock.ms -= DAY_MS
    assert maintainer.round_or_raise().expired_records == 0
    clock.ms += 2 * DAY_MS + 1
    assert maintainer.round_or_raise().expired_records == 3


# ------------------------------------------------------------------------------------------------------ shared objects


def shared(tmp_path: Path, **retention_ms: int) -> Log:
    """Topics a and b, whose slices of five minutes ago were merged."""
    log = connect(str(tmp_path), durability="os")
    for name in "ab":
        log.create_topic(NewTopic(name, 2, {"retention.ms": str(retention_ms.get(name, -1))}))
        each = 30 if name == "a" else 3
        for first in range(0, 4 * each, each):
            for number in range(2):
                log.append(name, rows(first, each, partition=number, age_ms=300_000))
    maintain_once(log)
    return log


def objects_of(log: Log, topic: str) -> set[str]:
    state = log.journal.refresh()
    parts = [part for _, part in state.topic_partitions(state.names[topic])]
    return {entry.object for part in parts for entry in part.entries if isinstance(entry, Slice)}


def test_topics_share_an_object(tmp_path: Path) -> None:
    """Small partitions of topics with the same window share one, and are read back."""
    log = shared(tmp_path)
    assert objects_of(log, "a") == objects_of(log, "b") and len(objects_of(log, "a")) == 1
    assert (log.read("a").num_rows, log.read("b").num_rows) == (240, 24)
    assert verify(log, deep=True) == []


def delete_a(log: Log) -> None:
    log.journal.propose(lambda s, now: decide_delete_topic(s, "a"))


def trim_a(log: Log) -> None:
    topic = log.journal.state.names["a"]
    log.journal.propose(lambda s, now: decide_trim(s, {(topic, 0): 120, (topic, 1): 120}))


def expire_a(log: Log) -> None:
    log.admin.incremental_alter_configs({"a": {"retention.ms": "60000"}})


@pytest.mark.parametrize("remove", [delete_a, trim_a, expire_a])
def test_what_is_left_of_a_shared_object_is_rewritten(tmp_path: Path, remove: Callable[[Log], None]) -> None:
    """If less than half is, its space becomes free; the records of the other topic stay."""
    log = shared(tmp_path)
    (before,) = objects_of(log, "a")
    kept = log.read("b")
    maintainer = Maintainer(log)
    maintainer.round_or_raise()
    remove(log)
    assert maintainer.round_or_raise().merged_slices == 2
    assert before not in log.journal.refresh().objects
    assert len(objects_of(log, "b")) == 1
    assert log.read("b").equals(kept)
    assert verify(log, deep=True) == []


def test_topics_of_different_windows_share_no_object(tmp_path: Path) -> None:
    """Their records expire at different times, and then half of an object would have to be rewritten."""
    log = shared(tmp_path, a=DAY_MS, b=7 * DAY_MS)
    assert objects_of(log, "a").isdisjoint(objects_of(log, "b"))


def test_records_that_compress_well_are_not_all_in_memory(tmp_path: Path) -> None:
    """Partitions whose slices have some 100 KB, and whose records have 100 MB, are merged in a tenth of that."""
    log, line = new_log(tmp_path, partitions=2), b"GET /orders 200 " * 60
    for _ in range(2):
        for number in range(2):
            values = [line + b"%d" % n for n in range(25_000)]
            log.append("t", pa.table({"value": values, "partition": [number] * len(values)}))
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    try:
        assert maintain_once(log).merged_slices == 4
    finally:
        pa.set_memory_pool(usual)
    assert 0 < counted.max_memory() < 10_000_000
    assert [len(slices(log, number)) for number in range(2)] == [1, 1]
    assert log.read("t", columns=["value"]).num_rows == 100_000


def test_a_damaged_slice_does_not_stop_those_that_would_share_its_object(tmp_path: Path) -> None:
    """The other partitions of the object are merged, and the round names the damaged one.  It is merged as soon as
    somebody has restored it.
    """
    log = new_log(tmp_path, partitions=3)
    for first in range(0, 9, 3):
        for number in range(3):
            log.append("t", rows(first, 3, partition=number))
    broken = slices(log, 1)[1]
    data = bytearray((tmp_path / broken.object).read_bytes())
    data[broken.position + broken.length // 2] ^= 1
    (tmp_path / broken.object).write_bytes(data)
    maintainer = Maintainer(log)
    (problem,) = maintainer.round().problems
    assert problem.startswith("merging t-1 failed: ") and broken.object in problem
    assert [len(slices(log, number)) for number in range(3)] == [1, 3, 1]
    (restored,) = (tmp_path / broken.object,)
    data[broken.position + broken.length // 2] ^= 1
    restored.write_bytes(data)
    assert maintainer.round_or_raise().merged_slices == 3
    assert verify(log, deep=True) == []


def test_a_deleted_topic_whose_slices_were_to_be_merged_is_forgotten(tmp_path: Path) -> None:
    """Otherwise its slices would count as alive in the objects that it shares, and stay in memory."""
    log = shared(tmp_path)
    log.append("a", rows(0, 1000))
    memory = MaintenanceMemory()
    stretches, _ = log.journal.run(plan_merge(log.journal.refresh(), memory=memory))
    assert stretches
    delete_a(log)
    maintain_once(log)
    state = log.journal.refresh()
    log.journal.run(plan_merge(state, memory=memory))
    assert memory.live.bytes == live_bytes(part.entries for part in state.partitions.values())
