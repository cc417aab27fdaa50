"""Arrow batches of a range, with partition and offset: the results of `log.scan` and `log.read`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_log.client.reader.erased_since import ErasedSince
from spark_log.client.reader.fetch import Fetched, fetch
from spark_log.client.reader.plan import OffsetRange, SliceRead, plan_reads
from spark_log.client.reader.plan_again import NotRead, read_planned
from spark_log.client.reader.prune import columns_to_read, only_matching
from spark_log.client.reader.request_ahead import ALONE, Coming, RequestAhead, asked_ahead
from spark_log.client.validate import several
from spark_log.conditions import EVERYTHING, Condition, Window
from spark_log.configs.settings import has_cleanup_policy
from spark_log.errors import ConcurrentChange, InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.metadata.set_backs import Lineage, end_since
from spark_log.metadata.state import State
from spark_log.schema.names import is_prefixed, stored_name
from spark_log.schema.topic_schema import shown_columns
from spark_log.segment.arrays.numpy_arrays import array_of, repeated
from spark_log.segment.schema import RECORD_SCHEMA_HEADERS
from spark_log.segment.value_read import ValueRead, column_type, wants_data

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
    lineage = erased.lineage if ahead is ALONE else None
    return _read_all(asked, _JournalReads(journal, columns, window, value, ahead, rack, latest, erased, lineage))


def fetch_asked(
    journal: Journal,
    asked: Iterable[tuple[SliceRead, Coming | None]],
    columns: Sequence[str] | None,
    rack: str = "",
) -> Iterator[Fetched]:
    """`fetch_ranges` of reads that were planned just now and may have been requested, for a consumer."""
    return _read_all(asked, _JournalReads(journal, columns, None, None, ALONE, rack, False, ErasedSince(journal)))


def _read_all(asked: Iterable[tuple[SliceRead, Coming | None]], source: _JournalReads) -> Iterator[Fetched]:
    for read, coming in asked:
        yield from read_planned(source, read, coming)


@dataclass(frozen=True, slots=True)
class _JournalReads:
    """The arguments of `fetch_ranges`, as a `ReadSource`."""

    journal: Journal
    columns: Sequence[str] | None
    window: Window | None
    value: ValueRead | None
    ahead: RequestAhead
    rack: str
    latest: bool
    erased: ErasedSince
    lineage: Lineage | None = None
    """The lineage of the log that was planned; None: the caller notices a restore."""

    def fetch(self, read: SliceRead, coming: Coming | None) -> Iterator[Fetched]:
        store = self.journal.objects_near(self.rack)
        return fetch(store, read, self.columns, self.window, coming, self.value, self.ahead)

    def was_erased(self, topic_id: str) -> bool:
        return self.erased.has(topic_id)

    def plan_again(self, rest: SliceRead, error: NotRead | None) -> tuple[_JournalReads, list[SliceRead]]:
        if error is not None:
            if self.latest:
                self.journal.require(None)
            self.journal.refresh()
        state = self.journal.state
        if self.lineage is not None:
            check_not_restored(state, self.lineage, rest)
        offsets = OffsetRange(rest.topic, rest.topic_id, rest.partition, rest.start, rest.end)
        later = self if error is not None else replace(self, erased=ErasedSince(self.journal))
        reads = plan_reads(self.journal, [offsets], self.window)
        if self.latest:
            check_not_compacted(state, rest, reads)
        return later, reads


def check_not_restored(state: State, lineage: Lineage, read: SliceRead) -> None:
    """Raises ConcurrentChange if a read cannot be planned again: other records have some of its offsets in this state.

    lineage:  that of the log by which the records before, and those of other reads, were read.
    """
    end = end_since(state, lineage, (read.topic_id, read.partition))
    if end is not None and end.offset < read.end:
        raise ConcurrentChange(
            f"{read.topic}-{read.partition} cannot be read on: {end.text(read.end)}, the end of this read; read it again"
        )


def check_not_compacted(state: State, read: SliceRead, again: Sequence[SliceRead]) -> None:
    """Raise ConcurrentChange if a view of the latest records cannot be planned again after an object is gone.

    A view shows one version.  Compaction may have removed one of its records, because a later version has a newer
    record of the key.  The check does not depend on the topic's current policy: `state.cleaned` keeps where compaction
    passes have ended.  It passes if the log still names the same object, which is missing then.

    state:  the state with all topics.
    again:  the reads that this state has for the same offsets.
    """
    if again and all(new.slice.object == read.slice.object for new in again):
        return
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
