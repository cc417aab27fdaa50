"""A mirror is the whole log at an earlier version, whatever happens to either; recovered, it is a separate log."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.errors import CorruptObject, InvalidRequest, LogRestored, NoLog
from spark_log.maintenance.maintain import maintain_once
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_copier import MirrorCopier
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.repair import repair
from spark_log.recovery.verify import verify
from spark_log.serve.serve import start
from spark_log.serve.serve_config import ServeConfig
from spark_log.store.local import LocalStore
from spark_log.store.object_names import DATA, LOG, log_key, log_version, upload_epoch
from spark_log.store.open import open_store
from spark_log.store.probe import PROBES
from tests.conftest import Bucket
from tests.maintenance.logs import append_small, new_log
from tests.recovery.dying import Died, Dying
from tests.services import Services


def values(log: spark_log.Log) -> list[bytes]:
    found: list[bytes] = log.read("t", columns=["value"]).column("value").to_pylist()
    return found


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    log = new_log(tmp_path / "log")
    append_small(log, 3)
    return log


@pytest.fixture
def root(log: spark_log.Log, tmp_path: Path) -> str:
    """The root of a mirror that has nothing yet."""
    begin_mirror(log, LocalStore(str(tmp_path / "mirror")))
    return str(tmp_path / "mirror")


def records(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "meta" / "log").iterdir()}


# Promise: copies.md#keep-a-mirror
def test_a_mirror_follows_the_log(log: spark_log.Log, root: str, tmp_path: Path) -> None:
    """Records byte for byte, with the objects that they name."""
    mirror = Mirror(log, LocalStore(root))
    first = mirror.round()
    assert (first.version, first.behind) == (log.journal.state.version, 0)
    assert values(spark_log.connect(root)) == values(log)
    append_small(log, 2, first=3)
    second = mirror.round()
    assert (second.versions, second.objects) == (2, 2)
    assert mirror.round().versions == 0
    copy = spark_log.connect(root)
    assert values(copy) == values(log) and len(values(copy)) == 15
    assert verify(copy, deep=True) == []
    mine, others = records(tmp_path / "mirror"), records(tmp_path / "log")
    assert len(mine) == 3 and mine.items() <= others.items()


def test_a_mirror_of_a_log_that_is_new(tmp_path: Path) -> None:
    """It has no record yet."""
    log, store = spark_log.connect(str(tmp_path / "log"), durability="os"), LocalStore(str(tmp_path / "mirror"))
    begin_mirror(log, store)
    assert Mirror(log, store).round().version == 0
    log.create_topic(spark_log.NewTopic("t", 1))
    append_small(log, 1)
    assert Mirror(log, store).round().behind == 0
    assert values(spark_log.connect(store.url)) == values(log)


# Promise: copies.md#keep-a-mirror
def test_a_mirror_is_read_only(log: spark_log.Log, root: str) -> None:
    """Until it is recovered."""
    Mirror(log, LocalStore(root)).round()
    with pytest.raises(
        InvalidRequest, match=r"is a mirror of .*log, and `pylog mirror run` alone changes it.* `pylog recover -u "
    ):
        spark_log.connect(root).append("t", [{"value": b"x"}])
    with pytest.raises(InvalidRequest, match="is a mirror of"):
        spark_log.connect(root).create_topic(spark_log.NewTopic("u", 1))
    assert len(values(log)) == 9


def test_a_mirror_without_a_copy_cannot_be_opened(log: spark_log.Log, root: str) -> None:
    """It would be an empty log."""
    with pytest.raises(NoLog, match=r"has nothing of .* yet"):
        spark_log.connect(root)


# Promise: copies.md#keep-a-mirror
def test_merges_retention_and_garbage_collection_reach_the_mirror(
    log: spark_log.Log, root: str, tmp_path: Path
) -> None:
    """It takes as much space as the log."""
    mirror = Mirror(log, LocalStore(root))
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1", "metadata.checkpoint.interval": "5"}})
    for turn in range(6):
        append_small(log, 4, first=3 + 4 * turn)
        mirror.round(catch_up=True)
        maintain_once(log)
    for _ in range(3):
        append_small(log, 1, first=30)
        maintain_once(log)
    mirror.round(catch_up=True)
    assert values(spark_log.connect(root)) == values(log)
    assert verify(spark_log.connect(root), deep=True) == []
    here, there = (
        {path.relative_to(tmp_path / name / "data") for path in (tmp_path / name / "data").rglob("*.*")}
        for name in ("log", "mirror")
    )
    assert there - here == set()
    assert len(list((tmp_path / "mirror" / "meta" / "ckpt").iterdir())) == 2


def test_the_versions_that_an_accepted_loss_skips_are_not_counted(
    log: spark_log.Log, root: str, tmp_path: Path
) -> None:
    """The log continues at version 1,000,000,000: the state without the lost versions, and the records since."""
    mirror = Mirror(log, LocalStore(root))
    copied = mirror.round().version
    append_small(log, 2, first=3)
    (tmp_path / "log" / log_key(copied + 1)).unlink()
    repair(LocalStore(str(tmp_path / "log")), is_alive=lambda _: False, accept_loss=True)
    again = spark_log.connect(str(tmp_path / "log"))
    append_small(again, 1, first=5)
    mirror = Mirror(again, LocalStore(root))
    found = mirror.status()
    assert (found.behind, found.after_loss, found.must_catch_up) == (2, True, True)
    done = mirror.round(catch_up=True, force=True)
    assert (done.version, done.versions, done.behind, mirror.status().after_loss) == (1_000_000_001, 2, 0, False)


# Promise: copies.md#keep-a-mirror
def test_a_mirror_that_was_away_begins_with_the_newest_state(log: spark_log.Log, root: str) -> None:
    """The log has deleted the records that it lacks, and objects that these name."""
    Mirror(log, LocalStore(root)).round()
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1", "metadata.checkpoint.interval": "2"}})
    for turn in range(8):
        append_small(log, 4, first=3 + 4 * turn)
        maintain_once(log)
    first = log.journal.objects.list(LOG)[0]
    assert first > log_key(Mirror(log, LocalStore(root))._opened().state.version + 1)  # type: ignore[union-attr]
    log.journal.finish_maintenance()
    assert Mirror(log, LocalStore(root)).status().must_catch_up
    with pytest.raises(InvalidRequest, match="Do not run it if an older copy of the log was restored"):
        Mirror(log, LocalStore(root)).round()
    assert len(values(spark_log.connect(root))) == 9
    assert Mirror(log, LocalStore(root)).round(catch_up=True).behind == 0
    copy = spark_log.connect(root)
    assert values(copy) == values(log)
    assert verify(copy, deep=True) == []
    append_small(log, 1, first=40)
    assert not Mirror(log, LocalStore(root)).status().must_catch_up
    log.journal.finish_maintenance()
    assert Mirror(log, LocalStore(root)).round().behind == 0
    assert values(spark_log.connect(root)) == values(log)


class Deleted(Wrapper):
    """Another process puts each record before this one does, and deletes it."""

    def put_new(self, key: str, data: bytes) -> bool:
        return super().put_new(key, data) if key.startswith(PROBES) else False


def check_beside_late_records(log: spark_log.Log, mirror: spark_log.Log, place: Path) -> None:
    """Clients of the lost log put all its later records into its place, where the mirror is by now, and all objects
    but those of the first.
    """
    shutil.copytree(mirror.journal.metadata.url.removeprefix("file://"), place)
    store, lost, version = LocalStore(str(place)), log.journal.metadata, mirror.journal.state.version
    late = [key for key in lost.list(LOG) if log_version(key) > version]
    for key in late + [key for key in lost.list(DATA) if upload_epoch(key) > version]:
        store.put(key, [lost.get(key)])
    recover(store, force=True)
    with spark_log.connect(store.url) as copy:
        found = values(copy)
        assert len(found) >= len(values(mirror)) and found == values(log)[: len(found)]
        assert not [problem for problem in verify(copy, deep=True) if problem.what.startswith("data/")]


# Promise: copies.md#keep-a-mirror
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("away", [False, True])
def test_a_copy_that_dies_at_any_write_leaves_a_whole_log(tmp_path: Path, *, away: bool, after: bool) -> None:
    """At an earlier version, or a later one.  The next copy does the rest.

    away:  the log has deleted records that the mirror lacks.
    """
    log, store = new_log(tmp_path / "log"), LocalStore(str(tmp_path / "mirror"))
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1", "metadata.checkpoint.interval": "4"}})
    append_small(log, 2)
    begin_mirror(log, store)
    Mirror(log, store).round()
    first, deaths = 2, 0
    for writes in range(1, 9):
        for _ in range(3 if away else 1):
            append_small(log, 4, first=first)
            first += 4
            maintain_once(log)
        with suppress(Died):
            Mirror(log, Dying(store, writes, after=after)).round(catch_up=True)
            deaths -= 1  # it had fewer writes
        deaths += 1
        copy = spark_log.connect(str(tmp_path / "mirror"))
        found = values(copy)
        assert found == values(log)[: len(found)]
        assert not [problem for problem in verify(copy, deep=True) if problem.what.startswith("data/")]
        check_beside_late_records(log, copy, tmp_path / f"late{writes}")
        log.journal.finish_maintenance()
        assert Mirror(log, store).round(catch_up=True).behind == 0
        copy = spark_log.connect(str(tmp_path / "mirror"))
        assert values(copy) == values(log)
        assert verify(copy, deep=True) == []
    assert deaths > 4


def test_a_copy_that_was_under_way_during_a_recovery_stops_at_the_first_record(log: spark_log.Log, root: str) -> None:
    """It had looked at the mirror before."""
    mirror = Mirror(log, LocalStore(root))
    mirror.round()
    append_small(log, 1, first=3)
    journal = mirror._opened()
    assert journal is not None
    recover(LocalStore(root), force=True)
    key = log_key(journal.state.version + 1)
    with pytest.raises(InvalidRequest, match=f"has another {key}"):
        mirror._put_record(key, log.journal.metadata.get(key))


# Promise: cli.md#pylog-mirror-set, copies.md#keep-a-mirror
def test_roots_that_are_refused(log: spark_log.Log, root: str, tmp_path: Path) -> None:
    """A log, another log, a folder with a log's parts, an empty folder such as that of an unmounted disk."""
    append_small(new_log(tmp_path / "other"), 1)
    append_small(new_log(tmp_path / "another"), 1)
    for make in (begin_mirror, Mirror):
        with pytest.raises(InvalidRequest, match="is a separate log: it is the log itself"):
            make(log, LocalStore(str(tmp_path / "log")))
        with pytest.raises(InvalidRequest, match="has another log, with the id"):
            make(log, LocalStore(str(tmp_path / "other")))
    with pytest.raises(NoLog, match="is its disk mounted"):
        Mirror(log, LocalStore(str(tmp_path / "empty")))
    (tmp_path / "another" / "meta" / "format").unlink()
    with pytest.raises(InvalidRequest, match="a mirror begins in an empty folder"):
        begin_mirror(log, LocalStore(str(tmp_path / "another")))
    begin_mirror(log, LocalStore(root))
    assert Mirror(log, LocalStore(root)).round().version == log.journal.state.version


