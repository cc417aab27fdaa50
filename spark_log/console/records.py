"""Records for the console: pages of a topic, and a search.

A request reads a limited amount of data for a limited time.
Pages go through the partitions side by side.  A cursor is the offset of each partition at which a page continues.
"""

from __future__ import annotations

import base64
import time
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

import pyarrow as pa

from spark_log.client.log import Log
from spark_log.client.reader.plan import OffsetRange, SliceRead, chunks, plan_reads
from spark_log.client.reader.positions_to_offsets import partition_of, partitions_of, resolve
from spark_log.client.reader.scan_batches import RECORD_COLUMNS, SCAN_SCHEMA, fetch_ranges, to_batch
from spark_log.console.filters import Query, matching_rows
from spark_log.errors import InvalidRequest
from spark_log.metadata.records import Piece
from spark_log.metadata.state import Partition, State
from spark_log.model import Slice, TopicPartition
from spark_log.positions import At, Latest, Position
from spark_log.text import json_bytes

PAGE_MAX = 200
"""Records of a page."""
PAGE_BYTES_MAX = 16 << 20
"""Data that a page decodes."""
SEARCH_BYTES_MAX = 128 << 20
"""Data that one request of a search decodes; the next one continues."""
PARSED_MAX = 50_000
"""Values that a request parses for a field: Python does it, while a coordinator has other work."""
WINDOW_BYTES, WINDOW_RECORDS = 4 << 20, 8192
"""A search from the newest record on reads a partition in pieces of about this size, the last one first."""
READ_S = 4.0
"""How long a request reads; a batch that it has begun is completed."""
BATCH_BYTES_MAX = 64 << 20
"""A larger batch of records is not decoded."""
SHOWN_BYTES = 8 << 10
"""Bytes of a key, a value or a header on a page."""
WHOLE_BYTES = 1 << 20
"""Bytes of a key, a value or a header if one record is asked for."""
HEADERS_MAX = 100
COMPRESSED, CURSOR_CHARS_MAX, CURSOR_BYTES_MAX = "z", 2000, 1 << 20
"""A longer cursor is compressed, and begins with this; and its largest size without that."""
NEVER_US = -(1 << 63)
"""Before any record."""

Cursor = Mapping[int, int]
"""An offset by partition."""


class Budget:
    """The amount that a request may still read."""

    def __init__(self, size: float, seconds: float = READ_S) -> None:
        self._left = size
        self._until_s = time.monotonic() + seconds
        self.records = 0
        self.bytes = 0
        self.parsed = 0
        """Values that were parsed for a field."""

    def note(self, batch: pa.RecordBatch) -> None:
        self.records += batch.num_rows
        self.bytes += batch.nbytes

    @property
    def is_spent(self) -> bool:
        return self.bytes >= self._left or self.parsed >= PARSED_MAX or time.monotonic() >= self._until_s


