"""A folder has files that are not pylog's: they are passed over, and `verify` names them once."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from spark_log import Log, NewTopic, connect
from spark_log.client.admin.brokers import fence_broker, return_broker
from spark_log.journal.context import Context
from spark_log.maintenance.maintain import checkpoint, collect_garbage, maintain_round, merge
from spark_log.recovery.backup import DAY_MS, back_up, begin_place, prune
from spark_log.recovery.backup_copies import BackupShare, CopiedShare, copy_share
from spark_log.recovery.backup_files import BackupFiles
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.repair import repair
from spark_log.recovery.restore_backup import restore
from spark_log.recovery.verify import verify
from spark_log.replication.copy_throttle import Pace
from spark_log.runtime.clock import SystemClock
from spark_log.server.quorum.root_snapshots import newest_snapshot, put_snapshot
from spark_log.server.quorum.state import Content
from spark_log.store.local import LocalStore
from spark_log.store.object_names import log_key
from spark_log.store.open import open_store
from tests.cli.commands import Pylog
from tests.conftest import Bucket
from tests.foreign_files import OF_A_LOG, STRANGERS, assert_untouched, plant
from tests.maintenance.logs import append_small, new_log, pass_the_fence
from tests.replication.replicated_logs import put, replicated_log
from tests.services import Services

CLOCK = SystemClock()


def values(log: Log) -> list[bytes]:
    found: list[bytes] = log.read("t", columns=["value"]).column("value").to_pylist()
    return found


def nobody(_: object) -> bool:
    """No coordinator is alive."""
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a log with checkpoints, segments, slice indexes and garbage."""
    log = new_log(tmp_path / "log")
    append_small(log, 5)
    checkpoint(log)
    append_small(log, 3, first=5)
    return tmp_path / "log"


# Promise: storage.md#other-files-in-the-folders
def test_a_log_works_among_other_files(folder: Path) -> None:
    """It is opened, written, read, merged, collected, checkpointed and repaired.  The other files stay."""
    expected = values(connect(folder))
    planted = plant(folder)
    log = connect(folder)
    append_small(log, 2, first=8)
    assert merge(log).segments > 0
    pass_the_fence(log)
    checkpoint(log)
    report = maintain_round(log)
    assert report.problems == () and verify(log, deep=True) == []
    assert collect_garbage(log) == []
    assert repair(LocalStore(str(folder)), dry_run=True, is_alive=nobody).base
    assert values(connect(folder))[: len(expected)] == expected
    assert_untouched(planted)


def test_pipes_and_broken_links_are_passed_over(folder: Path, tmp_path: Path) -> None:
    """A reader of a pipe waits for a writer.  A link to a file is a file."""
    for part in ("data", "meta/log", "meta/pin"):
        (folder / part).mkdir(exist_ok=True)
        os.mkfifo(folder / part / "pipe")
        (folder / part / "broken").symlink_to(tmp_path / "nowhere")
    segment = next((folder / "data").rglob("*.seg"))
    segment.rename(tmp_path / "elsewhere")
    segment.symlink_to(tmp_path / "elsewhere")
    log = connect(folder)
    pass_the_fence(log)
    assert maintain_round(log).problems == () and verify(log, deep=True) == []
    begin_mirror(log, LocalStore(str(tmp_path / "mirror")))
    assert Mirror(log, LocalStore(str(tmp_path / "mirror"))).round().behind == 0


def test_a_log_begins_among_other_files(tmp_path: Path) -> None:
    """They are not taken for a log that is damaged."""
    (tmp_path / "log").mkdir()
    planted = plant(tmp_path / "log")
    log = new_log(tmp_path / "log")
    append_small(log, 1)
    assert verify(log) == []
    assert_untouched(planted)


