"""Puts to the replicas of a group: who is waited for, what counts, and which errors are raised."""

from __future__ import annotations

import gc
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from simulation.harness.broker_roots import write_broker_file
from simulation.harness.failing_syncs import FailingSyncs
from simulation.harness.stores import ControlledStore, Wrapper
from spark_log.errors import LeaderNotAvailable, NoSpace, StorageError, StorageUnavailable
from spark_log.metadata.replicas.replica_state import Broker
from spark_log.metadata.replicas.replicas import Targets
from spark_log.model import Placed
from spark_log.roots import copy_sources
from spark_log.roots.broker_roots import BrokerFile, Roots
from spark_log.roots.replica_puts import NoReplica, ReplicaPut, ReplicaPuts, ToPut, copy_missing, put_replicas
from spark_log.runtime.clock import SystemClock
from spark_log.segment.schema import RECORD_SCHEMA
from spark_log.segment.writer import SegmentWriter
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.disk_sync import TrustedDisks
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import FORMAT_KEY
from spark_log.store.retry import with_retries

NAME = "data/0000000000000001/x.seg"
THREE = Targets(1, ((0, 0), (1, 5), (2, 6)), (), 1)
Wrap = Callable[[int, ObjectStore], ObjectStore]


class WrappedRoots(Roots):
    """Roots in folders; each store goes through a function."""

    wrap: Wrap

    @classmethod
    def in_folder(cls, folder: Path, wrap: Wrap = lambda broker, store: store) -> WrappedRoots:
        brokers = {
            broker: Broker(f"file://{folder}/broker{broker}", f"dir{broker}", epoch=epoch)
            for broker, epoch in THREE.isr[1:]
        }
        for broker, known in brokers.items():
            file = BrokerFile(cluster_id="c", broker=broker, directory=known.directory)
            write_broker_file(LocalStore(f"{folder}/broker{broker}"), file)
        own = LocalStore(f"{folder}/log", "os")
        own.put(FORMAT_KEY, [b'{"cluster_id": "c"}'])
        roots = cls(own, "c", lambda: brokers, lambda name: (0,))
        roots.wrap = wrap
        return roots

    def __getitem__(self, broker: int) -> ObjectStore:
        inner = super().__getitem__(broker)
        return with_retries(self.wrap(broker, getattr(inner, "inner", inner)))


class Refusing(Wrapper):
    """Has no right to write for this process."""

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        raise StorageError(f"{key}: access denied")


class Full(Wrapper):
    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        raise NoSpace(f"{key}: no space left")


class Going(Wrapper):
    """The disk is unmounted while an object is put."""

    def __init__(self, inner: ObjectStore, root: Path) -> None:
        super().__init__(inner)
        self.root = root

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self.inner.put(key, chunks)
        self.root.rename(self.root.with_name("unmounted"))


def only(broker: int, wrap: Callable[[ObjectStore], ObjectStore]) -> Wrap:
    return lambda number, store: wrap(store) if number == broker else store


def put(roots: Roots, targets: Targets = THREE) -> Placed:
    return put_replicas(roots, targets, NAME, (b"ab", b"c"), SystemClock())


def test_group_0_is_a_plain_put_without_a_thread() -> None:
    own, before = MemoryStore(uuid.uuid4().hex), threading.active_count()
    assert put_replicas({0: own}, Targets(), NAME, (b"abc",), SystemClock()) == Placed(0)
    assert own.get(NAME) == b"abc"
    assert threading.active_count() == before


def test_all_replicas_get_the_object(tmp_path: Path) -> None:
    roots = WrappedRoots.in_folder(tmp_path)
    assert put(roots) == Placed(1, ((0, 0), (1, 5), (2, 6)))
    assert [roots[broker].get(NAME) for broker in (0, 1, 2)] == [b"abc"] * 3


# Promise: storage-failures.md#when-a-sync-to-the-disk-fails
def test_a_root_whose_sync_fails_misses_the_object(tmp_path: Path) -> None:
    """The others are enough.  With all roots on one disk, which is not trusted any more, there is no replica."""
    syncs = FailingSyncs()
    disks = TrustedDisks(syncs)
    roots = WrappedRoots.in_folder(tmp_path, only(2, lambda store: LocalStore(f"{tmp_path}/broker2", disks=disks)))
    syncs.fails_at = "*/broker2/data/*"
    for _ in range(2):
        assert put(roots) == Placed(1, ((0, 0), (1, 5)))
    assert syncs.failures == 1
    syncs.fails_at = "*/data/*"
    alone = WrappedRoots.in_folder(tmp_path / "b", lambda broker, store: LocalStore(store.url[7:], disks=disks))
    with pytest.raises(NoReplica, match="writes nothing to this disk any more"):
        put(alone)


