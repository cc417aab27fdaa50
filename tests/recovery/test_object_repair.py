"""Objects that are missing or damaged are replaced by good copies, and by nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.client.open_journal import open_journal
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import checkpoint, maintain_once
from spark_log.metadata.records import Piece
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.object_repair import repair_objects
from spark_log.recovery.verify import verify
from spark_log.store.base import Bytes
from spark_log.store.local import LocalStore
from spark_log.store.open import open_store
from tests.conftest import Bucket
from tests.maintenance.logs import append_small, new_log


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    """With merged segments, small ones, and a slice index; and a mirror of all of it."""
    log = new_log(tmp_path / "log", partitions=2)
    append_small(log, 20, partitions=2)
    maintain_once(log)
    append_small(log, 270, first=20)
    checkpoint(log)
    append_small(log, 3, first=290)
    store = LocalStore(str(tmp_path / "mirror"))
    begin_mirror(log, store)
    Mirror(log, store).round()
    return log


def opened(root: Path) -> Journal:
    return open_journal(str(root), create=False)


def indexes(log: spark_log.Log) -> set[str]:
    entries = (entry for part in log.journal.state.partitions.values() for entry in part.entries)
    return {entry.object for entry in entries if isinstance(entry, Piece)}


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    """A bit in the part that has the records, or the slices."""
    data = bytearray(file.read_bytes())
    data[len(data) // 4] ^= 1
    file.write_bytes(data)


def rows(log: spark_log.Log) -> list[tuple[int, int, bytes]]:
    table = log.read("t", columns=["partition", "offset", "value"])
    return sorted(zip(*(table.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True))


# Promise: cli.md#pylog-verify
@pytest.mark.parametrize("damage", [Path.unlink, cut, flip])
@pytest.mark.parametrize("which", ["segments", "indexes"])
def test_every_object_is_repaired(
    log: spark_log.Log, tmp_path: Path, which: str, damage: Callable[[Path], None]
) -> None:
    """Segments and slice indexes; those that are whole are not written."""
    before, state = rows(log), log.journal.state
    names = sorted(indexes(log) if which == "indexes" else {*state.objects} - indexes(log))
    assert names
    for name in names:
        damage(tmp_path / "log" / name)
    assert verify(log, deep=True)
    done = repair_objects(log, opened(tmp_path / "mirror"), deep=True)
    assert sorted(done.repaired) == names and done.problems == ()
    assert verify(log, deep=True) == []
    assert rows(spark_log.connect(str(tmp_path / "log"))) == before


def test_segments_behind_a_lost_index_are_found_when_it_is_back(log: spark_log.Log, tmp_path: Path) -> None:
    """They are in no slice that can be read before."""
    names = sorted(log.journal.state.objects)
    for name in names:
        flip(tmp_path / "log" / name)
    done = repair_objects(log, opened(tmp_path / "mirror"), deep=True)
    assert sorted(done.repaired) == names and done.problems == ()
    assert verify(log, deep=True) == []


def test_a_damaged_copy_of_a_segment_behind_a_lost_index_is_not_taken(log: spark_log.Log, tmp_path: Path) -> None:
    """Without the index, nobody knows what has to be in the segment.  So the index is restored first."""
    names = sorted(log.journal.state.objects)
    (within,) = {read.slice.object for read in log.plan("t") if read.partition == 0 and read.start == 0}
    for name in names:
        (tmp_path / "log" / name).unlink()
    flip(tmp_path / "mirror" / within)
    done = repair_objects(log, opened(tmp_path / "mirror"))
    assert sorted((*done.repaired, within)) == names
    assert [problem.what for problem in done.problems] == [within]


# Promise: cli.md#pylog-verify
def test_a_mirror_is_repaired_from_its_log(log: spark_log.Log, tmp_path: Path) -> None:
    """Although nobody but the copy changes a mirror."""
    victim = sorted(log.journal.state.objects)[0]
    flip(tmp_path / "mirror" / victim)
    mirror = spark_log.connect(str(tmp_path / "mirror"))
    assert repair_objects(mirror, opened(tmp_path / "log"), deep=True).repaired == (victim,)
    assert verify(mirror, deep=True) == []


def test_without_deep_damaged_bytes_are_not_looked_for(log: spark_log.Log, tmp_path: Path) -> None:
    """Sizes are."""
    first, second = sorted({*log.journal.state.objects} - indexes(log))[:2]
    flip(tmp_path / "log" / first)
    cut(tmp_path / "log" / second)
    assert repair_objects(log, opened(tmp_path / "mirror")).repaired == (second,)


# Promise: cli.md#pylog-verify
def test_a_copy_that_is_damaged_too_is_not_taken(log: spark_log.Log, tmp_path: Path) -> None:
    """The object stays as it is, and the problem says why."""
    damaged, lost = sorted({*log.journal.state.objects} - indexes(log))[:2]
    flip(tmp_path / "log" / damaged)
    flip(tmp_path / "mirror" / damaged)
    (tmp_path / "log" / lost).unlink()
    (tmp_path / "mirror" / lost).unlink()
    before = (tmp_path / "log" / damaged).read_bytes()
    done = repair_objects(log, opened(tmp_path / "mirror"), deep=True)
    assert done.repaired == ()
    assert {problem.what for problem in done.problems} == {damaged, lost}
    assert all(problem.message.endswith("/mirror has no good copy") for problem in done.problems)
    assert (tmp_path / "log" / damaged).read_bytes() == before and not (tmp_path / "log" / lost).exists()


def test_other_roots_are_refused(log: spark_log.Log, tmp_path: Path) -> None:
    """Names of another log's objects mean nothing here."""
    new_log(tmp_path / "other")
    with pytest.raises(InvalidRequest, match="other has another log"):
        repair_objects(log, opened(tmp_path / "other"))
    with pytest.raises(InvalidRequest, match="is the log itself"):
        repair_objects(log, opened(tmp_path / "log"))


