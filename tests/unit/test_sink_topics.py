"""Rows of many topics: checked, assigned and sorted together as each topic alone would be, row by row."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark_pylog.log.planned_log import PlannedLog, PlannedRoots
from pyspark_pylog.sink.bad_records import Topics, sift
from pyspark_pylog.sink.write_columns import BatchPiece, pieces

from spark_log.client.producer.topic_rules import TopicRows, TopicSpec, TopicTable, faults_of
from spark_log.client.producer.upload import Uploaded, Uploader
from spark_log.segment.compression import topic_compression
from spark_log.segment.keys.murmur2 import partition_for_key
from spark_log.segment.partitioners import Partitioner, Partitions, assign_partitions, make_partitioner
from spark_log.segment.reader import decode_run
from spark_log.segment.record_columns import Rows, conform
from spark_log.store.memory import MemoryStore
from tests.unit.segment.builders import place

NOW = 1_700_000_000_000
FOR_EVER = 2**63 - 1
NOWHERE = PlannedLog("/nowhere", None, PlannedRoots(()), "", 0)
"""The driver has found all topics, so tasks open no log."""
SPECS = {
    "small": TopicSpec("1", "small", 3, 60, topic_compression({}), False, FOR_EVER, 1000, False),
    "one": TopicSpec(
        "2", "one", 1, 10_000, topic_compression({"compression.type": "zstd"}), False, 5000, FOR_EVER, False
    ),
    "log-time": TopicSpec("3", "log-time", 300, 10_000, topic_compression({}), True, 0, 0, False),
    "plain": TopicSpec(
        "4", "plain", 2, 10_000, topic_compression({"compression.type": "lz4"}), False, FOR_EVER, FOR_EVER, False
    ),
}
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.int64(),
}

Row = dict[str, Any]
Written = Mapping[tuple[str, int], list[tuple[Any, ...]]]
"""Rows by topic id and partition."""

ROWS = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=9),
        "value": st.none() | st.integers(0, 6000).map(bytes),
        "topic": st.sampled_from([*SPECS, *SPECS, None, "no topic", "no/topic"]),
        "partition": st.sampled_from([None, None, None, 0, 1, 2, 299, -1]),
        "timestamp": st.sampled_from([NOW, NOW - 4000, NOW - 6000, NOW + 900, NOW + 1100]),
    }
)
PARTITIONERS = ["default", "sticky", "round-robin", f"{__name__}:ByLength"]


class ByLength:
    """A user's own class."""

    def partition(self, keys: pa.Array, values: pa.Array, count: int) -> Partitions:
        return np.array([len(value.as_py() or b"") % count for value in values])


def piece_of(rows: Sequence[Row]) -> BatchPiece:
    batch = pa.RecordBatch.from_pylist(list(rows), pa.schema(list(TYPES.items())))
    (piece,) = pieces(tuple(TYPES), batch, NOW)
    return piece


def written(store: MemoryStore, uploaded: Uploaded) -> Written:
    """The contents of the uploaded objects."""
    found = {}
    for number, run in uploaded.slices:
        data = store.get(uploaded.objects[number].name, run.position, run.position + run.length)
        table = pa.Table.from_batches(
            [found.records for found in decode_run(memoryview(data), run, place=place(run.partition))]
        )
        times = table["timestamp"].cast(pa.int64()).to_pylist()
        found[run.topic_id, run.partition] = list(
            zip(table["key"].to_pylist(), table["value"].to_pylist(), times, strict=True)
        )
    return found


def together(batches: Sequence[Sequence[Row]], partitioner: str) -> tuple[Written, list[list[tuple[int, str, str]]]]:
    """The rows that the sink writes and rejects."""
    store = MemoryStore("together")
    uploader = Uploader(store, 0, random.Random(1), partitioner=partitioner)
    topics, rejected = Topics(NOWHERE, SPECS), []
    for rows in batches:
        good, bad = sift(piece_of(rows), None, topics, NOW)
        uploader.add(good)
        found = [] if bad is None else zip(bad.rows.tolist(), bad.kinds, bad.reasons, strict=True)
        rejected.append([(row, kind.__name__, reason) for row, kind, reason in found])
    return written(store, uploader.finish()), rejected


