"""Readers of a log that is lost, and whose mirror continues in its place with other records at the same offsets.

They are the product's: a query with its checkpoint and an export, which keep their positions outside of the log; a
running consumer, which keeps them in memory; a group and a bookmark, whose positions are in the log.  The first two are
exact: what they have read is what the log has, each record once, or they were refused.  A running consumer has read all
that the log has, once, and perhaps lost records before.  The others have read all that their positions say.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pyarrow as pa
from pyspark_pylog.export.manifest import ExportRun, ExportSettings
from pyspark_pylog.export.planning import Planner
from pyspark_pylog.export.tables import Folder
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.progress.offset_format import parse_offset
from pyspark_pylog.source.read_task import ReadTask
from pyspark_pylog.source.stream import LogStreamReader

from simulation.log_sim.blocking import SimulatedProcess
from simulation.log_sim.content import Row, SegmentCodec
from simulation.log_sim.setting import COPIED, COPIED_ID, COPIED_PARTITIONS, Simulation
from simulation.verdict import Violation
from spark_log.client.consumer.consumer import Consumer
from spark_log.client.log import Log
from spark_log.client.reader.plan import OffsetRange, SliceRead, plan_reads
from spark_log.errors import DataLoss, LogRestored, OffsetOutOfRange, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import State
from spark_log.model import ConsumerRecord, TopicPartition
from spark_log.positions import Latest

GROUP, BOOKMARK = "readers of copied", "nightly"
PAUSES_MS = (5, 100, 1000)
PROCESSING_MS = 90_000
"""Longer than the log is away."""
RESTARTS = 0.1
Rows = Mapping[int, list[Row]]
"""By partition, in the order of offsets."""
SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


class Reader(ABC):
    """The state of a reader that outlives its processes."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.known = ""
        """The history of the log when it last looked."""

    @abstractmethod
    def use(self, log: Log, process: SimulatedProcess) -> None:
        """Read for ever."""

    @abstractmethod
    def is_at(self, ends: Mapping[int, int]) -> bool:
        """Whether it has read all."""

    @abstractmethod
    def check(self, rows: Rows, state: State) -> None:
        """Raises Violation for a reader that is at the end, if it has not read these rows of the newest log."""

    def refused(self, error: DataLoss) -> None:
        """It begins again at the position that the log has of it."""
        self.sim.oracle.seen[f"told {type(self).__name__}"] += 1

    def is_told(self) -> bool:
        """Whether it has looked at the log as it is now."""
        return self.known == ([""] + [copy.history for copy in self.sim.recovered])[-1]

    def fails(self, what: str) -> None:
        raise Violation(f"histories: {type(self).__name__} {what}, after {self.sim.losses} losses")


class Outside(Reader):
    """A reader that keeps its positions outside of the log, and is refused if it has read what the log has not."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self.rows: list[dict[int, list[Row]]] = []
        """The rows of each batch, by partition."""

    @abstractmethod
    def ends(self) -> dict[int, int]:
        """The end of the last batch that was planned."""

    @abstractmethod
    def begin(self) -> None:
        """Forget all that was read."""

    def is_at(self, ends: Mapping[int, int]) -> bool:
        read = self.ends()
        at_end = all(read.get(number, 0) == end for number, end in ends.items())
        return at_end and self.has_read() and self.is_told()

    @abstractmethod
    def has_read(self) -> bool:
        """Whether the last batch that was planned was read."""

    def refused(self, error: DataLoss) -> None:
        """Right only if it is beyond a copy that was restored since."""
        known = [copy.history for copy in self.sim.recovered]
        copies = [copy.ends for copy in self.sim.recovered[known.index(self.known) + 1 if self.known else 0 :]]
        ends = self.ends()
        if all(end <= copy.get(number, 0) for copy in copies for number, end in ends.items()):
            self.fails(f"is at {ends}, within {copies}, and is refused: {error}")
        self.sim.oracle.seen[f"refused {type(self).__name__}"] += 1
        self.begin()

    def check(self, rows: Rows, state: State) -> None:
        for number, wanted in rows.items():
            found = [row for batch in self.rows for row in batch.get(number, [])]
            if found != wanted:
                self.fails(f"has read {_differences(found, wanted)} of partition {number}")


class Query(Outside):
    """A streaming query: Spark's log of offsets, and what each batch has read."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self.begin()

    def begin(self) -> None:
        self.offsets: list[dict[str, Any]] = []
        self.rows = []

    def ends(self) -> dict[int, int]:
        known = parse_offset(self.offsets[-1]).ends if self.offsets else {}
        return {tp.partition: end for tp, end in known.items()}

    def has_read(self) -> bool:
        return len(self.offsets) == len(self.rows)

    def use(self, log: Log, process: SimulatedProcess) -> None:
        source = _Source(log.journal, process)
        source.initialOffset()
        if len(self.offsets) > len(self.rows):
            self._read_planned(log, source)
        while True:
            known = history_of(log.journal.state)
            start = self.offsets[-1] if self.offsets else source.initialOffset()
            end = json.loads(json.dumps(source.latestOffset(start, source.getDefaultReadLimit())))
            self.known = known
            if end != start:
                self.offsets.append(end)
                process.sleep_ms(self.sim.rng.choice((0, *PAUSES_MS)))
                self._read_planned(log, source)
                if len(self.offsets) > 1:
                    source.commit(self.offsets[-2])
            process.sleep_ms(self.sim.rng.choice(PAUSES_MS))

    def _read_planned(self, log: Log, source: LogStreamReader) -> None:
        """The batch that was planned last."""
        start = self.offsets[-2] if len(self.offsets) > 1 else source.initialOffset()
        tasks = source.partitions(start, self.offsets[-1])
        self.rows.append(_rows(log, [read for task in tasks if isinstance(task, ReadTask) for read in task.reads]))


