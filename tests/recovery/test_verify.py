"""Verifying: a sound log has no problems, and each kind of damage is found and named."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from spark_log import Log, TopicPartition, connect
from spark_log.errors import CorruptObject, ObjectNotFound
from spark_log.maintenance.maintain import checkpoint, maintain_once
from spark_log.metadata.formats.checkpoint_format import encode_checkpoint
from spark_log.recovery.verify import verify
from tests.maintenance.logs import append_small, new_log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """One partition in a piece and some slices, another of a merged segment."""
    log = new_log(tmp_path, partitions=2)
    append_small(log, 20, partitions=2)
    maintain_once(log)
    append_small(log, 270, first=20)
    checkpoint(log)
    append_small(log, 3, first=290)
    return log


def messages(log: Log, deep: bool = False) -> str:
    return "\n".join(f"{problem.what}: {problem.message}" for problem in verify(log, deep))


def test_a_sound_log(log: Log) -> None:
    """Nothing is wrong, and nothing is changed by looking."""
    version = log.journal.refresh().version
    assert verify(log) == [] == verify(log, deep=True)
    assert log.journal.refresh().version == version


def segment(log: Log, tmp_path: Path) -> Path:
    """The largest that is read."""
    live = {tmp_path / read.slice.object for read in log.plan("t")}
    return max(live, key=lambda file: file.stat().st_size)


def test_an_object_that_is_gone(log: Log, tmp_path: Path) -> None:
    """Its name is said."""
    gone = segment(log, tmp_path)
    gone.unlink()
    assert f"{gone.relative_to(tmp_path)}: the object is not there: offsets " in messages(log)


def test_an_object_that_was_cut(log: Log, tmp_path: Path) -> None:
    """Both sizes are said."""
    cut = segment(log, tmp_path)
    size = cut.stat().st_size
    cut.write_bytes(cut.read_bytes()[:-1])
    assert f"the object has {size - 1} bytes, not {size}" in messages(log)


# Promise: cli.md#pylog-verify
def test_a_flipped_bit_is_found_by_reading_deep(log: Log, tmp_path: Path) -> None:
    """A batch whose bytes have changed is named with object, position, topic and partition."""
    file = segment(log, tmp_path)
    data = bytearray(file.read_bytes())
    data[len(data) // 4] ^= 1
    file.write_bytes(data)
    assert messages(log) == ""
    found = messages(log, deep=True)
    assert str(file.relative_to(tmp_path)) in found
    assert "topic 't'" in found


def met(log: Log) -> list[str]:
    """The errors that a consumer meets which continues after each."""
    found, tp = list[str](), TopicPartition("t", 0)
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        while consumer.position(tp) < consumer.end_offsets([tp])[tp]:
            try:
                consumer.poll(1000)
            except CorruptObject as error:
                found.append(str(error))
                consumer.seek(tp, error.end or 0)
    return found


# Promise: cli.md#pylog-verify
def test_the_damaged_offsets_are_those_that_a_consumer_meets(tmp_path: Path) -> None:
    """Several batches of a large slice, and all of a small slice that has one damaged byte."""
    log = new_log(tmp_path)
    for rows in (60_000, 3, 100):
        log.append("t", [{"value": os.urandom(100)} for _ in range(rows)])
    large, small, _ = (read.slice for read in log.plan("t"))
    for piece, quarters in ((large, (1, 2)), (small, (2,))):
        data = bytearray((tmp_path / piece.object).read_bytes())
        for quarter in quarters:
            data[piece.position + quarter * piece.length // 4] ^= 1
        (tmp_path / piece.object).write_bytes(data)
    found = [problem.message for problem in verify(log, deep=True)]
    assert found == met(log) and len(found) == 3


# Promise: cli.md#pylog-verify
def test_the_offsets_of_an_object_that_is_gone_are_those_that_a_consumer_misses(log: Log, tmp_path: Path) -> None:
    """By partition."""
    gone = segment(log, tmp_path)
    lost = [read for read in log.plan("t") if tmp_path / read.slice.object == gone]
    gone.unlink()
    for number in {read.partition for read in lost}:
        slices = [read.slice for read in lost if read.partition == number]
        with pytest.raises(ObjectNotFound, match=f"offsets {slices[0].start} to "):
            log.read("t", partition=number, start=slices[0].start)
        assert f"offsets {slices[0].start} to {slices[-1].end - 1} of t-{number} cannot be read" in messages(log)


def test_an_object_of_another_version_is_found_by_reading_deep(log: Log, tmp_path: Path) -> None:
    """Also where its runs are small, so that readers do not look at its tail."""
    file = segment(log, tmp_path)
    data = bytearray(file.read_bytes())
    data[-12] += 1
    file.write_bytes(data)
    assert f"{file.relative_to(tmp_path)}" in messages(log, deep=True)
    assert "format version 2" in messages(log, deep=True)


def test_a_damaged_slice_index(log: Log, tmp_path: Path) -> None:
    """The object, the position and the offsets are said."""
    (index,) = tmp_path.glob("data/*/*.idx")
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)
    assert f"{index.relative_to(tmp_path)} is damaged" in messages(log)


def test_a_slice_index_that_is_gone(log: Log, tmp_path: Path) -> None:
    """It is an object like any other."""
    (index,) = tmp_path.glob("data/*/*.idx")
    index.unlink()
    assert "the slice index of offsets 0 to 869 of topic 't', partition 0 is not there" in messages(log)


def test_a_slice_of_an_object_that_is_not_live(log: Log, tmp_path: Path) -> None:
    """A log that was written to before commits were checked may have some: the object could be deleted any time."""
    state = log.journal.refresh()
    gone = log.plan("t")[-1].slice.object
    damaged = replace(state, objects=state.objects.delete(gone))
    for file in tmp_path.glob("meta/ckpt/*"):
        file.unlink()
    (tmp_path / f"meta/ckpt/{state.version:020}-{'f' * 16}").write_bytes(encode_checkpoint(damaged))
    with connect(str(tmp_path)) as again:
        assert f"{gone}: the log has 2 slices in it, but it is not among the live objects" in messages(again)
        (tmp_path / gone).unlink()
        append_small(again, 1, first=500)
        assert f"{gone}: the log has 2 slices in it, but it is not among the live objects" in messages(again, deep=True)


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_state_that_breaks_a_rule(log: Log, tmp_path: Path) -> None:
    """The rule is named, with the version and the values, and the objects are checked nevertheless."""
    state = log.journal.refresh()
    key = next(key for key, part in state.partitions.items() if len(part.entries) > 1)
    part = state.partitions[key]
    damaged = replace(state, partitions=state.partitions.set(key, part._replace(end=part.end + 3)))
    for file in tmp_path.glob("meta/ckpt/*"):
        file.unlink()
    (tmp_path / f"meta/ckpt/{state.version:020}-{'f' * 16}").write_bytes(encode_checkpoint(damaged))
    gone = part.entries[-1].object
    (tmp_path / gone).unlink()
    with connect(str(tmp_path)) as again:
        found = messages(again)
    where = f"t-{key[1]} ends at {part.end + 3}, and its slices at {part.end}; this is a fault of pylog"
    rule = "pending_commits_follow_the_high_watermark"
    assert f"the state at version {state.version}: {rule}: {where}" in found
    assert gone in found


def test_a_checkpoint_that_cannot_be_read(log: Log, tmp_path: Path) -> None:
    """The log opens from the one before it; that it does so is said."""
    newest = max(tmp_path.glob("meta/ckpt/*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    with connect(str(tmp_path)) as again:
        assert f"meta/ckpt/{newest.name} is damaged" in messages(again)


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_record_between_the_two_checkpoints_that_cannot_be_read(log: Log, tmp_path: Path) -> None:
    """Without it the older checkpoint could not be used if the newer one were damaged."""
    older, newest = (int(file.name[:20]) for file in sorted(tmp_path.glob("meta/ckpt/*"))[-2:])
    for version in (older + 1, newest):
        file = tmp_path / f"meta/log/{version:020}.rec"
        data = file.read_bytes()
        file.write_bytes(data[:-1])
        assert f"meta/log/{file.name} is damaged" in messages(log)
        file.unlink()
        assert f"meta/log/{file.name} is missing; without it the older checkpoint" in messages(log)
        file.write_bytes(data)
    assert messages(log) == ""


def test_what_is_replaced_meanwhile_is_no_problem(log: Log) -> None:
    """Writers and maintainers continue while a log is verified."""
    append_small(log, 3, first=293)
    assert verify(log, deep=True, progress=lambda *_: _round(log)) == []


def _round(log: Log) -> None:
    maintain_once(log)


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_lost_checkpoint_of_a_log_that_deletes_records(log: Log, tmp_path: Path) -> None:
    """The log opens from the other one.  A new checkpoint mends it."""
    newest = max(tmp_path.glob("meta/ckpt/*"))
    newest.unlink()
    for file in tmp_path.glob("meta/log/*"):
        if int(file.name[:20]) <= 2:
            file.unlink()
    with connect(str(tmp_path)) as again:
        assert "meta/ckpt/: it is the only checkpoint" in messages(again)
        assert "`pylog checkpoint` writes a new one" in messages(again)
        checkpoint(again)
        assert messages(again) == ""


def test_a_young_log_may_have_one_checkpoint(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        checkpoint(log)
        assert messages(log) == ""