class OneByOne:
    """A topic at a time, a row at a time."""

    def __init__(self, partitioner: str) -> None:
        self.partitioner, self.rng = partitioner, random.Random(1)
        self.partitioners: dict[str, Partitioner] = {}
        self.written = defaultdict[tuple[str, int], list[tuple[Any, ...]]](list)

    def add(self, rows: Sequence[Row]) -> list[tuple[int, str, str]]:
        """Returns what is rejected."""
        faults = [self.fault(row) for row in rows]
        good = [row for row, fault in zip(rows, faults, strict=True) if fault is None]
        for topic in (row["topic"] for row in rows if row["topic"] in SPECS):
            self.partitioners.setdefault(topic, make_partitioner(self.partitioner, self.rng))
        for topic in self.partitioners:
            self.write(SPECS[topic], [row for row in good if row["topic"] == topic])
        return [(number, *fault) for number, fault in enumerate(faults) if fault is not None]

    def fault(self, row: Row) -> tuple[str, str] | None:
        if row["topic"] is None:
            return "InvalidRecord", "a row has a null topic; set the option 'topic' or fill the column"
        if row["topic"] == "no/topic":
            return "InvalidTopic", "topic name 'no/topic' has '/'; expected a-z A-Z 0-9 . _ -"
        if row["topic"] == "no topic":
            return "InvalidTopic", "topic name 'no topic' has a space; expected a-z A-Z 0-9 . _ -"
        for fault in faults_of(TopicRows.of(SPECS[row["topic"]], conformed([row])), NOW):
            return fault.kind.__name__, fault.reason(0)
        return None

    def write(self, spec: TopicSpec, rows: Sequence[Row]) -> None:
        if not rows:
            return
        records, wanted = conformed(rows)
        chosen = self.partitioners[spec.name]
        numbers = assign_partitions(records, wanted, spec.partitions, chosen, topic=spec.name)
        for row, number in zip(rows, numbers.tolist(), strict=True):
            self.written[spec.topic_id, number].append((row["key"], row["value"], row["timestamp"] * 1000))


def conformed(rows: Sequence[Row]) -> Rows:
    schema = pa.schema([(name, type_) for name, type_ in TYPES.items() if name != "topic"])
    columns = [{name: row[name] for name in schema.names} for row in rows]
    (found,) = conform(pa.RecordBatch.from_pylist(columns, schema), now_us=NOW * 1000)
    return found


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@settings(max_examples=25, deadline=None)
@given(batches=st.lists(st.lists(ROWS, min_size=1, max_size=12), max_size=3))
def test_topics_together_are_written_as_one_by_one(partitioner: str, batches: list[list[Row]]) -> None:
    """The same rows in the same partitions and order, and an error with its reason for each bad row, in order."""
    alone = OneByOne(partitioner)

    found, rejected = together(batches, partitioner)

    assert rejected == [alone.add(rows) for rows in batches]
    assert found == alone.written


@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.sampled_from([1, 200, 1500]), st.sampled_from([10, 3000, 60_000])), max_size=4),
)
def test_large_rows_are_written_as_they_are_added(seed: int, sizes: list[tuple[int, int]]) -> None:
    """Batches that are cut by their bytes have every row, in order: keys of 2 kB, and values up to 60 kB."""
    rng, store = random.Random(seed), MemoryStore("large")
    topics = [SPECS[name]._replace(partitions=4, max_message_bytes=1 << 20) for name in ("one", "plain")]
    uploader, table = Uploader(store, 0, random.Random(1)), TopicTable(tuple(topics))
    expected = defaultdict[tuple[str, int], list[tuple[Any, ...]]](list)
    for count, most in sizes:
        keys, values = ([rng.randbytes(rng.randint(0, size)) for _ in range(count)] for size in (2048, most))
        times = list(range(NOW, NOW + count))
        (rows,) = conform(pa.table({"key": keys, "value": values, "timestamp": times}), now_us=NOW * 1000)
        numbers = np.array([rng.randrange(2) for _ in range(count)])
        uploader.add(TopicRows(table, numbers, rows))
        partitions = partition_for_key(rows.records["key"], 4).tolist()
        for number, partition, key, value, time in zip(numbers, partitions, keys, values, times, strict=True):
            expected[topics[number].topic_id, partition].append((key, value, time * 1000))

    assert written(store, uploader.finish()) == expected


def test_a_topic_that_gets_partitions_in_between_keeps_the_order() -> None:
    """Rows added before the change stay before those added after it."""
    store = MemoryStore("grown")
    uploader = Uploader(store, 0, random.Random(1))
    for number, partitions in enumerate([2, 3, 3]):
        rows = conformed([{"key": None, "value": b"%d" % number, "partition": 1, "timestamp": NOW}])
        uploader.add(TopicRows.of(SPECS["plain"]._replace(partitions=partitions), rows))

    found = written(store, uploader.finish())

    assert [value for _, value, _ in found["4", 1]] == [b"0", b"1", b"2"]


def test_rows_for_a_thousand_topics_stay_within_the_buffer() -> None:
    """The rows that wait, sorted or not, are at most BUFFER_BYTES plus those being sorted."""
    uncompressed = topic_compression({"compression.type": "none"})
    specs = {
        f"t{n}": TopicSpec(f"id-{n}", f"t{n}", 1, 1 << 20, uncompressed, False, FOR_EVER, FOR_EVER, False)
        for n in range(1000)
    }
    topics = Topics(NOWHERE, specs)
    uploader = Uploader(MemoryStore("wide"), 0, random.Random(1))
    value, before, peak = random.Random(2).randbytes(1 << 14), pa.total_allocated_bytes(), 0

    for _ in range(7):
        rows = [
            {"key": None, "value": value, "topic": f"t{n}", "partition": None, "timestamp": NOW} for n in range(1000)
        ]
        uploader.add(sift(piece_of(rows), None, topics, NOW).good)
        peak = max(peak, pa.total_allocated_bytes() - before)

    assert peak < 80 << 20
    assert sum(run.rows for _, run in uploader.finish().slices) == 7_000