def test_a_log_that_went_back_is_not_mirrored(log: spark_log.Log, root: str, tmp_path: Path) -> None:
    """An older copy of it was restored: the mirror has more."""
    shutil.copytree(tmp_path / "log", tmp_path / "backup")
    append_small(log, 2, first=3)
    Mirror(log, LocalStore(root)).round()
    shutil.rmtree(tmp_path / "log")
    shutil.move(tmp_path / "backup", tmp_path / "log")
    restored = spark_log.connect(str(tmp_path / "log"))
    with pytest.raises(LogRestored, match="an older copy of that log was restored"):
        Mirror(restored, LocalStore(root)).round()
    assert len(values(spark_log.connect(root))) == 15


# Promise: copies.md#keep-a-mirror
def test_the_mirror_of_a_log_with_a_coordinator(tmp_path: Path) -> None:
    """Clients of the mirror do not ask the coordinator that its records name, and the recovered log has none."""
    services, store = Services(), LocalStore(str(tmp_path / "mirror"))
    try:
        with spark_log.connect(services.url(tmp_path / "log")) as log:
            log.create_topic(spark_log.NewTopic("t", 1))
            append_small(log, 3)
            begin_mirror(log, store)
            Mirror(log, store).round()
            copy = spark_log.connect(store.url)
            assert copy.journal.state.coordinator.address
            append_small(log, 1, first=3)
            assert len(values(spark_log.connect(store.url))) == 9
            copy.journal.poll()
            assert len(values(copy)) == 9
            Mirror(log, store).round()
            copy.journal.poll()
            assert len(values(copy)) == 12
    finally:
        services.close()
    recover(store, force=True)
    recovered = spark_log.connect(store.url)
    assert not recovered.journal.state.coordinator.address
    append_small(recovered, 1, first=4)
    assert len(values(recovered)) == 15


