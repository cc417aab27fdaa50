"""`log.admin.erase_records`: no read, and in the end no object, has a record of an erased key."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

import spark_log
from simulation.harness.clocks import ManualClock
from spark_log.cli.commands.erase import report_text
from spark_log.client.admin.erasure import ErasedShare, erase_records, erase_share
from spark_log.client.topic_creation import DEAD_LETTER_CONFIGS, ensure_topic
from spark_log.errors import AuthorizationFailed, InvalidRequest, UnknownTopicOrPartition
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import LIMITS
from spark_log.maintenance.maintain import collect_garbage, maintain_once, merge
from spark_log.metadata.commands import Report
from spark_log.metadata.records import ErasedRecord
from spark_log.model import TopicPartition
from spark_log.recovery.verify import verify
from spark_log.rewriting.erasing import PARALLEL_PARTITIONS, Erasing
from spark_log.rewriting.rewrite_packs import SHARED_BYTES
from spark_log.server.audit import close_audit, open_audit
from spark_log.server.tokens import parse_tokens
from spark_log.store.memory import MemoryStore
from tests.conftest import Bucket
from tests.services import Services
from tests.thinning import merge_all, seal_all

FENCE_MS = 24 * 3_600_000
CONFIGS = {"compression.type": "none", "retention.ms": "-1"}
ERASED = b"erase-me"
"""In the keys that tests erase; topics are not compressed, so it is found in objects."""


def new_log(folder: Path, **partitions: int) -> spark_log.Log:
    log = spark_log.connect(str(folder), durability="os")
    for name, count in partitions.items():
        log.create_topic(spark_log.NewTopic(name, count, CONFIGS))
    return log


def append(log: spark_log.Log, topic: str, keys: Sequence[bytes | None], partition: int | None = None) -> None:
    place = {} if partition is None else {"partition": partition}
    log.append(topic, [{"key": key, "value": b"of %s" % (key or b""), **place} for key in keys])


def keys_of(log: spark_log.Log, topic: str) -> list[bytes | None]:
    found: list[bytes | None] = log.read(topic, columns=["key"]).column("key").to_pylist()
    return found


def objects_with(folder: Path, text: bytes) -> list[str]:
    return [str(file) for file in sorted(folder.rglob("*")) if file.is_file() and text in file.read_bytes()]


# -------------------------------------------------------------------------------------------------- against a dictionary


class Model:
    """A log of two topics with two partitions each, and the records that it should have."""

    def __init__(self, seed: int) -> None:
        self.rng, self.clock = random.Random(seed), ManualClock()
        self.store = MemoryStore(uuid.uuid4().hex)
        self.log = spark_log.Log(Journal.open(self.store, create=True, clock=self.clock, rng=random.Random(7)))
        self.records: dict[tuple[str, int], dict[int, bytes | None]] = {}
        self.ends: dict[tuple[str, int], int] = {}
        for topic in ("t", "u"):
            self.log.create_topic(spark_log.NewTopic(topic, 2, CONFIGS))
            for number in range(2):
                self.records[topic, number], self.ends[topic, number] = {}, 0

    def append(self) -> None:
        with self.log.transaction(f"x{self.rng.random()}") as transaction:  # one object for all topics
            for (topic, number), known in self.records.items():
                for offset in range(self.ends[topic, number], self.ends[topic, number] + self.rng.randrange(6)):
                    key = self.rng.choice((None, b"", *(b"<%s-%s-%d>" % (ERASED, topic.encode(), n) for n in range(6))))
                    transaction.send(topic, b"value", key=key, partition=number)
                    known[offset], self.ends[topic, number] = key, offset + 1
        self.clock.ms += 1000

    def trim(self) -> None:
        (topic, number), known = self.rng.choice(sorted(self.records.items(), key=lambda item: item[0]))
        start = self.rng.randint(0, self.ends[topic, number])
        self.log.admin.delete_records({TopicPartition(topic, number): start})
        for offset in [offset for offset in known if offset < start]:
            del known[offset]

    def merge(self) -> None:
        merge_all(self.log)

    def seal(self) -> None:
        seal_all(self.log)

    def erase(self) -> None:
        topic = self.rng.choice(("t", "u"))
        keys = {b"<%s-%s-%d>" % (ERASED, topic.encode(), self.rng.randrange(6)) for _ in range(self.rng.randint(1, 3))}
        before = self.rng.choice(("latest", "latest", "latest-3"))
        spread = self.rng.choice((None, self.spread))
        report = erase_records(self.log.journal, topic, list(keys), before, spread=spread)
        assert report.problems == ()
        gone = 0
        for number in range(2):
            known, end = self.records[topic, number], report.before[number]
            for offset in [offset for offset, key in known.items() if key in keys and offset < end]:
                del known[offset]
                gone += 1
        assert report.records >= gone, "records before the start of a partition may be counted"

    def spread(self, erasing: Erasing, shares: Sequence[frozenset[str]]) -> Iterator[ErasedShare]:
        """Each object is the share of one process, or of two; others merge meanwhile."""
        log = spark_log.Log(Journal.open(self.store, create=False, clock=self.clock, rng=random.Random(8)))
        for name in [name for share in shares for name in sorted(share)]:
            for _ in range(self.rng.randint(1, 2)):
                yield erase_share(log.journal, erasing, frozenset([name]), dry_run=False)
            self.rng.choice((self.merge, self.seal, lambda: None))()

    def check(self) -> None:
        for (topic, number), known in self.records.items():
            table = self.log.read(topic, number)
            offsets = table.column("offset").to_pylist()
            assert dict(zip(offsets, table.column("key").to_pylist(), strict=True)) == known
        assert verify(self.log, deep=True) == []


# Promise: tasks/erase.md#erase-the-records-of-a-person, tasks/erase.md#large-topics
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_a_log_against_a_dictionary(seed: int) -> None:
    """Erasures between appends, trims, merges and seals, in objects of several topics."""
    model = Model(seed)
    for _ in range(14):
        model.rng.choice((model.append, model.append, model.append, model.trim, model.merge, model.seal, model.erase))()
    model.erase()
    model.check()


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_after_the_reported_time_no_object_has_the_key(seed: int) -> None:
    """Neither slices that were merged or trimmed before nor objects with other topics keep it."""
    model = Model(seed)
    for _ in range(10):
        model.rng.choice((model.append, model.append, model.trim, model.merge, model.seal))()
    keys = [b"<%s-t-%d>" % (ERASED, number) for number in (1, 2)]
    report = model.log.admin.erase_records("t", keys)
    assert report.gone_by_ms is not None
    while model.clock.ms < report.gone_by_ms:
        model.clock.ms = min(model.clock.ms + FENCE_MS // 2, report.gone_by_ms)
        maintain_once(model.log)
    for name in model.store.list("data/"):
        data = model.store.get(name) or b""
        assert not any(key in bytes(data) for key in keys), name
    for number in (1, 2):
        keys_left = [key for known in (model.records["t", 0], model.records["t", 1]) for key in known.values()]
        assert b"<%s-t-%d>" % (ERASED, number) not in (set(keys_left) & set(keys_of(model.log, "t")))


# ------------------------------------------------------------------------------------------------------- what it removes


# Promise: tasks/erase.md#before
def test_records_and_tombstones_of_the_keys_go_and_offsets_stay(tmp_path: Path) -> None:
    """A group at an offset before continues behind the holes."""
    log = new_log(tmp_path, t=1)
    log.append("t", [{"key": b"a", "value": b"1"}, {"key": b"b", "value": b"2"}, {"key": b"a", "value": None}])
    log.append("t", [{"key": None, "value": b"a"}, {"key": b"ab", "value": b"a"}])
    log.admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): 1})
    report = log.admin.erase_records("t", [b"a"])
    assert (report.keys, report.records, report.before, report.problems) == (1, 2, {0: 5}, ())
    with log.consumer("t", group_id="g") as consumer:
        rest: list[int] = []
        while len(rest) < 3:
            rest += [record.offset for some in consumer.poll(10_000).values() for record in some]
    assert rest == [1, 3, 4]
    assert log.admin.erase_records("t", ["a"]).records == 0


def test_text_and_arrow_arrays_are_keys(tmp_path: Path) -> None:
    """Text as UTF-8."""
    log = new_log(tmp_path, t=1)
    append(log, "t", ["ä".encode(), b"b", b"c", b"\xff"])
    assert log.admin.erase_records("t", ["ä"]).records == 1
    assert log.admin.erase_records("t", pa.chunked_array([["b"], ["x"]])).records == 1
    assert log.admin.erase_records("t", pa.array([b"\xff"])).records == 1
    assert keys_of(log, "t") == [b"c"]


# Promise: tasks/erase.md#keys
def test_records_after_the_position_stay(tmp_path: Path) -> None:
    """In the middle of a slice; the report has the offsets."""
    log = new_log(tmp_path, t=2)
    for number in (0, 1):
        append(log, "t", [b"a"] * 4, number)
    report = log.admin.erase_records("t", [b"a"], "latest-1")
    assert (report.before, report.records) == ({0: 3, 1: 3}, 6)
    assert log.read("t").column("offset").to_pylist() == [3, 3]
    assert log.admin.erase_records("t", [b"a"], 3).records == 0


# Promise: tasks/erase.md#erase-the-records-of-a-person
def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    """It counts what an erasure would remove."""
    log = new_log(tmp_path, t=1)
    append(log, "t", [b"a", b"b", b"a"])
    version = log.journal.refresh().version
    report = log.admin.erase_records("t", [b"a"], dry_run=True)
    assert (report.records, report.objects, report.gone_by_ms) == (2, 1, None)
    assert log.journal.refresh().version == version
    assert keys_of(log, "t") == [b"a", b"b", b"a"]


# Promise: tasks/erase.md#what-it-costs
def test_only_objects_with_the_keys_are_rewritten(tmp_path: Path) -> None:
    """Nine slices keep their objects."""
    log = new_log(tmp_path, t=1)
    for number in range(10):
        append(log, "t", [b"%d" % number] * 3)
    before = {part.slice.object for part in log.plan("t")}
    report = log.admin.erase_records("t", [b"4"])
    assert (report.records, report.objects) == (3, 1)
    assert len(before & {part.slice.object for part in log.plan("t")}) == 9


# ------------------------------------------------------------------------------------------------------------ dead copies


# Promise: tasks/erase.md#when-the-records-are-gone
def test_copies_in_objects_that_others_keep_alive_go(tmp_path: Path) -> None:
    """Objects of two topics, of which one was trimmed: their dead slices have the key, and nothing would delete it."""
    log = new_log(tmp_path, t=1, u=1)
    for number in range(4):
        with log.transaction("x") as transaction:
            transaction.send("t", b"%d" % number, key=ERASED)
            for _ in range(20):
                transaction.send("u", b"large" * 50, key=b"other")
    state = log.journal.refresh()
    log.admin.erase_records("t", [b"none"])
    assert log.journal.refresh().objects == state.objects
    log.admin.delete_records({TopicPartition("t", 0): -1})
    report = log.admin.erase_records("t", [ERASED])
    assert (report.records, report.objects) == (0, 4)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for _ in range(3):
        append(log, "t", [b"later"])
        maintain_once(log)
    assert objects_with(tmp_path / "data", ERASED) == []
    assert log.read("u").num_rows == 80
    assert verify(log, deep=True) == []


# -------------------------------------------------------------------------------------------------------- while others work


# Promise: tasks/erase.md#interrupted
def test_slices_that_others_merge_meanwhile_are_found_again(tmp_path: Path) -> None:
    """The segments of the erasure are not swapped in, and the merged slice is searched."""
    log, other = new_log(tmp_path, t=1), spark_log.connect(str(tmp_path))
    for _ in range(6):
        append(log, "t", [b"a", b"b"])
    merged: list[int] = []

    def meanwhile(name: str, at: int, total: int) -> None:
        if name == "search" and not merged:
            merged.append(at)
            merge_all(other)

    report = log.admin.erase_records("t", [b"a"], progress=meanwhile)
    assert merged
    assert report.problems == ()
    assert keys_of(log, "t") == [b"b"] * 6
    assert verify(log, deep=True) == []


def test_slices_that_are_gone_before_they_are_searched_are_found_again(tmp_path: Path) -> None:
    """The records are in the last partition, whose objects maintenance replaces and deletes during the search of the
    others: the first round finds nothing.
    """
    last = PARALLEL_PARTITIONS
    log, other = new_log(tmp_path, t=last + 1), spark_log.connect(str(tmp_path))
    other.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for number in (0, last, last):
        append(log, "t", [b"a", b"b"] if number == last else [b"b"], partition=number)
    merged: list[int] = []

    def meanwhile(name: str, at: int, total: int) -> None:
        if name == "search" and not merged:
            merged.append(at)
            for _ in range(4):
                maintain_once(other)
                append(other, "t", [b"b"], partition=0)

    report = log.admin.erase_records("t", [b"a"], progress=meanwhile)
    assert merged
    assert (report.records, report.problems) == (2, ())
    assert set(keys_of(log, "t")) == {b"b"}


def test_dead_copies_of_a_topic_that_is_forgotten_meanwhile_are_erased(tmp_path: Path) -> None:
    """Its slices go during the search, and their bytes stay in the objects of another topic."""
    log, other = new_log(tmp_path, t=1, u=1), spark_log.connect(str(tmp_path))
    other.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for _ in range(2):
        with log.transaction("writer") as both:
            both.append("t", [{"key": ERASED, "value": b""}])
            both.append("u", [{"key": b"other", "value": b"x" * 100}])
    deleted: list[str] = []

    def collect() -> None:
        for _ in range(4):
            append(other, "u", [b"later"])
            collect_garbage(other)

    def meanwhile(name: str, at: int, total: int) -> None:
        if name == "search" and not deleted:
            deleted.append(other.journal.refresh().names["t"])
            other.admin.delete_topics(["t"])
            collect()
            assert deleted[0] not in other.journal.refresh().topics

    report = log.admin.erase_records("t", [ERASED], progress=meanwhile)
    assert deleted and report.problems == ()
    collect()
    assert objects_with(tmp_path, ERASED) == []
    assert keys_of(log, "u")[:2] == [b"other", b"other"]


# Promise: tasks/erase.md#before
def test_records_that_are_appended_meanwhile_stay(tmp_path: Path) -> None:
    """The report says before which offsets it searched."""
    log, other = new_log(tmp_path, t=1), spark_log.connect(str(tmp_path))
    append(log, "t", [b"a", b"b"])
    report = log.admin.erase_records("t", [b"a"], progress=lambda name, at, total: append(other, "t", [b"a"]))
    assert report.before == {0: 2}
    found = log.read("t")
    assert found.column("offset").to_pylist()[:2] == [1, 2]
    assert set(found.column("key").to_pylist()[1:]) == {b"a"}


def test_a_read_that_was_planned_before_has_the_other_records(tmp_path: Path) -> None:
    """It is planned again, although old objects stay for `gc.fence.age.ms`."""
    log = new_log(tmp_path, t=1)
    append(log, "t", [b"a", b"b"])
    reader = log.scan("t", columns=["key"])
    log.admin.erase_records("t", [b"a"])
    maintain_once(log)
    assert reader.read_all().column("key").to_pylist() == [b"b"]


def test_a_merge_that_read_the_records_before_does_not_keep_them(tmp_path: Path) -> None:
    """Its object has records of another topic, too, and is swapped in after the last search of the erasure."""
    log, other = new_log(tmp_path, t=1, u=1), spark_log.connect(str(tmp_path))
    for _ in range(4):
        append(log, "t", [ERASED, b"stays"])
        append(log, "u", [b"other"] * 20)
    erased: list[int] = []

    def meanwhile(name: str, at: int, total: int) -> None:
        if not erased:
            erased.append(log.admin.erase_records("t", [ERASED]).records)

    merge(other, progress=meanwhile)
    assert erased == [4]
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for _ in range(3):
        append(log, "u", [b"later"])
        maintain_once(log)
    assert objects_with(tmp_path / "data", ERASED) == []
    assert keys_of(log, "t") == [b"stays"] * 4
    assert verify(log, deep=True) == []


def test_older_records_of_a_key_go_first(tmp_path: Path) -> None:
    """An erasure that is killed between two swaps leaves no older record as the latest of its key."""
    store, clock = MemoryStore(uuid.uuid4().hex), ManualClock()
    limits = replace(LIMITS, swap_bytes=1)
    log = spark_log.Log(Journal.open(store, create=True, clock=clock, rng=random.Random(7), limits=limits))
    log.create_topic(spark_log.NewTopic("t", 1, CONFIGS | {"max.message.bytes": str(SHARED_BYTES + 2000)}))
    for size in (10, SHARED_BYTES + 1000, 10, SHARED_BYTES + 1000):
        log.append("t", [{"key": b"a", "value": bytes(size)}])
        log.append("t", [{"key": b"b", "value": b""}])
    found: list[list[int]] = []

    def look(name: str, at: int, total: int) -> None:
        table = spark_log.Log(Journal.open(store, create=False)).read("t", columns=["offset", "key"])
        found.append([row["offset"] for row in table.to_pylist() if row["key"] == b"a"])

    log.admin.erase_records("t", [b"a"], progress=look)
    assert {len(left) for left in found} > {0, 4}, "there are several swaps"
    assert all(left == [0, 2, 4, 6][4 - len(left) :] for left in found)


# Promise: tasks/erase.md#interrupted
def test_an_erasure_that_was_killed_is_run_again_after_its_topic_was_deleted(tmp_path: Path) -> None:
    """By the id of the topic, also if there is another one of its name: objects of another topic have its records."""
    log = new_log(tmp_path, t=1, u=1)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for _ in range(2):
        with log.transaction("writer") as both:
            both.append("t", [{"key": ERASED, "value": b""}])
            both.append("u", [{"key": b"other", "value": b"x" * 100}])
    topic_id = log.journal.refresh().names["t"]
    begins = ErasedRecord(topic_id=topic_id, incomplete=True, begins="killed")
    log.journal.propose(Report.of(log.journal.state, begins), maintenance=False)
    log.admin.delete_topics(["t"])
    log.create_topic(spark_log.NewTopic("t", 1, CONFIGS))

    def collect() -> None:
        for _ in range(4):
            append(log, "u", [b"later"])
            collect_garbage(log)

    collect()
    assert topic_id not in log.journal.refresh().topics
    assert objects_with(tmp_path / "data", ERASED)
    (listed,) = log.admin.list_erasures()
    assert listed.deleted and f"`pylog topic erase {topic_id}`" in listed.left
    log.admin.erase_records("t", [ERASED])
    assert topic_id in {one.topic_id for one in log.admin.list_erasures() if one.running}
    report = log.admin.erase_records(topic_id, [ERASED])
    assert (report.topic, report.before, report.objects, report.problems) == ("t", {}, 2, ())
    assert topic_id in {one.topic_id for one in log.admin.list_erasures() if not one.incomplete}
    for _ in range(3):
        append(log, "u", [b"later"])
        maintain_once(log)
    assert log.admin.list_erasures() == []
    assert objects_with(tmp_path / "data", ERASED) == []
    assert verify(log, deep=True) == []
    with pytest.raises(UnknownTopicOrPartition):
        log.admin.erase_records(topic_id, [ERASED])


# ------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([], "there are none"),
        ([b"a", None], "null"),
        ("abc", "give \\['abc'\\]"),
        ([7], "key is an int"),
        (pa.array([1, 2]), "type int64"),
        (pa.array(["a", None]), "null"),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, keys: Any, said: str) -> None:
    """A record without a key cannot be named by a key."""
    log = new_log(tmp_path, t=1)
    with pytest.raises(InvalidRequest, match=said):
        log.admin.erase_records("t", keys)


def test_unknown_topics_and_positions(tmp_path: Path) -> None:
    """The nearest name; the forms of a position."""
    log = new_log(tmp_path, orders=1)
    with pytest.raises(UnknownTopicOrPartition, match="did you mean orders"):
        log.admin.erase_records("order", [b"a"])
    with pytest.raises(InvalidRequest, match="before"):
        log.admin.erase_records("orders", [b"a"], "yesterday")


# Promise: tasks/erase.md#interrupted
def test_a_damaged_slice_is_a_problem_of_the_report(tmp_path: Path) -> None:
    """The other slices are rewritten."""
    log = new_log(tmp_path, t=1)
    for _ in range(3):
        append(log, "t", [b"a", b"b"])
    piece = log.plan("t")[1].slice
    data = bytearray((tmp_path / piece.object).read_bytes())
    data[piece.position + piece.length // 2] ^= 1
    (tmp_path / piece.object).write_bytes(data)
    report = log.admin.erase_records("t", [b"a"])
    assert report.records == 2
    assert "t-0" in report.problems[0]
    assert "changed since it was written" in report.problems[0]
    assert log.read("t", end=2).num_rows == 1


# ----------------------------------------------------------------------------------------------------------- the report


# Promise: tasks/erase.md#copies-elsewhere
def test_the_report_names_others_that_may_have_the_records(tmp_path: Path) -> None:
    """Dead letters, producers with a name such as mirrors, groups."""
    log = new_log(tmp_path, t=1, u=1)
    ensure_topic(log.journal, "t-bad", DEAD_LETTER_CONFIGS)
    append(log, "t", [b"a"])
    with log.transaction("copier") as transaction:
        transaction.send("t", b"v", key=b"b")
        transaction.commit_offsets("billing", {TopicPartition("t", 0): 1})
    report = log.admin.erase_records("t", [b"a"])
    assert (report.dead_letters, report.writers, report.readers) == (("t-bad",), ("txn:copier",), ("billing",))
    at = {TopicPartition("t", 0): spark_log.OffsetAndMetadata(1, "s3://lake/orders")}
    log.admin.alter_consumer_group_offsets("export-t", at)
    with log.transaction("mirror-map/t") as transaction:
        transaction.send("t", b"v", key=b"b")
    report = log.admin.erase_records("t", [b"a"])
    assert report.notes == {"export-t": "s3://lake/orders"}
    text = report_text(report)
    assert "export-t (s3://lake/orders)" in text
    assert "txn:mirror-map/t (probably a mirror of topics" in text
    assert "does not know its mirrors" in text
    assert "does not know its backups" in text
    other = log.admin.erase_records("u", [b"a"])
    assert (other.dead_letters, other.writers, other.readers) == (("t-bad",), (), ())
    belongs = spark_log.OffsetAndMetadata(1, f"state {log.journal.state.names['u']} 1")
    log.admin.alter_consumer_group_offsets("count", {TopicPartition("t", 0): belongs})
    other = log.admin.erase_records("u", [b"a"])
    assert other.flows == ("count",) and "flows with state in it, from whose sources" in report_text(other)


# --------------------------------------------------------------------------------------------- buckets and coordinators


# Promise: tasks/erase.md#when-the-records-are-gone
def test_a_log_in_a_bucket(s3: Callable[[], Bucket]) -> None:
    """After the time of the fence, no object of the bucket has the key."""
    bucket = s3()
    with spark_log.connect(bucket.url, bucket.options) as log:
        log.create_topic(spark_log.NewTopic("t", 3, CONFIGS))
        for _ in range(3):
            append(log, "t", [ERASED, b"b", b"c", ERASED])
        report = log.admin.erase_records("t", [ERASED])
        assert (report.records, sorted(keys_of(log, "t"), key=str)) == (6, [b"b"] * 3 + [b"c"] * 3)
        log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
        for _ in range(3):
            append(log, "t", [b"later"])
            maintain_once(log)
        store = log.journal.objects
        assert not [name for name in store.list("data/") if ERASED in bytes(store.get(name) or b"")]


# Promise: tasks/erase.md#who-may-do-it
def test_a_coordinator_requires_the_role_admin(tmp_path: Path) -> None:
    """This process reads and writes the objects; the coordinator decides its reports and swaps, and audits them."""
    tokens = parse_tokens({"ops": "admin operations-token-1", "app": "write application-token-1"})
    audit, services = tmp_path / "audit.log", Services()
    open_audit(str(audit))
    try:
        url = "pylog://" + services.start(tmp_path / "log", tokens=tokens).coordinator.address
        with spark_log.connect(url, token="operations-token-1") as log:
            log.create_topic(spark_log.NewTopic("t", 1, CONFIGS))
            append(log, "t", [b"a", b"b"])
            with spark_log.connect(url, token="application-token-1") as app:
                report = app.admin.erase_records("t", [b"a"], dry_run=True)
                assert report.records == 1
                with pytest.raises(AuthorizationFailed, match="has the role write, and this needs the role admin"):
                    app.admin.erase_records("t", [b"a"])
            assert keys_of(log, "t") == [b"a", b"b"]
            assert log.admin.erase_records("t", [b"a"]).records == 1
            assert keys_of(log, "t") == [b"b"]
    finally:
        services.close()
        close_audit()
    changes = [
        (one["change"], one["principal"], one["outcome"] == "refused")
        for one in map(json.loads, audit.read_text().splitlines())
        if one.get("change") in ("report", "swap")
    ]
    assert changes == [("report", "app", True), *((one, "ops", False) for one in ("report", "swap", "report"))]
