"""A folder that is replaced by an older copy with `cp`, or is gone, while processes use the log."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import MeteredStore
from spark_log.client.consumer.consumer import REFRESH_MS
from spark_log.client.log import Log
from spark_log.errors import ConcurrentChange, IllegalGeneration, OffsetOutOfRange, UploadFenced, WrongRoot
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import checkpoint
from spark_log.model import TopicPartition
from spark_log.store.local import LocalStore
from tests.restored import copy_of, restored, set_back, values

P0 = TopicPartition("t", 0)
OLD, NEW = [b"old %d" % n for n in range(6)], [b"new %d" % n for n in range(8)]


def append(log: Log, values: list[bytes]) -> None:
    for value in values:
        log.append("t", [{"value": value}])


class Replaced:
    """A log that has more than its copy, and is then replaced by it; `replace` gives it eight new records."""

    def __init__(self, folder: Path, replaced: Callable[[str, Path], Log], copied: Callable[[Log, Path], Path]) -> None:
        self.url = str(folder / "log")
        self.log = spark_log.connect(self.url)
        self.log.admin.create_topics([spark_log.NewTopic("t", 1)])
        append(self.log, OLD)
        self._copy, self._replaced = copied(self.log, folder / "copy"), replaced
        append(self.log, [b"lost %d" % n for n in range(4)])

    def replace(self) -> Log:
        with self._replaced(self.url, self._copy) as other:
            append(other, NEW)
        return spark_log.connect(self.url)


def _folder_of(log: Log, copy: Path) -> Path:
    return Path(shutil.copytree(log.url.removeprefix("file://"), copy))


@pytest.fixture(params=["cp", "recover"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Replaced:
    if request.param == "cp":
        return Replaced(tmp_path, set_back, _folder_of)
    return Replaced(tmp_path, restored, copy_of)


@pytest.fixture
def copied(tmp_path: Path) -> Replaced:
    """Replaced with `cp`."""
    return Replaced(tmp_path, set_back, _folder_of)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_running_consumer_continues_where_the_copy_ended(place: Replaced, by_hand: bool, reset: str) -> None:
    """Its group is not in the copy, because it joined later: it joins again.  Its commits count from then on."""
    consumer = place.log.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([P0]) if by_hand else consumer.subscribe(["t"])
    assert len(values(consumer, 10)) == 10
    consumer.commit()
    log = place.replace()
    consumer._settings["auto_offset_reset"] = reset
    assert values(consumer, 8) == NEW
    consumer.commit()
    assert log.consumer(group_id="g").committed(P0) == 14
    append(log, [b"one more"])
    assert values(consumer, 1) == [b"one more"]


@pytest.mark.parametrize("how", ["cp", "recover"])
def test_records_that_were_requested_before_the_log_was_replaced_are_not_returned(tmp_path: Path, how: str) -> None:
    """On remote storage, a request has the records of all partitions: the first poll has read what the next returns."""
    url, parts = str(tmp_path / "log"), (0, 1)

    def write(log: Log, texts: list[str]) -> None:
        log.append("t", [{"value": text, "partition": part} for part in parts for text in texts])

    log = spark_log.connect(url)
    log.admin.create_topics([spark_log.NewTopic("t", len(parts))])
    write(log, [f"old {n}" for n in range(6)])
    copy = copy_of(log, tmp_path / "copy") if how == "recover" else _folder_of(log, tmp_path / "copy")
    write(log, [f"lost {n}" for n in range(4)])
    remote = Log(Journal.open(MeteredStore(LocalStore(url)), create=False))
    consumer, found = remote.consumer("t", auto_offset_reset="earliest"), dict[int, list[bytes | None]]({0: [], 1: []})

    def poll(most: int) -> None:
        for tp, records in consumer.poll(10_000, most).items():
            found[tp.partition] += [record.value for record in records]

    poll(3)
    with (restored if how == "recover" else set_back)(url, copy) as other:
        for n in range(8):
            write(other, [f"new {n}"])
    time.sleep(REFRESH_MS / 1000)  # a consumer that has records to return looks at the log no more often
    while any(len(values) < len(OLD) + len(NEW) for values in found.values()):
        poll(100)
    assert found == {part: [*OLD, *NEW] for part in parts}


# Promise: copies.md#restore-a-log-from-a-copy
def test_an_iteration_returns_no_records_that_were_lost(place: Replaced) -> None:
    """It has read all of them before the log is replaced."""
    consumer = place.log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=2000)
    assert next(consumer).value == OLD[0]
    place.replace()
    place.log.journal.refresh()  # as another reader of this process does
    assert [record.value for record in consumer] == [*OLD[1:], *NEW]


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("begun", [False, True])
def test_a_consumer_says_that_it_waits_for_a_copy_with_fewer_versions(
    copied: Replaced, begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is at the end, or has records in memory, of which some were lost."""
    append(copied.log, [b"lost %d" % n for n in range(4, 20)])
    consumer = copied.log.consumer("t", auto_offset_reset="earliest")
    wanted = 5 if begun else 26
    assert sum(len(records) for records in consumer.poll(5000, wanted).values()) == wanted
    known = copied.log.journal.state.version
    log = copied.replace()
    time.sleep(REFRESH_MS / 1000)
    assert consumer.poll(300) == {} == consumer.poll(100)
    assert caplog.text.count(f"lacks version {known}, which this consumer has read") == 1
    more = [b"more %d" % n for n in range(known - log.journal.state.version)]
    append(log, more)
    expected = [*([b"old 5"] if begun else []), *NEW, *more]
    assert values(consumer, len(expected)) == expected
    assert caplog.text.count("lacks version") == 1


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_consumer_without_a_reset_is_told_of_a_copy(copied: Replaced) -> None:
    consumer = copied.log.consumer(auto_offset_reset="none")
    consumer.assign([P0])
    consumer.seek(P0, 0)
    values(consumer, 10)
    copied.replace()
    with pytest.raises(OffsetOutOfRange, match="set back to an older copy, and may have other records from 6 on"):
        values(consumer, 8)
    assert values(consumer, 8) == NEW


