"""A backup is a whole version of a log, whatever happens meanwhile; restored, it is a new log with all records."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from simulation.harness.stores import Names, Wrapper
from spark_log import Log, OffsetAndMetadata, TopicPartition, connect
from spark_log.errors import CorruptObject, InvalidRequest, NoLog, NoSpace
from spark_log.journal.context import Context
from spark_log.maintenance.maintain import merge
from spark_log.model import ACKS_LEADER
from spark_log.positions import format_timestamp_ms
from spark_log.recovery.backup import (
    ABANDONED_MS,
    DAY_MS,
    MARKED_MS,
    Made,
    back_up,
    begin_place,
    check_place,
    missing,
    prune,
)
from spark_log.recovery.backup_copies import BackupShare, CopiedShare, copy_share
from spark_log.recovery.backup_files import Backup, BackupFiles, end_key
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.restore_backup import RestoreReport, restore
from spark_log.recovery.whole_copies import needed_objects
from spark_log.replication.copy_throttle import Pace
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import data_key
from spark_log.store.probe import PROBES
from tests.maintenance.logs import append_small, new_log, pass_the_fence
from tests.replication.replicated_logs import put, replicated_log
from tests.services import Services

CLOCK = SystemClock()


class Killed(Exception):
    """The process died."""


class Interrupted(Wrapper):
    """A store before whose n-th request something happens.  Those of the probe, and its reads if so asked, are free."""

    def __init__(
        self, inner: ObjectStore, number: int, happens: Callable[[], None], *, counts_reads: bool = True
    ) -> None:
        super().__init__(inner)
        self.left, self._happens, self._counts_reads = number, happens, counts_reads

    def _next(self, key: str, *, reads: bool = False) -> None:
        if key.startswith(PROBES) or (reads and not self._counts_reads):
            return
        self.left -= 1
        if self.left == 0:
            self._happens()

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._next(key)
        super().put(key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        self._next(key)
        return super().put_new(key, data)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._next(key, reads=True)
        return super().get(key, start, end)

    def list(self, prefix: str) -> Names:
        self._next(prefix, reads=True)
        return super().list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        some = list(keys)
        self._next(some[0] if some else "")
        super().delete(some)


def values(log: Log, topic: str = "t") -> list[bytes]:
    found: list[bytes] = log.read(topic, columns=["value"]).column("value").to_pylist()
    return found


@dataclass
class Place:
    """The backups of a log, with all copies made by this process."""

    log: Log
    root: Path
    wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store
    """Of the store of the files that describe backups."""

    @property
    def files(self) -> BackupFiles:
        store = self.wrap(LocalStore(str(self.root), "os"))
        return BackupFiles(store, lambda folder: LocalStore(str(self.root / folder), "os"))

    def copy(self, shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
        files, pace = self.files, Pace(CLOCK)
        for share in shares:
            yield copy_share(self.log.journal.objects, files.folder(share.folder), share, pace)

    def make(self, copy: Callable[[Sequence[BackupShare]], Iterator[CopiedShare]] | None = None) -> Made:
        begin_place(self.log, self.files, create=True)
        return back_up(self.log, self.files, copy or self.copy)

    def dies_after(self, objects: int) -> None:
        """A backup whose process is killed when it has copied so many objects."""

        def copy(shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
            some = [one for share in shares for one in share.objects][:objects]
            yield from self.copy([BackupShare(shares[0].folder, tuple(some))])
            raise Killed

        with pytest.raises(Killed):
            self.make(copy)

    def restored(
        self,
        root: Path,
        which: str = "latest",
        until_ms: int | None = None,
    ) -> tuple[Log, RestoreReport]:
        """A log from a backup."""
        store = LocalStore(str(root), "os")
        done = self.restored_to(store, which, until_ms)
        return connect(str(root), create=False), done

    def restored_to(self, store: ObjectStore, which: str = "latest", until_ms: int | None = None) -> RestoreReport:
        files = self.files

        def copy(shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
            for share in shares:
                yield copy_share(files.folder(share.folder), store, share, Pace(CLOCK))

        return restore(files, files.find(which, until_ms), store, Context(CLOCK, random.Random(0)), copy)

    def lost(self) -> set[str]:
        """Objects that complete backups need and do not have."""
        files = self.files
        states = [files.state(one.end.state) for one in files.complete()]
        return {name for state in states if state is not None for name in needed_objects(state)} - set(files.places())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    log = new_log(tmp_path / "log")
    append_small(log, 3)
    return Place(log, tmp_path / "backups")


# Promise: tasks/backup.md#backup-and-restore
def test_backups_share_what_they_have_in_common(place: Place, tmp_path: Path) -> None:
    """The second one copies the new objects only, and each can be restored."""
    first = place.make()
    append_small(place.log, 2, first=3)
    assert missing(place.log, place.files)[0] == 2
    second = place.make()
    assert (first.objects, second.objects, second.backup.end.objects) == (3, 2, 5)
    assert second.bytes < first.bytes < second.backup.end.bytes
    log, done = place.restored(tmp_path / "second")
    assert (values(log), done.problems) == (values(place.log), [])
    log, _ = place.restored(tmp_path / "first", str(first.backup.end.version))
    assert values(log) == values(place.log)[:9]
    log, _ = place.restored(tmp_path / "then", "@", first.backup.end.time_ms)
    assert values(log) == values(place.log)[:9]


# Promise: tasks/backup.md#restore
def test_a_restored_log_is_a_new_one(place: Place, tmp_path: Path) -> None:
    """It has groups, configs and indexes, can be written, and is not the log of which the backup was made."""
    at = {TopicPartition("t", 0): OffsetAndMetadata(4, "note")}
    place.log.admin.alter_consumer_group_offsets("g", at)
    place.make()
    log, done = place.restored(tmp_path / "new")
    assert log.cluster_id == done.cluster_id != place.log.cluster_id
    assert log.admin.list_consumer_group_offsets("g") == at
    (begun,) = log.journal.state.restores
    assert begun.version == place.log.journal.state.version and [ends for _, ends in begun.ends] == [(9,)]
    append_small(log, 1, first=9)
    append_small(place.log, 1, first=3)
    of_others = f"objects/20260101T000000Z-abcdef/{data_key(1, 'x.seg')}"
    for file in (f"backups-of-others/{of_others}", f"left/{data_key(1, 'x.seg')}"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    assert len(values(log)) == len(values(place.log)) == 12
    with pytest.raises(InvalidRequest, match="of another log"):
        check_place(log, place.files, create=False)
    for root, said in (
        ("log", "has a log"),
        ("backups-of-others", f"has {of_others}"),
        ("left", "has data/0"),
    ):
        with pytest.raises(InvalidRequest, match=f"{said}.*: restore to a folder without files of a log or of backups"):
            place.restored(tmp_path / root)


# Promise: tasks/backup.md#restore
def test_records_that_were_erased_after_the_backup_are_named_and_listed_until_they_are_erased_again(
    place: Place, tmp_path: Path
) -> None:
    """By later backups; a log of the last one has nothing to repeat."""
    place.log.append("t", [{"key": b"customer-17", "value": b"secret"}])
    place.make()
    place.log.admin.erase_records("t", [b"customer-17"])
    erased = place.log.journal.refresh().erasures
    place.make()
    log, done = place.restored(tmp_path / "first", place.files.complete()[0].id)
    assert b"secret" in values(log)
    (again,) = done.erase_again
    ((topic_id, row),) = erased.items()
    assert topic_id in log.journal.state.topics
    assert "an erasure from t ended at" in again and format_timestamp_ms(row.time) in again
    assert "`pylog topic erase t`" in again
    assert [(one.topic, one.incomplete, one.time_ms) for one in log.admin.list_erasures()] == [("t", True, row.time)]
    assert any("run the erasure again" in problem.message for problem in done.problems)
    log.admin.erase_records("t", [b"customer-17"])
    assert b"secret" not in values(log)
    assert not any(one.incomplete for one in log.admin.list_erasures())
    assert place.restored(tmp_path / "second")[1].erase_again == ()


def test_erasures_after_a_recovery_are_named_also_by_backups_with_older_versions(place: Place, tmp_path: Path) -> None:
    """The versions of the recovered log begin again before those of a backup of the lost one."""
    place.log.append("t", [{"key": b"customer-17", "value": b"secret"}])
    mirror = LocalStore(str(tmp_path / "mirror"), "os")
    begin_mirror(place.log, mirror)
    Mirror(place.log, mirror).round()
    append_small(place.log, 20)
    lost = place.make().backup
    recover(mirror, force=True)
    recovered = Place(connect(mirror.url), place.root)
    recovered.log.admin.erase_records("t", [b"customer-17"])
    assert recovered.make().backup.end.version < lost.end.version
    log, done = place.restored(tmp_path / "first", lost.id)
    assert b"secret" in values(log)
    assert [text.partition(" at ")[0] for text in done.erase_again] == ["an erasure from t ended"]
    assert [(one.topic, one.incomplete) for one in log.admin.list_erasures()] == [("t", True)]


# Promise: tasks/backup.md#if-a-job-is-killed
def test_a_backup_that_was_killed_is_continued(place: Place, tmp_path: Path) -> None:
    """As one of the newest version, without copying anything twice."""
    place.dies_after(2)
    assert len(place.files.unfinished()) == 1 and not place.files.complete()
    append_small(place.log, 1, first=3)
    assert missing(place.log, place.files)[0] == 2
    made = place.make()
    assert (made.objects, made.backup.end.objects, place.files.unfinished()) == (2, 4, [])
    assert values(place.restored(tmp_path / "new")[0]) == values(place.log)


# Promise: tasks/backup.md#if-a-job-is-killed
def test_objects_that_go_during_the_copy(place: Place, tmp_path: Path) -> None:
    """The backup becomes one of a newer version: merging and garbage collection do not wait for it."""
    place.log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    rounds = list[int]()

    def copy(shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
        rounds.append(len(shares))
        if len(rounds) == 1:
            merge(place.log)
            pass_the_fence(place.log)
        yield from place.copy(shares)

    made = place.make(copy)
    assert (len(rounds), made.objects) == (2, 1)
    assert values(place.restored(tmp_path / "new")[0]) == values(place.log)


# Promise: tasks/backup.md#if-a-job-is-killed
@pytest.mark.parametrize("harm", [b"", b"x"])
def test_damage_in_the_log_stops_the_backup(place: Place, harm: bytes) -> None:
    """It is named, and no backup has it."""
    name = sorted(place.log.journal.refresh().objects)[1]
    path = tmp = Path(place.log.url.removeprefix("file://")) / name
    good = tmp.read_bytes()
    if harm:
        path.write_bytes(good[:20] + harm + good[21:])
    else:
        path.unlink()
    with pytest.raises(CorruptObject, match=name.rpartition("/")[2]):
        place.make()
    assert not place.files.complete()
    path.write_bytes(good)
    assert place.make().backup.end.objects == 3


# Promise: tasks/backup.md#backup-and-restore
def test_places_that_are_refused(place: Place, tmp_path: Path) -> None:
    """A log, a folder within the log, one with another log's backups, and an empty one without --create."""
    other = new_log(tmp_path / "other")
    for root, said in (
        (tmp_path / "other", "backups begin in an empty folder"),
        (tmp_path / "log" / "backups", "must not lie within each other"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            Place(place.log, root).make()
    with pytest.raises(NoLog, match="Give --create"):
        check_place(place.log, place.files, create=False)
    place.make()
    with pytest.raises(InvalidRequest, match="backups of another log"):
        Place(other, place.root).make()
    with pytest.raises(InvalidRequest, match=r"has no backup '7'; it has .* \(version 4, 20"):
        place.files.find("7", None)


# Promise: tasks/backup.md#if-a-job-is-killed
def test_an_object_that_a_backup_has_lost_is_copied_again(place: Place, tmp_path: Path) -> None:
    """Until then, the backup is not restored."""
    made = place.make()
    lost = next(place.root.glob("objects/*/data/*/*.seg"))
    lost.unlink()
    with pytest.raises(CorruptObject, match=f"lacks 1 object of the backup {made.backup.id}"):
        place.restored(tmp_path / "new")
    assert place.make().objects == 1
    assert values(place.restored(tmp_path / "new", made.backup.id)[0]) == values(place.log)


# Promise: tasks/backup.md#if-a-job-is-killed
def test_copies_that_went_to_another_folder(place: Place, tmp_path: Path) -> None:
    """As with a path that is not the same folder on all machines: the backup is not complete."""
    elsewhere = Place(place.log, tmp_path / "elsewhere")
    with pytest.raises(InvalidRequest, match="lacks 3 objects that tasks have copied there.* on all machines"):
        place.make(elsewhere.copy)
    assert not place.files.complete()
    assert place.make().objects == 3


# Promise: tasks/backup.md#if-a-job-is-killed
def test_a_backup_by_a_wrong_clock(place: Place) -> None:
    """A later one is not removed in its place, and nobody takes it for the latest without knowing."""
    wrong = _later(place, place.make().backup, 365 * DAY_MS)
    append_small(place.log, 1, first=3)
    right = place.make().backup
    assert prune(place.files, CLOCK.now_ms(), keep=1) == ((), 0)
    assert place.files.find(right.id, None) == right
    with pytest.raises(InvalidRequest, match=f"{wrong.id} as the last backup by time.* {right.id} has version"):
        place.files.find("latest", None)
    again = _later(place, place.make().backup, 366 * DAY_MS)
    assert place.files.find("latest", None) == again
    assert prune(place.files, CLOCK.now_ms(), keep=1).removed == (right.id,)


def _later(place: Place, backup: Backup, by_ms: int) -> Backup:
    end = msgspec.structs.replace(backup.end, time_ms=backup.end.time_ms + by_ms)
    place.files.store.put(end_key(backup.id), (msgspec.json.encode(end),))
    return Backup(backup.id, end)


# Promise: tasks/backup.md#if-a-job-is-killed
def test_a_damaged_state_of_a_backup(place: Place, tmp_path: Path) -> None:
    """The next backup relies on nothing of it; nothing is deleted while nobody knows what it needs."""
    bad = place.make().backup
    path = place.root / bad.end.state
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CorruptObject, match="cannot be restored: delete this file"):
        place.restored(tmp_path / "new")
    assert place.make().objects == 3
    with pytest.raises(CorruptObject, match="cannot be restored: delete this file"):
        prune(place.files, CLOCK.now_ms(), keep=2)
    path.unlink()
    assert prune(place.files, CLOCK.now_ms(), keep=1) == ((), 0)
    assert values(place.restored(tmp_path / "new")[0]) == values(place.log)


# Promise: tasks/backup.md#if-a-job-is-killed
def test_a_damaged_end_of_a_backup(place: Place) -> None:
    """It is named; without it, the backup is continued."""
    bad = place.make().backup
    path = place.root / end_key(bad.id)
    path.write_bytes(b"")
    with pytest.raises(CorruptObject, match=f"{bad.id}/end.json is damaged.* Delete it"):
        place.files.complete()
    path.unlink()
    made = place.make()
    assert (made.objects, made.backup.id) == (0, bad.id)


# Promise: tasks/backup.md#backup-and-restore
def test_old_backups_are_removed(place: Place, tmp_path: Path) -> None:
    """With the objects that no other one needs; the mark of a removed backup stays for a while."""
    place.log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    first = place.make().backup
    merge(place.log)
    append_small(place.log, 1, first=3)
    second = place.make().backup
    now = second.end.time_ms
    assert prune(place.files, now, keep_ms=DAY_MS) == ((), 0)
    assert prune(place.files, now, keep=1, dry_run=True) == ((first.id,), 3)
    assert [one.id for one in place.files.complete()] == [first.id, second.id]
    assert prune(place.files, now, keep=1) == ((first.id,), 3)
    assert [one.id for one in place.files.complete()] == [second.id]
    assert place.files.end(first.id) is not None and prune(place.files, now, keep=1) == ((), 0)
    assert prune(place.files, now + MARKED_MS + 1, keep_ms=1) == ((), 0), "the newest backup is kept"
    assert place.files.end(first.id) is None
    assert values(place.restored(tmp_path / "new")[0]) == values(place.log)


# Promise: tasks/backup.md#if-a-job-is-killed
def test_a_backup_that_nobody_continues_is_given_up(place: Place, tmp_path: Path) -> None:
    """After a week; a process that is still there begins another one."""
    first = place.make().backup
    append_small(place.log, 2, first=3)
    place.dies_after(1)
    now = CLOCK.now_ms()
    assert prune(place.files, now + ABANDONED_MS - DAY_MS, keep=1) == ((), 0)

    def copy(shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
        if len(place.files.unfinished()) == 1 and place.files.unfinished()[0] == shares[0].folder and not gone:
            gone.append(prune(place.files, now + ABANDONED_MS + DAY_MS, keep=2).objects)
        yield from place.copy(shares)

    gone = list[int]()
    made = place.make(copy)
    assert gone == [1]
    assert [one.id for one in place.files.complete()] == [first.id, made.backup.id]
    assert values(place.restored(tmp_path / "new")[0]) == values(place.log)


class Full(Wrapper):
    """A store whose disk is full."""

    def put_new(self, key: str, data: bytes) -> bool:
        raise NoSpace(f"{key}: no space")


def test_backups_are_removed_from_a_full_disk(place: Place) -> None:
    """Also if it has a backup that nobody continues: the next removal gives it up."""
    old = place.make().backup
    append_small(place.log, 1, first=3)
    place.make()
    append_small(place.log, 2, first=4)
    place.dies_after(1)
    later = CLOCK.now_ms() + ABANDONED_MS + DAY_MS
    place.wrap = Full
    assert prune(place.files, later, keep=1).removed == (old.id,)
    place.wrap = lambda store: store
    assert prune(place.files, later, keep=1).objects == 1
    assert place.lost() == set()


# Promise: tasks/backup.md#backup-and-restore
def test_backups_are_removed_while_one_is_made(place: Place, tmp_path: Path) -> None:
    """Before each of its steps: what it did not copy is not removed."""
    for number in itertools.count(1):
        here, more = Place(place.log, tmp_path / f"backups-{number}"), Place(place.log, tmp_path / f"backups-{number}")
        here.make()
        append_small(place.log, 1)
        steps = Interrupted(LocalStore(str(here.root), "os"), number, lambda more=more: _without_the_newest(more))
        here.wrap = lambda _, steps=steps: steps
        here.make()
        assert more.lost() == set() and more.files.complete()[-1].end.version == place.log.journal.refresh().version
        if steps.left > 0:
            break
    assert number > 8


def _without_the_newest(place: Place) -> None:
    """As if it was old, and a newer one had been removed meanwhile."""
    place.files.store.delete([one.end.state for one in place.files.complete()[-1:]])
    prune(place.files, CLOCK.now_ms(), keep=1)


# Promise: tasks/backup.md#backup-and-restore
def test_a_backup_is_made_while_others_are_removed(place: Place, tmp_path: Path) -> None:
    """Before each of the steps, and it needs an object that is removed: all that is left can be restored."""
    for number in itertools.count(1):
        here, more = Place(place.log, tmp_path / f"backups-{number}"), Place(place.log, tmp_path / f"backups-{number}")
        here.make()
        append_small(place.log, 1)
        here.files.store.delete([here.make().backup.end.state])
        made = list[Made]()
        steps = Interrupted(
            LocalStore(str(here.root), "os"), number, lambda made=made, more=more: made.append(more.make())
        )
        here.wrap = lambda _, steps=steps: steps
        removed = prune(here.files, CLOCK.now_ms(), keep=2)
        assert more.lost() == set()
        if steps.left > 0:
            assert removed.objects == 1
            break
        assert made[0].backup in more.files.complete()
    assert number > 8


# Promise: tasks/backup.md#restore
def test_a_restoration_that_was_killed_is_run_again(place: Place, tmp_path: Path) -> None:
    """It is killed before each of its changes in turn.  The new root becomes a log with the last one."""
    place.make()

    def die() -> None:
        raise Killed

    for number in itertools.count(1):
        root = MemoryStore(f"{tmp_path.name}-{number}")
        steps = Interrupted(root, number, die, counts_reads=False)
        try:
            place.restored_to(steps)
        except Killed:
            half = "half restored from the backup" if root.list("meta/") else "there is no log"
            with pytest.raises(NoLog, match=half):
                append_small(connect(root.url, create=False), 1)
            place.restored_to(root)
        log = connect(root.url, create=False)
        assert values(log) == values(place.log)
        append_small(log, 1)
        assert len(values(log)) == 12
        if steps.left > 0:
            break
    assert number > 8


# Promise: tasks/backup.md#restore
def test_a_log_with_brokers(tmp_path: Path) -> None:
    """Copies come from any root; the new log has one root, and no records that readers have not seen."""
    log = replicated_log(tmp_path)
    put(log, [1, 2])
    put(log, [1], acks=ACKS_LEADER)
    place = Place(log, tmp_path / "backups")
    made = place.make()
    state = log.journal.refresh()
    assert len(state.pending) == 1 and made.backup.end.objects == len(state.objects) - 1
    new, done = place.restored(tmp_path / "new")
    assert done.problems == []
    assert not new.journal.state.brokers and not new.journal.state.pending
    assert new.read("t").num_rows == log.read("t").num_rows > 0


@pytest.fixture
def services() -> Iterator[Services]:
    found = Services()
    yield found
    found.close()


def test_a_log_whose_metadata_is_served_and_that_is_written_to(tmp_path: Path, services: Services) -> None:
    """As by a quorum: the backup has one version, with the objects of its brokers, and none of what came during it."""
    replicated_log(tmp_path).close()
    running = services.start(tmp_path / "log", metadata="served")
    with connect(f"pylog://{running.coordinator.address}", durability="os") as log:
        log.append("t", [{"value": b"before"}])
        place = Place(log, tmp_path / "backups")

        def copy(shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
            for one in place.copy(shares):
                log.append("t", [{"value": b"meanwhile"}])
                yield one

        made = place.make(copy)
        new, done = place.restored(tmp_path / "new")
        assert (done.problems, values(new), values(log)) == ([], [b"before"], [b"before", b"meanwhile"])
        assert made.backup.end.version < log.journal.refresh().version
        assert not new.journal.state.brokers
