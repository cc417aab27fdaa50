"""The checks of `verify` that read objects, in shares: this process does them, or the tasks of a Spark job.

A share is checked with the roots of the log, and without its metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from spark_log.client.admin.brokers import check_answers
from spark_log.client.reader.fetch import fetch, load_index
from spark_log.client.reader.plan import SliceRead
from spark_log.errors import CorruptObject, ObjectNotFound, UnsupportedVersion
from spark_log.journal.store_operations import PARALLEL
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.model import APPEND_TIME, Slice
from spark_log.roots.broker_roots import Roots
from spark_log.roots.read_failover import NOT_READ
from spark_log.runtime.size_groups import size_groups
from spark_log.segment.reader import BatchRef, Place, decode_batch, find_batches
from spark_log.store.base import Bytes, ObjectStore

Share = TypeVar("Share")
Result = TypeVar("Result")
Item = TypeVar("Item")

OBJECTS_AT_ONCE = 1_000
"""Objects or slices in a share: an interrupt waits for their requests."""
BYTES_AT_ONCE = 128 << 20
"""At most so many bytes are in a share of slices, unless it has only one: it takes a second or two."""
WHOLE_BYTES = 1 << 20
"""Slices of so many bytes at most are read whole: an object store takes as long for a request as for a megabyte."""
WRITE_AGAIN = (
    "all its records can be read: replace it from a copy of the log by `pylog verify --deep --repair-from URL`; without a "
    "copy, `pylog verify --deep --repair --lose-data` writes these records again, and gives up none of them"
)
"""The cure for damage that no reader meets."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect."""

    what: str
    """The affected object, partition or metadata."""
    message: str


class Spread(Protocol):
    """Has each share worked on, and gives the results in the order of the shares."""

    def __call__(self, work: Callable[[Roots, Share], Result], shares: Iterable[Share], /) -> Iterator[Result]: ...


def here(roots: Roots) -> Spread:
    """This process does one share after the other."""

    def spread(work: Callable[[Roots, Share], Result], shares: Iterable[Share]) -> Iterator[Result]:
        return (work(roots, share) for share in shares)

    return spread


def each(work: Callable[[Item], Result], items: Iterable[Item], *, local: bool) -> list[Result]:
    """The results for some objects, in their order.  Requests to remote storage are made together.

    local:  all objects are on disks of this machine.
    """
    if local:
        return [work(one) for one in items]
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="pylog-verify") as pool:
        return list(pool.map(work, items))


def shares_of(items: Iterable[Item], size: Callable[[Item], int] = lambda _: 0) -> Iterator[tuple[Item, ...]]:
    """Neighbours, `OBJECTS_AT_ONCE` in each share, or fewer of `BYTES_AT_ONCE`.

    size:  bytes of an object that are read.
    """
    return map(tuple, size_groups(items, size, BYTES_AT_ONCE, OBJECTS_AT_ONCE))


def find_sizes(roots: Roots, names: Sequence[str]) -> list[int | None]:
    """The size of each object in the log's own root; None: it is missing.

    Raises WrongRoot if the root is not mounted on this machine.
    """
    own = roots[OWN_BROKER]
    found = each(own.size, names, local=own.local)
    if None in found:
        check_answers(roots, OWN_BROKER)
    return found


# ------------------------------------------------------------------------------------------------------------- contents


class SliceAt(NamedTuple):
    """A slice, and the broker from which it is read.  Sent to tasks."""

    broker: int
    read: SliceRead


class CheckedContents(NamedTuple):
    """The result of a share."""

    bytes: int
    """Bytes of its slices."""
    problems: list[Problem]


def find_damage(roots: Roots, share: Sequence[SliceAt]) -> CheckedContents:
    """Read all bytes of some slices, and compare them with their indexes and their checksums.

    Raises WrongRoot if a root is not mounted on this machine.
    """
    local = all(roots[broker].local for broker in {one.broker for one in share})
    without = set[int]()

    def check(one: SliceAt) -> list[Problem]:
        try:
            return damage_of(roots[one.broker], one.read)
        except ObjectNotFound:  # reported before, or replaced meanwhile, if the root is there
            without.add(one.broker)
            return []

    found = each(check, share, local=local)
    for broker in sorted(without):
        check_answers(roots, broker)
    return CheckedContents(sum(one.read.slice.length for one in share), [one for some in found for one in some])