# Promise: copies.md#keep-a-mirror
def test_no_coordinator_serves_a_mirror(log: spark_log.Log, root: str) -> None:
    """A query that fails over to it would take it for a log that was set back, because the mirror may be behind."""
    Mirror(log, LocalStore(root)).round()
    with pytest.raises(InvalidRequest, match="is a mirror, .* read it by its URL without a coordinator"):
        asyncio.run(start(ServeConfig(url=root)))


# Promise: copies.md#keep-a-mirror
def test_a_mirror_in_a_bucket(s3: Callable[[], Bucket]) -> None:
    """From a bucket to a bucket, with the credentials of each."""
    first, second = s3(), s3()
    log = spark_log.connect(first.url, first.options)
    log.create_topic(spark_log.NewTopic("t", 1))
    append_small(log, 3)
    store = open_store(second.url, second.options)
    begin_mirror(log, store)
    assert Mirror(log, store).round().objects == 3
    assert values(spark_log.connect(second.url, second.options)) == values(log)
    recover(store, second.options, force=True)
    recovered = spark_log.connect(second.url, second.options)
    append_small(recovered, 1, first=3)
    assert len(values(recovered)) == 12


def test_a_log_that_went_back_and_was_changed_is_not_mirrored(log: spark_log.Log, root: str, tmp_path: Path) -> None:
    """It has other records under the versions that the mirror has."""
    shutil.copytree(tmp_path / "log", tmp_path / "backup")
    append_small(log, 2, first=3)
    Mirror(log, LocalStore(root)).round()
    shutil.rmtree(tmp_path / "log")
    shutil.move(tmp_path / "backup", tmp_path / "log")
    restored = spark_log.connect(str(tmp_path / "log"))
    append_small(restored, 4, first=100)
    with pytest.raises(LogRestored, match=r"has another meta/log/\d+.rec than .* `pylog recover --force -u"):
        Mirror(restored, LocalStore(root)).round()
    assert values(spark_log.connect(root)) == [b"%d" % n for n in range(15)]


