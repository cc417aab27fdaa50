"""Arrow batches of a range, with partition and offset: the results of `log.scan` and `log.read`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from spark_log.client.reading.erased_since import ErasedSince, view_was_erased_from
from spark_log.client.reading.fetch import Fetched, fetch
from spark_log.client.reading.plan import REPLAN_TRIES, OffsetRange, SliceRead, plan_reads
from spark_log.client.reading.prune import columns_to_read, only_matching
from spark_log.client.reading.request_ahead import ALONE, Coming, RequestAhead, asked_ahead
from spark_log.client.validate import several
from spark_log.conditions import EVERYTHING, Condition, Window
from spark_log.errors import ConcurrentChange, InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.journal.read_failover import NOT_READ, CopiesAway
from spark_log.metadata.restores import common_end
from spark_log.metadata.state import State
from spark_log.schema.names import is_prefixed, stored_name
from spark_log.schema.topic_schema import shown_columns
from spark_log.segment.numpy_arrays import array_of, repeated
from spark_log.segment.schema import RECORD_SCHEMA_HEADERS
from spark_log.segment.value_read import ValueRead, column_type, wants_data
from spark_log.settings import has_cleanup_policy

SCAN_SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), *RECORD_SCHEMA_HEADERS]
)
"""topic, partition, offset, key, value, timestamp, headers."""

RECORD_COLUMNS = tuple(RECORD_SCHEMA_HEADERS.names)


def scan_schema(columns: Sequence[str] | None, value: ValueRead | None = None) -> pa.Schema:
    """The schema of a scan for `columns`, in their order; all columns for None.  Raises InvalidRequest.

    value:  how a topic with a schema is read; None: as bytes.
    """
    known = SCAN_SCHEMA if value is None else _typed_schema(value)
    if columns is None:
        return known
    columns = several("columns", columns)
    unknown = [name for name in columns if name not in known.names]
    if unknown:
        hint = "; set value_format to struct or json for the column value" if "value" in unknown else ""
        raise InvalidRequest(f"unknown columns {unknown}: expected some of {', '.join(known.names)}{hint}")
    return pa.schema([known.field(name) for name in columns])


def _typed_schema(value: ValueRead) -> pa.Schema:
    at = SCAN_SCHEMA.get_field_index("value")
    struct = [pa.field("value", column_type("value", value))]
    data = struct if value.as_struct else list(shown_columns(value.schema))
    return pa.schema([*list(SCAN_SCHEMA)[:at], *data, *list(SCAN_SCHEMA)[at + 1 :]])


def is_data_wanted(schema: pa.Schema, value: ValueRead | None, where: Condition) -> bool:
    """Whether a scan has data columns, or the struct of them, or a condition on them."""
    return wants_data(columns_to_read(record_columns(schema, value), where), value)


def record_columns(schema: pa.Schema, value: ValueRead | None = None) -> list[str]:
    """The stored names of those columns of a scan that are read from runs."""
    found = []
    for name in schema.names:
        if name in RECORD_COLUMNS:
            found.append(name)
        elif value is not None and name not in SCAN_SCHEMA.names:
            found.append(name if is_prefixed(name) else stored_name(name))
    return found


def fetch_ranges(
    journal: Journal,
    reads: Sequence[SliceRead],
    columns: Sequence[str] | None,
    window: Window | None = None,
    *,
    latest: bool = False,
    rack: str = "",
    value: ValueRead | None = None,
    ahead: RequestAhead = ALONE,
    erased: ErasedSince | None = None,
) -> Iterator[Fetched]:
    """The records of planned reads.  If an object was replaced, or records were erased, the rest is planned again.

    Raises ConcurrentChange then, if the log was restored from a copy that lacks some of them.

    latest:  True for a view of the latest records.  Then raises ConcurrentChange if `check_not_compacted` does.
    rack:    the reader's rack; "": the rack of the process.
    value, ahead:  as for `fetch`.  A consumer, which has `ahead`, notices a restore itself.
    erased:  made when the reads were planned; None: they were planned just now.
    """
    asked = asked_ahead(journal.objects_near(rack), reads, window, ahead=ahead)
    erased = erased or ErasedSince(journal)
    history = erased.history if ahead is ALONE else None
    how = _How(columns, window, value, ahead, rack, latest, erased, history)
    return _fetch_all(journal, asked, how)


def fetch_asked(
    journal: Journal,
    asked: Iterable[tuple[SliceRead, Coming | None]],
    columns: Sequence[str] | None,
    rack: str = "",
) -> Iterator[Fetched]:
    """`fetch_ranges` of reads that were planned just now and may have been requested, for a consumer."""
    return _fetch_all(journal, asked, _How(columns, None, None, ALONE, rack, False, ErasedSince(journal)))


def _fetch_all(journal: Journal, asked: Iterable[tuple[SliceRead, Coming | None]], how: _How) -> Iterator[Fetched]:
    for read, coming in asked:
        yield from _fetch(journal, read, how, REPLAN_TRIES, coming)


class _How(NamedTuple):
    """The arguments of `fetch_ranges`."""

    columns: Sequence[str] | None
    window: Window | None
    value: ValueRead | None
    ahead: RequestAhead
    rack: str
    latest: bool
    erased: ErasedSince
    history: str | None = None
    """The history of the log in the plan; None: the caller notices a restore."""


def _fetch(journal: Journal, read: SliceRead, how: _How, tries: int, coming: Coming | None = None) -> Iterator[Fetched]:
    at, store = read.start, journal.objects_near(how.rack)
    try:
        for part in fetch(store, read, how.columns, how.window, coming, how.value, how.ahead):
            if how.erased.has(read.topic_id):
                break
            yield part
            at = part.end
        else:
            return
        if how.latest:
            raise view_was_erased_from(read.topic)
        how = how._replace(erased=ErasedSince(journal))
    except NOT_READ as error:
        if not tries:
            raise
        if isinstance(error, CopiesAway):
            tries = 1  # the newest state may name another object; each further try could wait for hung roots
        if how.latest:
            journal.require(None)
            check_not_compacted(journal.refresh(), read)
        else:
            journal.refresh()
        tries -= 1
    if how.history is not None:
        check_not_restored(journal.state, how.history, read)
    rest = OffsetRange(read.topic, read.topic_id, read.partition, at, read.end)
    for again in plan_reads(journal, [rest], how.window):
        yield from _fetch(journal, again, how, tries)


def check_not_restored(state: State, history: str, read: SliceRead) -> None:
    """Raises ConcurrentChange if a read cannot be planned again: other records have some of its offsets in this state.

    history:  that of the log by which the records before, and those of other reads, were read.
    """
    end = common_end(state, history, (read.topic_id, read.partition))
    if end is not None and end < read.end:
        raise ConcurrentChange(
            f"the log was restored from a copy while {read.topic}-{read.partition} was read: the copy ended at offset "
            f"{end}, and from there on it has other records than those that were read before; read it again"
        )


def check_not_compacted(state: State, read: SliceRead) -> None:
    """Raise ConcurrentChange if a view of the latest records cannot be planned again after an object is gone.

    A view shows one version.  Compaction may have removed one of its records, because a later version has a newer
    record of the key.  The check does not depend on the topic's current policy: `state.cleaned` keeps where compaction
    passes have ended.

    state:  the state with all topics.
    """
    topic = state.topics.get(read.topic_id)
    was_compacted = (read.topic_id, read.partition) in state.cleaned
    if was_compacted or (topic is not None and has_cleanup_policy(topic.configs, "compact")):
        raise ConcurrentChange(
            f"{read.topic}-{read.partition} was compacted while the latest records of each key were read, and its earlier "
            "objects are deleted; run the query again"
        )


def scan_batches(
    journal: Journal,
    reads: Sequence[SliceRead],
    schema: pa.Schema,
    where: Condition = EVERYTHING,
    value: ValueRead | None = None,
) -> Iterator[pa.RecordBatch]:
    """The matching records of planned reads, as batches of `schema`, which is one of `scan_schema` or a part of it."""
    wanted = columns_to_read(record_columns(schema, value), where)
    return _matching(fetch_ranges(journal, reads, wanted, where.window, value=value), schema, where)


def _matching(parts: Iterable[Fetched], schema: pa.Schema, where: Condition) -> Iterator[pa.RecordBatch]:
    for part in parts:
        batch = only_matching(to_batch(part, schema), part, where)
        if batch.num_rows:
            yield batch


def to_batch(part: Fetched, schema: pa.Schema) -> pa.RecordBatch:
    """Fetched records as a batch with the columns of `schema`.  Headers are null if a run has none.

    `schema` names data columns as frames do; `part` names them as they are stored.
    """
    rows = part.records.num_rows
    made = {
        "topic": lambda: repeated(part.read.topic, rows),
        "partition": lambda: repeated(part.read.partition, rows),
        "offset": lambda: array_of(part.offset_array(), pa.int64()),
    }
    there = part.records.schema.names
    names = {field.name: field.name if field.name in there else stored_name(field.name) for field in schema}
    columns = [made[field.name]() if field.name in made else part.records.column(names[field.name]) for field in schema]
    if not columns:  # Arrow takes the number of rows from the columns: without one, it would be 0
        return part.records.select([])
    return pa.RecordBatch.from_arrays(columns, schema=schema)
