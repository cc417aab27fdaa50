"""`connect(url)` and the `Log` that it gives: appends, scans, and the way to producers, consumers and the admin."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from datetime import timezone
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_log.client.commit import Identity, PlainProducer, commit_uploads
from spark_log.client.given import several
from spark_log.client.plan import SliceRead, likely_pieces
from spark_log.client.prune import plan_matching
from spark_log.client.resolve import partitions_of, ranges_between, resolve, resolve_starts
from spark_log.client.route import open_journal
from spark_log.client.scan import SCAN_SCHEMA, scan_batches, scan_schema
from spark_log.client.upload import Uploaded, Uploader, topic_spec
from spark_log.conditions import EVERYTHING, Condition, parse_condition
from spark_log.errors import InvalidRequest, TopicAlreadyExists, UnknownTopicOrPartition
from spark_log.journal.journal import Journal
from spark_log.journal.upkeep import read_tables
from spark_log.metadata.commands import CreateTopic
from spark_log.metadata.decide import Committed
from spark_log.metadata.progress_topic import progress_of, progress_partitions, to_batch
from spark_log.metadata.state import State
from spark_log.model import PROGRESS_TOPIC, NewTopic, TopicPartition
from spark_log.positions import At, parse_position
from spark_log.segment.rows import conform
from spark_log.segment.schema import DEFAULT_COMPRESSION
from spark_log.settings import cluster_config, validate_topic_configs
from spark_log.words import counted

if TYPE_CHECKING:
    from spark_log.client.admin import Admin
    from spark_log.client.bookmark import Bookmark
    from spark_log.client.consumer import Consumer
    from spark_log.client.producer import Producer
    from spark_log.client.transaction import Transaction

logger = logging.getLogger("spark_log")

PIECES_AHEAD = 32
"""Pieces of slice indexes that a plan reads while it refreshes the state, under the journal's lock."""


def connect(
    url: str | PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    token: str | None = None,
    *,
    create: bool = True,
    durability: str = "disk",
) -> Log:
    """Open the log at `url`: a path or any fsspec URL, or a coordinator, `pylog://host:9550[,host2:9550]`.

    On storage a log is begun if there is none and `create`.  A coordinator that has it is followed.

    storage_options:  handed to fsspec: credentials, endpoints.
    token:            for a coordinator; without one, what PYLOG_TOKEN holds.
    durability:       "disk" syncs before anything is reported as done, "os" leaves that to the operating system.
    Raises NoLog, StoreNotExclusive, UnsupportedVersion, StorageError, CoordinatorNotAvailable.
    """
    return Log(open_journal(url, storage_options, token, create=create, durability=durability))