def test_a_mirror_that_is_ahead_of_a_recovered_log_is_recognised_without_its_records(
    log: spark_log.Log, root: str, tmp_path: Path
) -> None:
    """By the history of the log: a mirror that catches up would lose the commits that only it has."""
    Mirror(log, LocalStore(root)).round()
    copy = shutil.copytree(root, tmp_path / "copy")
    append_small(log, 2, first=3)
    Mirror(log, LocalStore(root)).round()
    shutil.rmtree(tmp_path / "log")
    recover(LocalStore(str(copy)))
    shutil.move(copy, tmp_path / "log")
    restored = spark_log.connect(str(tmp_path / "log"))
    append_small(restored, 5, first=100)
    for record in (tmp_path / "log/meta/log").iterdir():
        if log_version(f"{LOG}{record.name}") <= spark_log.connect(root).journal.state.version:
            record.unlink()
    for catch_up in (False, True):
        with pytest.raises(LogRestored, match="was restored from an older copy. Only the mirror has the later commits"):
            Mirror(restored, LocalStore(root)).round(catch_up=catch_up)
    assert len(values(spark_log.connect(root))) == 15


def test_a_first_copy_that_was_under_way_during_a_recovery_leaves_no_checkpoint(log: spark_log.Log, root: str) -> None:
    """Another process has copied an earlier version meanwhile, which was recovered."""
    late = Mirror(log, LocalStore(root))
    Mirror(log, LocalStore(root)).round()
    append_small(log, 5, first=3)
    recover(LocalStore(root), force=True)
    with pytest.raises(InvalidRequest, match="is a separate log"):
        late._jump(MirrorCopier(log.journal, LocalStore(root)))
    assert len(values(spark_log.connect(root))) == 9


@pytest.mark.parametrize("writes", range(1, 7))
def test_a_first_copy_that_dies_beside_another_one_leaves_a_whole_log(
    log: spark_log.Log, root: str, writes: int
) -> None:
    """The other one has copied an earlier version meanwhile."""
    late = Mirror(log, Dying(LocalStore(root), writes, after=True))
    Mirror(log, LocalStore(root)).round()
    append_small(log, 5, first=3)
    with suppress(Died):
        late._jump(MirrorCopier(log.journal, LocalStore(root)))
    copy = spark_log.connect(root)
    assert values(copy) == values(log)[: len(values(copy))]
    assert Mirror(log, LocalStore(root)).round().behind == 0 and verify(spark_log.connect(root), deep=True) == []
    assert values(spark_log.connect(root)) == values(log)


