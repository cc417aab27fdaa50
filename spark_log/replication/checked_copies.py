"""Copies of segments from root to root, with all of their bytes checked on the way.

A segment is checked by what it says about itself: the tail has the checksum of the index, and the index has that of
each batch, and the schema messages and ends of streams between them.  So nobody has to look for the slices in it.  A
copy whose bytes are wrong is never seen under its name, because a put shows all of an object or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from crc32c import crc32c

from spark_log.errors import CorruptObject, ObjectNotFound, SparkLogError, StorageError, StorageUnavailable
from spark_log.metadata.state import ObjectRow
from spark_log.replication.copy_throttle import Pace
from spark_log.roots.broker_roots import sources_of
from spark_log.roots.read_failover import from_sources
from spark_log.segment.arrays import ipc
from spark_log.segment.batch_index import Index, parse_index
from spark_log.store.base import Chunks, ObjectStore
from spark_log.store.copy_object import RANGE_BYTES, copy_object

SEGMENT = ".seg"


class BadCopy(SparkLogError):
    """A copy of an object is damaged, or is not there."""


class TargetFailed(SparkLogError):
    """The root to which an object is copied failed: no other source helps.  Its cause is the error."""


class SourceFailed(SparkLogError):
    """The root of a copy could not be read: nothing is known about the copy.

    It is not a StorageError, because the put that reads from it would be tried again.
    """


def check_copy(store: ObjectStore, name: str, row: ObjectRow) -> None:
    """Read a copy and check all of its bytes.  Raises BadCopy, SourceFailed."""
    for _ in checked_ranges(store, name, row):
        pass


def is_good(store: ObjectStore, name: str, row: ObjectRow) -> bool:
    """Whether a root has a good copy.  Raises SourceFailed if it cannot be read."""
    try:
        check_copy(store, name, row)
    except BadCopy:
        return False
    return True


def copy_checked(
    source: ObjectStore,
    target: ObjectStore,
    name: str,
    row: ObjectRow,
    pace: Pace,
    moved: Callable[[str], None] = lambda _: None,
) -> None:
    """Copy an object to another root, if the source's copy is good.  Replaces whatever the target has under its name.

    moved:  called with the next step: "read", "wait" for the throttle, or "write".
    Raises BadCopy if the source's copy is bad, SourceFailed if the source cannot be read, and the errors of the target.
    """

    def ranges() -> Iterator[bytes]:
        moved("read")
        for data in checked_ranges(source, name, row):
            moved("wait")
            pace.take(len(data))
            moved("write")
            yield data
            moved("read")
        moved("write")

    target.put(name, Chunks(ranges))


def copy_from_any(source: ObjectStore, target: ObjectStore, name: str, row: ObjectRow | None, pace: Pace) -> int:
    """Copy an object from any root that has a good copy; returns its size.

    row:  None for one that is not a segment: then only the size is checked.
    Raises ObjectNotFound; CorruptObject for a damaged object; StorageError if a storage fails.
    """

    def copied(root: ObjectStore) -> int:
        if row is not None and name.endswith(SEGMENT):
            return _copy_segment(root, target, name, row, pace)
        pace.take(0 if row is None else row.size)
        size = copy_object(root, target, name, None if row is None else row.size)
        if size is None:
            raise ObjectNotFound(f"{root.url}/{name} is not there", key=name)
        return size

    try:
        return from_sources(name, sources_of(source, name), copied)
    except TargetFailed as error:
        raise error.__cause__ or error from None


def _copy_segment(root: ObjectStore, target: ObjectStore, name: str, row: ObjectRow, pace: Pace) -> int:
    try:
        copy_checked(root, target, name, row, pace)
    except BadCopy as error:
        if isinstance(error.__cause__, ObjectNotFound):
            raise ObjectNotFound(str(error), key=name) from error
        raise CorruptObject(str(error)) from error
    except SourceFailed as error:
        raise StorageUnavailable(str(error)) from error
    except StorageError as error:
        raise TargetFailed(str(error)) from error
    return row.size


def checked_ranges(store: ObjectStore, name: str, row: ObjectRow) -> Iterator[bytes]:
    """The bytes of an object, a range at a time.  Raises BadCopy, after the last range at the latest; SourceFailed.

    A small object is read in one request.
    """
    step = RANGE_BYTES["local" if store.local else "remote"]
    whole = _read(store, name, 0, row.size + 1) if row.size < step else None

    def read(start: int, end: int) -> bytes:
        return _read(store, name, start, end) if whole is None else whole[start:end]

    end = read(row.index_position, row.size + 1)
    try:
        index = parse_index(end, name=name, object_size=row.size)
        if len(end) != row.size - row.index_position or index.index_position != row.index_position:
            raise CorruptObject(f"object {name} ends at another place than the log says")
    except SparkLogError as error:
        raise BadCopy(f"{store.url}: {error}") from error
    check = _Check(index)
    for at in range(0, row.index_position, step):
        data = read(at, min(at + step, row.index_position))
        check.feed(data)
        yield data
    if not check.is_whole():
        raise BadCopy(f"{store.url}/{name} is damaged: bytes before its index are not those that were written")
    yield end


def _read(store: ObjectStore, name: str, start: int, end: int) -> bytes:
    try:
        return store.get(name, start, end)
    except ObjectNotFound as error:
        raise BadCopy(f"{store.url}/{name} is not there") from error
    except CorruptObject as error:
        raise BadCopy(str(error)) from error
    except (SparkLogError, OSError) as error:
        raise SourceFailed(str(error)) from error


@dataclass(slots=True)
class _Check:
    """Checks the bytes before an index, in order."""

    index: Index
    at: int = field(default=0, init=False)
    good: bool = field(default=True, init=False)
    _row: int = field(default=0, init=False)
    _crc: int = field(default=0, init=False)
    _between: bytearray = field(default_factory=bytearray, init=False)
    """Bytes since the last batch."""

    def feed(self, data: bytes) -> None:
        numbers, view = self.index.numbers, memoryview(data)
        while len(view) and self.good:
            is_last = self._row == len(numbers["position"])
            start = self.index.index_position if is_last else int(numbers["position"][self._row])
            if self.at < start:
                part = view[: start - self.at]
                self._between += part
            else:
                end = start + int(numbers["length"][self._row])
                part = view[: end - self.at]
                self._end_gap()
                self._crc = crc32c(part, self._crc)
                if self.at + len(part) == end:
                    self.good = self.good and self._crc == int(numbers["crc32c"][self._row])
                    self._row, self._crc = self._row + 1, 0
            self.at, view = self.at + len(part), view[len(part) :]

    def is_whole(self) -> bool:
        """Whether all bytes were there and right."""
        self._end_gap()
        done = self._row == len(self.index.numbers["position"]) and self.at == self.index.index_position
        return self.good and done

    def _end_gap(self) -> None:
        """Check the bytes between two batches: ends of streams, and schema messages."""
        rest, self._between = bytes(self._between), bytearray()
        known = (ipc.END, *self.index.schemas.values())
        while rest and self.good:
            found = next((part for part in known if rest.startswith(part)), None)
            self.good = found is not None
            rest = rest[len(found or b"") :]
