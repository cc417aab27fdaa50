"""Reads of a log with copies on several roots: a root that fails is passed over, at the same offset."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_log
from simulation.harness.stores import ControlledStore
from spark_log.client.admin.brokers import add_broker
from spark_log.client.log import Log
from spark_log.errors import CorruptObject, InvalidRequest, ObjectNotFound, SparkLogError
from spark_log.journal.journal import Journal
from spark_log.metadata.replicas.replica_commands import FenceBroker
from spark_log.segment.writer import BATCH_ROWS
from spark_log.store.local import LocalStore
from tests.client.replicated import commit_copies, create_replicated, with_copies
from tests.logged import logged

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")

SMALL = [b"a", b"b", b"c"]
MANY = [b"%07d" % number * 100 for number in range(3 * BATCH_ROWS)]
"""Several batches, more than one request takes."""


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return spark_log.connect(tmp_path / "log", create=True)


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    return [tmp_path / "disk1", tmp_path / "disk2"]


def _paths(log: Log, name: str) -> dict[int, Path]:
    """Where the copies of an object are."""
    own = Path(log.url.removeprefix("file://"))
    known = log.journal.refresh().brokers
    return {0: own / name} | {
        broker: Path(one.url.removeprefix("file://")) / one.directory / name for broker, one in known.items()
    }


def _values(log: Log) -> list[bytes]:
    found: list[bytes] = log.read("t").column("value").to_pylist()
    return found


def _deleted(path: Path) -> None:
    path.unlink()


def _flipped(path: Path) -> None:
    """Bytes in the middle, so that the first batches of a large object are whole."""
    data = bytearray(path.read_bytes())
    at, end = (0, len(data)) if len(data) < 10_000 else (len(data) // 2, len(data) // 2 + 64)
    data[at:end] = bytes(255 - byte for byte in data[at:end])
    path.write_bytes(data)


def _truncated(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, 16 if size < 10_000 else size // 2)


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _swapped(path: Path) -> None:
    """Another object under this name."""
    path.write_bytes(bytes(path.stat().st_size))


def _folder(path: Path) -> None:
    """A file system that gives errors: the name is a folder."""
    path.unlink()
    path.mkdir()


HARMS = [_deleted, _flipped, _truncated, _emptied, _swapped, _folder]


# Promise: replicas.md#when-a-disk-fails
@pytest.mark.parametrize("values", [SMALL, MANY], ids=["small", "many"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_scan_goes_on_with_another_copy(
    log: Log, roots: list[Path], harm: Callable[[Path], None], values: list[bytes]
) -> None:
    """Whatever happened to the copies of the leader and of another replica, each record is read once."""
    with_copies(log, roots)
    paths = _paths(log, commit_copies(log, "t", values))
    harm(paths[0])
    harm(paths[1])
    assert _values(log) == values


@pytest.mark.parametrize("harm", HARMS)
def test_an_error_names_all_roots_that_were_tried(log: Log, roots: list[Path], harm: Callable[[Path], None]) -> None:
    with_copies(log, roots)
    paths = _paths(log, commit_copies(log, "t", SMALL))
    for path in paths.values():
        harm(path)
    with pytest.raises(SparkLogError, match="cannot be read from any of the 3 roots") as failed:
        _values(log)
    assert all(str(path).partition("/data/")[0] in str(failed.value) for path in paths.values())
    kind = {_deleted: ObjectNotFound, _folder: SparkLogError}.get(harm, CorruptObject)
    assert isinstance(failed.value, kind)
    if kind is CorruptObject:
        assert (failed.value.start, failed.value.end) == (0, 3), "reading can continue after it"


def test_a_root_is_warned_of_once(log: Log, roots: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    with_copies(log, roots)
    _deleted(_paths(log, name := commit_copies(log, "t", SMALL))[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            _values(log)
    (warned,) = logged(caplog, name)
    assert f"another copy of {name} is read, because {log.url} has no good one" in warned


# Promise: replicas.md#when-a-disk-fails
def test_a_whole_root_is_gone(log: Log, roots: list[Path]) -> None:
    """Objects of which only one broker has a copy are lost with it, and no others."""
    journal = with_copies(log, roots)
    commit_copies(log, "t", [b"a"], held=(0, 1))
    commit_copies(log, "t", [b"b"], held=(1, 2))
    shutil.rmtree(Path(log.url.removeprefix("file://")) / "data")
    assert _values(log) == [b"a", b"b"]
    journal.propose(FenceBroker(broker=1))
    shutil.rmtree(roots[0])
    assert log.read("t", 0, 1, 2).column("value").to_pylist() == [b"b"]


def test_every_reader_goes_on(log: Log, roots: list[Path]) -> None:
    """Consumers, times, the latest records of keys and bookmarks."""
    with_copies(log, roots)
    for values in ([b"a"], [b"b"], MANY):
        _deleted(_paths(log, commit_copies(log, "t", values))[0])
    tp = spark_log.TopicPartition("t", 0)
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        found: list[bytes] = []
        while len(found) < 2 + len(MANY):
            records = consumer.poll(timeout_ms=5000, max_records=50_000)
            assert records
            found += [record.value for record in records[tp]]
        assert found == [b"a", b"b", *MANY]
        assert consumer.offsets_for_times({tp: 0})[tp].offset == 0
    assert log.table("t").column("value").to_pylist() == [MANY[-1]]
    assert log.read("t", 0, "latest-1").num_rows == 1
    with log.bookmark("b", "t") as bookmark:
        assert bookmark.options


def test_an_object_without_a_row_may_be_in_any_root(log: Log, roots: list[Path]) -> None:
    """A later version has dropped it, while a reader of an earlier one still needs it."""
    journal = with_copies(log, roots)
    name = "data/0000000000000001/0000000000000000.seg"
    journal.roots[2].put(name, (b"abc",))
    assert journal.objects.get(name) == b"abc"
    assert journal.objects.size(name) == 3


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[tuple[Log, Path]]:
    """A log whose own root has its objects on a disk that can hang."""
    root, control = str(tmp_path / "log"), tmp_path / "control"
    log = Log(Journal.open(LocalStore(root), ControlledStore(LocalStore(root), control), create=True))
    yield log, control
    control.write_text("")


# Promise: replicas.md#when-a-disk-fails
def test_a_hung_disk_is_not_waited_for(hung: tuple[Log, Path], roots: list[Path]) -> None:
    """The first read waits two seconds, and later ones go to the other roots first."""
    log, control = hung
    with_copies(log, roots)
    for number in range(20):
        commit_copies(log, "t", [b"%d" % number])
    control.write_text("hang")
    began = time.monotonic()
    assert len(_values(log)) == 20
    assert 1.5 < time.monotonic() - began < 8
    began = time.monotonic()
    assert len(_values(log)) == 20
    assert time.monotonic() - began < 1.5


# Promise: replicas.md#when-a-disk-fails
def test_a_failing_disk_is_not_waited_for(hung: tuple[Log, Path], roots: list[Path]) -> None:
    log, control = hung
    with_copies(log, roots)
    commit_copies(log, "t", MANY)
    control.write_text("fail")
    began = time.monotonic()
    assert _values(log) == MANY
    assert time.monotonic() - began < 8


def test_the_own_root_and_a_bucket(tmp_path: Path, s3: Callable[[], Any]) -> None:
    """The folder is lost, then the bucket has damaged copies."""
    bucket = s3()
    options = {f"1.{name}": value for name, value in bucket.options.items()}
    log = spark_log.connect(tmp_path / "log", options, create=True)
    journal = with_copies(log, [bucket.url])
    names = [commit_copies(log, "t", values) for values in (SMALL, [b"d"], MANY)]
    own = {name: (tmp_path / "log" / name).read_bytes() for name in names}
    shutil.rmtree(tmp_path / "log" / "data")
    assert _values(log) == [*SMALL, b"d", *MANY]
    for name, data in own.items():
        (tmp_path / "log" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "log" / name).write_bytes(data)
        journal.roots[1].put(name, (b"x" + data[1:-9] + b"123456789",))
    journal.roots.rack = "b"
    assert _values(log) == [*SMALL, b"d", *MANY]


def test_the_own_bucket_and_a_folder(tmp_path: Path, s3: Callable[[], Any]) -> None:
    """Reads that were sent ahead to the bucket continue in the folder."""
    bucket = s3()
    log = spark_log.connect(bucket.url, bucket.options, create=True)
    journal = with_copies(log, [tmp_path / "disk1"])
    names = [commit_copies(log, "t", values) for values in (SMALL, [b"d"], MANY, [b"e"])]
    journal.roots.own.delete(names[:1])
    for name in names[1:]:
        data = journal.roots.own.get(name)
        journal.roots.own.put(name, (data[:8] + bytes(len(data) - 8),))
    assert _values(log) == [*SMALL, b"d", *MANY, b"e"]


# Promise: replicas.md#change-brokers
def test_the_readers_rack_comes_first(log: Log, roots: list[Path]) -> None:

    journal = log.journal
    for broker, root in enumerate(roots, 1):
        add_broker(journal, broker, str(root), rack=f"r{broker}")
    create_replicated(journal, "t", (0, 1, 2))
    name = commit_copies(log, "t", SMALL)
    journal.roots.rack = "r2"
    assert journal.roots.sources(name)[0].url == journal.roots[2].url
    journal.propose(FenceBroker(broker=2))
    assert journal.roots.sources(name)[0].url == log.url


def test_a_rack_is_a_string(log: Log) -> None:
    with pytest.raises(InvalidRequest, match="client_rack: 5 is not a string"):
        spark_log.connect(log.url, client_rack=5)  # type: ignore[arg-type]


# Promise: replicas.md#change-brokers
def test_readers_of_all_kinds_have_a_rack(log: Log, roots: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    """Only the near broker still has the file, and no reader looks elsewhere; one without a rack does."""
    for broker, root in enumerate(roots, 1):
        add_broker(log.journal, broker, str(root), rack=f"r{broker}")
    create_replicated(log.journal, "t", (0, 1, 2))
    paths = _paths(log, commit_copies(log, "t", SMALL))
    for far in (0, 1):
        paths[far].unlink()
    near = spark_log.connect(log.url, client_rack="r2")
    tp, first = spark_log.TopicPartition("t", 0), {"auto_offset_reset": "earliest"}
    with log.consumer("t", client_rack="r2", **first) as one, near.consumer("t", **first) as other:
        found = [*one.poll(5_000)[tp], *other.poll(5_000)[tp]]
    values = [*(record.value for record in found), *_values(near), *near.table("t").column("value").to_pylist()]
    assert values == [*SMALL, *SMALL, *SMALL, SMALL[-1]]
    assert not logged(caplog, "copy of", "copies of")
    assert _values(log) == SMALL
    assert "another copy of" in caplog.text


def test_a_log_without_brokers_reads_its_root_directly(log: Log) -> None:
    log.append("t", [{"value": "a"}])
    assert log.journal.objects is log.journal.roots.own
