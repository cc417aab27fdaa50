"""Requests to remote storage that a reader sends before it needs the answers.

Small slices that are near each other in one object share a request, a whole slice of up to 8 MiB takes one, and for
others the index of their object is requested.  The requests of a reader that ends early are taken back.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias
from weakref import WeakSet

from spark_log.client.reader.plan import SliceRead
from spark_log.conditions import Window
from spark_log.model import Slice
from spark_log.store.base import ObjectStore

WHOLE_BYTES_MAX = 1 << 20
"""A run up to this size is read in one request."""
REQUESTS_AHEAD = 8
"""Requests for small slices, and for indexes of objects, that are in flight."""
BLOCK_BYTES_MAX = 4 << 20
"""Small slices that are requested together, in one request if they are near each other.  A reader holds twice as much:
the block that it decodes, and the next one."""
OBJECT_COST = 4 << 10
"""Bytes that an object counts at least in such a block: a block of slices of some bytes would be thousands of requests.
"""
GAP_BYTES_MAX = 256 << 10
"""Bytes between two slices that are read and discarded: at 50 MB/s they take 5 ms, less than another request."""
INDEXES_MAX = 16
"""Indexes that a reader keeps: an object with slices of several partitions is read again and again."""
POOLS_MAX = 16
"""Stores with separate threads, those that were read last."""
GROUP_BYTES_MAX = {"local": 1 << 20, "remote": 8 << 20}
"""Adjacent batches are read together up to this size."""
GROUPS_AHEAD = 4
"""Groups of batches that are requested concurrently, of one slice or of several: a task holds four times 8 MiB."""


class RequestAhead(NamedTuple):
    """How much a reader of remote storage requests before it needs it."""

    group_bytes: int = GROUP_BYTES_MAX["remote"]
    groups: int = GROUPS_AHEAD
    block_bytes: int = BLOCK_BYTES_MAX


ALONE = RequestAhead()


def ahead_of(readers: int) -> RequestAhead:
    """For one of several readers that hold what they requested at the same time, such as a consumer's partitions.

    Together they hold as much as one alone, but each at least a group of 1 MiB or a block of 256 KiB, and the next one.
    """
    share = ALONE.groups * ALONE.group_bytes // max(readers, 1)
    groups = min(max(share // WHOLE_BYTES_MAX, 1), ALONE.groups)
    group_bytes = min(max(share // ALONE.groups, WHOLE_BYTES_MAX), ALONE.group_bytes)
    return RequestAhead(group_bytes, groups, min(max(share // ALONE.groups, GAP_BYTES_MAX), ALONE.block_bytes))


class Coming(NamedTuple):
    """Bytes that were requested in the background."""

    wait: Callable[[], bytes]
    whole: bool
    """They are the slice; False: the index of its object."""
    sent: SentRequest
    """Other slices may share it."""


Begun: TypeAlias = dict[tuple[str, int], Coming]
"""Requests that were sent, by the object and position of their slice.  The reader takes them out, so that their bytes
are not kept.
"""


def begin(store: ObjectStore, reads: Sequence[SliceRead], window: Window | None = None) -> Begun:
    """Request the first block of `reads` from remote storage, for `asked_ahead`.

    It is called before the caller knows which of these reads it needs.
    """
    block = [] if store.local else next(_blocks(reads, window, ALONE), [])
    found = _Requests(store, window).of(block)
    return {_place(read): coming for read, coming in zip(block, found, strict=True) if coming is not None}


def asked_ahead(
    store: ObjectStore,
    reads: Sequence[SliceRead],
    window: Window | None = None,
    begun: Begun | None = None,
    ahead: RequestAhead = ALONE,
) -> Iterator[tuple[SliceRead, Coming | None]]:
    """Yield planned reads, each with bytes that were requested ahead; None if none were.

    They are the slice, if it fits into one request and all of it is read.  Otherwise they are its object's index, which
    is fetched once.

    Remote storage is read in blocks: the next block is requested in the background.  So a range of many slices does not
    wait for each of them in turn.

    window, ahead:  those of `fetch`.
    begun:          requests for these reads that were sent earlier.
    """
    if store.local or (len(reads) < 2 and not begun):
        yield from ((read, None) for read in reads)
        return
    requests, asked = _Requests(store, window, ahead, begun), deque[tuple[list[SliceRead], list[Coming | None]]]()
    try:
        for block in _blocks(reads, window, ahead):
            asked.append((block, requests.of(block)))
            if len(asked) > 1:
                yield from zip(*asked.popleft(), strict=True)
        for pair in asked:
            yield from zip(*pair, strict=True)
    except GeneratorExit:
        requests.cancel()
        raise


def asked_together(store: ObjectStore, reads: Sequence[SliceRead]) -> list[tuple[SliceRead, Coming | None]]:
    """The first block of the reads, requested now, for readers that do not take them in this order."""
    block = next(_blocks(reads, None, ALONE), [])
    return list(zip(block, _Requests(store).of(block), strict=True))


def _blocks(reads: Sequence[SliceRead], window: Window | None, ahead: RequestAhead) -> Iterator[list[SliceRead]]:
    """The reads in order: so many that small slices have `block_bytes`, or else half of `groups` whole slices or
    `REQUESTS_AHEAD` indexes.
    """
    block, objects, size = list[SliceRead](), set[str](), 0
    for read in reads:
        if is_small(read.slice):
            cost = max(read.slice.length, 0 if read.slice.object in objects else OBJECT_COST)
        else:
            cost = ahead.block_bytes // (max(ahead.groups // 2, 1) if is_group(read, window, ahead) else REQUESTS_AHEAD)
        if block and size + cost > ahead.block_bytes:
            yield block
            block, objects, size = [], set(), 0
        block.append(read)
        objects.add(read.slice.object)
        size += cost
    if block:
        yield block


class _Requests:
    """Requests in the background for one reader."""

    def __init__(
        self,
        store: ObjectStore,
        window: Window | None = None,
        ahead: RequestAhead = ALONE,
        begun: Begun | None = None,
    ) -> None:
        self._store, self._window, self._ahead, self._begun = store, window, ahead, {} if begun is None else begun
        self._sent = WeakSet(coming.sent for coming in self._begun.values())
        """Those that wait for a thread, or whose bytes are still held."""
        self._indexes: OrderedDict[str, SentRequest] = OrderedDict()

    def cancel(self) -> None:
        """Forget the requests that wait for a thread: other readers of this process need the threads."""
        for one in tuple(self._sent):
            one.cancel()

    def of(self, reads: Sequence[SliceRead]) -> list[Coming | None]:
        """For each read, the bytes that `fetch` needs first; None if it is to request them itself."""
        found = [self._begun.pop(_place(read), None) for read in reads]
        left = [number for number, coming in enumerate(found) if coming is None]
        for span in _spans(reads, [number for number in left if is_small(reads[number].slice)]):
            sent = self._send(span.object, span.start, span.end)
            for number in span.reads:
                found[number] = Coming(partial(_part, sent, reads[number].slice, span.start), whole=True, sent=sent)
        for number in left:
            if found[number] is None:
                found[number] = self._of_larger(reads[number])
        return found

    def _of_larger(self, read: SliceRead) -> Coming | None:
        piece = read.slice
        if is_group(read, self._window, self._ahead):
            sent = self._send(piece.object, piece.position, piece.position + piece.length)
            return Coming(sent.wait, whole=True, sent=sent)
        if piece.batches == 1:
            return None
        sent = self._index(read)
        return Coming(sent.wait, whole=False, sent=sent)

    def _index(self, read: SliceRead) -> SentRequest:
        name = read.slice.object
        if name not in self._indexes:
            self._indexes[name] = self._send(name, read.index_position, read.object_size)
        self._indexes.move_to_end(name)
        if len(self._indexes) > INDEXES_MAX:
            self._indexes.popitem(last=False)
        return self._indexes[name]

    def _send(self, name: str, start: int, end: int) -> SentRequest:
        sent = SentRequest(self._store, name, start, end)
        self._sent.add(sent)
        return sent


class SentRequest:
    """A request in a thread.  A forked child does not have the thread, and makes it again when it needs the bytes."""

    def __init__(self, store: ObjectStore, name: str, start: int, end: int) -> None:
        self._get, self._pid = partial(store.get, name, start, end), os.getpid()
        self._answer = fetch_pool(self._pid, store.url).submit(self._get)

    def wait(self) -> bytes:
        """The bytes.  Raises the errors of the store."""
        return self._answer.result() if self._pid == os.getpid() else self._get()

    def cancel(self) -> None:
        """Forget it, unless it has begun."""
        if self._pid == os.getpid():
            self._answer.cancel()


def _place(read: SliceRead) -> tuple[str, int]:
    return read.slice.object, read.slice.position


def is_small(piece: Slice) -> bool:
    return piece.length <= WHOLE_BYTES_MAX


def is_group(read: SliceRead, window: Window | None, ahead: RequestAhead) -> bool:
    """Whether a larger slice is read whole, and fits into one request."""
    return read.slice.length <= ahead.group_bytes and wants_all(read, window)


class _Span(NamedTuple):
    """A byte range of an object, and the numbers of the reads in it."""

    object: str
    start: int
    end: int
    reads: list[int]


def _spans(reads: Sequence[SliceRead], numbers: Sequence[int]) -> list[_Span]:
    """One request for slices that are near each other in an object; in the order of the first read of each."""
    spans: list[_Span] = []
    for number in sorted(numbers, key=lambda number: _place(reads[number])):
        name, start = _place(reads[number])
        end, last = start + reads[number].slice.length, spans[-1] if spans else None
        if last and last.object == name and start - last.end <= GAP_BYTES_MAX and end - last.start <= BLOCK_BYTES_MAX:
            last.reads.append(number)
            spans[-1] = last._replace(end=max(last.end, end))
        else:
            spans.append(_Span(name, start, end, [number]))
    return sorted(spans, key=lambda span: min(span.reads))


def _part(sent: SentRequest, piece: Slice, start: int) -> bytes:
    """A slice of a span: a copy, so that records of it do not keep the rest in memory."""
    at = piece.position - start
    return sent.wait()[at : at + piece.length]


def wants_all(read: SliceRead, window: Window | None) -> bool:
    """Whether every batch of the slice is read."""
    piece = read.slice
    within = window is None or (window.rows is None and window.start <= piece.min_us and piece.max_us < window.end)
    return within and (read.start, read.end) == (piece.start, piece.end)


@lru_cache(maxsize=POOLS_MAX)
def fetch_pool(pid: int, url: str) -> ThreadPoolExecutor:
    """One pool per process and store: Spark forks its workers, and threads do not survive a fork.  A store that hangs
    does not keep others from being read.
    """
    return ThreadPoolExecutor(REQUESTS_AHEAD, thread_name_prefix=f"pylog-fetch-{pid}")
