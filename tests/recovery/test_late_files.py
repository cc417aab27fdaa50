"""Clients of a lost log put records and checkpoints into a copy of it before the copy has become the log."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.errors import ConcurrentChange, CorruptObject, SparkLogError
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import encode_checkpoint
from spark_log.metadata.lines import mark_of
from spark_log.recovery.late_files import Names, note_version
from spark_log.recovery.mirror import Mirror
from spark_log.recovery.mirror_recovery import Recovered, become_log, recover
from spark_log.recovery.verify import verify
from spark_log.store.base import Bytes
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS, DAMAGED, DATA, LOG, META, MIRRORED, log_key
from tests.maintenance.logs import new_log
from tests.recovery.test_backup import Place
from tests.restored import copy_of


class Killed(BaseException):
    """The process of a client is killed."""


class Hanging(Wrapper):
    """A store in which something happens before the first put of a file whose name begins so; then the process dies,
    unless it `goes_on`.
    """

    def __init__(self, inner: LocalStore, prefix: str, happens: Callable[[], object], *, goes_on: bool = False) -> None:
        super().__init__(inner)
        self.prefix, self._happens, self._goes_on = prefix, happens, goes_on

    def _put(self, key: str, put: Callable[[], object]) -> None:
        hangs = key.startswith(self.prefix)
        if hangs:
            self.prefix = "nothing more"
            self._happens()
        put()
        if hangs and not self._goes_on:
            raise Killed

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._put(key, lambda: super(Hanging, self).put(key, chunks))

    def put_new(self, key: str, data: bytes) -> bool:
        self._put(key, lambda: super(Hanging, self).put_new(key, data))
        return True


class After(Wrapper):
    """A store in which something happens after the first put of a file whose name begins so."""

    def __init__(self, inner: LocalStore, prefix: str, happens: Callable[[], object]) -> None:
        super().__init__(inner)
        self._prefix, self._happens = prefix, happens

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        super().put(key, chunks)
        if key.startswith(self._prefix):
            happens, self._happens = self._happens, lambda: None
            happens()


class HangingDelete(Wrapper):
    """A store in which something happens before the first deletion, which then is carried out."""

    def __init__(self, inner: LocalStore, happens: Callable[[], object]) -> None:
        super().__init__(inner)
        self._happens = happens

    def delete(self, keys: Iterable[str]) -> None:
        happens, self._happens = self._happens, lambda: None
        happens()
        super().delete(keys)


class AfterListing(Wrapper):
    """A store in which something happens after the first listing of the objects."""

    def __init__(self, inner: LocalStore, happens: Callable[[], object]) -> None:
        super().__init__(inner)
        self._happens = happens

    def list(self, prefix: str) -> Names:
        found = super().list(prefix)
        if prefix == DATA:
            happens, self._happens = self._happens, lambda: None
            happens()
        return found


class Lost:
    """A log that is lost while a client hangs in a put, and a copy that takes its place before the put is done."""

    def __init__(self, folder: Path, copied: int = 3, *, follows: bool = True) -> None:
        self.url = str(folder / "log")
        self.log = new_log(folder / "log")
        self.copy = copy_of(self.log, folder / "copy")
        self.written = [b"old %d" % number for number in range(copied)]
        for value in self.written:
            self.log.append("t", [{"value": value}])
        self.log.journal.finish_maintenance()
        if follows:
            Mirror(self.log, LocalStore(self.copy)).round()
        else:
            shutil.rmtree(self.copy)
            copy_of(self.log, self.copy)
        self.version = self.log.journal.state.version

    def lose(self, records: int, prefix: str, change: Callable[[spark_log.Log], object]) -> LocalStore:
        """The copy in the place of the log, with what a client has put late."""
        hanging = Hanging(LocalStore(self.url), f"nothing {prefix}", self.replace)
        client = spark_log.Log(Journal.open(hanging, create=False))
        for _ in range(records):
            client.append("t", [{"value": b"lost"}])
        client.journal.finish_maintenance()
        hanging.prefix = prefix
        with pytest.raises(Killed):
            change(client)
        return LocalStore(self.url)

    def go_on(self, appends: int) -> list[bytes]:
        """A client appends more after its late record; returns the values that were acknowledged after that."""
        hanging = Hanging(LocalStore(self.url), "nothing", self.replace, goes_on=True)
        client = spark_log.Log(Journal.open(hanging, create=False))
        hanging.prefix = LOG
        append_late(client)
        written = [b"after %d" % number for number in range(appends)]
        for value in written:
            client.append("t", [{"value": value}])
        client.journal.finish_maintenance()
        return written

    def replace(self) -> None:
        shutil.rmtree(self.url)
        shutil.copytree(self.copy, self.url)

    def check(self, store: LocalStore, written: list[bytes]) -> None:
        with spark_log.connect(store.url) as log:
            assert values(log) == written and not verify(log)
            for number in range(12):
                log.append("t", [{"value": b"new %d" % number}])
                with spark_log.connect(store.url) as other:
                    assert values(other) == written + [b"new %d" % n for n in range(number + 1)]
            assert not verify(log)


def values(log: spark_log.Log) -> list[bytes]:
    return list(log.read("t", columns=["value"])["value"].to_pylist())


def append_late(log: spark_log.Log) -> None:
    log.append("t", [{"value": b"late"}])


def checkpoint_late(log: spark_log.Log) -> None:
    log.journal.run(log.journal.metadata_log.checkpoint(log.journal.view))


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize(("records", "follows"), [(0, True), (1, True), (2, False), (4, True), (8, False), (11, True)])
def test_a_record_that_came_before_the_recovery_is_not_of_the_copy(tmp_path: Path, records: int, follows: bool) -> None:
    """Its object went with the lost log."""
    lost = Lost(tmp_path, follows=follows)
    store = lost.lose(records, LOG, append_late)
    late = log_key(lost.version + records + 1)
    assert late in store.list(LOG)
    if records < 2:  # a single record farther behind the end does not count, also where it is not looked for
        for dry_run in (True, False):
            with pytest.raises(CorruptObject, match=f"whole without {late}: .* give --force"):
                recover(store, dry_run=dry_run)
        assert recover(store, force=True, dry_run=True) == _recovered(lost, late)
        assert late in store.list(LOG)
        assert recover(store, force=True) == _recovered(lost, late)
        assert store.list(DAMAGED) == [f"{DAMAGED}log-{late.removeprefix(LOG)}"]
    else:
        recover(store)
    lost.check(store, lost.written)


def _recovered(lost: Lost, *late: str) -> Recovered:
    time = spark_log.connect(str(lost.copy)).journal.state.time
    return Recovered(lost.version, time, LocalStore(lost.url).url, (), late)


def test_a_record_that_follows_the_copy_and_has_its_objects_counts(tmp_path: Path) -> None:
    """It was decided on the version that the copy has: here a client creates a topic."""
    lost = Lost(tmp_path)
    store = lost.lose(0, LOG, lambda log: log.admin.create_topics([spark_log.NewTopic("late")]))
    assert recover(store).version == lost.version + 1
    lost.check(store, lost.written)
    assert "late" in spark_log.connect(store.url).admin.list_topics()


def test_several_files_that_came_before_the_recovery(tmp_path: Path) -> None:
    """A record that follows the copy, two others behind versions that it lacks, and a checkpoint."""
    lost = Lost(tmp_path)
    for _ in range(6):
        lost.log.append("t", [{"value": b"lost"}])
    checkpoint_late(lost.log)
    store = LocalStore(lost.url)
    newest = store.list(CHECKPOINTS)[-1]
    names = [log_key(lost.version + behind) for behind in (1, 4, 5)]
    late = {name: store.get(name) for name in (newest, *names)}
    lost.replace()
    for name, data in late.items():
        store.put(name, [data])
    assert recover(store, force=True) == _recovered(lost, newest, *names)
    lost.check(store, lost.written)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("records", [1, 2, 8])
def test_a_checkpoint_that_came_before_the_recovery_is_not_of_the_copy(
    tmp_path: Path, records: int, follows: bool
) -> None:
    lost = Lost(tmp_path, follows=follows)
    store = lost.lose(records, CHECKPOINTS, checkpoint_late)
    with pytest.raises(CorruptObject, match=f"whole without {CHECKPOINTS}.* give --force"):
        recover(store)
    assert recover(store, force=True).version == lost.version
    lost.check(store, lost.written)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("appends", [1, 2, 30])
def test_a_client_that_goes_on_after_its_late_record(tmp_path: Path, appends: int) -> None:
    """Its next records have their own objects, and need those of the late record."""
    lost = Lost(tmp_path)
    lost.go_on(appends)
    store, late = LocalStore(lost.url), [log_key(lost.version + 1 + number) for number in range(1 + appends)]
    with pytest.raises(CorruptObject, match=f"whole without {late[0]}, {late[1]}.* give --force"):
        recover(store)
    assert recover(store, force=True) == _recovered(lost, *late)
    lost.check(store, lost.written)
    assert MIRRORED not in store.list(META)


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_client_that_goes_on_writes_no_checkpoint_of_a_mirror(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With two of them, the mirror would have lost its own."""
    lost = Lost(tmp_path)
    lost.log.admin.incremental_alter_configs({None: {"metadata.checkpoint.interval": "4"}})
    Mirror(lost.log, LocalStore(lost.copy)).round()
    lost.version = lost.log.journal.state.version
    kept = LocalStore(lost.copy).list(CHECKPOINTS)
    lost.go_on(12)
    store = LocalStore(lost.url)
    assert store.list(CHECKPOINTS) == kept
    assert f"{store.url} is a copy of {store.url}, which gets no checkpoints but its own" in caplog.text
    assert len(recover(store, force=True).late) == 13
    lost.check(store, lost.written)