def test_a_joining_replica_gets_it_too_and_does_not_count(tmp_path: Path) -> None:
    """Two in-sync replicas are required, and one of them fails: the joining one does not take its place."""
    roots = WrappedRoots.in_folder(tmp_path, only(1, Full))
    placed = put(roots, Targets(1, ((0, 0), (1, 5)), ((2, 6),), 2))
    assert placed.held == ((0, 0), (2, 6))


def test_refused_credentials_raise_only_if_not_enough_others_have_it(tmp_path: Path) -> None:
    roots = WrappedRoots.in_folder(tmp_path, only(1, Refusing))
    assert put(roots, THREE._replace(least=2)).held == ((0, 0), (2, 6))
    with pytest.raises(StorageError, match="access denied"):
        put(roots, THREE._replace(least=3))


def test_too_few_with_a_full_disk_is_no_error_of_the_put(tmp_path: Path) -> None:
    """The commit decides."""
    roots = WrappedRoots.in_folder(tmp_path, only(1, Full))
    assert put(roots, THREE._replace(least=3)).held == ((0, 0), (2, 6))


def test_no_replica_has_it(tmp_path: Path) -> None:
    with pytest.raises(NoSpace):
        put(WrappedRoots.in_folder(tmp_path, lambda broker, store: Full(store)))


def test_without_an_active_replica_nothing_is_put(tmp_path: Path) -> None:
    with pytest.raises(LeaderNotAvailable):
        put(WrappedRoots.in_folder(tmp_path), Targets(1, (), ((1, 5),)))


def test_an_object_that_no_replica_takes_is_put_again_until_the_deadline(tmp_path: Path) -> None:
    """To the replicas of the newest state: the writer may have known an old one."""
    roots, clock, none = WrappedRoots.in_folder(tmp_path), SystemClock(), Targets(1, ())
    wanted = ToPut(1, 2, NAME, lambda: (b"ab", b"c"))
    waiting = ReplicaPuts(roots, lambda group: none, lambda group: THREE, clock)
    assert waiting.placed(waiting.begin([wanted])) == {NAME: Placed(1, THREE.isr)}
    late = ReplicaPuts(roots, lambda group: none, lambda group: none, clock, clock.monotonic_ms() + 300)
    with pytest.raises(LeaderNotAvailable) as error:
        late.placed(late.begin([wanted]))
    assert error.value.placement_group == 1
    ill = WrappedRoots.in_folder(tmp_path, lambda broker, store: ControlledStore(store, tmp_path / "control"))
    (tmp_path / "control").write_text("hang")
    impatient = ReplicaPuts(ill, lambda group: THREE, lambda group: THREE, clock, clock.monotonic_ms() + 100, False)
    with pytest.raises(NoReplica):
        impatient.placed(impatient.begin([wanted]))
    (tmp_path / "control").unlink()


def test_a_mount_that_goes_after_the_put_does_not_count(tmp_path: Path) -> None:
    roots = WrappedRoots.in_folder(tmp_path, only(1, lambda store: Going(store, tmp_path / "broker1")))
    assert put(roots).held == ((0, 0), (2, 6))


def test_no_put_creates_a_root(tmp_path: Path) -> None:
    """Also when the process has checked the root before."""
    roots = WrappedRoots.in_folder(tmp_path)
    put(roots)
    (tmp_path / "broker1").rename(tmp_path / "unmounted")
    assert put(roots).held == ((0, 0), (2, 6))
    assert not (tmp_path / "broker1").exists()


# Promise: replicas.md#when-a-disk-fails
@pytest.mark.parametrize("content", [None, b'{"cluster_id": "another"}'])
def test_a_place_without_the_log_is_not_its_own_root(tmp_path: Path, content: bytes | None) -> None:
    """Its disk is not mounted where this process runs, or is another one; the metadata comes from a coordinator."""
    roots = WrappedRoots.in_folder(tmp_path)
    (tmp_path / "log" / FORMAT_KEY).unlink()
    if content is not None:
        (tmp_path / "log" / FORMAT_KEY).write_bytes(content)
    assert put(roots) == Placed(1, ((1, 5), (2, 6)))
    assert roots.own.size(NAME) is None


def test_a_hung_root_is_not_waited_for_and_a_deadline_ends_all_waits(tmp_path: Path) -> None:
    control, clock = tmp_path / "control", SystemClock()
    control.write_text("hang")
    roots = WrappedRoots.in_folder(tmp_path, only(1, lambda store: ControlledStore(store, control)))
    began = time.monotonic()
    assert put(roots).held == ((0, 0), (2, 6))
    assert 0.9 < time.monotonic() - began < 3
    roots = WrappedRoots.in_folder(tmp_path, lambda broker, store: ControlledStore(store, control))
    late = ReplicaPut(roots, THREE, NAME, (b"abc",), clock, clock.monotonic_ms() + 200)
    with pytest.raises(StorageUnavailable, match="no replica could be written: broker 0: it did not answer; broker 1"):
        late.outcome()
    control.unlink()


