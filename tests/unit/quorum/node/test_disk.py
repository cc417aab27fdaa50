"""A replica's disk: no crash loses what was reported, and damage is refused."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from simulation.harness.crash_files import Crash, CrashFiles
from simulation.quorum_sim.disk import PARTS
from simulation.quorum_sim.disk import Disk as ModelDisk
from spark_log.errors import CorruptObject, NoSpace, StorageError
from spark_log.quorum.messages import EMPTY, Entry, Kind, Position, ReplicaKey
from spark_log.quorum.node.disk import Disk, replace_file
from spark_log.quorum.node.file_operations import LocalFiles
from spark_log.quorum.node.log_file_sequence import snapshot_name, snapshots_among
from spark_log.quorum.node.vote_and_identity import QUORUM_STATE, encode_state
from spark_log.quorum.ready import Kept, Persist, Restored, SnapshotPart
from spark_log.quorum.replica_log import ReplicaLog
from spark_log.quorum.snapshot_format import encode_snapshot
from spark_log.quorum.unit_format import decode_log

KEY = ReplicaKey(1, "a")
VOTERS = (KEY, ReplicaKey(2, "a"), ReplicaKey(3, "a"))
SEGMENT_BYTES = 150
STEPS = 25


def formatted(files: CrashFiles | LocalFiles) -> Disk:
    replace_file(files, QUORUM_STATE, encode_state(0, None))
    replace_file(files, snapshot_name(EMPTY), b"".join(encode_snapshot(EMPTY, VOTERS, ())))
    return Disk(files, SEGMENT_BYTES)


def content(restored: Restored) -> tuple[Any, ...]:
    """Everything that a machine starts from."""
    log = ReplicaLog.restore(restored.snapshot, restored.voters, restored.entries)
    entries = log.read(restored.snapshot.offset, log.end)
    return restored.epoch, restored.voted, restored.snapshot, restored.voters, entries


class Replica:
    """Random writes, as machines make them, to the disk under test and to the simulation's."""

    def __init__(self, seed: int, files: CrashFiles | None = None) -> None:
        self.rng = Random(seed)
        self.files = CrashFiles() if files is None else files
        self.disk = formatted(self.files)
        self.disk.load()
        self.model = ModelDisk(KEY, VOTERS)
        self.epoch, self.number, self.high_watermark = 0, 0, 0
        self.allowed: list[tuple[int, list[tuple[Any, ...]]]] = []
        """After so many operations, the contents that a crash may leave from there up to the next one's."""
        self.note([])

    def note(self, next_contents: list[tuple[Any, ...]]) -> None:
        self.allowed.append((len(self.files.operations), [content(self.model.restored()), *next_contents]))

    @property
    def end(self) -> int:
        return self.model.position.offset

    def entries(self, start: int) -> tuple[Entry, ...]:
        count = self.rng.randint(1, 3)
        return tuple(Entry(start + one, self.epoch, Kind.DATA, b"x" * self.rng.randrange(30)) for one in range(count))

    def write(self, **fields: Any) -> None:
        self.number += 1
        voted = KEY if self.epoch % 2 else None
        persist = Persist(number=self.number, epoch=self.epoch, voted=voted, **fields)
        begun, before = len(self.files.operations), content(self.model.restored())
        parts = []
        for part in range(PARTS):
            self.model._apply(persist, part)
            parts.append(content(self.model.restored()))
        self.allowed.append((begun, [before, *parts]))
        self.disk.write(persist)
        self.note([])

    def step(self) -> None:
        kind = self.rng.choice(["append", "append", "append", "vote", "truncate", "snapshot", "download", "forget"])
        getattr(self, kind)()

    def append(self) -> None:
        self.epoch = max(1, self.epoch)
        self.high_watermark = self.rng.randint(self.high_watermark, self.end)
        self.write(entries=self.entries(self.end), high_watermark=self.high_watermark)

    def vote(self) -> None:
        self.epoch += 1
        self.write()

    def truncate(self) -> None:
        self.epoch += 1
        to = self.rng.randint(max(self.high_watermark, self.model.snapshot.offset), self.end)
        entries = self.entries(to) if self.rng.random() < 0.5 else ()
        self.write(truncate_to=to, entries=entries, high_watermark=self.high_watermark)

    def snapshot(self) -> None:
        end = max(self.high_watermark, self.model.snapshot.offset)
        log = ReplicaLog.restore(self.model.snapshot, VOTERS, self.model.restored().entries)
        if end == self.model.snapshot.offset:
            return
        position, keep_from = log.position_at(end), self.rng.randint(log.start.offset, end)
        begun, before = len(self.files.operations), content(self.model.restored())
        self.model.take_snapshot(position, b"state", VOTERS)
        self.model.drop(Kept(keep_from))
        self.allowed.append((begun, [before, content(self.model.restored())]))
        self.disk.write_snapshot(position, VOTERS, [b"state"])
        self.disk.snapshotted(position, Kept(keep_from))
        self.note([])

    def begin_file(self) -> int:
        """Changes nothing of the content."""
        self.note([])
        with suppress(NoSpace):
            return self.disk.begin_file()
        return -1

    def forget(self) -> None:
        end = self.begin_file()
        self.note([])
        if self.rng.random() < 0.7:
            self.high_watermark = self.end
            self.snapshot()
        is_gone = self.disk.forget(end)
        self.note([])
        assert is_gone == (self.disk.snapshot.offset >= end)
        if is_gone:
            left = decode_log((name, self.files.read(name)) for name in logs(self.files)).entries
            assert all(entry.offset >= end for entry in left)
            assert [*snapshots_among(self.files.names())] == [self.disk.snapshot]

    def download(self) -> None:
        """A snapshot of the leader replaces a log that is too old, or diverges."""
        self.epoch += 1
        offset = self.rng.randint(max(self.high_watermark, self.model.snapshot.offset) + 1, self.end + 5)
        snapshot, start = Position(self.epoch, offset), 0
        frames = list(encode_snapshot(snapshot, VOTERS, [b"state", b"more"]))
        for index, frame in enumerate(frames):
            is_last = index == len(frames) - 1
            chunk = SnapshotPart(snapshot=snapshot, start=start, data=frame, voters=VOTERS, is_last=is_last)
            self.write(chunk=chunk)
            start += len(frame)
        self.high_watermark = offset
        self.write(reset_to=snapshot, high_watermark=offset)


