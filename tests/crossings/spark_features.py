"""Features of Spark: queries, planned frames, exports and mirrors, with the calls that Spark and the jobs make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark_pylog.export.manifest import ExportRun, Manifest
from pyspark_pylog.export.task import Written, write_files
from pyspark_pylog.jobs import export as export_job
from pyspark_pylog.jobs.export import Export, location_of
from pyspark_pylog.jobs.mirror_job import settings_of
from pyspark_pylog.jobs.mirror_pylog import LogSource
from pyspark_pylog.jobs.mirror_pylog import parse_args as mirror_args
from pyspark_pylog.jobs.topic_mirror import SourceTopic, TopicMirror, reached
from pyspark_pylog.log.open_log import planned_log

import spark_log
from spark_log import Log, TopicPartition
from spark_log.client.mirror_map import Copied, MirroredTopic, with_map
from spark_log.runtime.clock import SystemClock
from tests.crossings.feature import FIRST, After, Feature, assert_each_is_seen, assert_no_double, is_gone, rows, values
from tests.spark.driver import Frame, Stream, Write, read_task


class Streams(Feature):
    """A streaming query, which also reads the later records."""

    head = "query"
    topic = "stream"

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.topics = (self.topic,)
        self.query = Stream(url, self.topic, clock=SystemClock())
        self.seen: list[str] = []

    def write(self, log: Log, phase: str) -> None:
        log.append(self.topic, rows(self.topic, phase))

    def read(self, log: Log, phase: str) -> None:
        self.query.restart("available-now", path=self.url)
        at = [offset for _, offset in self.query.run()]
        by_offset = {row["offset"]: row["value"].decode() for row in log.read(self.topic).to_pylist()}
        self.seen += [by_offset[offset] for offset in at]

    def check(self, after: After) -> None:
        for phase in ("after", "more"):  # more than what a copy lacks
            self.write(after.log, phase)
        self.read(after.log, "after")
        assert_no_double(self.seen)
        assert_each_is_seen(self.seen, after.log, self.topic)


class StoppedStreams(Streams):
    """A streaming query that is stopped before the later records come."""

    head = "stopped query"
    topic = "stopped-stream"

    def read(self, log: Log, phase: str) -> None:
        if phase != "later":
            super().read(log, phase)


class LocalExport(Export):
    """An export whose tasks run in this process, without Spark."""

    def _written(self, number: int, run: ExportRun) -> list[Written]:
        planned = planned_log(location_of(self._args), self._log.journal)
        store = self._manifest.store
        return [
            write_files(planned, store, self.settings, number, run.schema, self._args.skip_lost, task)
            for task in enumerate(run.tasks)
        ]


class Exports(Feature):
    """An export to Parquet files that is run again and again."""

    head = "export"
    topics = ("export",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.to = folder / "exported"

    def write(self, log: Log, phase: str) -> None:
        log.append("export", rows("export", phase))

    def read(self, log: Log, phase: str) -> None:
        to = str(self.to)
        flags = ["--topic", "export", "--to", to, "--partition-by", "none"]
        args = export_job.parse_args(["--url", self.url, *flags])
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
        job = LocalExport(spark, args, log, Manifest(to, {}))
        job.check()
        job.begin()
        job.export_to_end()

    def _exported(self) -> list[str]:
        table = ds.dataset(self.to, format="parquet", exclude_invalid_files=True).to_table()
        return [value.decode() for value in table["value"].to_pylist()]

    def check(self, after: After) -> None:
        for phase in ("after", "more"):
            after.log.append("export", rows("export", phase))
        self.read(after.log, "after")
        assert_each_is_seen(self._exported(), after.log, "export")
        assert_no_double(self._exported())


class LocalMirror(TopicMirror):
    """A mirror of topics that copies in this process, without Spark.

    query:  reads the source, with the checkpoint of its former runs.
    """

    query: Stream

    def _copy(self, topics: Mapping[str, SourceTopic], copied: Mapping[TopicPartition, Copied]) -> None:
        self.query.restart("available-now").run()
        for name, source in topics.items():
            there = self._log.admin.describe_topics([name])[name].topic_id
            start = max(reached(copied, name, 0), source.starts[0])
            found = cast(LogSource, self._source)._log.read(name, start=start, end=source.ends[0])
            copy = MirroredTopic(name, there, source.id, self._settings.map)
            batches = list(with_map(copy, found.combine_chunks().to_batches()))
            Write(self._settings.url, pa.Table.from_batches(batches).combine_chunks().to_batches()[0]).run()


def mirror(folder: Path, source: str, url: str, query: Stream) -> None:
    """A run of a mirror of one topic, which the query reads."""
    topic = query.options["subscribe"]
    query.options["path"] = source
    args = ["--source", source, "--url", url, "--topics", topic, "--checkpoint", f"file://{folder}/checkpoint-{topic}"]
    spark: Any = None
    with spark_log.connect(source, create=False) as there, spark_log.connect(url) as log:
        settings = settings_of(mirror_args([*args, "--map", f"map-of-{topic}"]))
        run = LocalMirror(spark, log, LogSource(spark, mirror_args(args), there), settings, list)
        run.query = query
        run.run()


class MirrorSources(Feature):
    """A mirror copies a topic of the log to another log."""

    head = "mirror from it"
    topics = ("mirror-source",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.query = Stream(url, "mirror-source", clock=SystemClock())

    def write(self, log: Log, phase: str) -> None:
        log.append("mirror-source", rows("mirrored", phase))

    def read(self, log: Log, phase: str) -> None:
        mirror(self.folder, self.url, str(self.folder / "target"), self.query)

    def check(self, after: After) -> None:
        for phase in ("after", "more"):
            after.log.append("mirror-source", rows("mirrored", phase))
        self.read(after.log, "after")
        with spark_log.connect(self.folder / "target") as target:
            copied = values(target, "mirror-source")
        assert_no_double(copied)
        assert_each_is_seen(copied, after.log, "mirror-source")


class MirrorTargets(Feature):
    """A mirror copies a topic of another log to the log."""

    head = "mirror to it"
    copy = "mirror-target"

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.query = Stream(str(folder / "source"), self.copy, clock=SystemClock())

    def write(self, log: Log, phase: str) -> None:
        with spark_log.connect(self.folder / "source") as source:
            source.append(self.copy, rows("copied", phase))

    def read(self, log: Log, phase: str) -> None:
        mirror(self.folder, str(self.folder / "source"), self.url, self.query)

    def check(self, after: After) -> None:
        self.write(after.log, "after")
        self.read(after.log, "after")
        copied = values(after.log, self.copy)
        assert_no_double(copied)
        with spark_log.connect(self.folder / "source") as source:
            assert_each_is_seen(copied, source, self.copy)


class Pins(Feature):
    """A DataFrame that was planned before, and a query of it whose first task had run before."""

    head = "DataFrame"
    topics = ("pin",)
    SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.frame: Frame | None = None
        self.planned: list[str] = []

    def write(self, log: Log, phase: str) -> None:
        log.append("pin", rows("pin", phase))

    def read(self, log: Log, phase: str) -> None:
        if self.frame is None:
            self.frame = Frame(self.url, "pin", schema=self.SCHEMA, endingOffsets=json.dumps({"pin": {"0": FIRST}}))
            self.planned = values(log, "pin")
            assert self._query("began") == self.planned

    def _query(self, name: str) -> list[str]:
        assert self.frame is not None
        batches = (batch for task in self.frame.tasks for batch in read_task(self.frame.reader, task, name))
        return [value.decode() for batch in batches for value in batch.column("value").to_pylist()]

    def check(self, after: After) -> None:
        after.log.append("pin", rows("pin", "after"))
        kept = [value for value in self.planned if not is_gone(value, after)]
        for name in ("began", "new"):
            found = self._query(name)
            assert found == kept or (found == self.planned and not after.is_erased), found