def test_a_spool_file_is_read_by_all_threads(tmp_path: Path) -> None:
    """It has one position: each copy has all bytes in order."""
    roots = WrappedRoots.in_folder(tmp_path)
    writer = SegmentWriter(buffer_bytes=0, batch_rows=50, open_spool=tempfile.TemporaryFile)
    values = pa.array([bytes([number % 251]) * 5000 for number in range(2000)], pa.binary())
    stamps = pa.array(range(2000)).cast(RECORD_SCHEMA.field("timestamp").type)
    writer.append("t", 0, pa.record_batch([values, values, stamps], schema=RECORD_SCHEMA))
    written = writer.finish()
    placed = put_replicas(roots, THREE, NAME, written.chunks, SystemClock())
    assert len(placed.held) == 3
    whole = b"".join(written.chunks())
    assert [roots[broker].get(NAME) == whole for broker in (0, 1, 2)] == [True] * 3
    writer.close()


def test_copies_come_from_a_replica_that_has_the_object(tmp_path: Path) -> None:
    """One that has lost it is passed over; the copy has the broker's epoch of now."""
    roots = WrappedRoots.in_folder(tmp_path)
    put(roots, Targets(1, ((1, 5),)))
    placed = copy_missing(roots, NAME, 3, Placed(1, ((0, 0), (1, 5), (2, 3))), ((2, 6),), SystemClock())
    assert placed == Placed(1, ((0, 0), (1, 5), (2, 6)))
    assert roots[2].get(NAME) == b"abc"


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[None]:
    """No thread of a put outlives its test, once its root answers."""
    yield
    deadline = time.monotonic() + 10
    while any(thread.name.startswith(("pylog-put", "pylog-source")) for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Hanging(Wrapper):
    """Takes the first chunk of a put, and nothing more until it is let go."""

    free = threading.Event()
    errors: ClassVar[list[Exception]] = []

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        def slow() -> Iterator[Bytes]:
            for chunk in chunks:
                yield chunk
                assert self.free.wait(30)

        try:
            self.inner.put(key, slow())
        except StorageError as error:
            self.errors.append(error)
            raise


def test_a_hung_put_does_not_keep_the_bytes_and_leaves_no_part_of_an_object(tmp_path: Path) -> None:
    """A worker of Spark runs many tasks, each of which leaves a thread at a root that hangs."""

    class Data(list[bytes]):
        pass

    Hanging.free.clear()
    roots, data = WrappedRoots.in_folder(tmp_path, only(1, Hanging)), Data([b"ab", b"c"])
    placed = put_replicas(roots, THREE, NAME, data, SystemClock())
    assert placed.held == ((0, 0), (2, 6))
    kept = weakref.ref(data)
    del data
    gc.collect()
    assert kept() is None
    Hanging.free.set()
    end = time.monotonic() + 10
    while not Hanging.errors and time.monotonic() < end:
        time.sleep(0.01)
    assert "not waited for any more" in str(Hanging.errors[0])
    assert roots[1].size(NAME) is None


class Unread(Wrapper):
    """Takes puts, and answers no read of an object until it is let go."""

    free = threading.Event()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        assert key != NAME or self.free.wait(30)
        return self.inner.get(key, start, end)


def test_a_source_that_hangs_keeps_no_thread_of_a_healthy_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is copied from, first of all the next time."""
    monkeypatch.setattr(copy_sources, "READ_MS", 100)
    Unread.free.clear()
    roots, clock = WrappedRoots.in_folder(tmp_path, only(1, Unread)), SystemClock()
    held = put(roots, Targets(1, ((1, 5), (2, 6)))).held
    began = time.monotonic()
    assert copy_missing(roots, NAME, 3, Placed(1, held[:1]), [(0, 0)], clock) == Placed(1, held[:1])
    assert roots.is_late(1) and not roots.is_late(0)
    assert copy_missing(roots, NAME, 3, Placed(1, held), [(0, 0)], clock) == Placed(1, (*held, (0, 0)))
    assert time.monotonic() - began < 5
    names = [thread.name for thread in threading.enumerate()]
    assert "pylog-put-0" not in names and names.count("pylog-source-1") == 1
    Unread.free.set()


def test_what_was_put_under_an_older_epoch_is_looked_at(tmp_path: Path) -> None:
    """Otherwise a replica that returned during a write, and is the only one, could never be acknowledged."""
    roots, clock = WrappedRoots.in_folder(tmp_path, only(1, Full)), SystemClock()
    LocalStore(f"{tmp_path}/broker1/dir1").put(NAME, [b"abc"])
    old = Placed(1, ((1, 4),))
    assert copy_missing(roots, NAME, 3, old, [(1, 5)], clock) == Placed(1, ((1, 5),))
    assert copy_missing(roots, NAME, 3, old, [(1, 5), (2, 6)], clock) == Placed(1, ((1, 5), (2, 6)))
    LocalStore(f"{tmp_path}/broker1/dir1").delete([NAME])
    assert copy_missing(roots, NAME, 3, old, [(1, 5)], clock) == old