def test_a_record_that_another_copy_has_put_and_deleted_is_not_missing(log: spark_log.Log, root: str) -> None:
    """After the checkpoints that replace it."""
    assert Mirror(log, Deleted(LocalStore(root))).round().behind == 0
    assert values(spark_log.connect(root)) == values(log)


def test_an_object_that_the_log_has_lost_is_named(log: spark_log.Log, root: str, tmp_path: Path) -> None:
    """In a first copy, and in a later one."""
    victim = log.journal.objects.list("data/")[0]
    shutil.move(tmp_path / "log" / victim, tmp_path / "away")
    with pytest.raises(CorruptObject, match=f"{victim} is missing: run `pylog verify`"):
        Mirror(log, LocalStore(root)).round()
    shutil.move(tmp_path / "away", tmp_path / "log" / victim)
    Mirror(log, LocalStore(root)).round()
    before = set(log.journal.objects.list("data/"))
    append_small(log, 1, first=3)
    (victim,) = set(log.journal.objects.list("data/")) - before
    (tmp_path / "log" / victim).unlink()
    with pytest.raises(CorruptObject, match=f"{victim} is missing: run `pylog verify`"):
        Mirror(log, LocalStore(root)).round(catch_up=True)
    assert len(values(spark_log.connect(root))) == 9


# Promise: copies.md#keep-a-mirror
def test_a_log_that_was_moved_is_named_anew(log: spark_log.Log, root: str, tmp_path: Path) -> None:
    """A mirror has one log: another one with the same id, such as a recovered mirror, does not copy to it."""
    Mirror(log, LocalStore(root)).round()
    shutil.move(tmp_path / "log", tmp_path / "moved")
    moved = spark_log.connect(str(tmp_path / "moved"))
    with pytest.raises(InvalidRequest, match=r"is the mirror of .*/log, not of .*/moved: if the log was moved"):
        Mirror(moved, LocalStore(root))
    begin_mirror(moved, LocalStore(root))
    assert Mirror(moved, LocalStore(root)).round().behind == 0
    with pytest.raises(InvalidRequest, match=r"moved, which .* mirrors, can be opened"):
        recover(LocalStore(root))


def test_the_status_of_a_mirror_that_cannot_be_continued(log: spark_log.Log, root: str, tmp_path: Path) -> None:
    """It is not up to date, although it has more versions."""
    mirror = Mirror(log, LocalStore(root))
    mirror.round()
    assert mirror.status().behind_ms == 0
    append_small(log, 2, first=3)
    assert mirror.status().behind == 2
    assert 0 <= mirror.status().behind_ms < 60_000
    shutil.copytree(tmp_path / "log", tmp_path / "backup")
    append_small(log, 2, first=5)
    mirror.round()
    shutil.rmtree(tmp_path / "log")
    shutil.move(tmp_path / "backup", tmp_path / "log")
    with pytest.raises(LogRestored, match="an older copy"):
        Mirror(spark_log.connect(str(tmp_path / "log")), LocalStore(root)).status()


def test_rounds_go_on_when_the_mirrors_disk_is_back(log: spark_log.Log, root: str, tmp_path: Path) -> None:
    """Meanwhile nothing is written to its place."""
    rounds = Mirror(log, LocalStore(root)).rounds(20)
    assert next(rounds).behind == 0
    shutil.move(root, tmp_path / "away")
    append_small(log, 1, first=3)
    found: list[bool] = []

    def mount() -> None:
        found.append(Path(root).exists())
        shutil.move(tmp_path / "away", root)

    timer = threading.Timer(0.5, mount)
    timer.start()
    assert next(rounds).versions == 1
    timer.join()
    assert found == [False]
    assert len(values(spark_log.connect(root))) == 12


def test_a_root_within_the_logs_is_refused(log: spark_log.Log, tmp_path: Path) -> None:
    """Garbage collection would find its objects."""
    for place in (tmp_path / "log" / "data" / "mirror", tmp_path):
        with pytest.raises(InvalidRequest, match="must not lie within each other"):
            begin_mirror(log, LocalStore(str(place)))
