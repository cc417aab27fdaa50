"""Things that users keep in a log, and expect to find again after any operation on the log: one class for each.

Each feature has its own topics, and all values are unique.  So a check sees each record that is skipped, doubled, or
replaced by another one.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark_pylog.export.manifest import ExportRun, Manifest
from pyspark_pylog.export.task import Written, write_files
from pyspark_pylog.mirror_job import settings_of
from pyspark_pylog.open_log import planned_log
from pyspark_pylog.topic_mirror import SourceTopic, TopicMirror, reached

import spark_log
from jobs import export as export_job
from jobs.export import Export, location_of
from jobs.mirror_pylog import LogSource
from jobs.mirror_pylog import parse_args as mirror_args
from spark_log import Log, NewTopic, TopicPartition
from spark_log.client.mirror_map import Copied, MirroredTopic, with_map
from spark_log.client.producing.append import txn_identity
from spark_log.client.producing.commit import Identity
from spark_log.clock import SystemClock
from spark_log.errors import DataLoss, GroupIdNotFound, InvalidRequest, SparkLogError, UnknownTopicOrPartition
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.model import ACKS_LEADER
from spark_log.node.replicator import Replicator
from tests.node.replicated_logs import put
from tests.spark.driver import Frame, Stream, Write, read_task

FIRST = 4
"""Records of each phase."""


@dataclass(frozen=True)
class After:
    """The log after an operation."""

    log: Log
    url: str
    """By which users open it."""
    is_older: bool = False
    """Whether it is an older copy, without what was written later."""
    is_same_topic: bool = True
    """False: topics were created again, or lost their identity."""
    gone: frozenset[str] = frozenset()
    """Keys of records that the operation removes."""
    is_erased: bool = False
    """Whether nobody may read these again, also who had planned it before."""

    is_where_it_was: bool = True
    """Whether a process that had it open can continue."""


def rows(feature: str, phase: str, count: int = FIRST) -> list[dict[str, Any]]:
    """Records of a phase.  Each has its own key, `k0`, `k1`, … in each phase."""
    return [{"key": f"{phase}-k{n}", "value": f"{feature}/{phase}/{n}"} for n in range(count)]


def values(log: Log, topic: str) -> list[str]:
    """All values of a topic, in order; none if there is no such topic."""
    try:
        return [value.decode() for value in log.read(topic, columns=["value"])["value"].to_pylist()]
    except UnknownTopicOrPartition:
        return []


def assert_each_is_seen(seen: Iterable[str], log: Log, topic: str) -> None:
    """No reader skips: what the log has, it has seen."""
    missed = [value for value in values(log, topic) if value not in set(seen)]
    assert not missed, f"skipped without a word: {missed}"


def assert_no_double(seen: Iterable[str]) -> None:
    twice = [value for value, times in Counter(seen).items() if times > 1]
    assert not twice, f"more than once: {twice}"


class Feature(ABC):
    """Something that users rely on."""

    head: ClassVar[str]
    """Of its column in docs/crossings.md."""
    topics: tuple[str, ...] = ()
    """Its topics.  Operations on topics apply to all of them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def create(self, log: Log) -> None:
        """Create the topics."""
        log.admin.create_topics([NewTopic(topic, 1) for topic in self.topics if topic not in log.admin.list_topics()])

    @abstractmethod
    def use(self, log: Log, phase: str) -> None:
        """Write and read; once before the operation, and once later, beside it or after it."""

    @abstractmethod
    def check(self, after: After) -> None:
        """Use it again, and check that all is whole.  Raises SparkLogError if it is refused."""