def test_maintenance_that_meets_a_mirror_leaves_its_checkpoints(tmp_path: Path) -> None:
    """Also a process that has opened the mirror, after two checkpoints of the lost log have come late."""
    lost = Lost(tmp_path)
    kept = LocalStore(lost.copy).list(CHECKPOINTS)
    lost.go_on(2)
    store, version = LocalStore(lost.url), lost.version + 3
    with spark_log.connect(store.url) as client:
        data = encode_checkpoint(client.journal.state)
    for number in (1, 2):
        store.put(f"{CHECKPOINTS}{version:020}-{number:016}", [data])
    with spark_log.connect(store.url) as client, suppress(SparkLogError):  # an object is lost
        maintain_once(client)
    assert set(kept) < set(store.list(CHECKPOINTS))
    assert len(recover(store, force=True).late) == 5
    lost.check(store, lost.written)


@pytest.mark.parametrize("noted", ["all", "less", "nothing"])
def test_a_checkpoint_that_came_after_a_late_record(tmp_path: Path, noted: str) -> None:
    """There is a record of its version.  A copy may have been killed before it noted what it has."""
    lost = Lost(tmp_path)
    lost.go_on(2)
    store, version = LocalStore(lost.url), lost.version + 3
    with spark_log.connect(store.url) as client:
        data = encode_checkpoint(client.journal.state)
    store.put(newest := f"{CHECKPOINTS}{version:020}-{0:016}", [data])
    if noted == "nothing":
        store.delete([MIRRORED])
    elif noted == "less":
        note_version(store, lost.version - 1)
    late = [log_key(lost.version + number) for number in (1, 2, 3)]
    assert recover(store, force=True) == _recovered(lost, newest, *late)
    lost.check(store, lost.written)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("late", [True, False])
