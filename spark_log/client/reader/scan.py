"""Reading a topic between two positions: `log.scan`, `log.read` and `log.plan`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_log.client.reader.plan import SliceRead, likely_pieces
from spark_log.client.reader.positions_to_offsets import partitions_of, ranges_between, resolve, resolve_starts
from spark_log.client.reader.prune import plan_matching
from spark_log.client.reader.scan_batches import is_data_wanted, scan_batches, scan_schema
from spark_log.client.reader.typed import bound_to_topic, check_formats, check_typed, fetched_as, value_read
from spark_log.client.validate import one_topic, several
from spark_log.conditions import Condition, as_condition
from spark_log.journal.index_reads import read_sound
from spark_log.journal.journal import Journal
from spark_log.metadata.groups.consumer_offsets import progress_of, progress_partitions, to_batch
from spark_log.metadata.state import State
from spark_log.model import PROGRESS_TOPIC, TopicPartition
from spark_log.positions import At, OfGroup, parse_position

PIECES_AHEAD = 32
"""Pieces of slice indexes that a plan reads while it refreshes the state, under the journal's lock."""


def scan(
    journal: Journal,
    topic: str,
    partitions: Sequence[int] | None,
    start: object,
    end: object,
    columns: Sequence[str] | None,
    where: str | Condition | None,
    value_format: str | None = None,
    value_parse: str | None = None,
) -> pa.RecordBatchReader:
    """Records between two positions as a stream of Arrow batches, partition by partition, in offset order.

    value_format, value_parse:  as for `value_read`.
    """
    condition = as_condition(where)
    check_formats(value_format, value_parse)
    if topic == PROGRESS_TOPIC:
        schema = scan_schema(columns)
        batches = iter([_scan_progress(journal, partitions, start, end, schema, condition)])
        return pa.RecordBatchReader.from_batches(schema, batches)
    if columns is not None:
        columns = several("columns", columns)
    reads = plan_scan(journal, topic, partitions, start, end, condition)
    condition = bound_to_topic(journal.state, topic, condition)
    value = value_read(journal.state, topic, value_format, value_parse)
    schema = scan_schema(columns, value)
    value = fetched_as(journal.state, topic, value, condition, value_parse)
    if is_data_wanted(schema, value, condition):
        check_typed(journal.state, reads, value)
    return pa.RecordBatchReader.from_batches(schema, scan_batches(journal, reads, schema, condition, value))


def _scan_progress(
    journal: Journal,
    partitions: Sequence[int] | None,
    start: object,
    end: object,
    schema: pa.Schema,
    where: Condition,
) -> pa.RecordBatch:
    journal.require(None)
    progress, now_ms = progress_of(journal.refresh()), journal.context.clock.now_ms()
    first, last = parse_position(start, "start"), parse_position(end, "end")
    if isinstance(last, At):
        last = At(min(last.offset, progress.end))
    numbers = progress_partitions(partitions)
    starts, ends = (progress.offsets_of(dict.fromkeys(numbers, position), now_ms) for position in (first, last))
    return to_batch(progress.between(starts, ends, where.only_ranges()), schema)


def plan_scan(
    journal: Journal,
    topic: str,
    partitions: Sequence[int] | None,
    start: object,
    end: object,
    where: str | Condition | None,
) -> list[SliceRead]:
    """The parts of objects that a scan with the same arguments reads."""
    one_topic(topic)
    first, last, condition = parse_position(start, "start"), parse_position(end, "end"), as_condition(where)
    numbers = None if partitions is None else several("partitions", partitions)
    journal.require([topic], [position.name for position in (first, last) if isinstance(position, OfGroup)])
    likely = likely_pieces(journal.state, topic, numbers, first, last, condition.window)[:PIECES_AHEAD]
    state, known = journal.refresh_beside(read_sound(likely))
    condition = bound_to_topic(state, topic, condition)
    tps = partitions_of(state, topic) if numbers is None else [TopicPartition(topic, n) for n in numbers]
    starts = resolve_starts(journal, dict.fromkeys(tps, first))
    ends = _ends(resolve(journal, {tp: last for tp in tps if not isinstance(last, At)}), tps, last, state)
    return plan_matching(journal, ranges_between(journal.state, starts, ends), condition, known)


def _ends(
    found: dict[TopicPartition, int], tps: Sequence[TopicPartition], last: object, state: State
) -> dict[TopicPartition, int]:
    """End offsets of a scan: a number beyond the end of a partition is replaced by its end."""
    if not isinstance(last, At):
        return found
    ends = {}
    for tp in tps:
        part = state.partitions[state.names[tp.topic], tp.partition]
        ends[tp] = min(last.offset, part.readable_end)
    return ends
