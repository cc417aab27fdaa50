"""Adding brokers, and taking them back: which roots are refused, and what a returned root has."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_log
from simulation.harness.broker_roots import ControlledRoots, write_broker_file
from simulation.harness.stores import Wrapper
from spark_log.client.admin import brokers, root_places
from spark_log.client.admin.brokers import (
    add_broker,
    fence_broker,
    held_objects,
    remove_broker,
    replace_broker,
    return_broker,
)
from spark_log.client.log import Log
from spark_log.errors import BrokerNotAvailable, InvalidRequest, StorageError, StorageUnavailable, WrongRoot
from spark_log.metadata.commands import Report
from spark_log.metadata.records import Copy, MissingRecord
from spark_log.metadata.replicas.replica_commands import RegisterBroker
from spark_log.recovery.verify import verify
from spark_log.roots.broker_roots import BROKER_KEY, BrokerFile, Roots, read_broker_file
from spark_log.roots.root_owner import OWNER_KEY
from spark_log.store.base import ObjectStore
from tests.client.replicated import commit_copies, with_copies

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return spark_log.connect(tmp_path / "log", create=True)


def test_a_broker_is_registered_with_the_directory_in_its_root(log: Log, tmp_path: Path) -> None:
    """The file on the root and the state name the same directory."""
    known = add_broker(log.journal, 1, str(tmp_path / "disk1"), rack="a")
    root = log.journal.roots.root(1)
    found = read_broker_file(root)
    assert found == BrokerFile(cluster_id=log.cluster_id, broker=1, directory=known.directory)
    assert (known.url, known.rack, known.fenced) == ((tmp_path / "disk1").as_uri(), "a", False)
    assert root.list("meta/") == [BROKER_KEY, OWNER_KEY], "the check of the permissions leaves nothing behind"
    log.journal.roots.check(1, again=True)


def test_adding_again_changes_nothing(log: Log, tmp_path: Path) -> None:
    first = add_broker(log.journal, 1, str(tmp_path / "disk1"))
    version = log.journal.refresh().version
    assert add_broker(log.journal, 1, f"{tmp_path}/disk1/") == first
    assert log.journal.refresh().version == version


def test_what_a_killed_call_has_left_is_used(log: Log, tmp_path: Path) -> None:
    """The file was written, and the broker not registered."""
    store = log.journal.roots.open(1, str(tmp_path / "disk1"), {})
    write_broker_file(store, BrokerFile(cluster_id=log.cluster_id, broker=1, directory="left"))
    assert add_broker(log.journal, 1, str(tmp_path / "disk1")).directory == "left"


def _own(root: Path) -> Path:
    return root / "log"


def _inside(root: Path) -> Path:
    return root / "log" / "copies"


def _around(root: Path) -> Path:
    return root


def _link(root: Path) -> Path:
    (root / "link").symlink_to(root / "log")
    return root / "link"


def _other_log(root: Path) -> Path:
    spark_log.connect(root / "other", create=True).close()
    return root / "other"


def _full(root: Path) -> Path:
    (root / "full" / "photos").mkdir(parents=True)
    (root / "full" / "photos" / "a.jpg").write_text("x")
    return root / "full"


def _file(root: Path) -> Path:
    (root / "file").write_text("x")
    return root / "file"


def _unmounted(root: Path) -> Path:
    return root / "mnt" / "disk7" / "log"


def _second(root: Path) -> Path:
    (root / "again").symlink_to(root / "disk1")
    return root / "again"


def _in_second(root: Path) -> Path:
    return root / "disk1" / "more"


def _of_broker_3(root: Path) -> Path:
    log = spark_log.connect(root / "log")
    write_broker_file(
        log.journal.roots.open(3, str(root / "disk3"), {}),
        BrokerFile(cluster_id=log.cluster_id, broker=3, directory="d"),
    )
    return root / "disk3"


def _of_another_log(root: Path) -> Path:
    other = spark_log.connect(root / "other", create=True)
    add_broker(other.journal, 2, str(root / "theirs"))
    return root / "theirs"


def _old_copies(root: Path) -> Path:
    (root / "old" / "d" / "data").mkdir(parents=True)
    (root / "old" / "d" / "data" / "x").write_text("x")
    log = spark_log.connect(root / "log")
    store = log.journal.roots.open(2, str(root / "old"), {})
    write_broker_file(store, BrokerFile(cluster_id=log.cluster_id, broker=2, directory="d"))
    return root / "old"


# Promise: replicas.md#change-brokers
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_own, "is the log's own root"),
        (_inside, "one within the other"),
        (_around, "one within the other"),
        (_link, "is the log's own root"),
        (_other_log, "root of a log"),
        (_full, r"has photos/a.jpg: a broker begins in an empty folder; choose one"),
        (_file, "is a file"),
        (_unmounted, "is its disk mounted"),
        (_second, "is the root of broker 1: each"),
        (_in_second, "one within the other"),
        (_of_broker_3, "root of broker 3 of this log"),
        (_of_another_log, "of another log, with the id"),
        (_old_copies, "under another registration"),
    ],
)
def test_a_root_that_cannot_be_the_brokers_is_refused(
    log: Log, tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    """And nothing is written to it, nor to the log."""
    add_broker(log.journal, 1, str(tmp_path / "disk1"))
    path = make(tmp_path)
    before, version = _names(path), log.journal.refresh().version
    with pytest.raises(InvalidRequest, match=message):
        add_broker(log.journal, 2, str(path))
    assert (_names(path), log.journal.refresh().version) == (before, version)


def test_a_root_with_empty_folders_and_files_of_a_desktop_is_empty(log: Log, tmp_path: Path) -> None:
    for name in ("data", "photos/.cache", "lost+found"):
        (tmp_path / "disk1" / name).mkdir(parents=True)
    for name in (".DS_Store", "data/.DS_Store", "lost+found/x", "photos/.cache/x"):
        (tmp_path / "disk1" / name).write_text("x")
    assert add_broker(log.journal, 1, str(tmp_path / "disk1")).url.endswith("disk1")


def _names(path: Path) -> list[str]:
    return sorted(str(one) for one in path.rglob("*")) if path.is_dir() else [str(path.exists())]


def test_an_id_or_a_registration_that_is_taken(log: Log, tmp_path: Path) -> None:
    add_broker(log.journal, 1, str(tmp_path / "disk1"))
    with pytest.raises(InvalidRequest, match="is registered already"):
        add_broker(log.journal, 1, str(tmp_path / "disk2"))
    assert not (tmp_path / "disk2").exists()
    with pytest.raises(InvalidRequest, match="from 1 to 999"):
        add_broker(log.journal, 0, str(tmp_path / "disk2"))


def test_the_own_bucket_in_another_spelling(tmp_path: Path, s3: Callable[[], Any]) -> None:
    """s3a is s3, and a '/' at the end does not matter."""
    bucket = s3()
    log = spark_log.connect(f"{bucket.url}/log", bucket.options, create=True)
    for url in (f"{bucket.url}/log/", f"s3a{bucket.url.removeprefix('s3')}/log"):
        with pytest.raises(InvalidRequest, match="is the log's own root"):
            add_broker(log.journal, 1, url)
    known = add_broker(log.journal, 1, f"s3a{bucket.url.removeprefix('s3')}/copies")
    assert known.url == f"{bucket.url}/copies"
    log.journal.roots.check(1, again=True)
    with pytest.raises(InvalidRequest, match="one within the other"):
        add_broker(log.journal, 2, f"{bucket.url}/copies/more")


def test_a_bucket_with_another_log_is_refused(log: Log, s3: Callable[[], Any]) -> None:
    bucket = s3()
    spark_log.connect(bucket.url, bucket.options, create=True).close()
    mine = spark_log.connect(log.url, {f"1.{name}": value for name, value in bucket.options.items()})
    with pytest.raises(InvalidRequest, match="root of a log"):
        add_broker(mine.journal, 1, bucket.url)


def test_a_root_without_write_access(log: Log, tmp_path: Path, s3: Callable[[], Any]) -> None:
    """The error names the root and the cure."""
    bucket = s3()
    mine = spark_log.connect(log.url, {f"1.{name}": value for name, value in bucket.options.items()})
    with pytest.raises(StorageError, match="no-such-bucket.*cannot be the root of a broker"):
        add_broker(mine.journal, 1, "s3://no-such-bucket/log")
    assert 1 not in log.journal.refresh().brokers


# Promise: replicas.md#change-brokers
@pytest.mark.parametrize(
    "options",
    [
        {"secret": "x"},
        {"key": "x"},
        {"account_key": "x"},
        {"sas_token": "x"},
        {"client_kwargs": '{"aws_secret_access_key": "x"}'},
        {"client_kwargs": {"aws_session_token": "x"}},
        {"headers": {"Authorization": "Bearer x"}},
        {"passphrase": "x"},
    ],
)
def test_secrets_are_not_registered(log: Log, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"may hold a secret.*storage\.1\."):
        add_broker(log.journal, 1, "s3://bucket/log", storage_options=options)


def test_options_of_a_broker_take_precedence(s3: Callable[[], Any], tmp_path: Path) -> None:
    """The endpoint is registered, the keys are given to the process, and the own root's endpoint is another one."""
    bucket = s3()
    keys = {f"1.{name}": value for name, value in bucket.options.items() if name != "endpoint_url"}
    log = spark_log.connect(tmp_path / "log", keys, create=True)
    add_broker(log.journal, 1, f"{bucket.url}/log", storage_options={"endpoint_url": bucket.options["endpoint_url"]})
    again = spark_log.connect(tmp_path / "log", keys)
    again.journal.roots.check(1)


