"""Reads the slices of partitions in parts that fit into memory, as steps of the protocol.

Slices that are close together in an object share a request, and several requests are made together.  A large slice is
read in groups of batches, which the index of its object names.  All bytes are verified before they are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from spark_log.errors import CorruptObject
from spark_log.journal.set_aside import is_of_slice
from spark_log.journal.storage.missing_indexes import damaged_object, missing_object
from spark_log.journal.store_operations import Get, Op, Steps
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice
from spark_log.roots.broker_roots import ANY_ROOT
from spark_log.runtime.size_groups import size_groups
from spark_log.segment.batch_index import Index
from spark_log.segment.reader import BatchRef, Decoded, Place, decode_batch, decode_run, find_batches, parse_index

READ_BYTES = 16 << 20
"""Slices are read in parts of this size."""
WHOLE_BYTES_MAX = 4 << 20
"""A run up to this size is read in one request."""
READ_OPS = 256
"""Number of requests that are made together."""
GAP_BYTES = 16 << 10
"""Bytes between two slices that are read rather than skipped by another request."""

Blobs = dict[tuple[str, int], bytes]
"""Runs by object and position."""
Blob = bytes | None | Exception
"""The bytes that were read of a slice, None if its object is missing, or why they are damaged."""
Columns = Sequence[str] | None
"""Names of the columns to decode; None: all."""
Take = Callable[[Iterable[Decoded]], object]
"""Called with consecutive batches of a slice.  They are decoded when it takes them."""


# ------------------------------------------------------------------------------------------ many slices, all in memory


def read_runs(slices: Iterable[Slice]) -> Steps[Blobs]:
    """The runs of slices, by object and position.  Runs of missing objects are left out.

    Slices that are close together in an object share a request.
    """
    found: Blobs = {}
    for some in _limited(_neighbours(slices)):
        reads: list[Op] = [
            Get(
                group[0].object,
                group[0].position,
                group[-1].position + group[-1].length,
                ANY_ROOT,
                partial(_check_group, group),
            )
            for group in some
        ]
        for group, blob in zip(some, (yield reads), strict=True):
            for piece in group if blob is not None else ():
                at = piece.position - group[0].position
                # A copy, because the bytes between the slices are not needed any more.
                found[piece.object, piece.position] = blob[at : at + piece.length]
    return found


def _neighbours(slices: Iterable[Slice]) -> Iterator[list[Slice]]:
    """Slices of one object with small gaps between them."""
    group: list[Slice] = []
    for piece in sorted(slices, key=lambda piece: (piece.object, piece.position)):
        if group and not _is_near(group, piece):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def _is_near(group: Sequence[Slice], piece: Slice) -> bool:
    last = group[-1]
    gap = piece.position - last.position - last.length
    whole = piece.position + piece.length - group[0].position
    return piece.object == last.object and gap <= GAP_BYTES and whole <= WHOLE_BYTES_MAX


def _limited(groups: Iterable[list[Slice]]) -> Iterator[list[list[Slice]]]:
    """Groups that are read in parallel."""
    return size_groups(
        groups, lambda group: group[-1].position + group[-1].length - group[0].position, READ_BYTES, READ_OPS
    )


def verified(state: State, key: TopicKey, piece: Slice, blobs: Blobs) -> Iterator[Decoded]:
    """Verify a slice that was read, and decode its batches when they are taken.

    Raises CorruptObject, and ObjectNotFound if its object is missing.
    """
    blob = _found(blobs.get((piece.object, piece.position)), state, key, piece)
    topic = state.topics[key[0]].name
    try:
        return decode_run(blob, piece, place=Place(piece.object, topic, *key))
    except CorruptObject as error:
        raise damaged_object(piece.object, topic, key[1], piece.start, piece.end, error) from error


# --------------------------------------------------------------------------------------------- slices of one partition


def chunks(slices: Sequence[Slice]) -> Iterator[list[Slice]]:
    """Slices that are read together; a large one is alone."""
    chunk: list[Slice] = []
    size = 0
    for piece in slices:
        if chunk and (size + piece.length > READ_BYTES or len(chunk) >= READ_OPS or _is_large(piece)):
            yield chunk
            chunk, size = [], 0
        chunk.append(piece)
        size += piece.length
        if _is_large(piece):
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _is_large(piece: Slice) -> bool:
    return piece.length > WHOLE_BYTES_MAX and piece.batches > 1


def read_chunk(state: State, chunk: Sequence[Slice]) -> Steps[list[Blob]]:
    """The bytes from which `decode_into` decodes each slice: its run, or if it is large, the index of its object."""
    reads: list[Op] = [_read_of(state, piece, is_alone=len(chunk) == 1) for piece in chunk]
    try:
        blobs: list[Blob] = yield reads
    except Exception as error:
        if not is_of_slice(error):
            raise
        blobs = []
        for read in reads:
            blobs.append((yield from _read_alone(read)))
    return blobs


def _read_alone(read: Op) -> Steps[Blob]:
    try:
        blob: bytes | None = yield read
    except Exception as error:
        if not is_of_slice(error):
            raise
        return error
    return blob


def _read_of(state: State, piece: Slice, *, is_alone: bool) -> Get:
    if is_alone and _is_large(piece):
        row = state.objects[piece.object]
        check = partial(parse_index, name=piece.object, object_size=row.size)
        return Get(piece.object, row.index_position, row.size, ANY_ROOT, check)
    return Get(piece.object, piece.position, piece.position + piece.length, ANY_ROOT, partial(_check_group, [piece]))


def decode_into(
    state: State, key: TopicKey, piece: Slice, blob: Blob, take: Take, columns: Columns = None
) -> Steps[None]:
    """Decode a slice, and pass it to `take` in one part or in several.

    blob:     the slice's bytes, from `read_chunk`.
    columns:  the columns to decode; None: all.
    Raises CorruptObject, and ObjectNotFound if the slice's object is missing.
    """
    topic = state.topics[key[0]].name
    try:
        yield from _decode_into(state, key, piece, _found(blob, state, key, piece), take, columns)
    except CorruptObject as error:
        raise damaged_object(piece.object, topic, key[1], piece.start, piece.end, error) from error


def _decode_into(state: State, key: TopicKey, piece: Slice, blob: bytes, take: Take, columns: Columns) -> Steps[None]:
    place = Place(piece.object, state.topics[key[0]].name, *key)
    if not _is_large(piece):
        take(decode_run(blob, piece, columns, place=place))
        return
    index = parse_index(blob, name=piece.object, object_size=state.objects[piece.object].size)
    for group in _groups(find_batches(index, piece, place=place)):
        start = group[0].position
        check = partial(_check_batches, start=start, group=group, index=index, columns=columns, place=place)
        data = yield Get(piece.object, start, group[-1].position + group[-1].length, ANY_ROOT, check)
        take(_decode(_found(data, state, key, piece), start, group, index, columns, place))


def _check_group(group: Sequence[Slice], data: bytes) -> None:
    """Raises CorruptObject unless the bytes of slices that were read together have their checksums."""
    for piece in group:
        at = piece.position - group[0].position
        decode_run(data[at : at + piece.length], piece, place=Place(piece.object, "", "", 0))


def _check_batches(
    data: bytes, start: int, group: Sequence[BatchRef], index: Index, columns: Columns, place: Place
) -> None:
    """Raises CorruptObject unless batches that were read together are whole."""
    for _ in _decode(data, start, group, index, columns, place):
        pass


def _found(data: Blob, state: State, key: TopicKey, piece: Slice) -> bytes:
    """The bytes that were read of a slice.  Raises CorruptObject, and ObjectNotFound if its object is missing."""
    if isinstance(data, Exception):
        raise data
    if data is None:
        name = state.topics[key[0]].name
        raise missing_object(piece.object, piece.object, name, key[1], piece.start, piece.end)
    return data


def _groups(refs: Sequence[BatchRef]) -> Iterator[list[BatchRef]]:
    """Consecutive batches of one run, in groups that are read together."""
    group: list[BatchRef] = []
    for ref in refs:
        if group and ref.position + ref.length - group[0].position > WHOLE_BYTES_MAX:
            yield group
            group = []
        group.append(ref)
    if group:
        yield group


def _decode(
    data: bytes, start: int, group: Sequence[BatchRef], index: Index, columns: Columns, place: Place
) -> Iterator[Decoded]:
    view = memoryview(data)
    for ref in group:
        at = ref.position - start
        yield decode_batch(view[at : at + ref.length], ref, index, columns, place=place)
