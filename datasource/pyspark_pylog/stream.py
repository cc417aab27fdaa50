"""The streaming source.

The reader lives in one process as long as the query runs; what it knows of the log is kept there and dropped when Spark
pickles it for the tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_pylog.batch import ReadTask, journal_of, quiet_gc, read_batches, store_of
from pyspark_pylog.errors import plain, plain_errors
from pyspark_pylog.limits import share, within_bytes
from pyspark_pylog.offsets import TOPICS, Ends, decode, encode
from pyspark_pylog.options import ReadOptions
from pyspark_pylog.ranges import lost, start_offsets, wanted_partitions
from pyspark_pylog.splits import split_by_bytes, split_ranges
from spark_log.client.plan import OffsetRange, plan_reads
from spark_log.errors import DataLoss, SparkLogError
from spark_log.journal.journal import Journal
from spark_log.metadata.state import State

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before 4.2 the source limits itself

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stand-in."""

    ReadAllAvailable = ReadMaxRows = ReadMaxBytes = None  # type: ignore[assignment, misc]
    ReadLimit = Any  # type: ignore[misc, assignment]

LONG_POLL_S = 0.2
POLL_S = 0.005


class LogStreamReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """Micro-batches of a log, each read up to one version."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self._journal: Journal | None = None
        self._known: dict[str, Any] | None = None
        """The last offset that was planned: where Spark 4.0 and 4.1, which do not say, stand."""
        self._target: Ends | None = None
        """Where an available-now run ends."""
        self._latest: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_journal": None}

    @property
    def journal(self) -> Journal:
        if self._journal is None:
            self._journal = journal_of(self.options.location)
        return self._journal

    # ------------------------------------------------------------------------------------------------------- the driver

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        return ReadAllAvailable() if self.options.max_bytes is None else ReadMaxBytes(self.options.max_bytes)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        with plain_errors():
            state = self.journal.refresh()
            tps = wanted_partitions(state, self.options)
            self._known = encode(state, start_offsets(self.journal, self.options, tps))
            return self._known

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        with plain_errors():
            self._target = self._ends(self.journal.refresh())

    def latestOffset(  # noqa: N802  Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        with plain_errors():
            start = start or self._known or self.initialOffset()
            state, ends = self._newest(start)
            starts = self._starts(state, start, ends)
            self._latest = encode(state, ends)
            if self._target is not None:
                ends = {tp: self._target[tp] for tp in ends if tp in self._target}
            if ReadAllAvailable is None or not isinstance(limit, ReadAllAvailable):
                ends = self._limited(starts, ends)
            ends = {tp: max(end, starts[tp]) for tp, end in ends.items()}
            if all(starts[tp] == end for tp, end in ends.items()) and set(ends) <= set(decode(start)):
                return start
            return encode(state, ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with plain_errors():
            self._known = end
            state = self.journal.refresh()
            ends = self._still_there(state, decode(end), end.get(TOPICS, {}))
            starts = self._starts(state, start, ends)
            ranges = [
                OffsetRange(tp.topic, state.names[tp.topic], tp.partition, starts[tp], last)
                for tp, last in sorted(ends.items())
                if starts[tp] < last
            ]
            return self._tasks(ranges)

    def commit(self, end: dict[str, Any]) -> None:
        """Progress is Spark's: in its checkpoint."""

    def stop(self) -> None:
        """Nothing is held open."""

    # -------------------------------------------------------------------------------------------------------- the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            quiet_gc()
            assert isinstance(partition, ReadTask) and partition.reads is not None
            yield from read_batches(store_of(self.options.location), partition.reads, self.schema)

    # -------------------------------------------------------------------------------------------------------- decisions

    def _newest(self, start: Mapping[str, Any]) -> tuple[State, Ends]:
        """The ends of the log; while there is nothing new, waits for it a little, so that an idle query is quiet."""
        deadline = time.monotonic() + LONG_POLL_S
        known = decode(start)
        while True:
            state = self.journal.poll()
            ends = self._ends(state)
            news = any(known.get(tp) != end for tp, end in ends.items())
            if news or self._target is not None or time.monotonic() > deadline:
                return state, ends
            time.sleep(POLL_S)

    def _ends(self, state: State) -> Ends:
        tps = wanted_partitions(state, self.options)
        return {tp: state.partitions[state.names[tp.topic], tp.partition].end for tp in tps}

    def _starts(self, state: State, start: Mapping[str, Any], ends: Ends) -> Ends:
        """Where each partition of `ends` goes on; a new one, and one of a topic that was created again, at its first record."""
        known, ids, fail = decode(start), start.get(TOPICS, {}), self.options.fail_on_data_loss
        starts: Ends = {}
        for tp in ends:
            part = state.partitions[state.names[tp.topic], tp.partition]
            if tp not in known:
                starts[tp] = part.start
            elif ids.get(tp.topic, state.names[tp.topic]) != state.names[tp.topic]:
                _report(f"topic {tp.topic!r} was deleted and created again", fail)
                starts[tp] = part.start
            else:
                starts[tp] = lost(tp, known[tp], part.start, fail)
        return starts

    def _still_there(self, state: State, ends: Ends, ids: Mapping[str, str]) -> Ends:
        """Without partitions that went away after the batch was planned."""
        gone = sorted({tp.topic for tp in ends if state.names.get(tp.topic) != ids.get(tp.topic)})
        for topic in gone:
            _report(f"topic {topic!r} was deleted before the batch was read", self.options.fail_on_data_loss)
        return {tp: end for tp, end in ends.items() if tp.topic not in gone}

    def _limited(self, starts: Ends, ends: Ends) -> Ends:
        if self.options.max_offsets is not None:
            shares = share(self.options.max_offsets, {tp: max(end - starts[tp], 0) for tp, end in ends.items()})
            ends = {tp: starts[tp] + shares[tp] for tp in ends}
        # Before 4.2 Spark runs available-now as one batch and does not say so: the default must not cut that short.
        if self.options.max_bytes is not None and (ReadAllAvailable is not None or self.options.max_bytes_asked):
            state = self.journal.state
            ranges = [
                OffsetRange(tp.topic, state.names[tp.topic], tp.partition, starts[tp], end)
                for tp, end in sorted(ends.items())
                if starts[tp] < end
            ]
            ends = ends | within_bytes(self.options.max_bytes, plan_reads(self.journal, ranges))
        return ends

    def _tasks(self, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
        options = self.options
        if options.min_partitions is None and options.max_records is None:
            dealt = split_by_bytes(plan_reads(self.journal, ranges), options.bytes_per_partition)
        else:
            pieces = split_ranges(ranges, options.min_partitions, options.max_records)
            dealt = [plan_reads(self.journal, [piece]) for piece in pieces]
        return [ReadTask(n, len(dealt), tuple(reads)) for n, reads in enumerate(dealt) if reads]


class Refused(DataSourceStreamReader):
    """Says what is wrong with the options when Spark asks for anything.

    PySpark hides what is raised before it has a reader: its own clean-up fails then.
    """

    def __init__(self, error: SparkLogError) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        return self._refuse()

    def latestOffset(  # noqa: N802  Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        return self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise plain(self.error)


def _report(message: str, fail: bool) -> None:
    import logging

    if fail:
        raise DataLoss(f"{message}; set failOnDataLoss=false to go on with what is there")
    logging.getLogger("spark_log").warning("%s; going on with what is there", message)