def newest(log: Log, topic: str, partitions: Sequence[int], before: Cursor | None, limit: int) -> dict[str, Any]:
    """The last records of each partition, before a cursor or the end."""
    state = log.journal.refresh()
    parts = _parts(state, topic, partitions)
    ends = {
        n: min(max((before or {}).get(n, part.readable_end), part.start), part.readable_end)
        for n, part in parts.items()
    }
    left_of = {number: part for number, part in parts.items() if part.start < ends[number]}
    each, asked = -(-limit // max(1, len(left_of))), _latest(left_of, ends, limit)
    starts = {n: max(parts[n].start, end - each) if n in asked else end for n, end in ends.items()}
    budget, rows = Budget(PAGE_BYTES_MAX), list[dict[str, Any]]()
    for number in asked:
        if budget.is_spent:
            starts[number] = ends[number]  # the next page of older records begins here
            continue
        batches, starts[number] = _tail(log, state, topic, number, starts[number], ends[number], budget)
        rows += [row for batch in batches for row in _shown(batch)]
    rows.sort(key=_order, reverse=True)
    return _page(
        state.names[topic],
        rows,
        budget,
        {"older": starts, "newer": ends},
        parts,
        any(starts[n] > parts[n].start for n in parts),
    )


def _latest(parts: Mapping[int, Partition], ends: Cursor, limit: int) -> set[int]:
    """The partitions of a page: at most `limit`, those with the latest records before these offsets."""
    times = {number: _time_before(part, ends[number]) for number, part in parts.items()}
    return set(sorted(parts, key=lambda number: -times[number])[:limit])


def _earliest(parts: Mapping[int, Partition], starts: Cursor, limit: int) -> set[int]:
    """The partitions of a page with the earliest records from these offsets on."""
    times = dict[int, int]()
    for number, part in parts.items():
        entry = next((entry for entry in part.entries if entry.end > starts[number]), None)
        times[number] = -NEVER_US if entry is None else _time_at(entry, starts[number])
    return set(sorted(parts, key=times.__getitem__)[:limit])


def _time_at(entry: Slice | Piece, offset: int) -> int:
    """About the time of a record of an entry, as if the times rose evenly: it may have the records of an hour."""
    first, last = entry.start, entry.end - 1
    place = min(max(offset, first), last) - first
    return entry.min_us + (entry.max_us - entry.min_us) * place // max(1, last - first)


def offsets_at(log: Log, topic: str, partitions: Sequence[int], position: Position) -> dict[int, int]:
    """The offset of a position in each partition, for pages that end there."""
    return _offsets(log, topic, _parts(log.journal.refresh(), topic, partitions), position)


def following(
    log: Log,
    topic: str,
    partitions: Sequence[int],
    start: Position | Cursor,
    limit: int,
    query: Query,
    until: Position | None = None,
) -> dict[str, Any]:
    """The first records of each partition from a position or a cursor on; with a query, those that match.

    until:  the end of the range; None: the end of the partitions.
    """
    state = log.journal.refresh()
    parts = _parts(state, topic, partitions)
    starts = dict(_offsets(log, topic, parts, start))
    ends = _offsets(log, topic, parts, Latest() if until is None else until)
    ends = {number: max(end, starts[number]) for number, end in ends.items()}
    budget = Budget(PAGE_BYTES_MAX if query.is_empty else SEARCH_BYTES_MAX)
    left_of = {number: part for number, part in parts.items() if starts[number] < ends[number]}
    each = -(-limit // max(1, len(left_of))) if query.is_empty else limit
    rows, at = list[dict[str, Any]](), dict(starts)
    for number in _earliest(left_of, starts, limit) if query.is_empty else parts:
        left = each if query.is_empty else limit - len(rows)
        end = min(ends[number], at[number] + left) if query.is_empty else ends[number]
        for found, upto in _read(log, state, topic, number, at[number], end, budget):
            kept, at[number] = _matching(found, upto, query, left, budget)
            rows += kept
            left -= len(kept)
            if left <= 0 or budget.is_spent:
                break
        if not query.is_empty and (left <= 0 or budget.is_spent):
            break
    rows.sort(key=_order)
    more = any(at[number] < end for number, end in ends.items())
    return _page(state.names[topic], rows, budget, {"older": starts, "newer": at}, parts, more)


def newest_matching(
    log: Log, topic: str, partitions: Sequence[int], before: Cursor | None, limit: int, query: Query
) -> dict[str, Any]:
    """The last records that match, before a cursor or the end.  The partition with the latest records is read first."""
    state = log.journal.refresh()
    parts = _parts(state, topic, partitions)
    ends = {
        n: min(max((before or {}).get(n, part.readable_end), part.start), part.readable_end)
        for n, part in parts.items()
    }
    budget, rows, at = Budget(SEARCH_BYTES_MAX), list[dict[str, Any]](), dict(ends)
    queue = [(-_time_before(part, at[n]), n) for n, part in parts.items() if part.start < at[n]]
    heapify(queue)
    while queue and len(rows) < limit and not budget.is_spent:
        number = heappop(queue)[1]
        part = parts[number]
        start = _window_start(part, at[number])
        batches, start = _tail(log, state, topic, number, start, at[number], budget)
        found, at[number] = _last_matching(batches, start, query, limit - len(rows), budget)
        rows += found
        if part.start < at[number]:
            heappush(queue, (-_time_before(part, at[number]), number))
    rows.sort(key=_order, reverse=True)
    return _page(state.names[topic], rows, budget, {"older": at, "newer": ends}, parts, bool(queue))


def _entry_before(part: Partition, end: int) -> Slice | Piece | None:
    """The last entry with records before an offset."""
    place = bisect_left(part.entries, end, key=lambda entry: entry.start)
    return part.entries[place - 1] if place else None


def _time_before(part: Partition, end: int) -> int:
    """About the time of the last record before an offset."""
    entry = _entry_before(part, end)
    return NEVER_US if entry is None else _time_at(entry, end - 1)


def _window_start(part: Partition, end: int) -> int:
    """Where the piece begins that a search reads before an offset."""
    entry = _entry_before(part, end)
    if entry is None or entry.end < end:  # offsets that compaction has removed
        return part.start if entry is None else entry.end
    size = entry.bytes if isinstance(entry, Piece) else entry.length
    records = WINDOW_BYTES * (entry.end - entry.start) // max(1, size)
    return max(entry.start, part.start, end - min(max(1, records), WINDOW_RECORDS))


def one(log: Log, topic: str, partition: int, offset: int) -> dict[str, Any] | None:
    """A record, with larger limits; None if there is none at this offset."""
    state = log.journal.refresh()
    part = partition_of(state, TopicPartition(topic, partition))[1]
    if not part.start <= offset < part.readable_end:
        return None
    found = _read(log, state, topic, partition, offset, offset + 1, Budget(WHOLE_BYTES))
    rows = [row for batch, _ in found for row in _shown(batch, WHOLE_BYTES)]
    return rows[0] if rows else None


def _parts(state: State, topic: str, partitions: Sequence[int]) -> dict[int, Partition]:
    tps = [TopicPartition(topic, number) for number in partitions] or partitions_of(state, topic)
    return {tp.partition: partition_of(state, tp)[1] for tp in tps}


def _offsets(log: Log, topic: str, parts: Mapping[int, Partition], start: Position | Cursor) -> dict[int, int]:
    """An offset outside of a partition is replaced by its first or its end."""
    if isinstance(start, Latest):
        return {number: part.readable_end for number, part in parts.items()}
    if isinstance(start, Mapping):
        wanted: Mapping[int, int] = start
    elif isinstance(start, At):
        wanted = dict.fromkeys(parts, start.offset)
    else:
        found = resolve(log.journal, {TopicPartition(topic, number): start for number in parts})
        wanted = {tp.partition: offset for tp, offset in found.items()}
    return {n: min(max(wanted.get(n, part.start), part.start), part.readable_end) for n, part in parts.items()}


def _read(
    log: Log, state: State, topic: str, partition: int, start: int, end: int, budget: Budget
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Records [start, end), and the offset to continue at.

    Planned entry by entry, so that a long range costs no more than what is read of it.
    """
    (topic_id, _), part = partition_of(state, TopicPartition(topic, partition))
    for chunk in chunks(part, start, end):
        wanted = OffsetRange(topic, topic_id, partition, chunk.start, chunk.end)
        for read in plan_reads(log.journal, [wanted], state=state):
            if budget.is_spent:
                return
            _check_size(read)
            for found in fetch_ranges(log.journal, [read], RECORD_COLUMNS):
                batch = to_batch(found, SCAN_SCHEMA)
                budget.note(batch)
                yield batch, found.end


def _tail(
    log: Log, state: State, topic: str, partition: int, start: int, end: int, budget: Budget
) -> tuple[list[pa.RecordBatch], int]:
    """The last records of [start, end), at most one batch more than `PAGE_BYTES_MAX`, and the offset of the first."""
    while True:
        window, found = Budget(PAGE_BYTES_MAX, inf), list[tuple[pa.RecordBatch, int]]()
        for read in _read(log, state, topic, partition, start, end, window):
            found.append(read)
            if window.is_spent:
                break
        budget.records, budget.bytes = budget.records + window.records, budget.bytes + window.bytes
        if not window.is_spent or found[-1][1] >= end or end - start < 2:
            return [batch for batch, _ in found], start
        start = end - max(1, min((end - start) // 2, window.records - 1))


def _check_size(read: SliceRead) -> None:
    """Raises InvalidRequest for batches that are too large to decode beside other work."""
    size = read.slice.length // max(1, read.slice.batches)
    if size > BATCH_BYTES_MAX:
        raise InvalidRequest(
            f"offset {read.start} of {read.topic}-{read.partition} is in a batch of {size:,} bytes, more than the console "
            f"reads: use `pylog consume {read.topic} -p {read.partition} -o {read.start} -n 1`"
        )


def _matching(
    batch: pa.RecordBatch, upto: int, query: Query, limit: int, budget: Budget
) -> tuple[list[dict[str, Any]], int]:
    """At most `limit` records that match, and the offset to continue at.

    upto:  the offset after the batch.
    """
    if query.is_empty:
        return _shown(batch), upto
    rows, parsed = matching_rows(batch, query)
    budget.parsed += parsed
    if len(rows) > limit:
        rows, upto = rows[:limit], batch.column("offset")[int(rows[limit])].as_py()
    return _shown(batch.take(pa.array(rows))), upto


def _last_matching(
    batches: Sequence[pa.RecordBatch], start: int, query: Query, limit: int, budget: Budget
) -> tuple[list[dict[str, Any]], int]:
    """The last `limit` records that match, newest first, and the offset before which to continue.

    start:  the offset of the first batch.
    """
    rows = list[dict[str, Any]]()
    for batch in reversed(batches):
        found, parsed = matching_rows(batch, query)
        budget.parsed += parsed
        rows += _shown(batch.take(pa.array(found[-(limit - len(rows)) :])))[::-1]
        if len(rows) >= limit:
            return rows, int(rows[-1]["offset"])
    return rows, start


def _shown(batch: pa.RecordBatch, limit: int = SHOWN_BYTES) -> list[dict[str, Any]]:
    names = ("partition", "offset", "key", "value", "headers")
    columns = [batch.column(name).to_pylist() for name in names]
    times = batch.column("timestamp").cast("int64").to_pylist()
    return [
        {
            "partition": partition,
            "offset": offset,
            "timestamp": micros // 1000,
            "key": _bytes(key, limit),
            "value": _bytes(value, limit),
            "headers": [
                [_bytes(header["key"].encode(), limit), _bytes(header["value"], limit)]
                for header in (headers or ())[:HEADERS_MAX]
            ],
        }
        for partition, offset, key, value, headers, micros in zip(*columns, times, strict=True)
    ]


def _bytes(value: bytes | None, limit: int) -> dict[str, Any] | None:
    """A text or `base64`, the size, and whether it was cut."""
    if value is None:
        return None
    head = value[:limit]
    if len(value) > limit:
        head = _without_part_of_a_letter(head)
    found = json_bytes(head)
    return {
        **(found if isinstance(found, dict) else {"text": found}),
        "bytes": len(value),
        "cut": len(head) < len(value),
    }


def _without_part_of_a_letter(text: bytes) -> bytes:
    """UTF-8 that was cut in the middle of a letter, without this letter."""
    for size in range(4):
        try:
            text[: len(text) - size].decode()
        except UnicodeDecodeError:
            continue
        return text[: len(text) - size]
    return text


def _order(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return row["timestamp"], row["partition"], row["offset"]


def _page(
    topic_id: str,
    rows: list[dict[str, Any]],
    budget: Budget,
    at: dict[str, Cursor],
    parts: Mapping[int, Partition],
    more: bool,
) -> dict[str, Any]:
    return {
        "topic_id": topic_id,
        "records": rows,
        "read_records": budget.records,
        "read_bytes": budget.bytes,
        "total": sum(part.readable_end - part.start for part in parts.values()),
        **{name: format_cursor(cursor) for name, cursor in at.items()},
        "more": more,
    }


def format_cursor(cursor: Cursor) -> str:
    """`0:123,1:456`; of many partitions compressed, because it is part of an address."""
    text = ",".join(f"{number}:{offset}" for number, offset in cursor.items())
    if len(text) < CURSOR_CHARS_MAX:
        return text
    return COMPRESSED + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()


def _decompressed(text: str) -> str:
    try:
        data = base64.urlsafe_b64decode(text.removeprefix(COMPRESSED))
        return zlib.decompressobj().decompress(data, CURSOR_BYTES_MAX).decode()
    except (ValueError, zlib.error):
        return ""


def parse_cursor(text: str) -> dict[int, int]:
    """The inverse of `format_cursor`.  Raises InvalidRequest."""
    given, text = text, _decompressed(text) if text.startswith(COMPRESSED) else text
    pairs = [one.partition(":") for one in text.split(",")]
    if not all(one.isdecimal() and len(one) < 19 for number, _, offset in pairs for one in (number, offset)):
        raise InvalidRequest(f"cursor: {given[:80]!r} is not of the form 0:123,1:456")
    return {int(number): int(offset) for number, _, offset in pairs}
