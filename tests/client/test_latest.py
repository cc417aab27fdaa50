"""The latest record of each key, against a dictionary."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_log import NewTopic
from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.latest import condition_of_view, fetch_latest, scan_latest
from spark_log.client.reader.plan import SliceRead
from spark_log.client.reader.prune import may_match
from spark_log.client.reader.scan_batches import fetch_ranges
from spark_log.conditions import EVERYTHING, Condition, as_condition
from spark_log.errors import ConcurrentChange, InvalidRequest, ObjectNotFound, UnknownTopicOrPartition
from spark_log.positions import format_timestamp_ms
from spark_log.store.memory import MemoryStore
from tests.client.logs import log_on, new_log
from tests.thinning import merge_all, seal_all, thin

KEYS = [b"", b"a", b"b", b"c", b"d", b"long" * 70]
Rows = list[dict[str, object]]


class Model:
    """A topic of two partitions, and its records."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log = log_on(MemoryStore(uuid.uuid4().hex))
        self.log.create_topic(NewTopic("t", 2, {"retention.ms": "-1"}))
        self.records: list[Rows] = [[], []]

    def append(self) -> None:
        rows: Rows = []
        for _ in range(self.rng.randint(1, 8)):
            number = self.rng.randrange(2)
            row = {
                "partition": number,
                "key": self.rng.choice([None, *KEYS]),
                "value": self.rng.choice([None, b"%d" % len(self.records[number])]),
                "timestamp": 1000 + self.rng.randrange(50),
            }
            rows.append(row)
            self.records[number].append({**row, "offset": len(self.records[number])})
        self.log.append("t", rows)

    def thin(self) -> None:
        """As compaction does: records that a newer one of the same key follows may go."""
        number = self.rng.randrange(2)
        if not self.records[number]:
            return
        newest = {row["key"]: row["offset"] for row in self.records[number]}
        stays = {
            row["offset"]
            for row in self.records[number]
            if self.rng.random() < 0.3 or (row["key"] is not None and newest[row["key"]] == row["offset"])
        }
        assert thin(self.log, "t", stays.__contains__, partition=number)

    def step(self) -> None:
        action = self.rng.choice((self.append, self.append, self.thin, merge_all, seal_all))
        action(self.log) if action in (merge_all, seal_all) else action()  # type: ignore[call-arg]

    def latest(self, number: int, end: int | None = None) -> Rows:
        """The expected view before an offset."""
        newest = {row["key"]: row for row in self.records[number][:end]}
        kept = [row for row in newest.values() if row["key"] is not None and row["value"] is not None]
        return sorted(kept, key=lambda row: int(str(row["offset"])))


def seen(table: pa.Table) -> Rows:
    table = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", _ms(table["timestamp"]))
    return table.select(["partition", "key", "value", "timestamp", "offset"]).to_pylist()


def _ms(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([[time.value // 1000 for time in times]], pa.int64())


# Promise: spark-read.md#the-latest-record-of-each-key, tasks/keep-the-latest.md#read-the-latest-record-of-each-key
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 10))
def test_a_table_is_a_dictionary_at_every_offset(seed: int, steps: int) -> None:
    """After appends, merges, seals and thinning: the whole table, parts of it, and the table at each offset."""
    model = Model(seed)
    model.append()
    for _ in range(steps):
        model.step()
    whole = model.latest(0) + model.latest(1)
    assert seen(model.log.table("t")) == whole
    for number in (0, 1):
        assert seen(model.log.table("t", partitions=[number])) == model.latest(number)
    low, high = sorted(model.rng.choices(range(1000, 1051), k=2))
    first, last = sorted(model.rng.choices(range(20), k=2))
    for where, matches in (
        (f"offset >= {first} and offset < {last}", lambda row: first <= row["offset"] < last),
        (f"offset in ({first}, {last})", lambda row: row["offset"] in (first, last)),
        (f"timestamp >= '{_at(low)}' and timestamp < '{_at(high)}'", lambda row: low <= row["timestamp"] < high),
        ("partition = 1", lambda row: row["partition"] == 1),
        ("offset < 0", lambda row: False),
    ):
        assert seen(model.log.table("t", where=where)) == [row for row in whole if matches(row)], where


# Promise: clients.md#tables
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_table_at_an_offset_is_as_it_was(seed: int) -> None:
    """Records at or after the position have no influence."""
    model = Model(seed)
    for _ in range(4):
        model.append()
    for end in range(len(model.records[0]) + 1):
        assert seen(model.log.table("t", at=end, partitions=[0])) == model.latest(0, end)


# Promise: spark-read.md#the-latest-record-of-each-key
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), keys_max=st.integers(1, 8))
def test_more_keys_than_memory_take_several_rounds(seed: int, keys_max: int) -> None:
    """Each record once, also of reads that are only a part of the view."""
    model = Model(seed)
    for _ in range(8):
        model.append()
    view = model.log.plan("t")
    fetched: list[Sequence[str]] = []

    def fetch(reads: Sequence[SliceRead], columns: Sequence[str], where: Condition) -> Iterator[Fetched]:
        fetched.append(columns)
        return fetch_ranges(model.log.journal, reads, columns, where.window)

    cut = model.rng.randint(0, len(view))
    found = [
        (part.read.partition, int(offset))
        for reads in (view[:cut], view[cut:])
        for part in fetch_latest(reads, view, ["timestamp"], EVERYTHING, fetch, keys_max)
        for offset in part.offset_array()
    ]
    assert found == [(number, row["offset"]) for number in (0, 1) for row in model.latest(number)]
    assert set(map(tuple, fetched)) <= {("key",), ("timestamp", "tombstone")}