# Promise: replicas.md#change-brokers
def test_roots_on_one_disk_are_warned_of(log: Log, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="on the same disk as the log's own root"):
        add_broker(log.journal, 1, str(tmp_path / "disk1"))


def test_another_disk_is_not_warned_of(log: Log, mount: Callable[[str], Path]) -> None:
    disk = mount("size=1m")
    (disk / "lost+found").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add_broker(log.journal, 1, str(disk))


def test_two_processes_add_one_broker(log: Log, tmp_path: Path) -> None:
    """Both find the file of the first, and register the same directory."""
    other = spark_log.connect(log.url)
    first = add_broker(log.journal, 1, str(tmp_path / "disk1"))
    other.journal.propose(RegisterBroker(broker=1, directory=first.directory, url=first.url))
    assert other.journal.refresh().brokers[1] == first


# ------------------------------------------------------------------------------------------------------- fence and return


class DescribedMeanwhile(Wrapper):
    """A root that another process describes as that of a broker when this one has asked for the description."""

    def __init__(self, inner: ObjectStore, file: BrokerFile) -> None:
        super().__init__(inner)
        self._file = file

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        try:
            return self.inner.get(key, start, end)
        finally:
            write_broker_file(self.inner, self._file)


@pytest.mark.parametrize("other", [1, 2])
def test_two_processes_that_add_a_broker_at_the_same_time(log: Log, tmp_path: Path, other: int) -> None:
    """The same command twice adds it once, and no error says that its description has to be deleted."""
    file = BrokerFile(cluster_id=log.cluster_id, broker=other, directory="of-another-process")

    class DescribedRoots(Roots):
        def open(self, *args: Any) -> ObjectStore:
            return DescribedMeanwhile(super().open(*args), file)

    journal, roots = log.journal, log.journal.roots
    own = DescribedRoots(
        roots.own, log.cluster_id, lambda: journal.newest.brokers, lambda name: (), roots.options, journal.context.clock
    )
    journal.stores = journal.stores._replace(objects=own)
    if other == 1:
        assert add_broker(journal, 1, str(tmp_path / "disk1")).directory == file.directory
    else:
        with pytest.raises(InvalidRequest, match="is the root of broker 2 of this log: choose an empty folder"):
            add_broker(journal, 1, str(tmp_path / "disk1"))


