"""Transactions: records of many topics and consumers' positions, all in one commit or none of it.

Objects are staged while the block runs and committed when it is left without an exception.  Nothing of an open or a broken
off transaction is ever in the log but that its id was taken, so no reader waits for one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from spark_log.client.client_settings import TRANSACTION, coder, resolve_settings
from spark_log.client.consuming.consumer import Consumer
from spark_log.client.consuming.membership import Membership, as_offsets
from spark_log.client.producing.commit import Identity, commit_uploads, offsets_by_name
from spark_log.client.producing.delivery import to_rows
from spark_log.client.producing.futures import Columns, Headers
from spark_log.client.producing.producer import checked_headers, no_partition, to_bytes
from spark_log.client.producing.topic_rules import topic_spec
from spark_log.client.producing.upload import Uploader
from spark_log.client.topics import ensure_topic
from spark_log.errors import (
    CommitUnknown,
    CoordinatorNotAvailable,
    InvalidRequest,
    InvalidTimestamp,
    ProducerFenced,
    SparkLogError,
    StorageUnavailable,
    TransactionTimedOut,
)
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import TRANSACTIONAL, UNFENCED, AbortTransaction, Committer, InitProducer
from spark_log.metadata.records import GroupCommit
from spark_log.model import OffsetAndMetadata, TopicPartition
from spark_log.positions import TIME_MS_MAX
from spark_log.segment.conform import Rows, conform

logger = logging.getLogger("spark_log")

Row = tuple[bytes | None, bytes | None, int, Headers | None, int | None]
"""Key, value, timestamp in ms, headers, partition."""
ROWS_MAX = 10_000
"""Single records are gathered up to so many before they are encoded."""


class Transaction:
    """One transaction: a context manager, entered once.

    Entering takes the id over: who held it before can commit no more.  Raises on leaving: ProducerFenced if somebody newer
    has taken the id or it was aborted, TransactionTimedOut after `transaction_timeout_ms`, IllegalGeneration if a
    consumer's group was taken, UploadFenced (retriable: nothing was written, do it again) if it took longer than
    `gc.fence.age.ms`, CommitUnknown if the storage failed.
    """

    def __init__(self, journal: Journal, transactional_id: str, **settings: Any) -> None:
        if not transactional_id:
            raise InvalidRequest("transaction: the id is empty; give a name that is the same on every run")
        self._settings = resolve_settings("transaction", TRANSACTION, settings)
        self.transactional_id = transactional_id
        self.epoch = -1
        """Of the id, from entering on."""
        self.offsets: dict[TopicPartition, range] = {}
        """Where the records went, once they are committed."""
        self._journal = journal
        self._encode_key = coder(self._settings["key_serializer"], "serialize")
        self._encode_value = coder(self._settings["value_serializer"], "serialize")
        self._rows: dict[str, list[Row]] = {}
        self._groups: list[GroupCommit] = []
        self._by: dict[str, Committer] = {}
        self._uploader: Uploader | None = None
        self._upload_epoch = 0
        self._failed: Exception | None = None
        self._timeout_ms: int = self._settings["transaction_timeout_ms"]
        self._deadline_ms = 0

    def __enter__(self) -> Transaction:
        if self.epoch >= 0:
            raise InvalidRequest("a transaction is used once: call log.transaction(...) for the next")
        self._deadline_ms = self._journal.context.clock.monotonic_ms() + self._timeout_ms
        self.epoch = self._journal.propose(InitProducer(producer=self._producer, timeout_ms=self._timeout_ms))
        self._upload_epoch = self._journal.recent().version
        self._uploader = Uploader(
            self._journal.store,
            self._upload_epoch,
            self._journal.context.random(),
            partitioner=self._settings["partitioner"],
            compression=self._settings["compression_type"],
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        uploader = self._open_uploader()
        committed = False
        try:
            if kind is None:
                committed = self._commit(uploader)
        except BaseException as failed:
            error = failed
            raise
        finally:
            uploader.close()
            self._uploader = None
            if not committed:
                self._abort(error)

    def _abort(self, error: BaseException | None) -> None:
        """Have the log know that this transaction is over; if it cannot, its timeout ends it.

        error:  why it is over.
        """
        cut_off = error is not None and not isinstance(error, Exception)
        if cut_off or isinstance(error, CommitUnknown | CoordinatorNotAvailable | StorageUnavailable):
            return  # nobody waits longer for this than for the error
        try:
            self._journal.propose(AbortTransaction(producer=self._producer, epoch=self.epoch))
        except SparkLogError as failed:
            logger.warning(
                "transaction %r is over, but shown as ongoing for its %d ms: %s",
                self.transactional_id,
                self._timeout_ms,
                failed,
            )

    @property
    def _producer(self) -> str:
        return TRANSACTIONAL + self.transactional_id

    def append(self, topic: str, data: object) -> None:
        """Add records: whatever `log.append` takes."""
        uploader = self._open_uploader()
        self._check_time()
        try:
            self._encode(topic)
            for rows in conform(data, now_us=self._journal.context.clock.now_ms() * 1000):
                self._add(uploader, topic, rows)
        except Exception as error:
            # Part of the data may be staged: a commit of the rest would not be what was asked for.
            self._failed = error
            raise

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Add one record."""
        self._open_uploader()
        self._check_time()
        row = self._row(topic, value, key, headers, partition, timestamp_ms)
        rows = self._rows.setdefault(topic, [])
        rows.append(row)
        if len(rows) >= ROWS_MAX:
            self._encode(topic)

    def _row(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Sequence[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Row:
        if self._encode_value is not None and value is not None:
            value = self._encode_value(value)
        if self._encode_key is not None and key is not None:
            key = self._encode_key(key)
        if timestamp_ms is None:
            timestamp_ms = self._journal.context.clock.now_ms()
        elif type(timestamp_ms) is not int or not 0 <= timestamp_ms <= TIME_MS_MAX:
            raise InvalidTimestamp(f"timestamp_ms: {timestamp_ms!r} is not a time in milliseconds since 1970")
        ensure_topic(self._journal, topic)
        count = topic_spec(self._journal.state, topic).partitions
        if partition is not None and not (type(partition) is int and 0 <= partition < count):
            raise no_partition(topic, partition, count)
        return (
            None if key is None else to_bytes("key", key),
            None if value is None else to_bytes("value", value),
            timestamp_ms,
            checked_headers(headers) if headers else None,
            partition,
        )

    def commit_offsets(
        self, consumer: Consumer | str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> None:
        """Commit positions with the records: of a consumer, as far as it has given records out (or `offsets`), or of a
        group by name, which no generation guards."""
        self._open_uploader()
        if isinstance(consumer, Consumer):
            commit, by = consumer.group_commit(offsets), consumer.committer()
            self._groups.append(commit)
            if by is not None:
                self._by[commit.group] = by
            return
        if offsets is None:
            raise InvalidRequest('commit_offsets: with a group\'s name, give offsets: ("billing", {tp: 42})')
        named = Membership(self._journal, consumer).group_commit(self._journal.refresh(), as_offsets(offsets))
        assert named.generation == UNFENCED, "it has joined nothing"
        self._groups.append(named)

    def _encode(self, topic: str) -> None:
        """Single records that were sent go before what is appended next."""
        if rows := self._rows.pop(topic, None):
            try:
                keys, values, times, headers, partitions = zip(*rows, strict=True)
                columns = Columns(keys, values, np.array(times, dtype=np.int64), headers, partitions)
                self._add(self._open_uploader(), topic, to_rows(columns, 0, len(rows)))
            except Exception as error:
                # All of them were taken before: without them a commit would not be what was asked for.
                self._failed = error
                raise

    def _add(self, uploader: Uploader, topic: str, rows: Rows) -> None:
        ensure_topic(self._journal, topic)
        uploader.append(topic_spec(self._journal.state, topic), rows, self._journal.context.clock.now_ms())

    def _check_time(self) -> None:
        """Raises TransactionTimedOut when the time is over, ProducerFenced if somebody newer has the id by then.

        Whoever is told that the time is over does it again, and would take the id back.
        """
        if self._journal.context.clock.monotonic_ms() > self._deadline_ms:
            known = self._journal.refresh().producers.get(self._producer)
            if known is not None and known.epoch != self.epoch:
                raise ProducerFenced(
                    f"transaction {self.transactional_id!r}: epoch {self.epoch} is not the one in force, {known.epoch}: a newer "
                    "one has taken over",
                    current=known.epoch,
                )
            raise TransactionTimedOut(
                f"transaction {self.transactional_id!r} has been open for longer than transaction_timeout_ms "
                f"({self._timeout_ms}): nothing of it is in; do it again, or give it more time"
            )

    def _commit(self, uploader: Uploader) -> bool:
        """Whether there was anything to commit."""
        if self._failed is not None:
            raise InvalidRequest(
                f"transaction {self.transactional_id!r} cannot be committed, a write in it failed: {self._failed}"
            ) from self._failed
        for topic in tuple(self._rows):
            self._encode(topic)
        uploaded = uploader.finish()
        if not uploaded.slices and not self._groups:
            return False
        self._check_time()
        identity = Identity(producer=self._producer, epoch=self.epoch, sequence=0)
        committed = commit_uploads(
            self._journal, identity, self._upload_epoch, [uploaded], self._groups, by=tuple(self._by.items())
        )
        self.offsets = offsets_by_name(self._journal.state, committed)
        return True

    def _open_uploader(self) -> Uploader:
        if self._uploader is None:
            raise InvalidRequest("the transaction is not open: use it as `with log.transaction(...) as txn:`")
        return self._uploader