class _Source(LogStreamReader):
    """The source of a query, over a journal of the world."""

    def __init__(self, journal: Journal, process: SimulatedProcess) -> None:
        options = {"path": "/simulated", "subscribe": COPIED, "startingoffsets": "earliest"}
        super().__init__(read_options(options, streaming=True), SCHEMA, process)
        self._journal = journal


class Export(Outside):
    """An export with one task in each run; its plans outlive the job."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self.begin()

    def begin(self) -> None:
        self.plans: list[bytes] = []
        self.rows = []

    def ends(self) -> dict[int, int]:
        run = self.run(len(self.plans))
        return {} if run is None else run.ends

    def has_read(self) -> bool:
        return len(self.plans) == len(self.rows)

    def run(self, number: int) -> ExportRun | None:
        """A run of the manifest, which is the export itself."""
        return msgspec.json.decode(self.plans[number - 1], type=ExportRun) if number else None

    def use(self, log: Log, process: SimulatedProcess) -> None:
        settings = ExportSettings(
            name="export",
            log=log.cluster_id,
            topic=COPIED,
            topic_id=COPIED_ID,
            format="parquet",
            partition_by="none",
            key_as="binary",
            value_as="binary",
            keep_offsets=True,
            start="earliest",
        )
        planner = Planner(log.journal, self, Folder(COPIED), settings, Latest())  # type: ignore[arg-type]
        while True:
            known = history_of(log.journal.state)
            if len(self.plans) == len(self.rows):
                run = planner.plan(len(self.plans), planner.ends(), 1 << 20, 1, skip_lost=False)
                self.known = known
                if run is not None:
                    self.plans.append(msgspec.json.encode(run))
                    process.sleep_ms(self.sim.rng.choice((0, *PAUSES_MS)))
            if (last := self.run(len(self.plans))) is not None and len(self.plans) > len(self.rows):
                parts = [part for task in last.tasks for part in task]
                self.rows.append(read_parts(log, parts))
            process.sleep_ms(self.sim.rng.choice(PAUSES_MS))


class Running(Reader):
    """A consumer without a group."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self.given: dict[int, list[tuple[str, Row]]] = {}
        """With the history in which each was read.  A writer without an answer repeats in the next history."""
        self.positions: dict[int, int] = {}

    def use(self, log: Log, process: SimulatedProcess) -> None:
        self.given, self.positions = {number: [] for number in range(COPIED_PARTITIONS)}, {}
        with log.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(COPIED, number) for number in range(COPIED_PARTITIONS)])
            while True:
                with _goes_on(self.sim):
                    self._poll(log, consumer)
                process.sleep_ms(self.sim.rng.choice(PAUSES_MS))

    def _poll(self, log: Log, consumer: Consumer) -> None:
        known = history_of(log.journal.state)
        for tp, records in _polled(log, consumer, self.sim).items():
            read = [Row(*json.loads(record.value or b"")) for record in records]
            self.given[tp.partition] += [(consumer.history or "", row) for row in read]
        self.positions = {tp.partition: consumer.position(tp) for tp in consumer.assignment()}
        self.known = known

    def is_at(self, ends: Mapping[int, int]) -> bool:
        return self.is_told() and self.positions == ends

    def check(self, rows: Rows, state: State) -> None:
        for number, wanted in rows.items():
            there, last = set(wanted), {row: history for history, row in self.given[number]}
            found = [row for history, row in self.given[number] if row in there and history == last[row]]
            if found != wanted:
                self.fails(f"has read {_differences(found, wanted)} of partition {number}")


