"""A flow's function over one batch: its outputs as rows of topics, and what happens to records at which it fails.

If the function fails, the batch is divided into halves, and these again, until the records at which it fails are alone.
So the order stays, and no record is handled in Python unless one near it fails.  A record whose output breaks a rule of
the target (too large, no key in a compacted topic) counts as one at which the function fails.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_log.client.producer.topic_rules import TopicRows, check_rules, topic_spec
from spark_log.client.producer.typed_writes import rows_of, spec_for
from spark_log.client.reader.scan import scan
from spark_log.client.topic_creation import DEAD_LETTER_CONFIGS, ensure_topic
from spark_log.errors import FunctionFailed, InvalidRecord, InvalidRequest, SparkLogError
from spark_log.flows.flow_options import SKIP, FlowOptions
from spark_log.flows.keyed_state import KeyedState, by_partition
from spark_log.flows.lookups import LookupTable
from spark_log.journal.journal import Journal
from spark_log.metadata.commits.decide_commits import ReadBasis
from spark_log.schema.topic_schema import TopicSchema
from spark_log.segment.record_columns import arrow_stream, conform
from spark_log.text import shown, type_of

EXPECTED = "a pyarrow Table, a pandas or Polars frame, a dict of these by topic, or None"

logger = logging.getLogger("spark_log")


class BatchFunction:
    """Applies the function of a flow.  Used by one thread."""

    def __init__(self, journal: Journal, options: FlowOptions) -> None:
        self.failed = 0
        """Records at which the function has failed, and that were skipped or kept as dead letters."""
        self._journal = journal
        self._options = options
        self.state = (
            None if options.state is None else KeyedState(journal, options.name, options.topics[0], options.state)
        )
        self._lookups = [LookupTable(journal, topic, options.value_format) for topic in options.lookups]
        self._tables: list[pa.Table] = []
        """The latest records of each lookup topic, as this batch gets them."""
        self._first: dict[str, TopicSchema] = {}
        """By topic, the schema that this batch gives to it, because it had none (`schema.auto`)."""

    def __call__(self, table: pa.Table) -> list[TopicRows]:
        """The outputs of a batch, in its order.

        Raises FunctionFailed for the first record at which the function fails, unless such records are not to stop the
        flow.
        """
        self._first = {}
        self._tables = [lookup.table() for lookup in self._lookups]
        if self.state is None:
            return list(self._apply(table))
        self.state.discard()
        return [rows for part in by_partition(table).values() for rows in self._apply(part)]

    def _apply(self, table: pa.Table) -> Iterator[TopicRows]:
        given = self._given(table)  # an error of this is not about a record
        try:
            found = self._outputs(table, given)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, SparkLogError) and not isinstance(error, InvalidRecord):
                raise  # it is not about a record
            if table.num_rows == 1:
                yield from self._bad(table, error)
                return
        else:
            yield from found
            return
        half = table.num_rows // 2
        yield from self._apply(table.slice(0, half))
        yield from self._apply(table.slice(half))

    @property
    def lookup_records(self) -> int:
        """Records in the tables of lookups, as the last batch got them."""
        return sum(table.num_rows for table in self._tables)

    def basis(self, sources: Mapping[str, int]) -> ReadBasis:
        """The log as the last batch has read it: sources, lookups and state.

        sources:  by topic id, the last erasure from the records of the batch.
        """
        read = ReadBasis() if self.state is None else self.state.basis()
        erased = {**sources, **read.erased}
        for stand in filter(None, (lookup.stand for lookup in self._lookups)):
            erased[stand.topic_id] = min(stand.erased, erased.get(stand.topic_id, stand.erased))
        return ReadBasis(erased, read.spans)

    # --------------------------------------------------------------------------------------------------------- outputs

    def _given(self, table: pa.Table) -> list[pa.Table]:
        """The tables that the function gets beside the batch."""
        if self.state is None:
            return self._tables
        return [self.state.of(_partition(table), table.column("key")), *self._tables]

    def _outputs(self, table: pa.Table, given: Sequence[pa.Table]) -> list[TopicRows]:
        first, found, changes = dict(self._first), list[TopicRows](), list[TopicRows]()
        result, new = self._options.function(table, *given), None
        if self.state is not None:
            result, new = self._pair(result)
        for topic, data in self._by_topic(result):
            found += self._rows(topic, data, first)
        if self.state is not None and new is not None:
            now_ms = self._journal.context.clock.now_ms()
            changes = self.state.stage(_partition(table), table.column("key"), new, now_ms)
        self._first = first
        return found + changes

    def _pair(self, returned: object) -> tuple[object, pa.Table | None]:
        """The outputs and the new state that the function returned."""
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise InvalidRequest(
                f"flow {self._options.name!r}: the function returned {type_of(returned)}: with state, expected a pair of "
                "the outputs and the new state, each of which may be None"
            )
        result, new = returned
        if new is None:
            return result, None
        frame: Any = self._frame(new)
        return result, frame if isinstance(frame, pa.Table) else pa.Table.from_pandas(frame, preserve_index=False)

    def _by_topic(self, result: object) -> Iterator[tuple[str, object]]:
        if isinstance(result, Mapping):
            for topic, data in result.items():
                if not isinstance(topic, str):
                    raise self._odd(f"a dict with the key {shown(topic)}")
                if self._options.state is not None and topic == self._options.state.topic:
                    raise InvalidRequest(
                        f"flow {self._options.name!r}: the function returned outputs for topic {topic!r}, which has the "
                        "state: return new state as the second of the pair"
                    )
                if data is not None:
                    yield topic, self._frame(data)
        elif result is not None:
            if self._options.target is None:
                raise InvalidRequest(
                    f"flow {self._options.name!r}: the function returned {type_of(result)}, and the flow has no target: "
                    "give it one, or return a dict of frames by topic"
                )
            yield self._options.target, self._frame(result)

    def _frame(self, data: Any) -> object:
        """The data without the partitions of its sources: the target's partitioner chooses others."""
        frames = getattr(sys.modules.get("pandas"), "DataFrame", ())
        if isinstance(data, frames):
            return data.drop(columns="partition", errors="ignore")
        if not hasattr(data, "__arrow_c_stream__"):
            raise self._odd(type_of(data))
        table = data if isinstance(data, pa.Table) else arrow_stream(data).read_all()
        return table.drop_columns("partition") if "partition" in table.column_names else table

    def _odd(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"flow {self._options.name!r}: the function returned {what}: expected {EXPECTED}")

    def _rows(self, topic: str, data: object, first: dict[str, TopicSchema]) -> Iterator[TopicRows]:
        ensure_topic(self._journal, topic)
        spec, data = spec_for(self._journal, topic, data, first=first.get(topic))
        if spec.sets_schema and spec.schema is not None:
            first[topic] = spec.schema
        now_ms, count = self._journal.context.clock.now_ms(), 0
        for rows in rows_of(spec, data, now_ms * 1000):
            batch = TopicRows.of(spec, rows)
            check_rules(batch, now_ms, count)
            count += batch.num_rows
            yield batch

    # ----------------------------------------------------------------------------------------------------- bad records

    def _bad(self, record: pa.Table, error: BaseException) -> list[TopicRows]:
        topic, partition, offset = (record.column(name)[0].as_py() for name in ("topic", "partition", "offset"))
        options, reason = self._options, f"{type(error).__name__}: {shown(error, str)}"
        where = f"flow {options.name!r}: the function failed at {topic}-{partition}, offset {offset}: {reason}"
        letters = options.dead_letters
        if letters is None and options.bad_records != SKIP:
            raise FunctionFailed(
                f"{where}; nothing of its batch was committed. Correct the function and start the flow again, or keep "
                "such records with bad_records='topic:NAME'",
                topic=topic,
                partition=partition,
                offset=offset,
            ) from error
        self.failed += 1
        logger.warning("%s; the record %s", where, "is skipped" if letters is None else f"goes to topic {letters!r}")
        return [] if letters is None else self._letter(letters, record, (topic, partition, offset), error)

    def _letter(
        self, letters: str, record: pa.Table, place: tuple[str, int, int], error: BaseException
    ) -> list[TopicRows]:
        """The record as a dead letter: unchanged, with the reason in headers.  Nothing if it was removed meanwhile."""
        topic, partition, offset = place
        if "value" not in record.column_names or not pa.types.is_binary(record.schema.field("value").type):
            record = scan(self._journal, topic, [partition], offset, offset + 1, None, None, "json").read_all()
        found = []
        for row in record.to_pylist():
            why = {
                "pylog.error": shown(error, str),
                "pylog.error.class": type(error).__name__,
                "pylog.topic": topic,
                "pylog.partition": str(partition),
                "pylog.offset": str(offset),
            }
            headers = [(one["key"], one["value"]) for one in row["headers"] or ()]
            headers += [(name, text.encode(errors="backslashreplace")) for name, text in why.items()]
            found.append({**{name: row[name] for name in ("key", "value", "timestamp")}, "headers": headers})
        ensure_topic(self._journal, letters, DEAD_LETTER_CONFIGS)
        spec, now_ms = topic_spec(self._journal.state, letters), self._journal.context.clock.now_ms()
        batches = [TopicRows.of(spec, rows) for rows in conform(found, now_us=now_ms * 1000)]
        for batch in batches:
            check_rules(batch, now_ms, 0)
        return batches


def _partition(table: pa.Table) -> int:
    """The partition of a table that has records of one only."""
    number: int = table.column("partition")[0].as_py()
    return number