class Transactions(Feature):
    """A consume-transform-produce loop: each record of the source is in both outputs once."""

    head = "transaction"
    topics = ("txn-source", "txn-out", "txn-audit")

    def use(self, log: Log, phase: str) -> None:
        log.append("txn-source", rows("txn", phase))
        self._transform(log)

    def _transform(self, log: Log) -> None:
        tp = TopicPartition("txn-source", 0)
        try:
            positions = log.admin.list_consumer_group_offsets("txn-group")
        except GroupIdNotFound:
            positions = {}
        start = positions[tp].offset if tp in positions else "earliest"
        found = log.read("txn-source", start=start, columns=["value", "offset"])
        if not found.num_rows:
            return
        with log.transaction("txn-id") as txn:
            for topic in ("txn-out", "txn-audit"):
                txn.append(topic, [{"key": value, "value": value} for value in found["value"].to_pylist()])
            txn.commit_offsets("txn-group", {tp: found["offset"][-1].as_py() + 1})

    def check(self, after: After) -> None:
        self.use(after.log, "after")
        source, out, audit = (values(after.log, topic) for topic in self.topics)
        assert_no_double(out)
        if not after.gone:
            assert sorted(out) == sorted(audit) and set(source) <= set(out)
        assert_each_is_seen(out, after.log, "txn-source")


class Streams(Feature):
    """A streaming query, which also reads the later records."""

    head = "query"
    topic = "stream"

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.topics = (self.topic,)
        self.query = self._begin()
        self.seen: list[str] = []

    def use(self, log: Log, phase: str) -> None:
        log.append(self.topic, rows(self.topic, phase))
        try:
            self._read(log)
        except DataLoss:  # the topic was created again, as it says: people begin again
            self.query, self.seen = self._begin(), []
            self._read(log)

    def _begin(self) -> Stream:
        return Stream(self.url, self.topic, clock=SystemClock())

    def _read(self, log: Log) -> None:
        self.query.restart("available-now", path=self.url)
        at = [offset for _, offset in self.query.run()]
        by_offset = {row["offset"]: row["value"].decode() for row in log.read(self.topic).to_pylist()}
        self.seen += [by_offset[offset] for offset in at]

    def check(self, after: After) -> None:
        for phase in ("after", "more"):  # more than what a copy lacks
            after.log.append(self.topic, rows(self.topic, phase))
        self._read(after.log)
        assert_no_double(self.seen)
        assert_each_is_seen(self.seen, after.log, self.topic)


class StoppedStreams(Streams):
    """A streaming query that is stopped before the later records come."""

    head = "stopped query"
    topic = "stopped-stream"

    def use(self, log: Log, phase: str) -> None:
        if phase == "before":
            super().use(log, phase)
        else:
            log.append(self.topic, rows(self.topic, phase))


