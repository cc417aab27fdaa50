"""The disk of a replica: what a machine asks to persist becomes files, and files become what a machine starts from.

    meta.properties                                 the identity, written last when the directory is formatted
    quorum-state                                    epoch and vote, replaced as a whole
    0000000001.log …                                units of the log, each written when the one before is durable
    00000000000000000042-0000000003.checkpoint      a snapshot of all entries before 42, the last of which has epoch 3

A snapshot that is being written or fetched has another name, and gets this one when it is durable.  Which file is
written or deleted is decided in `log_file_sequence.py`; the bytes are those of `unit_format.py` and
`snapshot_format.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

from spark_log.errors import CorruptObject, NoSpace, StorageError
from spark_log.log_lines import logger
from spark_log.quorum.messages import EMPTY, Position
from spark_log.quorum.node.file_operations import Files
from spark_log.quorum.node.log_file_sequence import (
    LogFile,
    LogFiles,
    log_names,
    number_of,
    snapshot_name,
    snapshots_among,
)
from spark_log.quorum.node.vote_and_identity import QUORUM_STATE, decode_state, encode_state
from spark_log.quorum.ready import Kept, Persist, Restored, SnapshotPart
from spark_log.quorum.snapshot_format import encode_snapshot, frame_at, read_header, read_state
from spark_log.quorum.unit_format import LogContent, decode_log, encode_unit
from spark_log.quorum.voters import Voters

SEGMENT_BYTES = 16 << 20
"""A file of the log that has so many bytes is followed by a new one."""
SYNC_BYTES = 8 << 20
"""Bytes of a snapshot that one fsync makes durable: a larger fsync would delay those of the log."""
PART, DOWNLOAD, NEW = ".part", ".download", ".new"
"""Endings of the names of files that are not complete: an own snapshot, one of the leader, a small file."""


class Disk:
    """`load`, `write`, `snapshotted`, `begin_file` and `forget` belong to one thread; `write_snapshot` may run beside
    them in another one, and reads in any.
    """

    def __init__(self, files: Files, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.files = files
        self.snapshot = EMPTY
        """The newest one."""
        self._log = LogFiles(segment_bytes)
        self._state = b""

    # -------------------------------------------------------------------------------------------------------- beginning

    def load(self) -> Restored:
        """Read everything, cut a last unit that is not whole, and make certain that what was read is durable.

        Raises CorruptObject, with file and position, for damage that a crash cannot have caused.
        """
        names = self.files.names()
        for name in names:
            if name.endswith((PART, DOWNLOAD, NEW)):
                self.files.delete(name)
        if QUORUM_STATE not in names or not snapshots_among(names):
            missing = "a snapshot" if QUORUM_STATE in names else QUORUM_STATE
            raise CorruptObject(f"{self.files.path} has lost {missing}: restore this replica's disk, or replace it")
        self._state = self.files.read(QUORUM_STATE)
        state = decode_state(self._state, self._at(QUORUM_STATE))
        self.snapshot = snapshots_among(names)[-1]
        voters = self._check(snapshot_name(self.snapshot), self.snapshot)
        content = self._load_log(log_names(names, self.files.path))
        self.files.sync_names()
        return Restored(
            epoch=state.leader_epoch,
            voted=state.voted,
            snapshot=self.snapshot,
            voters=voters,
            entries=content.entries,
            high_watermark=content.high_watermark,
        )

    def _load_log(self, names: list[str]) -> LogContent:
        content = decode_log((self._at(name), self.files.read(name)) for name in names)
        if content.entries and content.entries[0].offset > self.snapshot.offset:
            raise CorruptObject(
                f"{self._at(names[0])} begins with entry {content.entries[0].offset}, and the snapshot ends at "
                f"{self.snapshot.offset}: a file is missing; restore this replica's disk, or replace it"
            )
        self._log.files = [
            LogFile(number_of(name), self.files.size(name), end)
            for name, end in zip(names, content.file_ends, strict=True)
        ]
        if names:
            self._cut(self._log.files[-1], content.end)
        return content

    def _cut(self, last: LogFile, end: int) -> None:
        """Remove a unit that was not finished.  The file is synced in any case: a process that was killed may have left
        a whole unit that only the operating system has.
        """
        if last.size > end:
            logger.warning(
                "%s: removed %d bytes of a write that was not finished", self._at(last.name), last.size - end
            )
            self.files.truncate(last.name, end)
            last.size = end
        self.files.sync(last.name)

    # ---------------------------------------------------------------------------------------------------------- writing

    def write(self, persist: Persist) -> None:
        """Make a write durable.  May be repeated after NoSpace; after any other error the process has to end."""
        state = encode_state(persist.epoch, persist.voted)
        if state != self._state:
            replace_file(self.files, QUORUM_STATE, state)
            self._state = state
        if persist.chunk is not None:
            self._write_chunk(persist.chunk)
        self._write_unit(persist)

    def _write_chunk(self, chunk: SnapshotPart) -> None:
        """A chunk need not survive a crash before the last one: the download begins again then."""
        if chunk.snapshot.offset <= self.snapshot.offset:
            return  # This replica has made one meanwhile, or a write is repeated.
        name = snapshot_name(chunk.snapshot) + DOWNLOAD
        if chunk.start == 0:
            for other in self.files.names():
                if other.endswith(DOWNLOAD):
                    self.files.delete(other)
        elif self.files.size(name) > chunk.start:
            self.files.truncate(name, chunk.start)
        self.files.append(name, chunk.data)
        if chunk.is_last:
            self._place_snapshot(name, chunk.snapshot)
            self.snapshot = chunk.snapshot

    def _place_snapshot(self, name: str, snapshot: Position) -> None:
        self._check(name, snapshot)
        self.files.sync(name)
        self.files.rename(name, snapshot_name(snapshot))
        self.files.sync_names()

    def _write_unit(self, persist: Persist) -> None:
        """The truncation and the entries.  A log that begins again does so in a new file, whose first unit removes
        everything before: so it does not matter which of the older files are deleted before a crash.
        """
        is_reset = persist.reset_to is not None
        truncate_to = 0 if is_reset else persist.truncate_to
        data = encode_unit(persist.high_watermark, truncate_to, persist.entries)
        if not data:
            return
        file = self._log.next_file(is_reset)
        self._append(file, data)
        if file.size == 0:
            self.files.sync_names()
        self._log.appended(file, len(data), truncate_to, persist.entries[-1].offset + 1 if persist.entries else None)
        if is_reset:
            self._delete_old(Kept(0))

    def _append(self, file: LogFile, data: bytes) -> None:
        try:
            self.files.append(file.name, data)
        except StorageError:
            # Nothing of it may stay in front of the next attempt.
            with suppress(FileNotFoundError):
                self.files.truncate(file.name, file.size)
            raise
        self.files.sync(file.name)

    # -------------------------------------------------------------------------------------------------------- snapshots

    def write_snapshot(self, snapshot: Position, voters: Voters, state: Iterable[bytes]) -> None:
        """A durable snapshot of the application.  Call `snapshotted` next.  After NoSpace nothing is left of it."""
        name, unsynced = snapshot_name(snapshot) + PART, 0
        try:
            for frame in encode_snapshot(snapshot, voters, state):
                self.files.append(name, frame)
                unsynced += len(frame)
                if unsynced >= SYNC_BYTES:
                    self.files.sync(name)
                    unsynced = 0
        except BaseException:
            with suppress(FileNotFoundError):
                self.files.delete(name)
            raise
        self._place_snapshot(name, snapshot)

    def begin_with(self, snapshot: Position, voters: Voters, state: Iterable[bytes]) -> None:
        """Give a replica that has nothing a first state, durably.  If this is killed, it has nothing, or all of it."""
        replace_file(self.files, QUORUM_STATE, encode_state(snapshot.epoch, None))
        self.write_snapshot(snapshot, voters, state)
        self.snapshotted(snapshot, Kept(0))

    def snapshotted(self, snapshot: Position, kept: Kept) -> None:
        """Delete older snapshots, and the files of the log with older entries only, but for those that are kept."""
        self.snapshot = max(self.snapshot, snapshot, key=lambda one: one.offset)
        self._delete_old(kept)

    def _delete_old(self, kept: Kept) -> None:
        older = [one for one in snapshots_among(self.files.names()) if one.offset < self.snapshot.offset]
        unused = [snapshot_name(one) for one in older if one != kept.older]
        for name in [*self._log.drop_before(kept.keep_from), *unused]:
            self.files.delete(name)

    def begin_file(self) -> int:
        """Continue the log in a new file, and return its end: a snapshot behind that replaces all files before.

        Raises NoSpace, with nothing changed.
        """
        file, end = self._log.next_file(is_reset=True), self._log.end
        data = encode_unit(self.snapshot.offset, end, ())
        try:
            self._append(file, data)
        except NoSpace:
            if file not in self._log.files:
                with suppress(FileNotFoundError):
                    self.files.delete(file.name)
            raise
        self.files.sync_names()
        self._log.appended(file, len(data), end, None)
        return end

    def forget(self, end: int) -> bool:
        """Delete everything that the newest snapshot replaces, durably.

        end:  of `begin_file`.
        Returns whether no file has an entry or a snapshot from before `end` any more: there is a newer snapshot.
        """
        self._delete_old(Kept(self.snapshot.offset))
        for name in self.files.names():
            if name.endswith(DOWNLOAD) and name.removesuffix(DOWNLOAD) <= snapshot_name(self.snapshot):
                self.files.delete(name)
        self.files.sync_names()
        return self.snapshot.offset >= end

    def read_chunk(self, snapshot: Position, start: int) -> tuple[bytes, int | None]:
        """The frame of a snapshot that begins at a position, and the size of the file; None if it was deleted.

        Raises CorruptObject.
        """
        name = snapshot_name(snapshot)
        try:
            return frame_at(partial(self.files.read, name), start, self._at(name)), self.files.size(name)
        except FileNotFoundError:
            return b"", None

    def read_state(self, snapshot: Position) -> Iterator[bytes]:
        """The application's state in a snapshot, in pieces.  Raises CorruptObject, FileNotFoundError."""
        name = snapshot_name(snapshot)
        yield from read_state(partial(self.files.read, name), self.files.size(name), self._at(name))

    def _check(self, name: str, snapshot: Position) -> Voters:
        """The voters in a file that is, or will be, this snapshot."""
        read = partial(self.files.read, name)
        header = read_header(read, self._at(name))
        if header.snapshot != snapshot:
            raise CorruptObject(f"{self._at(name)} is the snapshot {header.snapshot}, not {snapshot}")
        for _ in read_state(read, self.files.size(name), self._at(name)):
            pass
        return header.voters

    def _at(self, name: str) -> str:
        return f"{self.files.path}/{name}"


def replace_file(files: Files, name: str, data: bytes) -> None:
    """Replace the whole content of a small file, durably; a crash leaves the old one or the new one."""
    temporary = name + NEW
    if temporary in files.names():
        files.delete(temporary)
    files.append(temporary, data)
    files.sync(temporary)
    files.rename(temporary, name)
    files.sync_names()