# ------------------------------------------------------------------------------------------------------ replace and remove


def test_a_replaced_broker_begins_without_copies(log: Log, tmp_path: Path) -> None:
    roots = [tmp_path / "disk1", tmp_path / "disk2"]
    journal = with_copies(log, roots)
    commit_copies(log, "t", [b"a"])
    before = journal.state.brokers[1]
    with pytest.raises(InvalidRequest, match="pylog broker unfence 1"):
        replace_broker(journal, 1)
    shutil.rmtree(roots[0])
    after = replace_broker(journal, 1)
    assert after.directory != before.directory and after.epoch > before.epoch
    assert not list(held_objects(journal.state, 1))
    elsewhere = replace_broker(journal, 1, str(tmp_path / "disk3"))
    assert elsewhere.url == (tmp_path / "disk3").as_uri()


def test_a_replaced_broker_does_not_take_the_folder_of_a_disk_that_is_not_mounted(
    log: Log, mount: Callable[[str], Path]
) -> None:
    disk = mount("size=1m")
    add_broker(log.journal, 1, str(disk / "log"))
    fence_broker(log.journal, 1)
    subprocess.run(["umount", str(disk)], check=True)
    try:
        with pytest.raises(InvalidRequest, match=rf"nothing is mounted at {disk} on .*replace 1 --root {disk}/log"):
            replace_broker(log.journal, 1)
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "pylog", str(disk)], check=True)
    with pytest.raises(WrongRoot, match="is its disk mounted.*new, empty disk, run `pylog broker replace 1`"):
        return_broker(log.journal, 1)
    assert not replace_broker(log.journal, 1).fenced


def test_a_broker_may_be_replaced_on_another_disk_that_is_named(log: Log, mount: Callable[[str], Path]) -> None:
    disk = mount("size=1m")
    add_broker(log.journal, 1, str(disk))
    subprocess.run(["umount", str(disk)], check=True)
    try:
        assert replace_broker(log.journal, 1, str(disk)).mount_point != str(disk)
        shutil.rmtree(disk / "meta")
        assert replace_broker(log.journal, 1).url == disk.as_uri(), "it has been on this disk since"
    finally:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "pylog", str(disk)], check=True)