class Groups(Feature):
    """A consumer that stays, and one that is started again, each in its group."""

    head = "group"
    topics = ("group",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.consumer: Any = None
        self.seen: dict[str, list[str]] = {"stays": [], "again": []}

    def use(self, log: Log, phase: str) -> None:
        log.append("group", rows("group", phase))
        if self.consumer is None:
            self.consumer = log.consumer(
                "group", group_id="stays", auto_offset_reset="earliest", enable_auto_commit=False
            )
        self._poll(self.consumer, "stays")
        self._again(log)

    def _again(self, log: Log) -> None:
        with log.consumer(
            "group", group_id="again", auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            self._poll(consumer, "again")

    def _poll(self, consumer: Any, name: str) -> None:
        """Read to the end.  In a group that a coordinator leads, it takes a while to become a member."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = consumer.poll_arrow(timeout_ms=100)
            self.seen[name] += [value.decode() for value in found["value"].to_pylist()]
            if consumer.assignment() and not any(consumer.lag().values()):
                break
        consumer.commit()

    def check(self, after: After) -> None:
        for phase in ("after", "more"):
            after.log.append("group", rows("group", phase))
        self._again(after.log)
        assert_each_is_seen(self.seen["again"], after.log, "group")
        if not after.is_older:
            assert_no_double(self.seen["again"])
        if after.is_where_it_was:
            self._poll(self.consumer, "stays")
            assert_each_is_seen(self.seen["stays"], after.log, "group")


class Bookmarks(Feature):
    """A batch job that continues where its last run ended."""

    head = "bookmark"
    topics = ("bookmark",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.seen: list[str] = []

    def use(self, log: Log, phase: str) -> None:
        log.append("bookmark", rows("bookmark", phase))
        self._run(log)

    def _run(self, log: Log) -> None:
        with log.bookmark("nightly", "bookmark") as bookmark:
            for tp, end in bookmark.ends.items():
                start = max(
                    bookmark.starts[tp], log.admin.describe_topics(["bookmark"])["bookmark"].partitions[0].start
                )
                found = log.read("bookmark", tp.partition, start=start, end=end, columns=["value"])
                self.seen += [value.decode() for value in found["value"].to_pylist()]

    def check(self, after: After) -> None:
        for phase in ("after", "more"):
            after.log.append("bookmark", rows("bookmark", phase))
        self._run(after.log)
        assert_each_is_seen(self.seen, after.log, "bookmark")
        if not after.is_older:
            assert_no_double(self.seen)


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

    def use(self, log: Log, phase: str) -> None:
        log.append("export", rows("export", phase))
        try:
            self._run(log)
        except InvalidRequest:  # the topic was created again, as it says: people begin again
            if phase == "before":
                raise
            self.to = self.folder / "exported-again"
            self._run(log)

    def _run(self, log: Log) -> None:
        to = str(self.to)
        flags = ["--topic", "export", "--to", to, "--name", self.to.name, "--partition-by", "none"]
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
        self._run(after.log)
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
        self.query = self._begin()

    def _begin(self) -> Stream:
        return Stream(self.url, "mirror-source", clock=SystemClock())

    def use(self, log: Log, phase: str) -> None:
        log.append("mirror-source", rows("mirrored", phase))
        try:
            self._run()
        except InvalidRequest:  # the topic was created again: people delete the copy, as it says
            if phase == "before":
                raise
            with spark_log.connect(self.folder / "target") as target:
                target.admin.delete_topics(["mirror-source"])
            self.query = self._begin()  # the checkpoint has the id of the topic
            self._run()

    def _run(self) -> None:
        mirror(self.folder, self.url, str(self.folder / "target"), self.query)

    def check(self, after: After) -> None:
        for phase in ("after", "more"):
            after.log.append("mirror-source", rows("mirrored", phase))
        self._run()
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

    def use(self, log: Log, phase: str) -> None:
        with spark_log.connect(self.folder / "source") as source:
            source.append(self.copy, rows("copied", phase))
        mirror(self.folder, str(self.folder / "source"), self.url, self.query)

    def check(self, after: After) -> None:
        self.use(after.log, "after")
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

    def use(self, log: Log, phase: str) -> None:
        log.append("pin", rows("pin", phase))
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


def is_gone(value: str, after: After) -> bool:
    _, phase, number = value.split("/")
    return f"{phase}-k{number}" in after.gone


class Schemas(Feature):
    """A topic with a schema, which gets another column."""

    head = "schema"
    topics = ("typed",)

    def create(self, log: Log) -> None:
        if "typed" not in log.admin.list_topics():
            log.admin.create_topics([NewTopic("typed", 1, schema="id BIGINT NOT NULL, name STRING")])

    def use(self, log: Log, phase: str) -> None:
        log.append("typed", [{"key": f"{phase}-k{n}", "id": n, "name": phase} for n in range(FIRST)])
        if phase == "before":
            log.admin.alter_schema("typed", "id BIGINT NOT NULL, name STRING, more INT")

    def check(self, after: After) -> None:
        if after.is_same_topic:
            log = after.log
            assert len(log.admin.describe_schema("typed")) == 2
            refused = False
            try:
                log.append("typed", [{"key": "k", "value": b"garbage"}])
            except SparkLogError:
                refused = True
            assert refused
            log.append("typed", [{"key": "after-k0", "id": 7, "name": "after", "more": 1}])
            found = log.read("typed", columns=["id", "name", "more"]).to_pylist()
            assert found[-1] == {"id": 7, "name": "after", "more": 1}
            assert {row["name"] for row in found} <= {"before", "later", "after"}
            if not after.gone:
                assert [row["id"] for row in found if row["name"] == "before"] == list(range(FIRST))


class Views(Feature):
    """Latest values of keys, and a log that was open before."""

    head = "view"
    topics = ("view",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.open: Log | None = None

    def use(self, log: Log, phase: str) -> None:
        log.append("view", [*rows("view", phase), {"key": "same", "value": f"view/{phase}/same"}])
        if self.open is None:
            self.open = Log(log.journal)
        values(self.open, "view")

    def check(self, after: After) -> None:
        after.log.append("view", [{"key": "same", "value": "view/after/same"}])
        latest = {row["key"].decode(): row["value"].decode() for row in after.log.read("view").to_pylist()}
        table = {row["key"].decode(): row["value"].decode() for row in after.log.table("view").to_pylist()}
        assert table == latest and table["same"] == "view/after/same"
        assert self.open is not None
        if after.is_where_it_was:
            assert values(self.open, "view") == values(after.log, "view")


class Producers(Feature):
    """A job that numbers its writes, and is run again: each write is in the log once."""

    head = "numbered write"
    topics = ("numbered",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.phases: list[str] = []

    def use(self, log: Log, phase: str) -> None:
        self.phases.append(phase)
        self._write(log)

    def _write(self, log: Log) -> None:
        log.append("numbered", rows("numbered", self.phases[-1]), "job", len(self.phases))

    def check(self, after: After) -> None:
        known = values(after.log, "numbered")
        self._write(after.log)
        found = values(after.log, "numbered")
        assert_no_double(found)
        newest = [row["value"] for row in rows("numbered", self.phases[-1])]
        lost = [value for value in newest if value not in found and not is_gone(value, after)]
        assert not lost, f"the run was skipped, and its records are not there: {lost}; before it there were {known}"


class PendingWrites(Feature):
    """Records with acks=1 that one replica lacks.  A numbered write and a transaction wait behind them: their processes
    died when their commits were in the log.  Both are run again, and the records of each are there once.
    """

    head = "acks=1"

    def create(self, log: Log) -> None:
        known = log.admin.list_topics()
        replicas = {0: [1, 2]} if log.journal.refresh().brokers else None
        for topic in ("pending", "pending-source"):
            if topic not in known:
                log.admin.create_topics([NewTopic(topic, 1, replica_assignment=replicas)])

    def use(self, log: Log, phase: str) -> None:
        state = log.journal.refresh()
        if phase != "before" or not state.brokers:
            return
        log.append("pending-source", [{"value": "transformed"}])
        position = OffsetEntry(state.names["pending-source"], 0, 1, "")
        put(log, [1], topic="pending", values=[b"lazy"], acks=ACKS_LEADER)
        put(log, [1, 2], topic="pending", values=[b"numbered"], **_fields(txn_identity("job", 7, "pending")))
        put(
            log,
            [1, 2],
            topic="pending",
            values=[b"transformed"],
            groups=(GroupCommit("pending-group", -1, (position,)),),
        )
        assert len(log.journal.refresh().pending) == 3

    def check(self, after: After) -> None:
        log = after.log
        for _ in range(3):
            Replicator(log).round()
        log.append("pending", [{"value": "numbered"}], "job", 7)
        try:
            position = log.admin.list_consumer_group_offsets("pending-group")[
                TopicPartition("pending-source", 0)
            ].offset
        except (GroupIdNotFound, KeyError):
            position = 0
        if position == 0:
            log.append("pending", [{"value": "transformed"}])
        found = values(log, "pending")
        assert sorted(value for value in found if value != "lazy") == ["numbered", "transformed"]
        assert found.count("lazy") <= 1


def _fields(identity: Identity) -> dict[str, Any]:
    return {"producer": identity.producer, "sequence": identity.sequence, "dense": identity.dense}


FEATURES = (
    Transactions,
    Producers,
    PendingWrites,
    Streams,
    StoppedStreams,
    Groups,
    Bookmarks,
    Exports,
    MirrorSources,
    MirrorTargets,
    Pins,
    Schemas,
    Views,
)