class Log:
    """One log.  Safe for threads; a context manager."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._plain = PlainProducer(journal)

    @property
    def url(self) -> str:
        """The root."""
        return self.journal.store.url

    @property
    def cluster_id(self) -> str:
        """The log's own id, drawn when it was created."""
        return self.journal.cluster_id

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections to a coordinator; a log on storage holds nothing open."""
        if self.journal.link is not None:
            self.journal.link.close()

    # ---------------------------------------------------------------------------------------------------------- append

    def append(
        self,
        topic: str,
        data: object,
        txn_app_id: str | None = None,
        txn_version: int | None = None,
        *,
        partitioner: str = "default",
        compression: str = DEFAULT_COMPRESSION,
        acks: str | int = "all",
    ) -> dict[TopicPartition, range]:
        """Append records, all or nothing, and give the offsets that they got.

        data:  Arrow table, batch or stream, pandas or Polars frame, list of dicts, with `value` and any of `key`,
               `timestamp`, `headers`, `partition`.
        txn_app_id, txn_version:  both or neither: the append happens once per (application, version, topic). A version at
               or below the last one is skipped with a warning; the result has the offsets of the first time, or none.
        Raises InvalidRecord and its kinds, UnknownTopicOrPartition, CommitUnknown.
        """
        check_acks(acks)
        identity = _txn_identity(txn_app_id, txn_version, topic)
        self.ensure_topic(topic)
        epoch = self.upload_epoch()
        uploaded = self.upload(topic, data, epoch, partitioner=partitioner, compression=compression)
        if not uploaded.slices:
            return {}
        if identity is None:
            return self.named(self._plain.commit(epoch, [uploaded]))
        committed = commit_uploads(self.journal, identity, epoch, [uploaded])
        if committed.repeated:
            logger.warning("%s", skipped_version(identity, committed, [uploaded]))
        return self.named(committed)

    def upload(
        self,
        topic: str,
        data: object,
        epoch: int,
        *,
        partitioner: str = "default",
        compression: str = DEFAULT_COMPRESSION,
    ) -> Uploaded:
        """Write records as objects under an upload epoch, without committing them."""
        clock = self.journal.context.clock
        spec = topic_spec(self.journal.state, topic)
        uploader = Uploader(
            self.journal.store, epoch, self.journal.context.random(), partitioner=partitioner, compression=compression
        )
        try:
            for rows in conform(data, now_us=clock.now_ms() * 1000):
                uploader.append(spec, rows, clock.now_ms())
            return uploader.finish()
        finally:
            uploader.close()

    def upload_epoch(self) -> int:
        """Version under which an upload may begin."""
        return self.journal.recent().version

    def ensure_topic(
        self, topic: str, configs: Mapping[str, str] | None = None, deadline_ms: int | None = None
    ) -> None:
        """Create a topic that does not exist, with these configs, if `auto.create.topics.enable`.

        deadline_ms:  on the monotonic clock, up to when a coordinator is waited for; None: as long as changes do.
        """
        if topic in self.journal.state.names:
            return
        state = self.journal.refresh()
        if topic in state.names:
            return
        if not auto_creates(state):
            raise no_such_topic(topic)
        try:
            count = cluster_config(state.configs, "num.partitions")
            self.create_topic(NewTopic(topic, count, configs or {}), deadline_ms)
        except TopicAlreadyExists:
            self.journal.refresh()

    def create_topic(self, topic: NewTopic, deadline_ms: int | None = None) -> str:
        """Create a topic; its id.  Warns of configs that are accepted but not in force."""
        _, notes = validate_topic_configs(topic.configs)
        for note in notes:
            warnings.warn(note, stacklevel=3)
        topic_id = new_topic_id(self.journal)
        create = CreateTopic(
            name=topic.name, partitions=topic.num_partitions, configs=dict(topic.configs), topic_id=topic_id
        )
        return self.journal.propose(create, deadline_ms)

    def named(self, committed: Committed) -> dict[TopicPartition, range]:
        """Offsets by topic name."""
        topics = self.journal.state.topics
        return {
            TopicPartition(topics[topic_id].name, number): span
            for (topic_id, number), span in sorted(committed.ranges.items())
            if topic_id in topics
        }

    # ------------------------------------------------------------------------------------------------------------ read

    def scan(
        self,
        topic: str,
        partitions: Sequence[int] | None = None,
        start: object = "earliest",
        end: object = "latest",
        columns: Sequence[str] | None = None,
        where: str | Condition | None = None,
    ) -> pa.RecordBatchReader:
        """Records of a range as a stream of Arrow batches, partition by partition, in offset order.

        start, end:  positions (an offset, "latest-100", "now-10m", "@2026-01-31T10:00Z", …); half-open.
        columns:     of topic, partition, offset, key, value, timestamp, headers; only these are decoded.
        where:       as in SQL, "timestamp >= '2026-01-31 10:00' and offset < 99"; what cannot match is not read.  Timestamps
                     without a zone are UTC.
        """
        schema, condition = scan_schema(columns), as_condition(where)
        if topic == PROGRESS_TOPIC:
            return self._scan_progress(partitions, start, end, schema, condition)
        reads = self.plan(topic, partitions, start, end, condition)
        return pa.RecordBatchReader.from_batches(schema, scan_batches(self.journal, reads, schema, condition))

    def _scan_progress(
        self, partitions: Sequence[int] | None, start: object, end: object, schema: pa.Schema, where: Condition
    ) -> pa.RecordBatchReader:
        progress, now_ms = progress_of(self.journal.refresh()), self.journal.context.clock.now_ms()
        first, last = parse_position(start, "start"), parse_position(end, "end")
        if isinstance(last, At):
            last = At(min(last.offset, progress.end))
        numbers = progress_partitions(partitions)
        starts, ends = (progress.offsets_of(dict.fromkeys(numbers, position), now_ms) for position in (first, last))
        return pa.RecordBatchReader.from_batches(schema, [to_batch(progress.between(starts, ends, where), schema)])

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start: object = "earliest",
        end: object = "latest",
        columns: Sequence[str] | None = None,
        where: str | Condition | None = None,
    ) -> pa.Table:
        """The same, read whole, of one partition or of all."""
        return self.scan(topic, None if partition is None else [partition], start, end, columns, where).read_all()

    def plan(
        self,
        topic: str,
        partitions: Sequence[int] | None = None,
        start: object = "earliest",
        end: object = "latest",
        where: str | Condition | None = None,
    ) -> list[SliceRead]:
        """The parts of objects that a scan of the same reads."""
        first, last, condition = parse_position(start, "start"), parse_position(end, "end"), as_condition(where)
        numbers = None if partitions is None else several("partitions", partitions)
        likely = likely_pieces(self.journal.state, topic, numbers, first, last, condition.window)[:PIECES_AHEAD]
        state, known = self.journal.refresh_beside(read_tables(likely))
        tps = partitions_of(state, topic) if numbers is None else [TopicPartition(topic, n) for n in numbers]
        starts = resolve_starts(self.journal, dict.fromkeys(tps, first))
        ends = _ends(resolve(self.journal, {tp: last for tp in tps if not isinstance(last, At)}), tps, last, state)
        return plan_matching(self.journal, ranges_between(self.journal.state, starts, ends), condition, known)

    # --------------------------------------------------------------------------------------------------------- clients

    @property
    def admin(self) -> Admin:
        """Topics, configs, offsets, groups and producers."""
        from spark_log.client.admin import Admin

        return Admin(self)

    def producer(self, **settings: Any) -> Producer:
        """A producer that takes one record at a time; settings are Kafka's, with underscores."""
        from spark_log.client.producer import Producer

        return Producer(self, **settings)

    def consumer(self, *topics: str, **settings: Any) -> Consumer:
        """A consumer of these topics; settings are Kafka's, with underscores."""
        from spark_log.client.consumer import Consumer

        return Consumer(self, *topics, **settings)

    def transaction(self, transactional_id: str, **settings: Any) -> Transaction:
        """All or nothing, over topics and consumer offsets.  The id is taken over: who held it before is fenced."""
        from spark_log.client.transaction import Transaction

        return Transaction(self, transactional_id, **settings)

    def bookmark(self, name: str, *topics: str) -> Bookmark:
        """Where a batch job stands: it goes on where its last run ended."""
        from spark_log.client.bookmark import Bookmark

        return Bookmark(self, name, *topics)


