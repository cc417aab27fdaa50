"""Writers whose work began before the log was restored from an older copy.

The copy lacks what they have staged, and has other records at the offsets that they have read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from spark_log.client.producer.append import upload_rows
from spark_log.client.producer.commit import PlainProducer
from spark_log.errors import OffsetOutOfRange, UploadFenced
from spark_log.metadata.set_backs import lineage_of
from spark_log.model import TopicPartition
from tests.restored import copy_of, restored

P0 = TopicPartition("t", 0)


def log_in(folder: Path) -> spark_log.Log:
    log = spark_log.connect(str(folder / "log"))
    log.admin.create_topics([spark_log.NewTopic("t", 1), spark_log.NewTopic("out", 1)])
    log.append("t", [{"value": f"old {n}"} for n in range(6)])
    with log.transaction("job"):
        pass
    return log


def values(log: spark_log.Log, topic: str) -> list[str]:
    return [value.decode() for value in log.scan(topic).read_all()["value"].to_pylist()]


def lost(log: spark_log.Log, folder: Path) -> Path:
    """4 records that the copy lacks."""
    copy = copy_of(log, folder / "copy")
    log.append("t", [{"value": f"lost {n}"} for n in range(4)])
    return copy


def replaced(folder: Path, copy: Path) -> None:
    """The restored log has more records and versions than the lost one."""
    with spark_log_of(folder, copy) as log:
        for n in range(8):
            log.append("t", [{"value": f"new {n}"}])


def spark_log_of(folder: Path, copy: Path) -> spark_log.Log:
    return restored(str(folder / "log"), copy)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("in_copy", [True, False])
@pytest.mark.parametrize("records", [True, False])
def test_a_transaction_that_was_open_over_a_restore_commits_nothing(
    tmp_path: Path, records: bool, in_copy: bool
) -> None:
    """Neither its positions, which are those of lost records, nor its own records, which the copy does not have.

    in_copy:  the copy knows that the transaction is open.
    """
    log = log_in(tmp_path)
    copy = None if in_copy else lost(log, tmp_path)
    txn = log.transaction("job").__enter__()
    copy = copy or lost(log, tmp_path)
    if records:
        txn.send("out", "of lost records")
    txn.commit_offsets("g", {P0: 10})
    replaced(tmp_path, copy)
    with pytest.raises(UploadFenced, match="restored from a copy since"):
        txn.__exit__(None, None, None)
    again = spark_log.connect(str(tmp_path / "log"))
    assert values(again, "out") == [] and "g" not in again.journal.state.groups
    with again.transaction("job") as txn:
        txn.send("out", "of old records")
        txn.commit_offsets("g", {P0: 6})
    assert values(again, "out") == ["of old records"]
    assert again.admin.list_consumer_group_offsets("g")[P0].offset == 6


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_new_transaction_does_not_commit_positions_of_lost_records(tmp_path: Path) -> None:
    """The consumer has read 10 records, and the copy has 6 of them; then it reads the others at these offsets."""
    log = log_in(tmp_path)
    copy = lost(log, tmp_path)
    consumer = log.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([P0])
    assert len(next(iter(consumer.poll(2000).values()))) == 10
    replaced(tmp_path, copy)
    with (
        log.transaction("j") as txn,
        pytest.raises(OffsetOutOfRange, match=r"t-0 is not committed at offset 10: .* that ended at 6"),
    ):
        txn.commit_offsets(consumer)
    found = [record.value for records in consumer.poll(2000).values() for record in records]
    assert found == [b"new %d" % n for n in range(8)]
    with log.transaction("j") as txn:
        txn.commit_offsets(consumer)
    assert log.admin.list_consumer_group_offsets("g")[P0].offset == 14


# Promise: copies.md#restore-a-log-from-a-copy
def test_records_that_were_staged_before_a_restore_are_staged_again(tmp_path: Path) -> None:
    """Their objects were in the lost folder; in the restored one they would be missing."""
    log = log_in(tmp_path)
    copy, state = lost(log, tmp_path), log.journal.state
    staged = upload_rows(log.journal, "out", [{"value": "x"}], state.version, lineage=lineage_of(state))
    replaced(tmp_path, copy)
    with pytest.raises(UploadFenced, match="restored from a copy since"):
        PlainProducer(log.journal).commit(state.version, [staged])
    log.append("out", [{"value": "x"}])
    assert values(log, "out") == ["x"]


# Promise: copies.md#restore-a-log-from-a-copy
def test_versions_of_a_job_that_are_lost_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The copy has 7, and the log had 9.  A rerun of 8 is written, and a version after a gap gives one warning."""
    log = log_in(tmp_path)

    def write(to: spark_log.Log, *versions: int) -> None:
        for job in ("a", "b"):
            for version in versions:
                to.append("out", [{"value": f"{job}{version}"}], txn_app_id=job, txn_version=version)

    write(log, 7)
    copy = copy_of(log, tmp_path / "copy")
    write(log, 8, 9)
    again = restored(str(tmp_path / "log"), copy)
    again.append("out", [{"value": "a8"}], txn_app_id="a", txn_version=8)
    assert "restored" not in caplog.text
    write(again, 10, 12)
    warnings = [one.getMessage() for one in caplog.records if "txnVersion" in one.getMessage()]
    assert len(warnings) == 1 and "application 'b' is 7. Versions after it and before 10" in warnings[0]
    assert sorted(values(again, "out")) == ["a10", "a12", "a7", "a8", "b10", "b12", "b7"]
