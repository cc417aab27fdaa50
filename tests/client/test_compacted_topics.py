"""Writes to compacted topics: every record has a key, or nothing is written."""

from __future__ import annotations

import random
import time
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

import spark_log
from spark_log import NewTopic
from spark_log.client.producer.append import upload_rows
from spark_log.client.producer.commit import PlainProducer
from spark_log.client.reader.latest import scan_latest
from spark_log.errors import ConcurrentChange, InvalidRecord
from spark_log.maintenance import maintain
from tests.client.logs import new_log, values

COMPACT = {"cleanup.policy": "compact"}
pytestmark = pytest.mark.filterwarnings("ignore:topic .* has records without a key")


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    """A compacted topic, and one that is not."""
    found = new_log(tmp_path, events=2)
    found.admin.create_topics([NewTopic("latest", 2, COMPACT)])
    return found


def compact(log: spark_log.Log, topic: str) -> None:
    """Change a topic's policy, as another process does."""
    with spark_log.connect(log.url) as other:
        other.admin.incremental_alter_configs({topic: COMPACT})


# Promise: tasks/keep-the-latest.md#every-record-has-a-key
def test_an_append_with_one_record_without_a_key_writes_nothing(log: spark_log.Log) -> None:
    """The error names the topic, the row, and the ways out.  Rows are counted across batches."""
    rows = 70_000
    keys = pa.array([None if row == rows - 2 else b"%d" % (row % 7) for row in range(rows)], pa.binary())
    with pytest.raises(InvalidRecord, match=r"row 69998: .*'latest' has no key.*cleanup\.policy=compact.*give every"):
        log.append("latest", pa.table({"key": keys, "value": pa.repeat(pa.scalar(b"v"), rows)}))
    assert values(log, "latest") == []
    log.append("latest", [{"key": "", "value": "an empty key"}, {"key": "k", "value": None}])
    assert sorted(map(repr, values(log, "latest"))) == ["None", "b'an empty key'"]


# Promise: tasks/keep-the-latest.md#every-record-has-a-key
def test_a_producer_refuses_single_records_without_a_key(log: spark_log.Log) -> None:
    """Each fails alone, also among many, and records of other topics need no key."""
    with log.producer(linger_ms=1000) as producer:
        futures = [producer.send("latest", b"%d" % n, None if n % 3 == 0 else b"%d" % n) for n in range(100)]
        others = [producer.send("events", b"x") for _ in range(10)]
        wrong = [producer.send("latest", b"no key") for _ in range(5_000)]
    refused = [future for future in (*futures[::3], *wrong) if isinstance(future.exception(), InvalidRecord)]
    assert len(refused) == 34 + 5_000
    assert "'latest' has no key" in str(wrong[0].exception())
    assert sorted(values(log, "latest"), key=int) == [b"%d" % n for n in range(100) if n % 3]
    assert [other.result().topic for other in others] == ["events"] * 10
    found = {future.result().partition: 0 for n, future in enumerate(futures) if n % 3}
    for n, future in enumerate(futures):
        if n % 3:
            assert future.result().offset == found[future.result().partition]
            found[future.result().partition] += 1


# Promise: tasks/keep-the-latest.md#every-record-has-a-key
def test_a_transaction_refuses_records_without_a_key(log: spark_log.Log) -> None:
    """A single record when it is sent, and the caller may continue; rows of an append end the transaction."""
    with log.transaction("t") as txn:
        txn.send("latest", b"1", b"k")
        with pytest.raises(InvalidRecord, match="'latest' has no key"):
            txn.send("latest", b"2")
        txn.send("events", b"3")
    assert (values(log, "latest"), values(log, "events")) == ([b"1"], [b"3"])

    def appended() -> None:
        with log.transaction("t") as txn:
            txn.send("events", b"4")
            txn.append("latest", [{"key": "k", "value": "5"}, {"value": "6"}])

    with pytest.raises(InvalidRecord, match="row 1: .*'latest' has no key"):
        appended()
    assert (values(log, "latest"), values(log, "events")) == ([b"1"], [b"3"])


