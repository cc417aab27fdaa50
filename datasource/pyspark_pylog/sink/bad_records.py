"""Rows that cannot be written: found by masks over whole batches, then rejected or written to a dead-letter topic.

A dead letter has the row's key, value, headers and timestamp, and the reason in extra headers.  It is part of the same
upload and commit as the good rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.log.task_metadata import newest_journal
from pyspark_pylog.sink.write_columns import BatchPiece
from spark_log.client.producer.topic_rules import (
    Fault,
    Numbers,
    TopicRows,
    TopicSpec,
    TopicTable,
    faults_of,
    specs_of,
    take_rows,
)
from spark_log.client.topic_creation import auto_creates, ensure_topic, no_such_topic
from spark_log.configs.topic_names import check_topic_name
from spark_log.errors import InvalidRecord, InvalidTimestamp, InvalidTopic, SparkLogError, UnknownTopicOrPartition
from spark_log.journal.journal import Journal
from spark_log.segment.arrays.few_values import array_from
from spark_log.segment.arrays.numpy_arrays import array_of, numbers_or
from spark_log.segment.json_values import as_json
from spark_log.segment.record_columns import Rows, header_counts
from spark_log.segment.schema import HEADERS, TIMESTAMP
from spark_log.text import counted

KEY_MAX = 100
"""Bytes of a key in a message, at most."""


class Topics:
    """The topics that a task writes to: those that the driver found, and those named by rows."""

    def __init__(self, log: PlannedLog, specs: Mapping[str, TopicSpec]) -> None:
        self._log = log
        self._specs = dict(specs)
        self._journal: Journal | None = None
        self.table = TopicTable(())
        """The topics that rows have named so far."""
        self._names = pa.nulls(0, pa.string())
        """Their names, by number."""

    def find(self, names: pa.Array) -> tuple[Numbers, list[Fault]]:
        """For each row, the number of its topic in `table`, or -1 if the topic cannot be written to; and the reasons
        why not.

        Replaces `table` by one with the new topics.  A missing topic is created, as by an append.
        """
        numbers = self._numbers(names)
        unknown = np.flatnonzero(numbers < 0)
        if not len(unknown):
            return numbers, []
        texts, codes = _distinct(names.take(array_of(unknown, pa.int64())))
        errors = self._add(texts)
        return self._numbers(names), _unwritable(errors, unknown, codes, len(names))

    def _numbers(self, names: pa.Array) -> Numbers:
        return numbers_or(-1, pc.index_in(names, self._names.cast(names.type)))

    def _add(self, names: Sequence[str | None]) -> dict[int, SparkLogError]:
        """The errors of those that cannot be written to, by their index."""
        specs, errors = list(self.table.specs), dict[int, SparkLogError]()
        for code, name in enumerate(names):
            try:
                specs.append(self._spec(name))
            except (InvalidRecord, InvalidTopic, UnknownTopicOrPartition) as error:
                errors[code] = error
        if len(specs) > len(self.table.specs):
            self.table, self._names = TopicTable(tuple(specs)), array_from([spec.name for spec in specs], pa.string())
        return errors

    def _spec(self, name: str | None) -> TopicSpec:
        """If topics are not created automatically, a task asks the log once for topics that the driver did not find.

        Raises InvalidRecord for a null, InvalidTopic, UnknownTopicOrPartition.
        """
        if name is None:
            raise InvalidRecord("a row has a null topic; set the option 'topic' or fill the column")
        check_topic_name(name)
        if name not in self._specs:
            if self._journal is None:
                self._journal = newest_journal(self._log)
                self._specs = {**specs_of(self._journal.state), **self._specs}
            if name not in self._specs:
                self._create(self._journal, name)
        return _of_bytes(self._specs[name])

    def _create(self, journal: Journal, name: str) -> None:
        if not auto_creates(journal.state):
            raise no_such_topic(name)
        ensure_topic(journal, name)
        self._specs = {**specs_of(journal.state), **self._specs}


def _of_bytes(spec: TopicSpec) -> TopicSpec:
    """Raises InvalidRecord for a topic with a schema."""
    if spec.schema is not None:
        raise InvalidRecord(
            f"topic {spec.name!r} has a schema, and rows that name their topic have bytes: write the data columns of this "
            f"topic with the option topic={spec.name}"
        )
    return spec


def _distinct(names: pa.Array) -> tuple[list[str | None], Numbers]:
    """The distinct names in the order of their first rows, a null last, and the index of each row's name.

    Spark allows invalid UTF-8; such a name becomes an invalid topic name.
    """
    encoded = names.dictionary_encode()
    texts: list[str | None] = [
        name.decode("utf-8", "backslashreplace") for name in encoded.dictionary.cast(pa.binary()).to_pylist()
    ]
    codes = numbers_or(len(texts), encoded.indices)
    return [*texts, None] if encoded.indices.null_count else texts, codes


def _unwritable(errors: Mapping[int, SparkLogError], rows: Numbers, codes: Numbers, count: int) -> list[Fault]:
    """A fault for each kind of error.  codes: the index of the name of each of `rows`, which are ascending."""
    faults = []
    for kind in {type(error): None for error in errors.values()}:
        wrong = np.zeros(count, bool)
        wrong[rows[np.isin(codes, [code for code, error in errors.items() if type(error) is kind])]] = True
        faults.append(Fault(kind, wrong, lambda row: str(errors[int(codes[np.searchsorted(rows, row)])])))
    return faults


class Bad(NamedTuple):
    """Rows of a piece that cannot be written, ascending, and the first reason for each."""

    rows: Numbers
    faults: Sequence[Fault]

    @property
    def kinds(self) -> list[type[SparkLogError]]:
        return [fault.kind for fault in self.faults]

    @property
    def reasons(self) -> list[str]:
        return [fault.reason(row) for fault, row in zip(self.faults, self.rows.tolist(), strict=True)]


class Sifted(NamedTuple):
    good: TopicRows
    bad: Bad | None


def sift(piece: BatchPiece, topic: TopicSpec | None, topics: Topics, now_ms: int) -> Sifted:
    """The valid rows, and the invalid rows.  topic: of all rows, or None if rows name theirs."""
    faults = [Fault(InvalidRecord, rows, _saying(sentence)) for sentence, rows in piece.faults]
    if topic is not None:
        batch, at = TopicRows.of(topic, piece.rows), None
    else:
        batch, at, unwritable = _with_topics(piece, topics)
        faults += unwritable
    found = faults_of(batch, now_ms)
    faults += found if at is None else [_spread(fault, at, piece) for fault in found]
    if not faults:
        return Sifted(batch, None)
    wrong = np.logical_or.reduce([fault.rows for fault in faults])
    return Sifted(batch.take(np.flatnonzero(~(wrong if at is None else wrong[at]))), _bad(faults))


def _with_topics(piece: BatchPiece, topics: Topics) -> tuple[TopicRows, Numbers | None, list[Fault]]:
    """The rows whose topics can be written to, their indexes (None for all rows), and why others cannot."""
    numbers, faults = topics.find(piece.topics)
    if not faults:
        one = len(topics.table.specs) == 1
        return TopicRows(topics.table, None if one else numbers, piece.rows), None, []
    at = np.flatnonzero(numbers >= 0)
    return TopicRows(topics.table, numbers[at], take_rows(piece.rows, at)), at, faults


def _bad(faults: Sequence[Fault]) -> Bad:
    """Each bad row with its first fault."""
    first: dict[int, Fault] = {}
    for fault in faults:
        for row in np.flatnonzero(fault.rows).tolist():
            first.setdefault(row, fault)
    rows = sorted(first)
    return Bad(np.array(rows, np.intp), [first[row] for row in rows])


def _saying(sentence: str) -> Callable[[int], str]:
    return lambda row: sentence


def _spread(fault: Fault, at: Numbers, piece: BatchPiece) -> Fault:
    """A fault in the rows `at`, as a fault in the rows of the piece."""
    among = np.zeros(piece.rows.records.num_rows, bool)
    among[at[fault.rows]] = True
    return Fault(fault.kind, among, lambda row: fault.reason(int(np.searchsorted(at, row))))


def refusal(piece: BatchPiece, bad: Bad, read: int) -> SparkLogError:
    """The error of a write; read: number of rows that the task has checked, with those of the piece."""
    return bad.kinds[0](
        f"{_row(piece, bad, read)}{bad.reasons[0]} ({len(bad.rows)} of {counted(read, 'row')} read so far by this task cannot be written; "
        "badRecords=topic:NAME sends such rows to a separate topic)"
    )


def _row(piece: BatchPiece, bad: Bad, read: int) -> str:
    """The first bad row, if it is typed."""
    if piece.given is None:
        return ""
    row, records = int(bad.rows[0]), piece.rows.records
    key = records.column("key")[row].as_py()
    named = "" if key is None else f" (key {key.decode('utf-8', 'backslashreplace')[:KEY_MAX]!r})"
    return f"row {read - records.num_rows + row + 1} of this task{named}: "


# --------------------------------------------------------------------------------------------------------- dead letters


def letters(piece: BatchPiece, bad: Bad, topic: str | None, to: TopicSpec, now_ms: int) -> Rows:
    """Bad rows as records of the dead-letter topic.  topic: of all rows, or None if rows name theirs."""
    rows = take_rows(piece.rows, bad.rows)
    records, count = rows.records, len(bad.rows)
    times = records.column("timestamp")
    named = pa.array([topic] * count) if piece.topics is None else piece.topics.take(pa.array(bad.rows))
    added = {
        "pylog.error": pa.array(bad.reasons),
        "pylog.error.class": pa.array([kind.__name__ for kind in bad.kinds]),
        "pylog.topic": named.cast(pa.string()),
        "pylog.partition": pa.nulls(count, pa.string())
        if rows.partitions is None
        else rows.partitions.cast(pa.string()),
        "pylog.timestamp": pa.array(times.cast(pa.int64()).to_numpy() // 1000).cast(pa.string()),
    }
    old = records.column("headers") if "headers" in records.schema.names else pa.nulls(count, HEADERS)
    arrays = {"key": records.column("key"), "value": _values(piece, bad.rows), "timestamp": times}
    whole = pa.record_batch({**arrays, "headers": with_headers(old, added)})
    for fault in faults_of(TopicRows.of(to, Rows(whole, None)), now_ms):
        if fault.kind is not InvalidTimestamp:
            raise fault.kind(f"a bad record cannot be kept either: {fault.reason(int(fault.rows.argmax()))}")
        arrays["timestamp"] = pc.if_else(pa.array(fault.rows), pa.scalar(now_ms * 1000, TIMESTAMP), arrays["timestamp"])
    return Rows(pa.record_batch({**arrays, "headers": whole.column("headers")}), None)


def _values(piece: BatchPiece, rows: Numbers) -> pa.Array:
    """The values of rows; of typed ones, as JSON."""
    at = pa.array(rows)
    if piece.given is None:
        return piece.rows.records.column("value").take(at)
    return as_json(piece.given.take(at))


def with_headers(headers: pa.Array, added: Mapping[str, pa.Array]) -> pa.Array:
    """Each row's headers, followed by the added ones that are not null."""
    count = len(headers)
    entries = headers.flatten()
    keys = [entries.field("key"), *(pa.array([name] * count, pa.string()) for name in added)]
    values = [entries.field("value"), *(array.cast(pa.binary()) for array in added.values())]
    rows = np.concatenate([np.repeat(np.arange(count), header_counts(headers)), *([np.arange(count)] * len(added))])
    there = [
        np.ones(len(entries), bool),
        *(array.is_valid().to_numpy(zero_copy_only=False) for array in added.values()),
    ]
    kept = np.flatnonzero(np.concatenate(there))
    order = pa.array(kept[np.argsort(rows[kept], kind="stable")])
    ends = np.cumsum(np.bincount(rows[kept], minlength=count))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    named = [pa.concat_arrays(keys).take(order), pa.concat_arrays(values).take(order)]
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(named, fields=list(HEADERS.value_type)))