class Meanwhile(Wrapper):
    """Something happens just before an object is put."""

    act: Callable[[], None]

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self.act()
        super().put(key, chunks)


def test_an_object_that_was_deleted_meanwhile_does_not_come_back(log: spark_log.Log, tmp_path: Path) -> None:
    """Such as one with erased records, after the repair was stopped for longer than `gc.fence.age.ms`."""
    victim = min({*log.journal.state.objects} - indexes(log))
    (tmp_path / "log" / victim).unlink()
    store = Meanwhile(log.journal.objects)
    stopped = spark_log.Log(Journal.open(store, create=False))

    def delete_topic() -> None:
        log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
        log.admin.delete_topics(["t"])
        for number in range(4):
            maintain_once(log)
            log.create_topic(spark_log.NewTopic(f"u{number}", 1))

    store.act = delete_topic
    done = repair_objects(stopped, opened(tmp_path / "mirror"))
    assert done.problems == ()
    assert not (tmp_path / "log" / victim).exists()


def test_objects_of_a_bucket_are_repaired(tmp_path: Path, s3: Callable[[], Bucket]) -> None:
    """A put replaces the damaged object."""
    log, store = new_log(tmp_path / "log"), open_store(*s3())
    append_small(log, 3)
    begin_mirror(log, store)
    Mirror(log, store).round()
    victim = min(log.journal.state.objects)
    data = bytearray(store.get(victim))
    data[len(data) // 4] ^= 1
    store.put(victim, [bytes(data)])
    mirror = spark_log.Log(Journal.open(store, create=False))
    assert verify(mirror, deep=True)
    assert repair_objects(mirror, opened(tmp_path / "log"), deep=True).repaired == (victim,)
    assert verify(mirror, deep=True) == []


def test_an_older_copy_repairs_what_it_has(log: spark_log.Log, tmp_path: Path) -> None:
    """It may be any copy of the folder."""
    shutil.copytree(tmp_path / "log", tmp_path / "backup")
    append_small(log, 1, first=293)
    for name in log.journal.state.objects:
        (tmp_path / "log" / name).unlink()
    done = repair_objects(log, opened(tmp_path / "backup"))
    assert len(done.problems) == 1 and len(done.repaired) == len(log.journal.state.objects) - 1
