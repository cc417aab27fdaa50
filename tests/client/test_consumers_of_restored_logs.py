"""Running consumers of a log that was restored from an older copy, and has other records at the offsets they know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.client.consumer.consumer import Consumer
from spark_log.errors import IllegalGeneration, OffsetOutOfRange
from spark_log.journal.journal import Journal
from spark_log.model import TopicPartition
from spark_log.recovery.repair import repair
from spark_log.store.local import LocalStore
from tests.processes import eventually
from tests.restored import copy_of, restored, values
from tests.services import Services

P0 = TopicPartition("t", 0)


def lost_and_restored(folder: Path, read: Callable[[], object]) -> None:
    """The log has 6 of 10 records that were read, and then 8 new ones, in more versions than it had before."""
    written_again(str(folder / "log"), read_beyond_the_copy(folder, read))


def read_beyond_the_copy(folder: Path, read: Callable[[], object]) -> Path:
    """Returns the copy."""
    writer = spark_log.connect(str(folder / "log"))
    writer.append("t", [{"value": f"old {n}"} for n in range(6)])
    copy = copy_of(writer, folder / "copy")
    writer.append("t", [{"value": f"lost {n}"} for n in range(4)])
    writer.close()
    read()
    return copy


def written_again(url: str, copy: Path) -> None:
    """Restore the log, and write new records."""
    writer = restored(url, copy)
    for n in range(8):
        writer.append("t", [{"value": f"new {n}"}])
    writer.close()


def log_in(folder: Path) -> spark_log.Log:
    log = spark_log.connect(str(folder / "log"))
    log.admin.create_topics([spark_log.NewTopic("t", 1)])
    return log


NEW = [b"new %d" % n for n in range(8)]


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_running_consumer_continues_at_the_end_of_the_copy(
    tmp_path: Path, by_hand: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It warns.  Positions of lost records do not count, however they are committed."""
    log = log_in(tmp_path)
    consumer = log.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([P0]) if by_hand else consumer.subscribe(["t"])
    consumer.poll(0)
    lost_and_restored(tmp_path, lambda: values(consumer, 10))
    assert values(consumer, 8) == NEW
    assert "t-0: the log was restored from a copy that ended at 6, before offset 10: reading continues" in caplog.text
    if by_hand:
        consumer.seek(P0, 7)
        consumer.commit({P0: 9})
        assert consumer.committed(P0) is None, "9 may be one of the lost records"
        consumer.commit({P0: 7})
        assert consumer.committed(P0) == 7


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_consumer_without_a_reset_is_told(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    consumer = log.consumer(auto_offset_reset="none")
    consumer.assign([P0])
    consumer.seek(P0, 0)
    lost_and_restored(tmp_path, lambda: values(consumer, 10))
    with pytest.raises(OffsetOutOfRange, match="restored from a copy that ended at 6, before offset 10; poll"):
        values(consumer, 8)
    assert values(consumer, 8) == NEW


def test_a_consumer_that_has_read_only_what_is_in_the_copy_continues(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    consumer = log.consumer(auto_offset_reset="earliest")
    consumer.assign([P0])
    consumer.seek(P0, 3)
    lost_and_restored(tmp_path, lambda: consumer.poll(2000, max_records=2))
    assert values(consumer, 9) == [b"old 5", *NEW]


class Overtaken(Wrapper):
    """A store in which something happens before the next record is put."""

    happens: Callable[[], object] | None = None

    def put_new(self, key: str, data: bytes) -> bool:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return super().put_new(key, data)


def test_a_consumer_that_joins_its_group_again_during_the_restore_continues_at_the_end_of_the_copy(
    tmp_path: Path,
) -> None:
    """It had lost the group to another consumer, and subscribes again to what it has read."""
    log_in(tmp_path)
    url = str(tmp_path / "log")
    store = Overtaken(LocalStore(url))
    consumer = spark_log.Log(Journal.open(store, create=False)).consumer(
        "t", group_id="g", auto_offset_reset="earliest"
    )
    copy = read_beyond_the_copy(tmp_path, lambda: values(consumer, 10))
    spark_log.connect(url).consumer("t", group_id="g").poll(0)
    consumer.topics()
    consumer.subscribe(["t"])
    store.happens = lambda: written_again(url, copy)
    assert values(consumer, 8) == NEW


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("how", ["given", "returned", "async", "bookmark"])
def test_positions_that_are_committed_before_the_restore_is_noticed_do_not_count(tmp_path: Path, how: str) -> None:
    """The consumer has read up to 10, and commits when the log has other records from 6 on.  It gets an error."""
    log = log_in(tmp_path)
    consumer = log.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([P0])
    bookmark = log.bookmark("g", "t")

    def read() -> None:
        if how == "bookmark":
            bookmark.__enter__()
        values(consumer, 10)

    lost_and_restored(tmp_path, read)
    errors: list[Exception | None] = []
    commits: dict[str, Callable[[], None]] = {
        "given": lambda: consumer.commit({P0: 10}),
        "returned": consumer.commit,
        "async": lambda: consumer.commit_async(callback=lambda _, error: errors.append(error)),
        "bookmark": lambda: bookmark.__exit__(None, None, None),
    }
    if how == "async":
        commits[how]()
        consumer.committed(P0)
        assert isinstance(errors[0], OffsetOutOfRange)
    else:
        with pytest.raises(OffsetOutOfRange, match=r"t-0 is not committed at offset 10: .* a copy that ended at 6"):
            commits[how]()
    again = spark_log.connect(str(tmp_path / "log")).consumer("t", group_id="g", auto_offset_reset="earliest")
    assert values(again, 14)[-8:] == NEW


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_program_compares_the_history_that_it_keeps_beside_its_offset(tmp_path: Path) -> None:
    """A new process begins at that offset, and nothing else says that the records before it are others now."""
    log, kept = log_in(tmp_path), list[str | None]()

    def begins_at(offset: int) -> Consumer:
        consumer = log.consumer(auto_offset_reset="earliest", enable_auto_commit=False)
        consumer.assign([P0])
        consumer.seek(P0, offset)
        return consumer

    def read() -> None:
        consumer = begins_at(0)
        assert len(values(consumer, 10)) == 10
        kept.append(consumer.history)

    lost_and_restored(tmp_path, read)
    consumer = begins_at(10)
    assert values(consumer, 4) == [b"new %d" % n for n in range(4, 8)]
    assert kept == [""] and consumer.history not in (None, "")


@pytest.fixture
def repaired(tmp_path: Path) -> Callable[[], spark_log.Log]:
    """Loses the two versions before the last one, continues without them, and appends eight records."""

    def lose() -> spark_log.Log:
        for path in sorted((tmp_path / "log/meta/log").iterdir())[-3:-1]:
            path.unlink()
        repair(LocalStore(str(tmp_path / "log")), is_alive=lambda holder: False, accept_loss=True)
        log = spark_log.connect(str(tmp_path / "log"))
        for value in NEW:
            log.append("t", [{"value": value}])
        return log

    return lose


# Promise: storage-failures.md#continue-without-what-is-lost
def test_a_consumer_reads_a_repaired_topic_from_its_start(
    tmp_path: Path, repaired: Callable[[], spark_log.Log], caplog: pytest.LogCaptureFixture
) -> None:
    """Without a group.  It warns, with the reason."""
    log = log_in(tmp_path)
    for n in range(4):
        log.append("t", [{"value": f"old {n}"}])
    consumer = log.consumer("t", auto_offset_reset="latest")
    consumer.seek_to_beginning()
    assert len(values(consumer, 4)) == 4
    repaired()
    assert values(consumer, 10) == [b"old 0", b"old 3", *NEW]
    assert "`pylog repair --accept-loss` gave up lost records, and topic 't' may have others" in caplog.text


# Promise: storage-failures.md#continue-without-what-is-lost
def test_a_member_of_a_repaired_log_is_told_who_removed_it(
    tmp_path: Path, repaired: Callable[[], spark_log.Log]
) -> None:
    """No other consumer has taken its group.  It continues at the group's position."""
    log = log_in(tmp_path)
    for n in range(4):
        log.append("t", [{"value": f"old {n}"}])
    consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    assert len(values(consumer, 4)) == 4
    repaired()
    for attempt in (lambda: values(consumer, 1), consumer.commit):
        with pytest.raises(IllegalGeneration, match="members were removed when `pylog repair --accept-loss`") as told:
            attempt()
        assert told.value.accepted_loss
    consumer.subscribe(["t"])
    assert values(consumer, 10) == [b"old 0", b"old 1", *NEW]


# Promise: copies.md#restore-a-log-from-a-copy
def test_members_of_a_coordinator_continue_after_a_restore(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The restored log, which the coordinator leads again at its address, has fewer versions for a while."""
    services, folder = Services(), tmp_path / "log"
    running = services.start(folder)
    address = running.coordinator.address
    with spark_log.connect(f"pylog://{address}") as log:
        log.admin.create_topics([spark_log.NewTopic("t", 2)])
        members = [
            spark_log.connect(f"pylog://{address}").consumer(
                "t", group_id="g", auto_offset_reset="earliest", auto_commit_interval_ms=100
            )
            for _ in range(2)
        ]
        found = dict[tuple[int, int], bytes | None]()

        def polled() -> int:
            for member in members:
                for tp, records in member.poll(50).items():
                    found.update({(tp.partition, record.offset): record.value for record in records})
            return len(found)

        def write(log: spark_log.Log, *values: bytes) -> None:
            for value in values:
                log.append("t", [{"value": value, "partition": part} for part in (0, 1)])

        write(log, b"old")
        with spark_log.connect(str(folder)) as direct:
            copy = copy_of(direct, tmp_path / "copy")
        write(log, *[b"lost"] * 20)
        eventually(lambda: polled() == 42)
        services.stop(running)
        restored(str(folder), copy).close()
        again = services.start(folder, listen=address)
        try:
            with spark_log.connect(f"pylog://{address}") as after:
                write(after, b"new")
                found.clear()
                eventually(lambda: polled() == caplog.text.count("which this consumer has read") - 2)
                write(after, *[b"more"] * 20)
                expected = {(part, n): b"new" if n == 1 else b"more" for part in (0, 1) for n in range(1, 22)}
                eventually(lambda: polled() >= 42 and expected.items() <= found.items())
                assert b"lost" not in found.values()
        finally:
            for member in members:
                member.close()
            services.stop(again)
    services.close()
