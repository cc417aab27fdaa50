"""A plan is what the entries of the partitions say, and it reads no more of the slice indexes than it needs."""

from __future__ import annotations

import random
import uuid

import pytest

import spark_log
from simulation.harness.slow_store import SlowStore
from spark_log.client.producer.commit import PlainProducer
from spark_log.client.producer.upload import Uploaded
from spark_log.client.reader.plan import OffsetRange, SliceRead, end_of_slices, plan_reads
from spark_log.conditions import Window
from spark_log.journal.index_reads import neighbours, read_pieces
from spark_log.journal.journal import Journal
from spark_log.journal.sealing import seal
from spark_log.metadata.maintenance.swaps import resolve
from spark_log.metadata.records import Piece
from spark_log.metadata.state import Partition
from spark_log.model import DataObject, Run, Slice
from spark_log.store.memory import MemoryStore
from tests.maintenance.logs import maintenance

PARTITIONS = 5
"""So that every slice is sealed."""


def test_the_end_of_some_slices_is_known_without_their_index() -> None:
    """A consumer plans a part of a million slices that were never merged: all of them would take 600 MB."""
    piece = Piece(0, 10_000, "data/0/0.idx", 0, 100, 0, 1000, 10_000, 0, 0)
    slices = [Slice(at, at + 3, "data/0/0.seg", at, 3, 0, 1, 0, 0) for at in range(10_000, 10_030, 3)]
    part = Partition(0, 10_030, 0, (piece, *slices))
    assert end_of_slices(part, 0, 10) == 100
    assert end_of_slices(part, 9_985, 10) == 10_000 + 8 * 3
    assert end_of_slices(part, 10_001, 2) == 10_006
    assert [end_of_slices(part, start, 2000) for start in (0, 10_030)] == [10_030, 10_030]
    assert all(start < end_of_slices(part, start, 1) <= 10_030 for start in range(0, 10_030, 7))


@pytest.fixture
def store() -> SlowStore:
    """Without delay: it is there to see what is read."""
    return SlowStore(MemoryStore(uuid.uuid4().hex), get_ms=0, put_ms=0, jitter=False)


def new_log(store: SlowStore, **configs: str) -> spark_log.Log:
    log = spark_log.Log(Journal.open(store, create=True))
    log.create_topic(
        spark_log.NewTopic("t", PARTITIONS, {name.replace("_", "."): value for name, value in configs.items()})
    )
    return log


def commit(log: spark_log.Log, rng: random.Random, count: int) -> None:
    """Slices of objects that are not there, in partitions and at times drawn at random."""
    state = log.journal.state
    runs = []
    for number in range(count):
        min_us = rng.randrange(1000)
        run = Run(
            topic_id=state.names["t"],
            partition=rng.randrange(PARTITIONS),
            position=number << 20,
            length=rng.randrange(1, 1 << 20),
            crc=0,
            rows=rng.randrange(1, 50),
            batches=1,
            min_us=min_us,
            max_us=min_us + rng.randrange(100),
        )
        runs.append((0, run))
    uploaded = Uploaded((DataObject(f"data/{state.version:016x}/{rng.random()}.seg", 1 << 30, 1 << 29),), tuple(runs))
    PlainProducer(log.journal).commit(state.version, [uploaded])


def seal_all(log: spark_log.Log) -> None:
    journal = log.journal
    maintenance(journal, seal)
    journal.refresh()


def grown(log: spark_log.Log, rng: random.Random) -> None:
    """Slices in several pieces of each partition, and others behind them."""
    for count in (40, 25, 10):
        commit(log, rng, count)
        seal_all(log)
    commit(log, rng, 20)


