"""Reads of logs that compaction has thinned: every offset, position and time against a dictionary."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

import spark_log
from simulation.harness.stores import MeteredStore
from spark_log.client.admin.lag import lags_of
from spark_log.metadata.records import Piece
from spark_log.model import TopicPartition
from spark_log.positions import format_timestamp_ms
from spark_log.recovery.verify import verify
from spark_log.segment.compression import Compression
from spark_log.store.memory import MemoryStore
from tests.client.logs import log_on, new_log
from tests.thinning import merge_all, seal_all, thin

P0 = TopicPartition("t", 0)
WIDE = 60_000
"""Bytes of a value, so that slices of a few records are read through their index."""


class Model:
    """A partition of a log, and the records that it should have."""

    def __init__(self, seed: int, *, remote: bool = False, width: int = 0) -> None:
        self.rng, self.width = random.Random(seed), width
        store = MemoryStore(uuid.uuid4().hex)
        self.log = log_on(MeteredStore(store) if remote else store)
        self.log.create_topic(spark_log.NewTopic("t", 1, {"compression.type": "none", "retention.ms": "-1"}))
        self.records: dict[int, tuple[bytes, int]] = {}
        """Value and timestamp in ms, by offset."""
        self.end = 0

    def append(self) -> None:
        new = {}
        for offset in range(self.end, self.end + self.rng.randint(1, 8)):
            new[offset] = (b"%d " % offset + self.rng.randbytes(self.width), 1000 + self.rng.randrange(200))
        self.log.append("t", [{"value": value, "timestamp": time, "partition": 0} for value, time in new.values()])
        self.records |= new
        self.end += len(new)

    def thin(self) -> None:
        """Rewrite some neighbouring slices without a random part of their records."""
        part = self.rng.choice((0, 0.1, 0.5, 0.9, 1))
        gone: set[int] = set()

        def keep(offset: int) -> bool:
            if self.rng.random() < part:
                gone.add(offset)
            return offset not in gone

        first = self.rng.randrange(self.slices)
        last = self.rng.randint(first + 1, self.slices)
        assert thin(
            self.log,
            "t",
            keep,
            first=first,
            last=last,
            batch_rows=self.rng.randint(1, 5),
            compression=Compression("none"),
        )
        self.records = {offset: record for offset, record in self.records.items() if offset not in gone}

    @property
    def slices(self) -> int:
        state = self.log.journal.refresh()
        entries = state.partitions[state.names["t"], 0].entries
        return sum(entry.slices if isinstance(entry, Piece) else 1 for entry in entries)

    def step(self) -> None:
        if not self.end:
            self.append()
        self.rng.choice((self.append, self.append, self.thin, self.thin, self.merge, self.seal))()

    def merge(self) -> None:
        merge_all(self.log)

    def seal(self) -> None:
        seal_all(self.log)

    def between(self, start: int, end: int) -> dict[int, bytes]:
        return {offset: value for offset, (value, _) in self.records.items() if start <= offset < end}


def values(table: pa.Table) -> dict[int, bytes]:
    offsets = table.column("offset").to_pylist()
    assert offsets == sorted(set(offsets))
    return dict(zip(offsets, table.column("value").to_pylist(), strict=True))


def check_reads(model: Model) -> None:
    """Ranges, conditions and times."""
    log, rng, end = model.log, model.rng, model.end
    for start in range(end + 1):
        stop = rng.randint(start, end)
        assert values(log.read("t", start=start, end=stop)) == model.between(start, stop)
        assert values(log.read("t", start=start)) == model.between(start, end)
    listed = sorted(rng.sample(range(end), min(3, end)))
    assert values(log.read("t", where=f"offset in ({', '.join(map(str, listed))})")) == {
        offset: model.records[offset][0] for offset in listed if offset in model.records
    }
    low, high = sorted(rng.choices(range(1000, 1201), k=2))
    found = log.read(
        "t", where=f"timestamp >= '{format_timestamp_ms(low)}' and timestamp < '{format_timestamp_ms(high)}'"
    )
    assert values(found) == {o: value for o, (value, time) in model.records.items() if low <= time < high}
    consumer = log.consumer()
    for time in (0, low, high, 1199, 2000):
        first = min((offset for offset, (_, at) in model.records.items() if at >= time), default=None)
        at = consumer.offsets_for_times({P0: time})[P0]
        assert at == (None if first is None else (first, model.records[first][1]))


def check_consumers(model: Model) -> None:
    """Records in order, and a position that reaches the end across holes."""
    log, rng, end = model.log, model.rng, model.end
    start = rng.randint(0, end)
    consumer = log.consumer(auto_offset_reset="earliest", group_id="g", enable_auto_commit=False)
    consumer.assign([P0])
    consumer.seek(P0, start)
    found: dict[int, bytes | None] = {}
    while records := consumer.poll(max_records=rng.randint(1, 7)).get(P0, []):
        found |= {record.offset: record.value for record in records}
        assert records[-1].offset < consumer.position(P0) <= end
        consumer.commit()
        (lag,) = lags_of(log.journal, ["g"])["g"]
        assert lag.records == end - consumer.position(P0)
    assert found == model.between(start, end)
    assert consumer.position(P0) == end
    consumer.seek(P0, start)
    found = {}
    while (table := consumer.poll_arrow(max_records=rng.randint(1, 7))).num_rows:
        found |= values(table)
    assert found == model.between(start, end)
    assert consumer.position(P0) == end
    consumer.close()
    iterated = log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=0)
    assert {record.offset: record.value for record in iterated} == model.between(0, end)
    assert iterated.position(P0) == end


# Promise: format/segment.md#runs
@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 8))
def test_a_log_with_holes_reads_as_a_dictionary(seed: int, steps: int, remote: bool) -> None:
    """After appends, thinning, merges and seals: reads between all offsets, conditions, times, consumers and lag."""
    model = Model(seed, remote=remote)
    for _ in range(steps):
        model.step()
    check_reads(model)
    check_consumers(model)
    assert verify(model.log, deep=True) == []


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("seed", range(3))
def test_large_slices_with_holes_are_read_through_their_index(seed: int, remote: bool) -> None:
    """Slices above 1 MiB, of which only the batches that overlap a range are fetched."""
    model = Model(seed, remote=remote, width=WIDE)
    for _ in range(8):
        model.append()
    model.thin()
    model.merge()
    model.thin()
    check_reads(model)
    check_consumers(model)
    assert verify(model.log, deep=True) == []


def test_a_partition_without_records_has_its_offsets(tmp_path: Path) -> None:
    """All records are gone: the end stays, consumers get there, no time is found, and appends continue."""
    model = Model(1)
    model.append()
    assert thin(model.log, "t", lambda offset: False)
    model.records = {}
    check_reads(model)
    check_consumers(model)
    model.append()
    model.merge()
    check_reads(model)
    check_consumers(model)


def test_positions_pass_holes(tmp_path: Path) -> None:
    """The poll that returns the last records moves the position over the holes behind them.  So does a poll that finds
    only holes."""
    log = new_log(tmp_path, t=1)
    log.append("t", [{"value": b"%d" % n} for n in range(5)])
    thin(log, "t", lambda offset: offset < 2)
    consumer = log.consumer("t", auto_offset_reset="earliest")
    assert [record.offset for record in consumer.poll()[P0]] == [0, 1]
    assert consumer.position(P0) == 5
    consumer.seek(P0, 0)
    assert (consumer.poll_arrow().num_rows, consumer.position(P0)) == (2, 5)
    consumer.seek(P0, 2)
    assert (consumer.poll(), consumer.position(P0)) == ({}, 5)
    log.append("t", [{"value": b"5"}])
    assert [record.offset for record in consumer.poll(timeout_ms=5000)[P0]] == [5]


# Promise: tasks/keep-the-latest.md#what-is-kept
def test_positions_of_groups_stay_when_their_records_are_removed(tmp_path: Path) -> None:
    """The topic of committed offsets shows the same position, lag counts offsets, and the group continues behind the
    hole."""
    log = new_log(tmp_path, t=1)
    log.append("t", [{"value": b"%d" % n} for n in range(10)])
    with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        assert sum(map(len, consumer.poll(max_records=5).values())) == 5
        consumer.commit()
    before = log.read("__consumer_offsets").to_pylist()
    assert thin(log, "t", lambda offset: offset in (0, 8))
    assert log.read("__consumer_offsets").to_pylist() == before
    assert json.loads(before[-1]["value"])["offset"] == 5
    (lag,) = lags_of(log.journal, ["g"])["g"]
    assert lag.records == 5
    assert values(log.read("t", start="group:g")) == {8: b"8"}
    with log.consumer("t", group_id="g") as consumer:
        assert [record.offset for record in consumer.poll(timeout_ms=5000)[P0]] == [8]
        consumer.commit()
    assert json.loads(log.read("__consumer_offsets").to_pylist()[-1]["value"])["offset"] == 10