# Promise: quorum.md#when-records-are-erased, raft.md#the-data-directory
@pytest.mark.parametrize("seed", range(4))
def test_a_crash_after_any_operation_loses_nothing_that_was_reported(seed: int) -> None:
    """And of the write that was under way there are whole parts, in their order.  A second crash, a power cut after the
    restart, changes nothing.
    """
    replica = Replica(seed)
    for _ in range(STEPS):
        replica.step()
    bounds = [count for count, _ in replica.allowed] + [len(replica.files.operations) + 1]
    for index, (count, allowed) in enumerate(replica.allowed):
        for operations in range(count, max(count + 1, bounds[index + 1])):
            for crash in Crash:
                files = replica.files.after(operations, crash)
                found = content(Disk(files, SEGMENT_BYTES).load())
                assert found in allowed, f"seed {seed}, {crash} after {operations} operations"
                again = content(Disk(files.after_power_cut(), SEGMENT_BYTES).load())
                assert again == found, f"seed {seed}, {crash} after {operations} operations, and a power cut"


class FullFiles(CrashFiles):
    """Every other attempt to append finds the disk full, after a half of the bytes."""

    is_small = is_full = False

    def append(self, name: str, data: bytes) -> None:
        self.is_full = self.is_small and not self.is_full
        if self.is_full:
            super().append(name, data[: len(data) // 2])
            raise NoSpace(f"{name}: No space left on device")
        super().append(name, data)


class PatientDisk(Disk):
    """Repeats a write until there is space."""

    def write(self, persist: Persist) -> None:
        for _ in range(20):
            with suppress(NoSpace):
                super().write(persist)
                return
        raise AssertionError("a repeated write begins again each time")


@pytest.mark.parametrize("seed", range(4))
def test_a_write_that_is_repeated_leaves_nothing_of_its_attempts(seed: int) -> None:
    """Of whatever parts it consists, and wherever the disk became full."""
    files = FullFiles()
    replica = Replica(seed, files)
    replica.disk = PatientDisk(files, SEGMENT_BYTES)
    replica.disk.load()
    files.is_small = True
    for _ in range(STEPS):
        getattr(replica, replica.rng.choice(["append", "vote", "truncate", "download", "begin_file"]))()
        found = Disk(files.after(len(files.operations), Crash.LOST), SEGMENT_BYTES).load()
        assert content(found) == content(replica.model.restored()), f"seed {seed}"


def test_files_are_rolled_and_deleted() -> None:
    """The log takes several files, and a snapshot lets the old ones go."""
    replica = Replica(0)
    for _ in range(20):
        replica.append()
    assert len(logs(replica.files)) > 3
    replica.high_watermark = replica.end
    replica.snapshot()
    replica.disk.snapshotted(replica.disk.snapshot, Kept(replica.end))
    assert len(logs(replica.files)) == 1
    assert [name for name in replica.files.names() if name.endswith("checkpoint")] == [
        snapshot_name(replica.disk.snapshot)
    ]


class NoNewFiles(LocalFiles):
    """A disk without inodes."""

    def _open(self, name: str) -> int:
        if name not in self.names():
            raise OSError(errno.ENOSPC, "No space left on device")
        return super()._open(name)


def test_a_disk_that_takes_no_new_file_stays_as_it_is(tmp_path: Path) -> None:
    """The node tries again later."""
    persist = Persist(number=1, epoch=1, voted=None, entries=(Entry(0, 1, Kind.DATA, b"x"),))
    formatted(LocalFiles(str(tmp_path))).write(persist)
    files = NoNewFiles(str(tmp_path))
    disk = Disk(files, SEGMENT_BYTES)
    before, names = disk.load(), files.names()
    with pytest.raises(NoSpace):
        disk.begin_file()
    assert files.names() == names and Disk(files, SEGMENT_BYTES).load() == before


def test_a_download_that_was_given_up_is_forgotten() -> None:
    """It is older than the snapshot by which it is replaced."""
    replica = Replica(0)
    replica.append()
    chunk = SnapshotPart(snapshot=Position(1, 1), start=0, data=b"part", voters=VOTERS, is_last=False)
    replica.disk.write(Persist(number=9, epoch=1, voted=None, chunk=chunk))
    assert "download" in "".join(replica.files.names())
    end, replica.high_watermark = replica.disk.begin_file(), replica.end
    replica.snapshot()
    assert replica.disk.forget(end) and "download" not in "".join(replica.files.names())


def logs(files: CrashFiles | LocalFiles) -> list[str]:
    return [name for name in files.names() if name.endswith(".log")]


# --------------------------------------------------------------------------------------------------------------- damage


class Written(NamedTuple):
    path: Path
    files: LocalFiles
    disk: Disk


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    """Real files: a snapshot, and entries in three files."""
    files = LocalFiles(str(tmp_path))
    disk = formatted(files)
    disk.load()
    for number in range(1, 7):
        disk.write(persist(number))
    disk.write_snapshot(Position(1, 1), VOTERS, [b"abc" * 10])
    disk.snapshotted(Position(1, 1), Kept(0))
    assert len(logs(files)) == 3
    yield Written(tmp_path, files, disk)
    files.close()


def persist(number: int, size: int = 60) -> Persist:
    entry = Entry(number - 1, 1, Kind.DATA, b"%d" % number * size)
    return Persist(number=number, epoch=1, voted=None, entries=(entry,))


def test_what_was_written_to_real_files_is_loaded(written: Written) -> None:
    """And the state of the application."""
    restored = Disk(written.files, SEGMENT_BYTES).load()
    assert [entry.offset for entry in restored.entries] == list(range(6))
    assert (restored.epoch, restored.snapshot, restored.voters) == (1, Position(1, 1), VOTERS)
    assert b"".join(written.disk.read_state(restored.snapshot)) == b"abc" * 10


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


# Promise: raft.md#the-data-directory
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: flip(path / "0000000001.log", 20), "0000000001.log is damaged at position 0, and a unit follows"),
        (
            lambda path: cut(path / "0000000002.log", 5),
            r"0000000002.log is damaged at position \d+, and .*003.log foll",
        ),
        (lambda path: flip(path / "0000000003.log", 120), "3.log is damaged at position 86, and its checksum"),
        (lambda path: (path / "0000000002.log").unlink(), "and not 0000000002.log"),
        (lambda path: (path / "0000000001.log").unlink(), "begins with entry 2, and the snapshot ends at 1"),
        (lambda path: flip(path / snapshot_name(Position(1, 1)), 70), "checkpoint is damaged at position"),
        (lambda path: cut(path / snapshot_name(Position(1, 1)), 21), "its end is missing"),
        (lambda path: (path / snapshot_name(Position(1, 1))).unlink(), "has lost a snapshot"),
        (lambda path: flip(path / QUORUM_STATE, 17), "quorum-state is damaged"),
        (lambda path: (path / QUORUM_STATE).unlink(), "has lost quorum-state"),
    ],
)
def test_damage_is_refused_with_file_and_position(
    written: Written, damage: Callable[[Path], None], message: str
) -> None:
    """A file that was cut, changed or deleted after it was durable."""
    damage(written.path)
    with pytest.raises(CorruptObject, match=message):
        Disk(written.files, SEGMENT_BYTES).load()


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def test_a_snapshot_that_is_older_than_the_own_one_is_ignored(written: Written) -> None:
    """The application has made one while the leader's was fetched."""
    data = b"".join(encode_snapshot(Position(1, 1), VOTERS, ()))
    chunk = SnapshotPart(snapshot=Position(1, 1), start=0, data=data, voters=VOTERS, is_last=True)
    written.disk.write_snapshot(Position(1, 2), VOTERS, [b"newer"])
    written.disk.snapshotted(Position(1, 2), Kept(0))
    written.disk.write(Persist(number=7, epoch=1, voted=None, chunk=chunk))
    assert written.disk.snapshot == Position(1, 2)
    assert [name for name in written.files.names() if "checkpoint" in name] == [snapshot_name(Position(1, 2))]