# Promise: replicas.md#change-brokers
def test_the_last_copies_are_not_given_up_without_saying_so(log: Log, tmp_path: Path) -> None:
    roots = [tmp_path / "disk1", tmp_path / "disk2"]
    journal = with_copies(log, roots)
    commit_copies(log, "t", [b"a"], held=(1,))
    shutil.rmtree(roots[0])
    with pytest.raises(InvalidRequest, match="last copies of 1 object.*--lose-data"):
        replace_broker(journal, 1)
    assert not roots[0].exists()
    replace_broker(journal, 1, lose_data=True)
    assert not list(held_objects(journal.state, 1))


def test_a_removed_brokers_folder_can_be_used_again(log: Log, tmp_path: Path) -> None:
    add_broker(log.journal, 1, str(tmp_path / "disk1"))
    remove_broker(log.journal, 1)
    assert not log.journal.refresh().brokers
    add_broker(log.journal, 2, str(tmp_path / "disk1"))


# Promise: replicas.md#change-brokers
def test_a_broker_with_replicas_is_not_removed(log: Log, tmp_path: Path) -> None:
    journal = with_copies(log, [tmp_path / "disk1"])
    with pytest.raises(InvalidRequest, match="has replicas of 1 topic"):
        remove_broker(journal, 1)
    journal.roots.check(1, again=True)


# Promise: cli.md#pylog-broker-describe
def test_log_dirs_have_bytes_by_topic(log: Log, tmp_path: Path) -> None:
    """Those of the files on the roots, and those that are lacking."""
    for broker in (1, 2):
        add_broker(log.journal, broker, str(tmp_path / f"disk{broker}"))
    log.admin.create_topics([spark_log.NewTopic("own"), spark_log.NewTopic("both", replica_assignment={0: (1, 2)})])
    for topic, rows in (("own", 1), ("both", 100)):
        log.append(topic, [{"value": b"v"} for _ in range(rows)])
    own, first, second = log.admin.describe_log_dirs().values()
    assert first == second._replace(root=first.root) and first.root.endswith("/disk1")
    both = spark_log.TopicPartition("both", 0)
    assert list(own.partitions) == [spark_log.TopicPartition("own", 0)] and list(first.partitions) == [both]
    files = [one.stat().st_size for one in (tmp_path / "disk1").rglob("*.seg")]
    assert (sum(files), 0) == (first.bytes, first.lacking_bytes) and 0 < first.partitions[both] <= first.bytes
    ((name, _),) = held_objects(log.journal.refresh(), 2)
    lacks = Copy(name, 2, log.journal.state.brokers[2].epoch)
    log.journal.propose(Report(record=MissingRecord(copies=(lacks,))))
    second = log.admin.describe_log_dirs()[2]
    assert (second.bytes, second.lacking_bytes) == (0, first.bytes)


def test_unknown_brokers(log: Log) -> None:
    for call in (remove_broker, replace_broker, return_broker):
        with pytest.raises(BrokerNotAvailable, match="broker 7 is not registered"):
            call(log.journal, 7)
        with pytest.raises(InvalidRequest, match="broker 0 is the log's own root"):
            call(log.journal, 0)


def test_a_root_that_hangs_is_not_waited_for_by_an_administrator(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unfencing fails and says what to do, removing warns, and verifying names the broker."""
    with_copies(log, [tmp_path / "disk1", tmp_path / "disk2"])
    commit_copies(log, "t", [b"a"])
    add_broker(log.journal, 3, str(tmp_path / "disk3"))
    monkeypatch.setattr(brokers, "ANSWER_S", 0.1)
    (tmp_path / "orders").mkdir()
    roots = ControlledRoots.of(log, tmp_path / "orders")
    for broker in (1, 3):
        roots.order(broker, "hang")
    try:
        assert [one.what for one in verify(log)] == ["broker 1"]
        remove_broker(log.journal, 3)
        assert 3 not in log.journal.refresh().brokers
        fence_broker(log.journal, 1)
        with pytest.raises(StorageUnavailable, match="has not answered for 0 s: bring its disk or bucket back"):
            return_broker(log.journal, 1)
    finally:
        for broker in (1, 3):
            roots.order(broker, "")
    assert return_broker(log.journal, 1)


def test_a_broker_is_added_while_the_disk_of_another_hangs(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_broker(log.journal, 1, str(tmp_path / "disk1"))
    stat, place, free = os.stat, root_places._place, threading.Event()

    def hang(path: Any, *args: Any, **options: Any) -> Any:
        if "disk1" in str(path):
            assert free.wait(60)
        return stat(path, *args, **options)

    def hanging_place(url: str) -> str:
        if "disk1" in url:
            assert free.wait(60)
        return place(url)

    monkeypatch.setattr(root_places.os, "stat", hang)
    monkeypatch.setattr(root_places, "_place", hanging_place)
    began = time.monotonic()
    assert add_broker(log.journal, 2, str(tmp_path / "disk2")).url.endswith("disk2")
    free.set()
    assert time.monotonic() - began < 20