def test_what_a_mirror_has_noted_is_not_taken_for_late(tmp_path: Path, *, late: bool) -> None:
    """An object that its newest version brought is missing."""
    lost = Lost(tmp_path, copied=4)
    if late:
        lost.go_on(1)
    else:
        lost.replace()
    store = LocalStore(lost.url)
    with spark_log.connect(str(lost.copy)) as copy:
        store.delete([max(copy.journal.state.objects)])
    for force in (False, True):
        with pytest.raises(CorruptObject, match="or give up the mirror$"):
            recover(store, force=force)


@pytest.mark.parametrize("name", ["record", "object"])
def test_a_damaged_mirror_is_not_taken_for_one_with_late_files(tmp_path: Path, name: str) -> None:
    """An object that an earlier version brought is missing, or a record.  Later ones are lost only if the
    mirror has no note of it, and by force: the lost log is often out of reach, and then `--force` is needed anyway.
    """
    lost = Lost(tmp_path, copied=4)
    lost.replace()
    store = LocalStore(lost.url)
    if name == "object":
        store.delete([store.list(DATA)[1]])
        for force in (False, True):
            with pytest.raises(CorruptObject, match="or give up the mirror"):
                recover(store, force=force)
        return
    store.delete([log_key(lost.version - 1)])
    for force in (False, True):
        with pytest.raises(CorruptObject, match=f"noted version {lost.version} .* ends at version {lost.version - 2},"):
            recover(store, force=force)
    assert not store.list(DAMAGED)
    store.delete([MIRRORED])
    with pytest.raises(CorruptObject, match="the copy is damaged"):
        recover(store)
    assert recover(store, force=True).late == (log_key(lost.version),)
    lost.check(store, lost.written[:-2])


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_mirror_that_lost_its_newest_records_does_not_become_a_log_without_a_word(tmp_path: Path) -> None:
    """Its records have no gap: only its note shows that it had more."""
    lost = Lost(tmp_path, copied=4)
    lost.replace()
    store = LocalStore(lost.url)
    store.delete([log_key(lost.version), log_key(lost.version - 1)])
    for force in (False, True):
        with pytest.raises(CorruptObject, match=f"noted version {lost.version} .* ends at version {lost.version - 2},"):
            recover(store, force=force)
    store.delete([MIRRORED])
    assert recover(store).version == lost.version - 2
    lost.check(store, lost.written[:-2])


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_record_that_comes_while_a_copy_becomes_the_log(tmp_path: Path) -> None:
    lost = Lost(tmp_path)
    first = lost.lose(0, LOG, append_late)
    late = log_key(lost.version + 1)
    data = first.get(late)
    lost.replace()
    store = LocalStore(lost.url)
    mirror = Journal.open(store, create=False)
    store.put(late, [data])
    with pytest.raises(ConcurrentChange, match=f"has put version {lost.version + 1} into its copy meanwhile"):
        become_log(mirror, (), lost.version)
    recover(store, force=True)
    lost.check(store, lost.written)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("behind", [1, 2, 3, 5])