def one_by_one(log: spark_log.Log, rng: OffsetRange, window: Window | None) -> list[SliceRead]:
    """The reads for a range, computed by visiting each slice of its partition."""
    state = log.journal.state
    entries = state.partitions[rng.topic_id, rng.partition].entries
    sealed = log.journal.run(read_pieces(entries))
    assert sealed is not None
    return [
        SliceRead(
            rng.topic,
            rng.topic_id,
            rng.partition,
            max(piece.start, rng.start),
            min(piece.end, rng.end),
            piece,
            state.objects[piece.object].index_position,
            state.objects[piece.object].size,
        )
        for piece in resolve(entries, sealed)
        if max(piece.start, rng.start) < min(piece.end, rng.end)
        and (window is None or (piece.min_us < window.end and piece.max_us >= window.start))
    ]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("stamps", ["CreateTime", "LogAppendTime"])
def test_a_plan_is_what_looking_at_each_slice_gives(store: SlowStore, seed: int, stamps: str) -> None:
    """Of any ranges and windows, over pieces and slices, in the order of the ranges."""
    rng = random.Random(seed)
    log = new_log(store, message_timestamp_type=stamps)
    grown(log, rng)
    topic_id, state = log.journal.state.names["t"], log.journal.state
    now_us = state.time * 1000
    for _ in range(40):
        ranges = []
        for number in rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS)):
            end = state.partitions[topic_id, number].end
            low, high = sorted(rng.randint(0, end) for _ in range(2))
            ranges.append(OffsetRange("t", topic_id, number, low, high))
        base = now_us - 500 if stamps == "LogAppendTime" else 0
        first = base + rng.randrange(1100)
        window = rng.choice([None, Window(first, first + rng.randrange(300))])
        expected = [read for one in ranges if one.start < one.end for read in one_by_one(log, one, window)]
        assert plan_reads(log.journal, ranges, window) == expected


def index_reads(store: SlowStore, log: spark_log.Log, *args: object, **read: object) -> list[str]:
    """Objects that a plan reads, each as often as it is asked for."""
    with store.watched() as requests:
        assert log.plan("t", *args, **read)  # type: ignore[arg-type]
    return [one.key for one in requests if one.kind == "get" and one.key.endswith(".idx")]


def test_a_plan_of_a_range_reads_the_index_that_holds_it(store: SlowStore) -> None:
    """Of a partition with two pieces the one, and none where the slices are in the state."""
    log = new_log(store)
    rng = random.Random(1)
    commit(log, rng, 60)
    seal_all(log)
    commit(log, rng, 20)
    seal_all(log)
    commit(log, rng, 20)
    part = log.journal.state.partitions[log.journal.state.names["t"], 0]
    old, new, *inline = part.entries

    assert index_reads(store, log, [0], old.start, old.start + 1) == [old.object]
    assert index_reads(store, log, [0], new.end - 1, new.end) == [new.object]
    assert index_reads(store, log, [0], inline[0].start, part.end) == []


def test_a_plan_of_all_partitions_reads_an_index_object_once(store: SlowStore) -> None:
    """Their pieces lie side by side in it."""
    log = new_log(store)
    commit(log, random.Random(2), 60)
    seal_all(log)
    pieces = [part.entries[0] for part in log.journal.state.partitions.values()]
    assert len(pieces) == PARTITIONS and len({piece.object for piece in pieces}) == 1

    assert index_reads(store, log) == [pieces[0].object]


def test_pieces_are_read_together_up_to_a_limit(store: SlowStore) -> None:
    """Only those that lie side by side; each is read once."""
    log = new_log(store)
    commit(log, random.Random(3), 60)
    seal_all(log)
    parts = log.journal.state.partitions
    pieces = sorted((part.entries[0] for part in parts.values()), key=lambda piece: piece.position)
    first, second, third, *_ = pieces

    assert neighbours(reversed(pieces)) == [pieces]
    assert neighbours([first, first, third]) == [[first], [third]]
    assert neighbours([first, second, third], first.length + second.length) == [[first, second], [third]]
    assert neighbours([first, second], 1) == [[first], [second]]
