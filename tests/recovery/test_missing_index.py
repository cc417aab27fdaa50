"""A slice index that is missing from the storage is named as a missing segment is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from spark_log import Log, NewTopic, TopicPartition
from spark_log.client.admin.lag import lags_of
from spark_log.client.reader.plan import OffsetRange, plan_reads
from spark_log.errors import CorruptObject, ObjectNotFound, StorageUnavailable
from spark_log.maintenance.maintain import checkpoint, maintain_once
from spark_log.model import OffsetAndMetadata, Slice
from spark_log.recovery.verify import verify
from tests.maintenance.logs import append_small, new_log, pass_the_fence, rows

NAMED = r"data/\w+/\w+\.idx is missing, .* offsets 0 to \d+ of topic 't', partition 0: `pylog verify`"

MISSING = r"\.idx is missing, but has the offsets 0 to \d+ of topic 't', partition 0"
"""How maintenance says it, when all other partitions are done."""


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Topic "t" has an index whose object is gone, and topic "other" is sound."""
    return lossy_log(tmp_path, "missing")


def lossy_log(tmp_path: Path, damage: str) -> Log:
    log = new_log(tmp_path)
    append_small(log, 270)
    checkpoint(log)
    (index,) = tmp_path.glob("data/*/*.idx")
    if damage == "missing":
        index.unlink()
    else:
        index.write_bytes(index.read_bytes()[:-1])
    append_small(log, 3, first=270)
    log.create_topic(NewTopic("other", 1))
    for number in range(20):
        log.append("other", rows(number, 1))
    return log


def poll(log: Log) -> object:
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        return [consumer.poll(timeout_ms=0) for _ in range(3)]


def lag(log: Log) -> object:
    tp = TopicPartition("t", 0)
    log.admin.alter_consumer_group_offsets("g", {tp: OffsetAndMetadata(5, "")})
    return lags_of(log.journal, ["g"])


READS: dict[str, Callable[[Log], object]] = {
    "read": lambda log: log.read("t"),
    "poll": poll,
    "lag": lag,
    "offsets for times": lambda log: log.consumer().offsets_for_times({TopicPartition("t", 0): 0}),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_names_the_index_and_what_it_holds(log: Log, read: str) -> None:
    """The object, the topic, the partition and the offsets; not silence, and not a loss of records."""
    with pytest.raises(ObjectNotFound, match=NAMED) as raised:
        READS[read](log)
    assert raised.value.key.endswith(".idx")


def test_a_read_names_a_damaged_index_and_what_to_do(tmp_path: Path) -> None:
    """It is the index of one partition, and what lies behind it can be read."""
    log = lossy_log(tmp_path, "damaged")
    with pytest.raises(CorruptObject, match=r"\.idx is damaged: offsets 0 to \d+ of topic 't', partition 0") as raised:
        log.read("t")
    start, end = raised.value.start, raised.value.end
    assert start == 0 and end is not None
    assert f"continue at offset {end}" in str(raised.value)
    assert "give these offsets up by `pylog verify --repair --lose-data`" in str(raised.value)
    assert log.read("t", start=end).num_rows == 819 - end
    log.admin.delete_records({TopicPartition("t", 0): end})
    assert log.read("t").num_rows == 819 - end


# Promise: replicas.md#when-a-disk-fails
def test_the_root_with_the_indexes_is_not_mounted(log: Log, tmp_path: Path) -> None:
    """As on a machine that has the metadata from a coordinator."""
    (tmp_path / "meta" / "format").rename(tmp_path / "format")
    topic_id = log.journal.state.names["t"]
    with pytest.raises(StorageUnavailable, match=r"\.idx cannot be read now: .*is its disk mounted\?"):
        plan_reads(log.journal, [OffsetRange("t", topic_id, 0, 0, 10)])


def test_what_lies_behind_a_missing_index_can_be_read(log: Log) -> None:
    """The index is not needed for it."""
    assert log.read("t", start=810).num_rows == 9


def test_maintenance_passes_over_the_index_and_says_so(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others are merged, sealed and trimmed."""
    with caplog.at_level(logging.WARNING, "spark_log"), pytest.raises(ObjectNotFound, match=MISSING):
        maintain_once(log)
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert ".idx is missing, but has the offsets 0 to" in told
    state = log.journal.refresh()
    assert [type(e) for e in state.partitions[state.names["other"], 0].entries] == [Slice]
    assert log.read("other").num_rows == 20


def test_a_deleted_topic_with_a_missing_index_goes_with_its_objects(log: Log) -> None:
    """Nobody needs the index any more."""
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    log.admin.delete_topics(["t", "other"])
    pass_the_fence(log)
    state = log.journal.refresh()
    assert dict(state.partitions) == {} and dict(state.objects) == {}
    assert log.journal.objects.list("data/") == []


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_partition_that_is_trimmed_past_a_lost_index_is_sound(tmp_path: Path, damage: str) -> None:
    """Its records are gone, its objects are collected, and maintenance and verify find nothing more."""
    log = lossy_log(tmp_path, damage)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    assert verify(log) != []
    log.admin.delete_records({TopicPartition("t", 0): -1})
    pass_the_fence(log)
    assert verify(log, deep=True) == []
    state = log.journal.refresh()
    assert log.read("t").num_rows == 0 and log.read("other").num_rows == 20
    assert set(log.journal.objects.list("data/")) == {*state.objects, *state.dropped}
    append_small(log, 1)
    assert log.read("t").num_rows == 3


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_objects_stay_while_another_index_is_lost(tmp_path: Path) -> None:
    """It is not known which of them it names; with the last lost index they go."""
    log = new_log(tmp_path, partitions=2)
    append_small(log, 270, partitions=2)
    checkpoint(log)
    for index in tmp_path.glob("data/*/*.idx"):
        index.unlink()
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    parts = log.journal.refresh().partitions.values()
    merged = {entry.object for part in parts for entry in part.entries if isinstance(entry, Slice)}
    before = set(log.journal.objects.list("data/")) - merged
    assert len(before) > 100
    log.admin.delete_records({TopicPartition("t", 0): -1})
    for _ in range(3):
        with suppress(ObjectNotFound):
            maintain_once(log)
    assert before <= set(log.journal.objects.list("data/"))
    log.admin.delete_records({TopicPartition("t", 1): -1})
    pass_the_fence(log)
    assert verify(log) == [] and not before & set(log.journal.objects.list("data/"))


def test_retention_by_size_passes_over_the_index(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """How much of the front goes is not known without the index; the other topic's front goes."""
    for topic in ("t", "other"):
        log.admin.incremental_alter_configs({topic: {"retention.bytes": "5000"}})
    with caplog.at_level(logging.WARNING, "spark_log"), pytest.raises(ObjectNotFound, match=MISSING):
        maintain_once(log)
    state = log.journal.refresh()
    assert state.partitions[state.names["t"], 0].start == 0
    assert state.partitions[state.names["other"], 0].start > 0


def test_a_topic_with_a_missing_index_is_described(log: Log) -> None:
    """By what the state says of the index."""
    (part,) = log.admin.describe_topics(["t"])["t"].partitions
    assert part.end == 819 and part.bytes > 0


def test_verify_names_topic_and_offsets(log: Log) -> None:
    """As the errors of reads do."""
    messages = [problem.message for problem in verify(log)]
    assert any("the slice index of offsets 0 to" in one and "topic 't', partition 0" in one for one in messages), (
        messages
    )
