"""`connect(url)` and the `Log` it returns: appends, scans, and access to producers, consumers and the admin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_log.client.open_journal import open_journal
from spark_log.client.producing.append import Appender, check_acks, txn_identity_if_given
from spark_log.client.reading.plan import SliceRead
from spark_log.client.reading.scan import plan_scan, scan
from spark_log.client.reading.scan_batches import SCAN_SCHEMA
from spark_log.client.topics import create_topic
from spark_log.conditions import Condition
from spark_log.journal.journal import Journal
from spark_log.model import NewTopic, TopicPartition
from spark_log.segment.schema import DEFAULT_COMPRESSION

if TYPE_CHECKING:
    from spark_log.client.administering.admin import Admin
    from spark_log.client.consuming.bookmark import Bookmark
    from spark_log.client.consuming.consumer import Consumer
    from spark_log.client.producing.producer import Producer
    from spark_log.client.producing.transaction import Transaction


def connect(
    url: str | PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    token: str | None = None,
    *,
    create: bool = True,
    durability: str = "disk",
) -> Log:
    """Open the log at `url`: a path or any fsspec URL, or a coordinator, `pylog://host:9550[,host2:9550]`.

    On storage, a new log is created if there is none and `create` is true.  A coordinator's address opens the log that
    it leads.

    storage_options:  passed to fsspec: credentials, endpoints.
    token:            for a coordinator; default: the environment variable PYLOG_TOKEN.
    durability:       "disk" syncs files before it acknowledges a write, "os" leaves that to the operating system.
    Raises NoLog, StoreNotExclusive, UnsupportedVersion, StorageError, CoordinatorNotAvailable.
    """
    return Log(open_journal(url, storage_options, token, create=create, durability=durability))


class Log:
    """One log.  Thread-safe; a context manager."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._appender = Appender(journal)

    @property
    def url(self) -> str:
        """URL of the log's root."""
        return self.journal.metadata.url

    @property
    def cluster_id(self) -> str:
        """The log's id, a random value from its creation."""
        return self.journal.cluster_id

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections to a coordinator; a log on storage has nothing to close."""
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
        """Append records, all or none, and return the offsets they got.

        data:  Arrow table, batch or stream, pandas or Polars frame, list of dicts, with `value` and any of `key`,
               `timestamp`, `headers`, `partition`.
        txn_app_id, txn_version:  both or neither: the append happens once per (application, version, topic). A version
               at or below the last one is skipped with a warning, and returns the offsets of the original append of
               that version, or {} if the log does not know it.
        Raises InvalidRecord and its subclasses, UnknownTopicOrPartition, CommitUnknown; and SequenceConflict if
        `txn_version` repeats the last version, but `data` has another number of rows than the log has for it.
        """
        check_acks(acks)
        identity = txn_identity_if_given(txn_app_id, txn_version, topic)
        return self._appender.append(topic, data, identity, partitioner=partitioner, compression=compression)

    def create_topic(self, topic: NewTopic) -> str:
        """Create a topic and return its id.  Logs a warning for configs that are accepted but have no effect."""
        return create_topic(self.journal, topic)

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
        """Records between two positions as a stream of Arrow batches, partition by partition, in offset order.

        start, end:  positions (an offset, "latest-100", "now-10m", "@2026-01-31T10:00Z", …); half-open.
        columns:     of topic, partition, offset, key, value, timestamp, headers; only these are decoded.
        where:       as in SQL, "timestamp >= '2026-01-31 10:00' and offset < 99"; data that cannot match is not read.
                     Timestamps without a zone are UTC.
        """
        return scan(self.journal, topic, partitions, start, end, columns, where)

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start: object = "earliest",
        end: object = "latest",
        columns: Sequence[str] | None = None,
        where: str | Condition | None = None,
    ) -> pa.Table:
        """As `scan`, but one table: of one partition, or of all."""
        return self.scan(topic, None if partition is None else [partition], start, end, columns, where).read_all()

    def plan(
        self,
        topic: str,
        partitions: Sequence[int] | None = None,
        start: object = "earliest",
        end: object = "latest",
        where: str | Condition | None = None,
    ) -> list[SliceRead]:
        """The parts of objects that a scan with the same arguments reads."""
        return plan_scan(self.journal, topic, partitions, start, end, where)

    # --------------------------------------------------------------------------------------------------------- clients

    @property
    def admin(self) -> Admin:
        """Topics, configs, offsets, groups and producers."""
        from spark_log.client.administering.admin import Admin

        return Admin(self.journal)

    def producer(self, **settings: Any) -> Producer:
        """A producer that takes one record at a time; settings are Kafka's, with underscores."""
        from spark_log.client.producing.producer import Producer

        return Producer(self.journal, **settings)

    def consumer(self, *topics: str, **settings: Any) -> Consumer:
        """A consumer of these topics; without topics, call `subscribe` or `assign`.  Settings are Kafka's, with
        underscores."""
        from spark_log.client.consuming.consumer import Consumer

        return Consumer(self.journal, *topics, **settings)

    def transaction(self, transactional_id: str, **settings: Any) -> Transaction:
        """A transaction over topics and consumer offsets.  It takes over the id: the previous owner is fenced."""
        from spark_log.client.producing.transaction import Transaction

        return Transaction(self.journal, transactional_id, **settings)

    def bookmark(self, name: str, *topics: str) -> Bookmark:
        """The position of a batch job, which continues where its last run ended."""
        from spark_log.client.consuming.bookmark import Bookmark

        return Bookmark(self.journal, name, *topics)


__all__ = ["SCAN_SCHEMA", "Log", "connect"]
