"""Planning an export in the driver: where a run begins and ends, and which records each of its tasks exports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from pyspark_pylog.export.manifest import ExportRun, ExportSettings, Manifest, Part
from pyspark_pylog.export.tables import ExportTable
from pyspark_pylog.export.task import row_schema
from spark_log.client.reader.plan import Chunk, chunks
from spark_log.client.reader.positions_to_offsets import partitions_of, resolve, resolve_starts
from spark_log.errors import DataLoss, InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.journal.storage.seen_log import is_set_back, seen_by
from spark_log.metadata.restores import common_end
from spark_log.metadata.state import Partition
from spark_log.metadata.topics.schemas import schemas_of, typed_from
from spark_log.model import TopicPartition
from spark_log.positions import Position, parse_position
from spark_log.text import counted

RUN_TASKS = 256
"""Maximum number of tasks of a run.  A job that was killed repeats its last run at most."""
TASK_BYTES_MIN = 16 << 20
"""The target size of a task is never cut below this to use more cores, so a small run makes fewer files than the
cluster has cores."""


class Planner:
    """Plans the runs of an export, from the newest state of the log."""

    def __init__(
        self, journal: Journal, manifest: Manifest, table: ExportTable, settings: ExportSettings, end: Position
    ) -> None:
        self._journal = journal
        self._manifest = manifest
        self._table = table
        self._settings = settings
        self._end = end

    def next_starts(self, last: int) -> dict[int, int]:
        """By partition, the offset at which the run that follows `last` begins.  Partitions added since then begin with
        their first record.

        Raises OffsetOutOfRange, and InvalidRequest for an invalid start of the first run; DataLoss if the log ends
        before the export does.
        """
        run = self._manifest.run(last) if last else None
        if run is None:
            start = parse_position(self._settings.start, "--start")
            return _by_partition(resolve_starts(self._journal, dict.fromkeys(self._partitions(), start)))
        if self._beyond(run.ends):
            self._journal.refresh()  # another job may have seen more
        self._check_history(run)
        if beyond := self._beyond(run.ends):
            number, topic = beyond[0], self._settings.topic
            raise DataLoss(
                f"the export has the records of {topic}-{number} before offset {run.ends[number]}, and the log ends before "
                "it: the log was restored to an earlier state, so other records may have these offsets; "
                f"{self._settings.begin_again}"
            )
        state, topic_id = self._journal.state, self._settings.topic_id
        return {number: part.start for number, part in state.topic_partitions(topic_id)} | run.ends

    def _check_history(self, run: ExportRun) -> None:
        """Raises DataLoss for a log that was restored from a copy which ended before the export does."""
        state, topic = self._journal.state, self._settings.topic
        for number, end in sorted(run.ends.items()):
            known = common_end(state, run.seen.history, (self._settings.topic_id, number))
            if known is not None and known < end:
                raise DataLoss(
                    f"the export has the records of {topic}-{number} before offset {end}, and the log was restored from a "
                    f"copy that has {known} of them: other records have these offsets now; {self._settings.begin_again}"
                )
        if not self._beyond(run.ends) and is_set_back(self._journal, run.seen):
            raise DataLoss(
                f"the export has seen version {run.seen.version} of the log, which was set back to an older copy since, "
                f"such as a snapshot of its disk: other records may have the offsets since then; "
                f"{self._settings.begin_again}"
            )

    def _beyond(self, ends: Mapping[int, int]) -> list[int]:
        """The partitions that end before these offsets, or do not exist."""
        parts = dict(self._journal.state.topic_partitions(self._settings.topic_id))
        return [
            number for number, end in sorted(ends.items()) if number not in parts or parts[number].readable_end < end
        ]

    def ends(self) -> dict[int, int]:
        """Where this job ends, in the newest state.  Raises OffsetOutOfRange, InvalidRequest."""
        self._journal.refresh()
        return _by_partition(resolve(self._journal, dict.fromkeys(self._partitions(), self._end)))

    def _partitions(self) -> list[TopicPartition]:
        state, topic = self._journal.state, self._settings.topic
        found = partitions_of(state, topic)
        if state.names[topic] != self._settings.topic_id:
            raise InvalidRequest(f"topic {topic!r} was deleted and created again during the export")
        return found

    def parts(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Part]:
        """The records between two positions, without partitions that have none."""
        return [Part(n, start, ends[n]) for n, start in sorted(starts.items()) if start < ends[n]]

    def schema(self) -> int:
        """The version of the topic's schema by which a run reads records; 0: as bytes.

        Raises InvalidRequest if data columns are requested, and the topic has no schema.
        """
        if self._settings.value_as != "columns":
            return 0
        topic, found = self._settings.topic, schemas_of(self._journal.state, self._settings.topic_id)
        if not found:
            raise InvalidRequest(
                f"--value-as columns: topic {topic!r} has no schema, so its values are bytes; give it one with "
                f"`pylog topic alter {topic} --schema …`, or leave the option out"
            )
        return len(found)

    def rows(self, schema: int) -> pa.Schema:
        """The columns of the files of a run.

        schema:  the version that the run uses.  Another job, with a newer state, may have planned the run.
        """
        if schema > len(schemas_of(self._journal.state, self._settings.topic_id)):
            self._journal.refresh()
        return row_schema(self._journal.state, self._settings, schema)

    def _checked(self, last: int) -> int:
        """`schema()`, if the table can get its columns after run `last`, which is done.  Raises InvalidRequest."""
        schema = self.schema()
        try:
            self._table.check(self.rows(schema), last)
        except InvalidRequest:
            self._journal.refresh()
            if self.schema() == schema:
                raise
            # Another job has seen a newer schema before this one, and the table has wider types already.
            schema = self.schema()
            self._table.check(self.rows(schema), last)
        return schema

    def check_typed(self, parts: Iterable[Part]) -> None:
        """Raises InvalidRequest for bytes from before the topic had a schema, if they are not parsed."""
        if self._settings.value_as != "columns" or self._settings.value_parse:
            return
        topic = self._settings.topic
        for part in parts:
            first = typed_from(self._journal.state, self._settings.topic_id, part.partition)
            if first is not None and part.start < min(first, part.end):
                raise InvalidRequest(
                    f"the records of {topic}-{part.partition} before offset {first} are bytes from before the topic "
                    "had a schema: parse them with --value-parse json, or export the values of all records as JSON with "
                    "--value-as text"
                )

    def chunks(self, parts: Iterable[Part]) -> Iterator[tuple[int, Chunk]]:
        """(partition, chunk) of the records in some parts, without offsets whose records were removed."""
        for part in parts:
            for chunk in chunks(self._state_of(part), part.start, part.end):
                yield part.partition, chunk

    def _state_of(self, part: Part) -> Partition:
        return self._journal.state.partitions[self._settings.topic_id, part.partition]

    def plan(
        self, last: int, ends: Mapping[int, int], task_bytes: int, parallel: int, *, skip_lost: bool
    ) -> ExportRun | None:
        """Plan the run after run `last`; 0 stands for the start.  Returns None if `last` has reached `ends`.

        ends:        by partition, the offset at which the export ends.
        task_bytes:  about how many stored bytes a task may have at most.
        parallel:    how many tasks run at the same time.
        skip_lost:   leave out records that were removed before they were exported.  If False, they raise DataLoss.
        """
        starts = self.next_starts(last)
        parts = self.parts(starts, ends)
        if not parts:
            return None
        kept = self._kept(parts)
        lost = sum(after.start - before.start for before, after in zip(parts, kept, strict=True))
        if lost and not skip_lost:
            raise DataLoss(
                f"{counted(lost, 'record')} of topic {self._settings.topic!r} were removed before they were exported: "
                "run with --skip-lost to export the others"
            )
        self.check_typed(kept)
        schema = self._checked(last)
        total = sum(chunk.bytes for _, chunk in self.chunks(kept))
        tasks = divide(self.chunks(kept), min(task_bytes, max(TASK_BYTES_MIN, total // parallel)), RUN_TASKS)
        seen = seen_by(self._journal, self._journal.state)
        return ExportRun(tasks, {**starts, **_reached(tasks, parts)}, lost, seen, schema)

    def _kept(self, parts: Iterable[Part]) -> list[Part]:
        """The parts, without records that were removed."""
        return [part._replace(start=min(part.end, max(part.start, self._state_of(part).start))) for part in parts]

    def check_values(self, last: int) -> None:
        """Check before anything is written that values can be read as the settings say, and fit into the table.

        Raises InvalidRequest.
        """
        done = last - 1 if last and not self._manifest.is_done(last) else last
        self._checked(done)
        self.check_typed(self._kept(self.parts(self.next_starts(last), self.ends())))


def _by_partition(offsets: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {tp.partition: offset for tp, offset in offsets.items()}


def _reached(tasks: Sequence[Sequence[Part]], parts: Sequence[Part]) -> dict[int, int]:
    """By partition, the end of a run with these tasks: the end of each part, unless the run is full before."""
    if len(tasks) < RUN_TASKS:
        return {part.partition: part.end for part in parts}
    last = tasks[-1][-1]
    whole = {part.partition: part.end for part in parts if part.partition < last.partition}
    return whole | {last.partition: last.end}


def divide(chunks: Iterable[tuple[int, Chunk]], task_bytes: int, tasks_max: int) -> list[list[Part]]:
    """Divide chunks, in order, into tasks of about `task_bytes` each.

    Beyond `tasks_max` tasks, the rest is left for the next run.
    """
    tasks: list[list[Part]] = [[]]
    room = task_bytes
    for partition, (start, end, size) in chunks:
        while start < end:
            if room <= 0:
                if len(tasks) == tasks_max:
                    return tasks
                tasks.append([])
                room = task_bytes
            rows = end - start if size <= room else max(1, (end - start) * room // size)
            taken = size * rows // (end - start)
            _extend(tasks[-1], Part(partition, start, start + rows))
            # max: even if the records are less than one byte, in a chunk of many small ones.
            start, size, room = start + rows, size - taken, room - max(1, taken)
    return tasks if tasks[-1] else []


def _extend(task: list[Part], part: Part) -> None:
    """Append a part, or lengthen the last one if they are neighbours."""
    if task and (task[-1].partition, task[-1].end) == (part.partition, part.start):
        task[-1] = task[-1]._replace(end=part.end)
    else:
        task.append(part)
