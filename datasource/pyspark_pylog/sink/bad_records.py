"""Rows that cannot be written: found by masks over whole batches, then rejected or written to a dead-letter topic.

A dead letter has the row's key, value, headers and timestamp, and the reason in extra headers.  It is part of the same
upload and commit as the good rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_pylog.seen_log import SeenLog
from pyspark_pylog.sink.write_columns import BatchPiece
from pyspark_pylog.task_metadata import newest_journal
from spark_log.client.producing.topic_rules import Fault, TopicSpec, faults_of, specs_of
from spark_log.client.topics import auto_creates, ensure_topic, no_such_topic
from spark_log.errors import InvalidRecord, InvalidTimestamp, InvalidTopic, SparkLogError, UnknownTopicOrPartition
from spark_log.journal.journal import Journal
from spark_log.segment.conform import Rows, header_counts
from spark_log.segment.schema import HEADERS, TIMESTAMP
from spark_log.settings import check_topic_name
from spark_log.text import counted

Numbers = npt.NDArray[np.intp]
LETTERS_TAKE_ALL = {"max.message.bytes": str(2**31 - 1), "message.timestamp.after.max.ms": str(2**63 - 1)}
"""Configs of a dead-letter topic that is created here: the defaults would reject rows that other topics reject."""


class Topics:
    """The topics that a task writes to: those that the driver found, and those named by rows."""

    def __init__(self, log: SeenLog, specs: Mapping[str, TopicSpec]) -> None:
        self._log = log
        self._specs = dict(specs)
        self._journal: Journal | None = None

    def spec(self, name: str) -> TopicSpec:
        """The topic named by a row; a missing one is created, as an append does.

        If topics are not created automatically, the log is asked once per task for topics that the driver did not find.
        Raises InvalidTopic, UnknownTopicOrPartition.
        """
        check_topic_name(name)
        if name not in self._specs:
            if self._journal is None:
                self._journal = newest_journal(self._log)
                self._specs = {**specs_of(self._journal.state), **self._specs}
            if name not in self._specs:
                self._create(self._journal, name)
        return self._specs[name]

    def _create(self, journal: Journal, name: str) -> None:
        if not auto_creates(journal.state):
            raise no_such_topic(name)
        ensure_topic(journal, name)
        self._specs = {**specs_of(journal.state), **self._specs}


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
    good: list[tuple[TopicSpec, Rows]]
    bad: Bad | None


def sift(piece: BatchPiece, topic: TopicSpec | None, topics: Topics, now_ms: int) -> Sifted:
    """The valid rows by topic, and the invalid rows.  topic: of all rows, or None if rows name theirs."""
    faults = [Fault(InvalidRecord, rows, _saying(sentence)) for sentence, rows in piece.wrong_keys]
    found: list[tuple[TopicSpec, Rows, Numbers | None]] = []
    if topic is not None:
        found.append((topic, piece.rows, None))
        faults += faults_of(topic, piece.rows, now_ms)
    for name, rows in () if topic is not None else _by_topic(piece.topics):
        try:
            spec = _spec_of(topics, name)
        except (InvalidRecord, InvalidTopic, UnknownTopicOrPartition) as error:
            faults.append(_spread(Fault(type(error), np.ones(len(rows), bool), _saying(str(error))), rows, piece))
            continue
        part = _take(piece.rows, rows)
        found.append((spec, part, rows))
        faults += [_spread(fault, rows, piece) for fault in faults_of(spec, part, now_ms)]
    if not faults:
        return Sifted([(spec, rows) for spec, rows, _ in found], None)
    wrong = np.logical_or.reduce([fault.rows for fault in faults])
    return Sifted(
        [(spec, _without(rows, wrong if at is None else wrong[at])) for spec, rows, at in found], _bad(faults)
    )


def _bad(faults: Sequence[Fault]) -> Bad:
    """Each bad row with its first fault."""
    first: dict[int, Fault] = {}
    for fault in faults:
        for row in np.flatnonzero(fault.rows).tolist():
            first.setdefault(row, fault)
    rows = sorted(first)
    return Bad(np.array(rows, np.intp), [first[row] for row in rows])


def _by_topic(topics: pa.Array) -> Iterator[tuple[str | None, Numbers]]:
    """Names and the rows of each, in order.  Spark allows invalid UTF-8; such a name becomes an invalid topic name."""
    encoded = topics.dictionary_encode()
    names = [name.decode("utf-8", "backslashreplace") for name in encoded.dictionary.cast(pa.binary()).to_pylist()]
    codes = pc.fill_null(encoded.indices, len(names)).to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names) + 1))
    for name, start, end in zip([*names, None], [0, *ends[:-1]], ends, strict=True):
        if start < end:
            yield name, order[start:end]


def _spec_of(topics: Topics, name: str | None) -> TopicSpec:
    if name is None:
        raise InvalidRecord("a row has a null topic; set the option 'topic' or fill the column")
    return topics.spec(name)


def _saying(sentence: str) -> Callable[[int], str]:
    return lambda row: sentence


def _spread(fault: Fault, rows: Numbers, piece: BatchPiece) -> Fault:
    """A fault in the rows of one topic, as a fault in the rows of the piece."""
    among = np.zeros(piece.rows.records.num_rows, bool)
    among[rows[fault.rows]] = True
    return Fault(fault.kind, among, lambda row: fault.reason(int(np.searchsorted(rows, row))))


def _take(rows: Rows, numbers: Numbers) -> Rows:
    if len(numbers) == rows.records.num_rows:
        return rows
    taken = pa.array(numbers)
    return Rows(rows.records.take(taken), None if rows.partitions is None else rows.partitions.take(taken))


def _without(rows: Rows, wrong: npt.NDArray[np.bool_]) -> Rows:
    return _take(rows, np.flatnonzero(~wrong))


def refusal(bad: Bad, read: int) -> SparkLogError:
    """The error of a write; read: number of rows that the task has checked."""
    return bad.kinds[0](
        f"{bad.reasons[0]} ({len(bad.rows)} of {counted(read, 'row')} read so far by this task cannot be written; "
        "badRecords=topic:NAME sends such rows to a separate topic)"
    )


# --------------------------------------------------------------------------------------------------------- dead letters


def letters(piece: BatchPiece, bad: Bad, topic: str | None, to: TopicSpec, now_ms: int) -> Rows:
    """Bad rows as records of the dead-letter topic.  topic: of all rows, or None if rows name theirs."""
    rows = _take(piece.rows, bad.rows)
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
    arrays = {name: records.column(name) for name in ("key", "value", "timestamp")}
    whole = pa.record_batch({**arrays, "headers": with_headers(old, added)})
    for fault in faults_of(to, Rows(whole, None), now_ms):
        if fault.kind is not InvalidTimestamp:
            raise fault.kind(f"a bad record cannot be kept either: {fault.reason(int(fault.rows.argmax()))}")
        arrays["timestamp"] = pc.if_else(pa.array(fault.rows), pa.scalar(now_ms * 1000, TIMESTAMP), arrays["timestamp"])
    return Rows(pa.record_batch({**arrays, "headers": whole.column("headers")}), None)


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