# Promise: copies.md#if-you-restore-a-disk-snapshot
def test_a_consumer_that_slept_continues_where_the_copy_ended(copied: Replaced) -> None:
    """Both checkpoints are beyond the version that it knows.  Its record is above the fence, so nobody deleted it."""
    consumer = copied.log.consumer("t", auto_offset_reset="earliest")
    assert len(values(consumer, 10)) == 10
    log = copied.replace()
    for _ in range(2):
        checkpoint(log)
        append(log, [b"more"])
    assert values(consumer, 10) == [*NEW, b"more", b"more"]


def test_a_consumer_that_has_read_only_what_is_in_the_copy_continues(place: Replaced) -> None:
    consumer = place.log.consumer("t", auto_offset_reset="earliest")
    assert len(consumer.poll(2000, max_records=5)[P0]) == 5
    place.replace()
    assert values(consumer, 9) == [b"old 5", *NEW]


def test_a_consumer_leaves_its_group_to_one_that_joined_the_restored_log(place: Replaced) -> None:
    """It does not take the group back, and no commit of it is without effect and without an error."""
    consumer = place.log.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    values(consumer, 10)
    log = place.replace()
    newer = log.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    assert len(values(newer, 14)) == 14
    for attempt in (lambda: values(consumer, 1), consumer.commit, consumer.group_commit):
        with pytest.raises(IllegalGeneration):
            attempt()
    errors: list[Exception | None] = []
    consumer.commit_async(callback=lambda _, error: errors.append(error))
    with pytest.raises(IllegalGeneration):
        consumer.poll(0)
    consumer.close()
    assert isinstance(errors[0], IllegalGeneration)
    newer.commit()
    assert newer.committed(P0) == 14


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("how", ["commit", "async", "auto", "transaction", "bookmark"])
def test_a_commit_of_what_the_copy_lacks_fails_or_comes_later(place: Replaced, how: str) -> None:
    """The consumer has not polled since: its positions are those of the log before."""
    log = place.log
    consumer = log.consumer(
        group_id="g", auto_offset_reset="earliest", enable_auto_commit=how == "auto", auto_commit_interval_ms=1
    )
    consumer.assign([P0])
    bookmark = log.bookmark("g", "t")
    if how == "bookmark":
        bookmark.__enter__()
    values(consumer, 10)
    other = place.replace()
    errors: list[Exception | None] = []

    def in_a_transaction() -> None:
        with log.transaction("j") as txn:
            txn.append("out", [{"value": b"x"}])
            txn.commit_offsets(consumer)

    match how:
        case "async":
            consumer.commit_async(callback=lambda _, error: errors.append(error))
            consumer.committed(P0)
            assert isinstance(errors[0], OffsetOutOfRange | ConcurrentChange)
        case "auto":
            consumer.close()
        case _:
            tried: dict[str, Callable[[], None]] = {
                "commit": consumer.commit,
                "transaction": in_a_transaction,
                "bookmark": lambda: bookmark.__exit__(None, None, None),
            }
            with pytest.raises((OffsetOutOfRange, ConcurrentChange), match=r"poll\(\)|run it again"):
                tried[how]()
    again = other.consumer("t", group_id="g", auto_offset_reset="earliest")
    assert values(again, 8)[-8:] == NEW