def damage_of(store: ObjectStore, read: SliceRead) -> list[Problem]:
    """Check one run.  If something is wrong and a reader fails, the offsets at which it does.

    Raises ObjectNotFound.
    """
    problems = list(_checked(store, read))
    met = [Problem(read.slice.object, str(error)) for error in _unreadable(store, read)] if problems else []
    return met or problems


def _checked(store: ObjectStore, read: SliceRead) -> Iterator[Problem]:
    """The problems of a run, up to the first part that cannot be read."""
    try:
        for one in _run_of(store, read):
            yield replace(one, message=f"{one.message}; {WRITE_AGAIN}")
    except CorruptObject as error:
        yield Problem(read.slice.object, f"{error}; {WRITE_AGAIN}")
    except UnsupportedVersion as error:
        yield Problem(read.slice.object, str(error))


def find_lost(roots: Roots, share: Sequence[SliceAt]) -> list[list[tuple[int, int]] | None]:
    """Offsets of each slice that a reader cannot read, from the first to before the second; None: it is intact.

    There may be none in a damaged slice, such as one whose index is not needed to read it.
    """

    def lost(one: SliceAt) -> list[tuple[int, int]] | None:
        store = roots[one.broker]
        try:
            if not any(_checked(store, one.read)):
                return None
        except ObjectNotFound:  # it is missing only since it was looked for
            return None
        met = _unreadable(store, one.read)
        return [(error.start, error.end) for error in met if error.start is not None and error.end is not None]

    return each(lost, share, local=all(roots[broker].local for broker in {one.broker for one in share}))


def _unreadable(store: ObjectStore, read: SliceRead) -> Iterator[CorruptObject]:
    """The errors that a reader meets if it continues after the damaged offsets of each."""
    while read.start < read.end:
        try:
            for _ in fetch(store, read):
                pass
        except CorruptObject as error:
            yield error
            read = msgspec.structs.replace(read, start=error.end or read.end)
        except (*NOT_READ, UnsupportedVersion):
            return
        else:
            return


def _run_of(store: ObjectStore, read: SliceRead) -> Iterator[Problem]:
    piece = read.slice
    place = Place(piece.object, read.topic, read.topic_id, read.partition)
    index, get = load_index(store, read), _range_reader(store, piece)
    crc, end = 0, piece.position
    for ref in find_batches(index, piece, place=place):
        crc = crc32c(get(end, ref.position), crc) if ref.position > end else crc
        data = get(ref.position, ref.position + ref.length)
        crc, end = crc32c(data, crc), ref.position + ref.length
        yield from _times(piece, place, ref, decode_batch(data, ref, index, place=place).records)
    crc = crc32c(get(end, piece.position + piece.length), crc)
    if crc != piece.crc:
        yield Problem(piece.object, f"the checksum of the data in {place.at(piece.position)} is not the slice's")


def _range_reader(store: ObjectStore, piece: Slice) -> Callable[[int, int], Bytes]:
    """Reads ranges of a slice's object; a small slice is read whole, in one request."""
    if piece.length > WHOLE_BYTES:
        return partial(store.get, piece.object)
    data = memoryview(store.get(piece.object, piece.position, piece.position + piece.length))
    return lambda low, high: data[low - piece.position : high - piece.position]


def _times(piece: Slice, place: Place, ref: BatchRef, batch: pa.RecordBatch) -> Iterator[Problem]:
    found = pc.min_max(batch.column("timestamp").view(pa.int64())).as_py()
    low, high = found["min"], found["max"]
    if (low, high) != (ref.min_us, ref.max_us):
        yield Problem(piece.object, f"timestamps of the batch in {place.at(ref.position)} are not those of its index")
    if piece.time_kind != APPEND_TIME and not piece.min_us <= low <= high <= piece.max_us:
        yield Problem(piece.object, f"timestamps of the batch in {place.at(ref.position)} are outside of its slice's")