# Promise: tasks/keep-the-latest.md#compact-a-topic-that-exists
def test_a_policy_that_changes_during_an_upload_is_noticed(log: spark_log.Log) -> None:
    """The commit is refused, because it is decided after the change.  Records with keys are committed."""
    epoch = log.journal.refresh().version
    keyless = upload_rows(log.journal, "events", [{"value": "1"}, {"key": "k", "value": "2"}], epoch)
    keyed = upload_rows(log.journal, "events", [{"key": "k", "value": "3"}], epoch)
    compact(log, "events")
    producer = PlainProducer(log.journal)
    with pytest.raises(InvalidRecord, match=r"'events' was changed to cleanup\.policy=compact.*nothing was written"):
        producer.commit(epoch, [keyed, keyless])
    assert values(log, "events") == []
    producer.commit(epoch, [keyed])
    assert values(log, "events") == [b"3"]


def test_a_policy_that_changes_while_records_are_collected_refuses_those_without_a_key(log: spark_log.Log) -> None:
    """The producer tries again with the new configs: the other records of the round are written."""
    with log.producer(linger_ms=60_000) as producer:
        producer.send("events", b"before").result(60)
        without, keyed = producer.send("events", b"1"), producer.send("events", b"2", b"k")
        other = producer.send("latest", b"3", b"k")
        compact(log, "events")
        producer.flush()
        assert isinstance(without.exception(), InvalidRecord)
        assert keyed.result().topic == "events" and other.result().topic == "latest"
    assert sorted(values(log, "events")) == [b"2", b"before"]


def test_a_policy_that_changes_under_way_never_lets_a_record_without_a_key_in(tmp_path: Path) -> None:
    """At every version of the log, records without a key are older than the policy."""
    rng = random.Random(5)
    log = new_log(tmp_path)
    for name in (f"t{number}" for number in range(10)):
        log.create_topic(NewTopic(name, 1))
        accepted = 0
        with log.producer(linger_ms=0) as producer:
            sent = []
            changed = rng.randrange(20)
            for number in range(30):
                if number == changed:
                    compact(log, name)
                    accepted = len(values(spark_log.connect(log.url), name))
                sent.append(producer.send(name, b"%d" % number))
        assert len(values(log, name)) == accepted == sum(not future.failed() for future in sent)


def test_a_topic_that_becomes_compacted_warns_of_records_without_a_key(log: spark_log.Log) -> None:
    """With one of them.  Records with keys, and an empty topic, give no warning; neither does another config."""
    log.append("events", [{"key": "k", "value": "1", "partition": 1}])
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        compact(log, "events")
        compact(log, "latest")
    assert not any("without a key" in str(note.message) for note in notes)
    log.admin.incremental_alter_configs({"events": {"cleanup.policy": None}})
    log.append("events", [{"key": k, "value": "2", "partition": 1} for k in ("a", None, "b")])
    with pytest.warns(UserWarning, match="'events' has records without a key, such as offset 2 of events-1: .*removes"):
        log.admin.incremental_alter_configs({"events": COMPACT})


def test_a_table_fails_if_its_topic_was_compacted_before_the_policy_changed(tmp_path: Path) -> None:
    """Its objects are gone, and compaction has removed a record of its version for one that is newer."""
    log, old = new_log(tmp_path), int(time.time() * 1000) - 7_200_000
    configs = {**COMPACT, "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0"}
    log.admin.create_topics([NewTopic("t", 1, configs)])
    log.append("t", [{"key": b"k", "value": b"0", "timestamp": old}])
    reader = scan_latest(log._journal, "t", None, "latest", None, None)
    planned = {read.slice.object for read in log.plan("t")}
    log.append("t", [{"key": b"k", "value": b"1", "timestamp": old}])
    with spark_log.connect(log.url) as other:
        assert maintain.compact(other).records == 1
        other.admin.incremental_alter_configs({"t": {"cleanup.policy": "delete"}})
    log.journal.objects.delete(planned)
    with pytest.raises(ConcurrentChange, match="t-0 was compacted while .* run the query again"):
        reader.read_all()