# Promise: storage.md#other-files-in-the-folders
def test_verify_names_other_files_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By their name, or that of the folder with another log, and they are no problem.  `verify` succeeds."""
    new_log(folder / "data" / "team1")
    for name in ("meta/ckpt/.DS_Store", "meta/log/.nfs01", "data/0000000000000000/a\x1bb"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    result = Pylog(folder).run("verify")
    assert result.exit_code == 0 and "no problems found" in result.output
    (text,) = [record.getMessage() for record in caplog.records if "not of this log" in record.getMessage()]
    assert re.search(
        r"data/0000000000000000/a\\x1bb, data/team1/ \(\d+ files\), meta/ckpt/.DS_Store, meta/log/.nfs01$", text
    )
    assert verify(connect(folder / "data" / "team1")) == []


@pytest.mark.parametrize("later", [1, 5, 64])
def test_verify_reports_a_directory_with_the_name_of_a_later_record(folder: Path, later: int) -> None:
    """Commits will fail there.  The log is opened and read before, and the rest of it is checked."""
    key = log_key(connect(folder).journal.refresh().version + later)
    (folder / key).mkdir()
    (problem,) = verify(connect(folder), deep=True)
    assert problem.what == key and "this is not a file, so commits will fail at version" in problem.message
    (folder / key).rmdir()
    assert verify(connect(folder)) == []


def test_verify_passes_over_directories_with_names_of_other_files(folder: Path) -> None:
    """They hold no object, so nothing looks for one there."""
    unique, number = "0123456789abcdef", f"{1:020}"
    names = (f"ckpt/{number}-{unique}", f"quorum/{1:016}-{number}-{unique}.checkpoint", "broker.json", "log.json")
    for name in (*names, "pin/clock", "alive/host-1", "damaged/x"):
        (folder / "meta" / name).mkdir(parents=True)
    for name in (f"{unique}.seg", f"{unique}.dropped"):
        (folder / "data" / f"{1:016x}" / name).mkdir(parents=True)
    log = connect(folder)
    append_small(log, 1, first=8)
    assert maintain_round(log).problems == () and verify(log, deep=True) == []


# Promise: storage.md#other-files-in-the-folders
def test_brokers_work_among_other_files(tmp_path: Path) -> None:
    """Copies are made, checked and collected, and a broker returns."""
    log = replicated_log(tmp_path)
    put(log, [0])
    roots = [Path(log.journal.roots[broker].url.removeprefix("file://")) for broker in (0, 1, 2)]
    planted = {path: data for root in roots for path, data in plant(root).items()}
    maintain_round(log)
    fence_broker(log.journal, 1)
    assert return_broker(log.journal, 1)
    log.admin.delete_topics(["t"])
    pass_the_fence(log)
    assert verify(log, deep=True) == [] and maintain_round(log).problems == ()
    assert_untouched(planted)


def test_mirrors_work_among_other_files(folder: Path, tmp_path: Path) -> None:
    """Other files in the folder of the mirror are not taken for a log, and it is recovered."""
    log, root = connect(folder), tmp_path / "mirror"
    root.mkdir()
    planted = plant(root) | plant(folder)
    begin_mirror(log, LocalStore(str(root)))
    mirror = Mirror(log, LocalStore(str(root)))
    mirror.round()
    append_small(log, 3, first=8)
    assert mirror.round().behind == 0
    shutil.rmtree(folder)
    recover(LocalStore(str(root)))
    recovered = connect(root)
    maintain_round(recovered)
    assert len(values(recovered)) == 33 and verify(recovered) == []
    assert_untouched({path: data for path, data in planted.items() if path.is_relative_to(root)})


def backups(root: Path) -> BackupFiles:
    return BackupFiles(LocalStore(str(root), "os"), lambda folder: LocalStore(str(root / folder), "os"))


def plant_in_backups(root: Path) -> dict[Path, bytes]:
    """Other files in each folder that a folder of backups has beside those of a log."""
    planted = dict[Path, bytes]()
    for folder in [path for path in (root / "backups", root / "objects") for path in (path, *path.glob("2*/"))]:
        folder.mkdir(exist_ok=True)
        for name in STRANGERS:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            planted[path] = b"of somebody else"
            path.write_bytes(planted[path])
    return planted


# Promise: storage.md#other-files-in-the-folders
def test_backups_work_among_other_files(folder: Path, tmp_path: Path) -> None:
    """They are made, restored and removed."""
    log, root, target = connect(folder), tmp_path / "backups", tmp_path / "restored"
    for path in (root, target):
        path.mkdir()
    planted = plant(target) | plant(root) | plant_in_backups(root)
    files = backups(root)

    def copy(shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
        for share in shares:
            yield copy_share(log.journal.objects, files.folder(share.folder), share, Pace(CLOCK))

    begin_place(log, files, create=True)
    back_up(log, files, copy)
    planted |= plant_in_backups(root)
    append_small(log, 1, first=8)
    back_up(log, files, copy)

    def copy_back(shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
        for share in shares:
            yield copy_share(files.folder(share.folder), LocalStore(str(target)), share, Pace(CLOCK))

    done = restore(
        files, files.find("latest", None), LocalStore(str(target)), Context(CLOCK, random.Random(0)), copy_back
    )
    assert done.problems == [] and values(connect(target)) == values(log)
    assert len(prune(files, CLOCK.now_ms() + 30 * DAY_MS, keep=1).removed) == 1
    assert_untouched(planted)


def test_copies_of_a_quorum_are_found_among_other_files(folder: Path) -> None:
    """The newest one is found, and older ones are deleted."""
    planted, store, state = plant(folder), LocalStore(str(folder)), connect(folder).journal.state
    names = [put_snapshot(store, Content(state), f"{number:016x}") for number in range(4)]
    found = newest_snapshot(store)
    assert found is not None and found.state == state
    assert [store.size(name) is not None for name in names] == [False, False, True, True]
    assert_untouched(planted)


def test_a_coordinator_works_among_other_files(folder: Path) -> None:
    """With its marks, and with claims of clients."""
    planted, services = plant(folder), Services()
    try:
        with connect(services.url(folder)) as log:
            append_small(log, 2, first=8)
            assert len(values(log)) == 30
            maintain_round(log)
    finally:
        services.close()
    assert_untouched(planted)


# Promise: storage.md#other-files-in-the-folders
def test_a_bucket_has_markers_in_place_of_directories(s3: Callable[[], Bucket]) -> None:
    """Consoles and other programs make them: empty objects whose names end with a slash."""
    import boto3

    bucket = s3()
    log = connect(f"{bucket.url}/log", bucket.options)
    log.create_topic(NewTopic("t", 1))
    append_small(log, 2)
    client = boto3.client(
        "s3",
        endpoint_url=bucket.options["endpoint_url"],
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )
    folders = ["", "meta/", "data/", f"data/{1:016x}/", *(f"meta/{name}/" for name in OF_A_LOG), "data/team1/"]
    for folder in folders:
        client.put_object(Bucket="bucket", Key=f"{bucket.url.removeprefix('s3://bucket/')}/log/{folder}")
    log = connect(f"{bucket.url}/log", bucket.options)
    append_small(log, 1, first=2)
    checkpoint(log)
    report = maintain_round(log)
    assert report.problems == () and verify(log, deep=True) == [] and len(values(log)) == 9
    store = open_store(f"{bucket.url}/log", bucket.options)
    assert repair(store, dry_run=True, is_alive=nobody).base