def test_what_was_uploaded_before_is_uploaded_again(place: Replaced) -> None:
    """Objects that a transaction has staged are not in the copy.  Writers continue under a new identity."""
    log = place.log
    producer = log.producer()
    producer.send("t", b"first")
    producer.flush()
    txn = log.transaction("j").__enter__()
    txn.append("t", [{"value": b"staged"}])
    other = place.replace()
    with pytest.raises(UploadFenced, match="upload again|write the data again"):
        txn.__exit__(None, None, None)
    producer.send("t", b"second")
    producer.flush()
    log.append("t", [{"value": b"third"}])
    with log.transaction("j") as again:
        again.append("t", [{"value": b"fourth"}])
    assert other.read("t")["value"].to_pylist() == [*OLD, *NEW, b"second", b"third", b"fourth"]


def test_a_scan_does_not_go_on_in_another_log(copied: Replaced) -> None:
    """Its next object is gone, so it plans the rest again; what it has returned is of the log before."""
    batches = copied.log.scan("t")
    next(batches)
    copied.replace()
    with pytest.raises(ConcurrentChange, match="may have other records from 6 on, before offset 7, the end of this"):
        list(batches)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("options", [[], ["--group", "g"]], ids=["alone", "group"])
def test_consume_follow_prints_the_new_records(place: Replaced, options: list[str]) -> None:
    command = [sys.executable, "-m", "spark_log.cli", "-u", place.url, "consume", "t", "--follow", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        try:
            assert following.stdout is not None and following.stderr is not None
            before = [following.stdout.readline().strip() for _ in range(10)]
            place.replace()
            after = [following.stdout.readline().strip() for _ in range(8)]
        finally:
            following.terminate()
        said = following.stderr.read()
    assert before[-1] == "lost 3" and after == [value.decode() for value in NEW]
    assert "t-0: the log was" in said and "reading continues at 6" in said


# Promise: storage-failures.md#when-the-disk-of-a-log-is-not-mounted
def test_reads_say_that_the_folder_is_gone(tmp_path: Path) -> None:
    """Reads that wait for records say so, too, and continue when the folder is there again."""
    log = spark_log.connect(tmp_path / "log")
    append(log, OLD)
    consumer = log.consumer("t", auto_offset_reset="earliest")
    bookmark = log.bookmark("b", "t")
    values(consumer, 6)
    (tmp_path / "log").rename(tmp_path / "away")
    reads: list[Callable[[], object]] = [
        lambda: consumer.poll(0),
        lambda: consumer.poll(60_000),
        lambda: next(consumer),
        lambda: consumer.end_offsets([P0]),
        bookmark.__enter__,
        log.journal.poll,
        lambda: log.read("t"),
    ]
    for read in reads:
        with pytest.raises(WrongRoot, match=r"has no meta/format on .*is its disk mounted\?"):
            read()
    (tmp_path / "away").rename(tmp_path / "log")
    append(log, NEW)
    assert values(consumer, 8) == NEW


@pytest.mark.parametrize("options", [[], ["--group", "g"]], ids=["alone", "group"])
def test_consume_follow_says_that_the_folder_is_gone_and_waits_for_it(tmp_path: Path, options: list[str]) -> None:
    log = spark_log.connect(tmp_path / "log")
    append(log, OLD)
    command = [sys.executable, "-m", "spark_log.cli", "-u", log.url, "consume", "t", "--follow", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        try:
            assert following.stdout is not None and following.stderr is not None
            assert [following.stdout.readline().strip() for _ in range(6)][-1] == "old 5"
            (tmp_path / "log").rename(tmp_path / "away")
            assert "is its disk mounted?" in following.stderr.readline()
            (tmp_path / "away").rename(tmp_path / "log")
            append(log, NEW)
            assert [following.stdout.readline().strip() for _ in NEW] == [value.decode() for value in NEW]
        finally:
            following.kill()


def test_a_waiting_reader_of_a_young_or_truncated_log_goes_on(tmp_path: Path) -> None:
    """Neither a log without records, nor one whose last record is in checkpoints and deleted, is taken for another."""
    log = spark_log.connect(tmp_path / "log")
    assert log.journal.poll() is log.journal.state
    append(log, OLD)
    state = log.journal.poll()
    checkpoint(log)
    checkpoint(log)
    for path in (tmp_path / "log/meta/log").iterdir():
        path.unlink()  # as the fence would have it by tomorrow
    assert log.journal.poll() is state
    append(spark_log.connect(tmp_path / "log"), NEW)
    assert log.journal.poll().set_backs == () and log.read("t").num_rows == len(OLD) + len(NEW)