def test_a_record_that_comes_during_a_recovery(tmp_path: Path, behind: int) -> None:
    """The mirror was whole before: the advice is not to repair it."""
    lost = Lost(tmp_path)
    for _ in range(behind):
        lost.log.append("t", [{"value": b"lost"}])
    late = log_key(lost.version + behind)
    record = lost.log.journal.metadata.get(late)
    lost.replace()
    store = LocalStore(lost.url)
    under_way = AfterListing(store, lambda: store.put(late, [record]))
    if behind > 2:  # it does not count: no version leads to it
        recover(under_way)
    else:
        with pytest.raises(ConcurrentChange, match="[Ss]top .*, and run this again"):
            recover(under_way)
        assert recover(store, force=True) == _recovered(lost, late)
    lost.check(store, lost.written)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize(
    ("records", "kind"),
    [(0, "record"), (0, "topic"), (1, "record"), (2, "topic"), (1, "checkpoint"), (8, "checkpoint")],
)
def test_files_that_came_before_a_backup_is_restored(tmp_path: Path, records: int, kind: str) -> None:
    """The restoration knows all that is its own."""
    lost = Lost(tmp_path)
    place = Place(lost.log, tmp_path / "backups")
    place.make()
    change = {
        "record": append_late,
        "topic": lambda log: log.admin.create_topics([spark_log.NewTopic("late")]),
        "checkpoint": checkpoint_late,
    }
    hung = lost.lose(records, CHECKPOINTS if kind == "checkpoint" else LOG, change[kind])
    held, names = LocalStore(lost.copy), [*hung.list(LOG), *hung.list(CHECKPOINTS)]
    late = {key: hung.get(key) for key in names if key not in (*held.list(LOG), *held.list(CHECKPOINTS))}
    assert late
    shutil.rmtree(lost.url)
    Path(lost.url).mkdir()
    store = After(hung, DATA, lambda: [hung.put(key, [data]) for key, data in late.items()])
    assert not place.restored_to(store).problems
    lost.check(hung, lost.written)
    assert "late" not in spark_log.connect(lost.url).admin.list_topics()


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_a_record_that_comes_while_a_backup_becomes_a_log(tmp_path: Path, behind: int) -> None:
    """The restoration fails, and is right when it is run again; a record to which no version leads does not count."""
    lost = Lost(tmp_path)
    place = Place(lost.log, tmp_path / "backups")
    place.make()
    lost.log.append("t", [{"value": b"lost"}])
    record = lost.log.journal.metadata.get(log_key(lost.version + 1))
    shutil.rmtree(lost.url)
    store = LocalStore(lost.url)
    late = After(store, CHECKPOINTS, lambda: store.put(log_key(lost.version + behind), [record]))
    if behind > 2:
        assert not place.restored_to(late).problems
    else:
        with pytest.raises(ConcurrentChange, match="stop|Stop"):
            place.restored_to(late)
        assert not place.restored_to(store).problems
    lost.check(store, lost.written)


@pytest.mark.parametrize("appends", [0, 1, 5])
def test_a_recovery_that_hangs_in_a_deletion_deletes_nothing_of_the_next_one(tmp_path: Path, appends: int) -> None:
    """The next recovery, and clients after it, give the version of the late record again."""
    lost = Lost(tmp_path)
    store = lost.lose(3, LOG, append_late)
    before, late = (decode_batch(store.get(log_key(lost.version + number)), "") for number in (0, 4))
    store.put(log_key(lost.version + 1), (encode_batch(replace(late, after=mark_of(before))),))
    written = [*lost.written]

    def recover_meanwhile() -> None:
        recover(store, force=True)
        with spark_log.connect(store.url) as log:
            for number in range(appends):
                log.append("t", [{"value": b"next %d" % number}])
                written.append(b"next %d" % number)

    with suppress(SparkLogError):
        recover(HangingDelete(store, recover_meanwhile), force=True)
    lost.check(store, written)