class Inside(Reader):
    """A reader whose positions are in the log."""

    group: str

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self.given = set[Row]()

    def is_at(self, ends: Mapping[int, int]) -> bool:
        return self.is_told()

    def check(self, rows: Rows, state: State) -> None:
        positions = state.groups[self.group].offsets if self.group in state.groups else {}
        for number, wanted in rows.items():
            known = positions.get((COPIED_ID, number))
            for row in wanted[: 0 if known is None else known.offset]:
                if row not in self.given:
                    self.fails(f"is at {known} of partition {number}, and has not read {row}")


class Group(Inside):
    """Consumers of a group, which commit some time after they have read, by numbers or not."""

    group = GROUP

    def use(self, log: Log, process: SimulatedProcess) -> None:
        while True:
            self._consume(log, process)

    def _consume(self, log: Log, process: SimulatedProcess) -> None:
        options: dict[str, Any] = {"group_id": GROUP, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with log.consumer(COPIED, **options) as consumer:
            for _ in range(self.sim.rng.randint(2, 12)):
                with _goes_on(self.sim):
                    self._poll(log, consumer, process)
                process.sleep_ms(self.sim.rng.choice(PAUSES_MS))

    def _poll(self, log: Log, consumer: Consumer, process: SimulatedProcess) -> None:
        known = history_of(log.journal.state)
        polled = _polled(log, consumer, self.sim)
        for records in polled.values():
            self.given.update(Row(*json.loads(record.value or b"")) for record in records)
        pauses = (*PAUSES_MS, PROCESSING_MS) if self.sim.world.faults else PAUSES_MS
        for tp, records in polled.items():
            process.sleep_ms(self.sim.rng.choice(pauses))
            consumer.commit({tp: records[-1].offset + 1} if self.sim.rng.random() < 0.5 else None)
        self.known = known


class Bookmarked(Inside):
    """A batch job that continues where its last run ended."""

    group = BOOKMARK

    def use(self, log: Log, process: SimulatedProcess) -> None:
        while True:
            known = history_of(log.journal.state)
            with suppress(OffsetOutOfRange), log.bookmark(BOOKMARK, COPIED) as bookmark:
                process.sleep_ms(self.sim.rng.choice(PAUSES_MS))
                parts = [(tp.partition, start, bookmark.ends[tp]) for tp, start in bookmark.starts.items()]
                self.given.update(row for rows in read_parts(log, parts).values() for row in rows)
                process.sleep_ms(self.sim.rng.choice(PAUSES_MS))
            self.known = known
            process.sleep_ms(self.sim.rng.choice(PAUSES_MS))


def _polled(log: Log, consumer: Consumer, sim: Simulation) -> dict[TopicPartition, list[ConsumerRecord]]:
    """Raises LogRestored where the consumer waits: while the restored log is shorter than what the process knows."""
    polled = consumer.poll(100, max_records=sim.rng.choice((2, 20)))
    if consumer._updates.is_ahead:
        raise LogRestored(f"{log.url} has fewer versions than were read")
    return polled


@contextmanager
def _goes_on(sim: Simulation) -> Iterator[None]:
    """A reader that tries again.  While the restored log is shorter than what it knows, it has to be restarted."""
    try:
        yield
    except (StorageUnavailable, OffsetOutOfRange):
        pass  # the second: what it commits is not in the restored log
    except LogRestored:
        if sim.rng.random() < RESTARTS:
            raise


READERS: tuple[type[Reader], ...] = (Query, Export, Running, Group, Bookmarked)


def read_parts(log: Log, parts: Iterable[tuple[int, int, int]]) -> dict[int, list[Row]]:
    """The records in some parts of partitions: (partition, start, end)."""
    ranges = [OffsetRange(COPIED, COPIED_ID, *part) for part in parts]
    return _rows(log, plan_reads(log.journal, ranges))


def _rows(log: Log, reads: Iterable[SliceRead]) -> dict[int, list[Row]]:
    codec, found = SegmentCodec(), dict[int, list[Row]]()
    for read in reads:
        piece = read.slice
        content = log.journal.objects.get(piece.object, piece.position, piece.position + piece.length)
        rows = codec.decode(content, piece, (read.topic_id, read.partition))
        inside = [row for offset, row in rows if read.start <= piece.start + offset < read.end]
        found.setdefault(read.partition, []).extend(inside)
    return found


def _differences(found: list[Row], wanted: list[Row]) -> str:
    missing, more = [row for row in wanted if row not in found], [row for row in found if row not in wanted]
    twice = len(found) - len(set(found))
    return f"{len(found)} records, not the {len(wanted)}: {missing[:2]} are missing, {more[:2]} too many, {twice} twice"