def test_a_last_unit_that_is_not_whole_is_removed(written: Written) -> None:
    """And the log continues there."""
    last = written.path / logs(written.files)[-1]
    cut(last, 3)
    disk = Disk(written.files, SEGMENT_BYTES)
    assert len(disk.load().entries) == 5
    disk.write(persist(6))
    assert len(Disk(written.files, SEGMENT_BYTES).load().entries) == 6


def test_a_write_is_repeated_when_a_full_disk_has_space_again(mount: Callable[[str], Path]) -> None:
    """A small file system in memory.  Nothing of the first attempt is left."""
    path = mount("size=64k")
    files = LocalFiles(str(path))
    disk = formatted(files)
    disk.load()
    (path / "filler").write_bytes(bytes(40_000))
    disk.write(persist(1))
    with pytest.raises(NoSpace, match="No space left"):
        disk.write(persist(2, size=30_000))
    with pytest.raises(NoSpace):
        disk.write_snapshot(Position(1, 1), VOTERS, [bytes(30_000)])
    assert len(Disk(files).load().entries) == 1
    (path / "filler").unlink()
    disk.write(persist(2, size=30_000))
    assert len(Disk(files).load().entries) == 2
    files.close()


def test_a_file_that_was_deleted_is_noticed(written: Written) -> None:
    """Otherwise writes to it would be acknowledged, and nothing of them would be there."""
    written.disk.write(persist(7))
    (written.path / logs(written.files)[-1]).unlink()
    with pytest.raises(StorageError, match=r"0000000004.log was deleted while it was used"):
        written.disk.write(persist(8))


# Promise: quorum.md#when-a-node-is-lost
def test_an_older_snapshot_that_is_fetched_stays_until_the_next_one(written: Written) -> None:
    """With the log behind it.  A node that starts again begins with the newest one."""
    disk, older = written.disk, Position(1, 1)
    disk.write_snapshot(Position(1, 5), VOTERS, [b"newer"])
    disk.snapshotted(Position(1, 5), Kept(1, older))
    assert disk.read_chunk(older, 0)[1] == written.files.size(snapshot_name(older))
    assert len(logs(written.files)) == 3
    assert Disk(written.files, SEGMENT_BYTES).load().snapshot == Position(1, 5)
    disk.write_snapshot(Position(1, 6), VOTERS, [b"newest"])
    disk.snapshotted(Position(1, 6), Kept(5))
    assert disk.read_chunk(older, 0) == (b"", None)
    assert [name for name in written.files.names() if "checkpoint" in name] == [snapshot_name(Position(1, 6))]
    assert len(logs(written.files)) == 1