def _at(ms: int) -> str:
    return format_timestamp_ms(ms)


# Promise: spark-read.md#the-latest-record-of-each-key
def test_only_slices_with_latest_records_are_read_twice(tmp_path: Path) -> None:
    """The values of a slice whose records all have newer ones are not read."""
    log = new_log(tmp_path, t=1)
    for number in range(4):
        log.append("t", [{"key": b"same", "value": b"%d" % number}])
    view, values = log.plan("t"), []

    def fetch(reads: Sequence[SliceRead], columns: Sequence[str], where: Condition) -> Iterator[Fetched]:
        values.extend(reads if "value" in columns else [])
        return fetch_ranges(log.journal, reads, columns, where.window)

    assert [part.end for part in fetch_latest(view, view, ["value"], EVERYTHING, fetch)] == [4]
    assert values == view[-1:]


# Promise: spark-read.md#the-latest-record-of-each-key
def test_a_condition_on_time_reads_keys_from_the_first_match_on(tmp_path: Path) -> None:
    """Earlier records cannot be newer than those that match."""
    log = new_log(tmp_path, t=1)
    for number in range(4):
        log.append("t", [{"key": b"%d" % (number % 2), "value": b"", "timestamp": number}])
    where, view, starts = as_condition("timestamp >= '1970-01-01T00:00:00.002Z'"), log.plan("t"), []

    def fetch(reads: Sequence[SliceRead], columns: Sequence[str], where: Condition) -> Iterator[Fetched]:
        starts.extend(read.start for read in reads)
        return fetch_ranges(log.journal, reads, columns, where.window)

    assert condition_of_view(where) == EVERYTHING
    assert len(list(fetch_latest(may_match(view, where), view, ["value"], where, fetch))) == 2
    assert starts == [2, 3, 2, 3]


# Promise: spark-read.md#the-latest-record-of-each-key
def test_a_key_in_two_partitions_has_a_row_of_each(tmp_path: Path) -> None:
    """As compaction, the view compares records of one partition only."""
    log = new_log(tmp_path, t=2)
    for number in (0, 1):
        log.append("t", [{"key": b"k", "value": b"%d" % number, "partition": number}])
    assert log.table("t", columns=["partition", "value"]).to_pylist() == [
        {"partition": 0, "value": b"0"},
        {"partition": 1, "value": b"1"},
    ]


def test_a_table_of_nothing_has_the_columns(tmp_path: Path) -> None:
    """No partition has a record, or all keys are deleted."""
    log = new_log(tmp_path, t=1)
    assert log.table("t").schema == log.read("t").schema
    log.append("t", [{"key": b"k", "value": b"x"}, {"key": b"k", "value": None}, {"key": None, "value": b"x"}])
    assert log.table("t", columns=["offset"]).num_rows == 0


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_table_whose_objects_are_gone_fails_if_the_topic_is_compacted(tmp_path: Path, policy: str) -> None:
    """Compaction may have removed a record of its version for one that is newer.  Merging removes none."""
    log = new_log(tmp_path)
    log.admin.create_topics([NewTopic("t", 1, {"cleanup.policy": policy})])
    log.append("t", [{"key": b"k", "value": b"0"}, {"key": b"l", "value": b"0"}])
    reader = scan_latest(log.journal, "t", None, "latest", None, None)
    planned = {read.slice.object for read in log.plan("t")}
    log.append("t", [{"key": b"k", "value": b"1"}])
    assert thin(log, "t", lambda offset: policy == "delete" or offset != 0)
    log.journal.objects.delete(planned)
    if policy == "compact":
        with pytest.raises(ConcurrentChange, match="t-0 was compacted while .* run the query again"):
            reader.read_all()
    else:
        assert reader.read_all().column("value").to_pylist() == [b"0", b"0"]


def test_a_table_whose_object_is_missing_says_so(tmp_path: Path) -> None:
    """The log still names it, so a compacted topic was not compacted meanwhile, and another run would not help."""
    log = new_log(tmp_path)
    log.admin.create_topics([NewTopic("t", 1, {"cleanup.policy": "compact"})])
    for value in (b"0", b"1"):
        log.append("t", [{"key": b"k", "value": value}])
    [*_, last] = log.plan("t")
    log.journal.objects.delete([last.slice.object])
    with pytest.raises(ObjectNotFound, match="has the offsets 1 to 1 of topic 't', partition 0.*--lose-data"):
        log.table("t")


def test_what_has_no_table_is_refused(tmp_path: Path) -> None:
    """With the reason."""
    log = new_log(tmp_path, t=1)
    with pytest.raises(InvalidRequest, match="__consumer_offsets has no view"):
        log.table("__consumer_offsets")
    with pytest.raises(UnknownTopicOrPartition, match="'missing'"):
        log.table("missing")
    with pytest.raises(InvalidRequest, match="unknown columns"):
        log.table("t", columns=["keys"])


# Promise: clients.md#tables
def test_a_table_is_one_version_while_others_write(tmp_path: Path) -> None:
    """Two keys that are always written together always have the same value."""
    log = new_log(tmp_path, t=1)
    log.append("t", [{"key": key, "value": b"0"} for key in (b"a", b"b")])
    done = threading.Event()

    def write() -> None:
        for number in range(1, 40):
            log.append("t", [{"key": key, "value": b"%d" % number} for key in (b"a", b"b")])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    pairs = []
    while not done.is_set():
        pairs.append([row["value"] for row in log.table("t").to_pylist()])
    writer.join()
    pairs.append([row["value"] for row in log.table("t").to_pylist()])
    assert all(len(pair) == 2 and pair[0] == pair[1] for pair in pairs)
    assert pairs[-1] == [b"39"] * 2
