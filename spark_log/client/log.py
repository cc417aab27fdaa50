"""`connect(url)` and the `Log` it returns: appends, scans, and access to producers, consumers and the admin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import Unpack

from spark_log.client.arguments import guarded, refuses_odd_arguments
from spark_log.client.client_settings import CONSUMER, PRODUCER, TRANSACTION, resolve_settings
from spark_log.client.open_journal import open_journal
from spark_log.client.producer.append import Appender, acks_of, txn_identity_if_given
from spark_log.client.reader.plan import SliceRead
from spark_log.client.reader.scan import plan_scan, scan
from spark_log.client.reader.scan_batches import SCAN_SCHEMA
from spark_log.client.representations import HtmlDict, log_facts, one_line
from spark_log.client.topic_creation import create_topic
from spark_log.client.typed_settings import ConsumerSettings, ProducerSettings, TransactionSettings, takes_settings
from spark_log.client.validate import new_topics, several
from spark_log.conditions import Condition
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.model import ACKS_ALL, NewTopic, TopicPartition
from spark_log.segment.compression import DEFAULT_COMPRESSION
from spark_log.segment.frame_columns import ColumnNames

if TYPE_CHECKING:
    from spark_log.client.admin.admin import Admin
    from spark_log.client.admin.descriptions import TopicListing
    from spark_log.client.consumer.bookmark import Bookmark
    from spark_log.client.consumer.consumer import Consumer
    from spark_log.client.producer.producer import Producer
    from spark_log.client.producer.transaction import Transaction


@guarded
def connect(
    url: str | PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    token: str | None = None,
    *,
    create: bool = True,
    durability: str = "disk",
    client_rack: str = "",
) -> Log:
    """Open the log at `url`: a path, a bucket such as `s3://bucket/folder`, or a coordinator's address,
    `pylog://host:9550[,host2:9550]`.

    If a path or bucket has no log yet, a new one is created, with a warning in Python's log, unless `create` is false.
    A coordinator is a server,
    `pylog serve`, that writes one log for all clients; its address opens that log.  With a coordinator, this process
    keeps in memory only the metadata of the topics that it uses.  Calls that need all topics, such as any method of
    `log.admin`, load the metadata of the others.

    storage_options:  passed to fsspec: credentials, endpoints.
    token:            authenticates to a coordinator; default: the value of the environment variable PYLOG_TOKEN.
    durability:       on a disk, "disk" syncs files before a write is acknowledged, and "os" leaves that to the
                      operating system.  Ignored for a bucket.
    client_rack:      the rack of this process.  Reads first try the brokers in this rack that have a copy of the
                      records, then the leader.  The setting `client_rack` of a consumer takes precedence.
    Raises NoLog, also for a new log in a folder whose disk is not mounted, as far as `/etc/fstab` tells;
    StoreNotExclusive (the storage has no put-if-absent), UnsupportedVersion, StorageError, CoordinatorNotAvailable,
    AuthenticationFailed; InvalidRequest for an invalid URL or option, or if `token` is given with a storage URL.
    """
    journal = open_journal(
        url, storage_options, token, create=create, durability=durability, client_rack=client_rack, partial=True
    )
    return Log(journal)


@refuses_odd_arguments()
class Log:
    """An open log, as `connect` returns it.  Thread-safe; a context manager that closes the log."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._appender = Appender(journal)

    @property
    def journal(self) -> Journal:
        """The log's metadata, with that of all topics loaded."""
        self._journal.require(None)
        return self._journal

    @property
    def url(self) -> str:
        """URL of the log's root."""
        return self._journal.metadata.url

    @property
    def cluster_id(self) -> str:
        """The log's id, a random value from its creation."""
        return self._journal.cluster_id

    def __repr__(self) -> str:
        return one_line(self, lambda: log_facts(self._journal))

    def __dir__(self) -> list[str]:
        """Without `journal`, which only pylog uses."""
        return [name for name in super().__dir__() if name != "journal"]

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait up to a minute until the checkpoints and other maintenance begun by this process are written, then close
        connections to a coordinator.

        Producers and consumers are not closed: close them first.  A log that is used after this reconnects.
        """
        self._journal.finish_maintenance()
        if self._journal.link is not None:
            self._journal.link.close()

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
        value_columns: Sequence[str] | None = None,
        key_column: str | None = None,
        timestamp_column: str | None = None,
    ) -> dict[TopicPartition, range]:
        """Append records, all or none, and return the offsets they got.

        A topic that does not exist is created, if `auto.create.topics.enable` allows it.

        data:  an Arrow table, batch or stream, a pandas or Polars frame, or a list of dicts, with the column `value`
               and any of `key`, `timestamp`, `headers`, `partition`.  Keys and values are bytes or str (encoded as
               UTF-8).  A timestamp is a datetime or an Arrow timestamp (UTC if it has no zone), or milliseconds since
               1970; None or no column: the current time.  Headers are a list of pairs, `[("source", b"web")]`, or of
               structs of key and value.  For a topic with a schema: its columns instead of `value`, or a struct of
               them as `value`.
        txn_app_id, txn_version:  both or neither.  With them, the log accepts one append per (application, version,
               topic).  A topic that was created again is another one.  If the version is at or below the last accepted
               one, the append is skipped with a warning.  The call then returns the offsets of the original append of
               that version, or {} if the log does not know them.  But if the version equals the last accepted one and
               `data` has a different number of rows, the append raises SequenceConflict.
        partitioner:  "default" (murmur2 of the key, as in Kafka), "round-robin", "sticky", or a class "module:Class".
        compression:  "zstd", "lz4" or "none"; used if the topic's `compression.type` is `producer`, its default.
        acks:  "all": the append waits for the in-sync replicas.  Once `min.insync.replicas` of them have the records,
               it waits for the others for one more second, or for half the time the first ones took, whichever is
               longer, and then removes those that have not answered from the ISR.  The append succeeds if at least
               `min.insync.replicas` replicas have stored the records durably; the records are then visible.  1: it
               waits for the leader's copy only.  This process makes the other copies in the background, and readers
               see the records when all in-sync replicas have them.  0: treated as 1, because the call has to return
               offsets.
        key_column, timestamp_column, value_columns:  for a topic with a schema: the columns of `data` that hold the key
               (default: `key`), the timestamp (default: `timestamp`), and the values of the schema's columns (default:
               all columns except those that every record has, such as `key` or `offset`).  One column may be both a
               key and a value.
        Raises InvalidRequest for an invalid argument, InvalidRecord and its subclasses for invalid `data`,
        UnknownTopicOrPartition, CommitUnknown, SequenceConflict.  Raises NotEnoughReplicas or LeaderNotAvailable if,
        for two minutes, too few replicas answer.  Raises RequestTimedOut if the records are in the log, but earlier
        ones with acks=0 or 1 keep them from becoming visible.
        """
        wanted = acks_of(acks)
        identity = txn_identity_if_given(txn_app_id, txn_version, topic)
        if identity is not None and wanted != ACKS_ALL:
            raise InvalidRequest(f"acks={acks}: an append with txn_version happens once, which needs acks=all")
        names = ColumnNames(
            None if value_columns is None else tuple(several("value_columns", value_columns)),
            key_column or "",
            timestamp_column or "",
        )
        return self._appender.append(
            topic, data, identity, partitioner=partitioner, compression=compression, acks=wanted, names=names
        )

    def create_topic(self, topic: NewTopic) -> str:
        """Create a topic and return its id.  Gives a UserWarning for configs that are accepted but have no effect."""
        (checked,) = new_topics("create_topic", [topic])
        return create_topic(self._journal, checked)

    def topics(self) -> dict[str, TopicListing]:
        """All topics, by name.  `log.admin.describe_topics()` has more."""
        from spark_log.client.admin.descriptions import list_topics

        return HtmlDict(list_topics(self.journal.refresh()))

    # ------------------------------------------------------------------------------------------------------------ read

    def scan(
        self,
        topic: str,
        partitions: Sequence[int] | None = None,
        start: object = "earliest",
        end: object = "latest",
        columns: Sequence[str] | None = None,
        where: str | Condition | None = None,
        value_format: str | None = None,
        value_parse: str | None = None,
    ) -> pa.RecordBatchReader:
        """Records between two positions as a stream of Arrow batches, partition by partition, in offset order.

        start, end:  positions: an offset, "latest-100", "now-10m", "@2026-01-31T10:00Z", …, a datetime (UTC if it has
                     no zone), or a timedelta (how long ago).  The record at `end` is not included.
        columns:  any of topic, partition, offset, key, value, timestamp, headers; for a topic with a schema, its
                     columns in place of value.  Only these are decoded.
        where:  a condition as in SQL: "timestamp >= '2026-01-31 10:00' and offset < 99", also on the columns of a topic
                     with a schema: "amount > 100 and country = 'DE'".  Only matching records are returned, and batches
                     that cannot match are not fetched.  Times without a zone are UTC.
        value_format:  for a topic with a schema.  "columns" (default): the schema's columns in place of `value`; only
                     those named in the argument `columns` are decoded.  "struct": `value` is a struct of them.  "json":
                     `value` is JSON, as bytes.
        value_parse:  "json": values that are older than the topic's schema are parsed as JSON.  None: reading them as
                     columns or as a struct raises InvalidRequest.
        Without a schema, the columns are topic string, partition int32, offset int64, key and value binary, timestamp
        in microseconds (UTC), and headers, a list of structs of key and value.
        Raises UnknownTopicOrPartition, OffsetOutOfRange, InvalidRequest; GroupIdNotFound for a group without positions.
        """
        return scan(self._journal, topic, partitions, start, end, columns, where, value_format, value_parse)

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start: object = "earliest",
        end: object = "latest",
        columns: Sequence[str] | None = None,
        where: str | Condition | None = None,
        value_format: str | None = None,
        value_parse: str | None = None,
    ) -> pa.Table:
        """Like `scan`, but returns one table, with the records of `partition` or, by default, of all partitions."""
        numbers = None if partition is None else [partition]
        return self.scan(topic, numbers, start, end, columns, where, value_format, value_parse).read_all()

    def table(
        self,
        topic: str,
        at: object = "latest",
        partitions: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        where: str | Condition | None = None,
        value_format: str | None = None,
        value_parse: str | None = None,
    ) -> pa.Table:
        """The latest record of each key, as one table: the records that a complete compaction would keep, without
        tombstones.

        The columns are those of `scan`; the rows are sorted by partition and offset.  Records without a key are left
        out, and so are deleted keys, whose latest record has no value.  Each partition is treated separately, as in
        compaction: a key with records in several partitions can have a row for each of them.

        at:                         a position, e.g. a datetime: only the records before it count.  This is the table as
                                    it was then, unless compaction, retention or a trim has removed some of these
                                    records since.
        where:                      a condition on the latest records, as in `scan`.
        value_format, value_parse:  as in `scan`.
        Raises InvalidRequest, UnknownTopicOrPartition.
        """
        from spark_log.client.reader.latest import scan_latest

        return scan_latest(self._journal, topic, partitions, at, columns, where, value_format, value_parse).read_all()

    def plan(
        self,
        topic: str,
        partitions: Sequence[int] | None = None,
        start: object = "earliest",
        end: object = "latest",
        where: str | Condition | None = None,
    ) -> list[SliceRead]:
        """The parts of the log's data objects that `scan` with these arguments would read."""
        return plan_scan(self._journal, topic, partitions, start, end, where)

    # --------------------------------------------------------------------------------------------------------- clients

    @property
    def admin(self) -> Admin:
        """Administration of topics, configs, offsets, groups and producers."""
        from spark_log.client.admin.admin import Admin

        return Admin(self.journal)

    @takes_settings(PRODUCER, ProducerSettings.__annotations__)
    def producer(self, **settings: Unpack[ProducerSettings]) -> Producer:
        """A producer that takes one record at a time.  Settings have Kafka's names, with underscores: `linger_ms`."""
        from spark_log.client.producer.producer import Producer

        return Producer(self._journal, **settings)

    @takes_settings(CONSUMER, ConsumerSettings.__annotations__)
    def consumer(self, *topics: str, **settings: Unpack[ConsumerSettings]) -> Consumer:
        """A consumer of these topics; without topics, call `subscribe` or `assign`.  Settings have Kafka's names, with
        underscores: `group_id`."""
        from spark_log.client.consumer.consumer import Consumer

        return Consumer(self._journal, *topics, **resolve_settings("consumer", CONSUMER, settings))

    @takes_settings(TRANSACTION, TransactionSettings.__annotations__)
    def transaction(self, transactional_id: str, **settings: Unpack[TransactionSettings]) -> Transaction:
        """A transaction over topics and consumer offsets.  Entering it takes over the id and fences the previous
        owner."""
        from spark_log.client.producer.transaction import Transaction

        return Transaction(self.journal, transactional_id, **settings)

    def bookmark(self, name: str, *topics: str) -> Bookmark:
        """The position of a batch job: each run continues where the last one ended."""
        from spark_log.client.consumer.bookmark import Bookmark

        return Bookmark(self.journal, name, *topics)


__all__ = ["SCAN_SCHEMA", "Log", "connect"]