def as_condition(where: str | Condition | None) -> Condition:
    """The condition of a text, in which times without a zone are UTC; all records for None.  Raises InvalidRequest."""
    if isinstance(where, str):
        return parse_condition(where, "where", timezone.utc)
    return EVERYTHING if where is None else where


def _ends(
    found: dict[TopicPartition, int], tps: Sequence[TopicPartition], last: object, state: State
) -> dict[TopicPartition, int]:
    """Ends of a scan: a number beyond the end of a partition means its end."""
    if not isinstance(last, At):
        return found
    ends = {}
    for tp in tps:
        part = state.partitions[state.names[tp.topic], tp.partition]
        ends[tp] = min(last.offset, part.end)
    return ends


def auto_creates(state: State) -> bool:
    """Whether appending to a topic that does not exist creates it."""
    return bool(cluster_config(state.configs, "auto.create.topics.enable"))


def no_such_topic(topic: str) -> UnknownTopicOrPartition:
    """Where it is not created by itself."""
    return UnknownTopicOrPartition(
        f"topic {topic!r} does not exist and auto.create.topics.enable is false; create it with `pylog topic create`"
    )


def new_topic_id(journal: Journal) -> str:
    """A random id, 128 bits."""
    return journal.context.unique() + journal.context.unique()


def check_acks(acks: str | int) -> None:
    """Raises InvalidRequest unless it is 0, 1 or all."""
    if str(acks) not in ("0", "1", "-1", "all"):
        raise InvalidRequest(f"acks: {acks!r} is not possible; give 0, 1 or all")


def _txn_identity(app_id: str | None, version: int | None, topic: str) -> Identity | None:
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        raise InvalidRequest("txn_app_id and txn_version go together: give both or neither")
    return txn_identity(app_id, version, topic)


def txn_identity(app_id: str, version: int, topic: str | None) -> Identity:
    """The identity of a write that happens once per (application, version, topic).

    topic:  None where the rows name their topics, whatever those are.
    """
    if not isinstance(version, int) or version < 0:
        raise InvalidRequest(f"txn_version: {version!r} is not a whole number, 0 or more")
    if not app_id:
        raise InvalidRequest("txn_app_id is empty; give the application a name")
    return Identity(producer=f"app:{app_id}:{topic or ''}", sequence=version, dense=False, skip_older=True)


def skipped_version(identity: Identity, committed: Committed, uploads: Sequence[Uploaded]) -> str:
    """What a log of the application says of a write that `txn_identity` made a repeat."""
    app_id, _, topic = identity.producer.removeprefix("app:").rpartition(":")
    to = f" to topic {topic!r}" if topic else ""
    rows = counted(sum(run.rows for upload in uploads for _, run in upload.slices), "row")
    why = (
        "that version is in the log already"
        if committed.last == identity.sequence
        else f"the last version in the log is {committed.last}, and a version must be higher"
    )
    return f"txnVersion {identity.sequence} of application {app_id!r} is skipped, {rows}{to} not written: {why}"


__all__ = ["SCAN_SCHEMA", "Log", "connect"]
