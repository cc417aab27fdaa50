"""Transactions: records of many topics and positions of consumers in one atomic commit.

Objects are staged while the block runs, and committed on leaving it without an exception.  The log contains nothing of
an open or aborted transaction except that its id was taken over, so readers never wait for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from types import TracebackType
from typing import Any

import numpy as np

from spark_log.client.arguments import refuses_odd_arguments
from spark_log.client.client_settings import TRANSACTION, coder, resolve_settings
from spark_log.client.consumer.consumer import Consumer
from spark_log.client.consumer.membership import Membership, as_offsets
from spark_log.client.producer.append import replica_puts
from spark_log.client.producer.commit import Identity, commit_uploads, offsets_by_name
from spark_log.client.producer.delivery import rows_for
from spark_log.client.producer.futures import Columns, Headers
from spark_log.client.producer.producer import checked_headers, no_partition
from spark_log.client.producer.sent_values import sent_value, to_bytes
from spark_log.client.producer.topic_rules import TopicSpec, no_key, topic_spec
from spark_log.client.producer.typed_writes import has_other_schema, rows_of, spec_for
from spark_log.client.producer.upload import Uploader
from spark_log.client.reader.positions_to_offsets import group_entries
from spark_log.client.representations import log_facts, one_line
from spark_log.client.topic_creation import ensure_topic
from spark_log.client.validate import check_new_id
from spark_log.errors import (
    CommitUnknown,
    CoordinatorNotAvailable,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    ProducerFenced,
    SparkLogError,
    StorageUnavailable,
    TransactionTimedOut,
)
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.commands import TRANSACTIONAL, AbortTransaction, InitProducer
from spark_log.metadata.groups.group_commands import UNFENCED, Committer, check_read
from spark_log.metadata.lines import plan_of
from spark_log.metadata.records import GroupCommit
from spark_log.metadata.set_backs import Lineage, lineage_of
from spark_log.model import OffsetAndMetadata, TopicPartition
from spark_log.positions import TIME_MS_MAX
from spark_log.schema.topic_schema import TopicSchema
from spark_log.segment.record_columns import Rows
from spark_log.text import counted, shown

Row = tuple[bytes | None, bytes | None, int, Headers | None, int | None]
"""Key, value, timestamp in ms, headers, partition."""
ROWS_MAX = 10_000
"""Single records collected before they are encoded."""


@refuses_odd_arguments()
class Transaction:
    """One transaction: a context manager that can be entered once.

    Entering takes over the id: the previous owner can no longer commit.  Leaving without an error commits.  Leaving can
    raise these errors:

    ProducerFenced:  a newer transaction or `Admin.fence_producers` has taken over the id, or `Admin.abort_transaction`
          has aborted this transaction.
    TransactionTimedOut:  `transaction_timeout_ms` has passed.
    IllegalGeneration:  a consumer given to `commit_offsets` is no longer a member of its group.
    RebalanceInProgress:  the group of such a consumer is rebalancing.
    GroupInUse:  a group given by name is held by a stream, or shared by consumers.
    UploadFenced:  the transaction took longer than `gc.fence.age.ms`, or the log has been restored from a copy.
          Nothing was written; retry the transaction.
    NotEnoughReplicas, LeaderNotAvailable:  for two minutes, too few replicas have answered, and the transaction has
          not timed out in the meantime.  Nothing was written.
    CommitUnknown:  the storage failed, and the commit may have been applied.
    """

    def __init__(self, journal: Journal, transactional_id: str, **settings: Any) -> None:
        check_new_id("transaction", transactional_id)
        self._settings = resolve_settings("transaction", TRANSACTION, settings)
        self.transactional_id = transactional_id
        self.epoch = -1
        """Epoch of the id, set on entering."""
        self.offsets: dict[TopicPartition, range] = {}
        """Offsets of the records, set once they are committed."""
        self._journal = journal
        self._encode_key = coder(self._settings["key_serializer"], "serialize")
        self._encode_value = coder(self._settings["value_serializer"], "serialize")
        self._rows: dict[str, list[Row]] = {}
        self._groups: list[GroupCommit] = []
        self._by: dict[str, Committer] = {}
        self._topics: Mapping[str, str] = {}
        """Ids of the topics that were there when it began."""
        self._first: dict[str, TopicSchema] = {}
        """By topic, the schema that this transaction gives to it, because it had none (`schema.auto`)."""
        self._uploader: Uploader | None = None
        self._upload_epoch, self._lineage, self._plan = 0, Lineage("", ""), ""
        self._failed: Exception | None = None
        self._timeout_ms: int = self._settings["transaction_timeout_ms"]
        self._deadline_ms = 0

    def __repr__(self) -> str:
        return one_line(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.transactional_id)
        yield from log_facts(self._journal)
        if self._uploader is not None:
            yield f"open, epoch {self.epoch}"
        elif self.epoch < 0:
            yield "not begun"
        else:
            yield f"ended, {counted(sum(map(len, self.offsets.values())), 'record')} committed"

    def __enter__(self) -> Transaction:
        if self.epoch >= 0:
            raise InvalidRequest("a transaction is used once: call log.transaction(...) for the next")
        self._deadline_ms = self._journal.context.clock.monotonic_ms() + self._timeout_ms
        self.epoch = self._journal.propose(InitProducer(producer=self._producer, timeout_ms=self._timeout_ms))
        began = self._journal.recent()
        self._topics, self._upload_epoch, self._lineage = began.names, began.version, lineage_of(began)
        self._plan = plan_of(began)
        self._uploader = Uploader(
            self._journal.roots.own,
            self._upload_epoch,
            self._journal.context.random(),
            partitioner=self._settings["partitioner"],
            compression=self._settings["compression_type"],
            replicas=replica_puts(self._journal),
            lineage=self._lineage,
            tag=self._journal.context.tag,
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
        """Record in the log that this transaction has ended.  If that fails, its timeout ends it.

        error:  the reason.
        """
        cut_off = error is not None and not isinstance(error, Exception)
        if cut_off or isinstance(error, CommitUnknown | CoordinatorNotAvailable | StorageUnavailable):
            return  # do not delay the error by waiting longer for the log
        try:
            abort = AbortTransaction(producer=self._producer, epoch=self.epoch, history=self._plan)
            self._journal.propose(abort)
        except SparkLogError as failed:
            logger.warning(
                "transaction %r has ended, but is listed as ongoing for its %d ms: %s",
                self.transactional_id,
                self._timeout_ms,
                failed,
            )

    @property
    def _producer(self) -> str:
        return TRANSACTIONAL + self.transactional_id

    def append(self, topic: str, data: object) -> None:
        """Add records, in any form that `log.append` takes."""
        uploader = self._open_uploader()
        self._check_time()
        try:
            self._encode(topic)
            ensure_topic(self._journal, topic)
            self._append(uploader, topic, data)
        except Exception as error:
            # Some of the data may be staged: a commit of only the rest would be incomplete.
            self._failed = error
            raise

    def _append(self, uploader: Uploader, topic: str, data: object) -> None:
        count = 0
        spec, data = spec_for(self._journal, topic, data, first=self._first.get(topic))
        if spec.sets_schema and spec.schema is not None:
            self._first[topic] = spec.schema
        try:
            for rows in rows_of(spec, data, self._journal.context.clock.now_ms() * 1000):
                self._add(uploader, topic, rows, count)
                count += rows.records.num_rows
        except InvalidRecord:
            if count or not isinstance(data, Sized) or not has_other_schema(self._journal, spec):
                raise
            self._append(uploader, topic, data)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Add one record, with the same arguments as `Producer.send`."""
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
        elif type(timestamp_ms) is not int or abs(timestamp_ms) > TIME_MS_MAX:
            raise InvalidTimestamp(f"timestamp_ms: {shown(timestamp_ms)} is not a time in milliseconds since 1970")
        ensure_topic(self._journal, topic)
        spec = self._spec(topic)
        if partition is not None and not (type(partition) is int and 0 <= partition < spec.partitions):
            raise no_partition(topic, partition, spec.partitions)
        if key is None and spec.compacted:
            raise InvalidRecord(no_key(topic))
        return (
            None if key is None else to_bytes("key", key),
            None if value is None else sent_value(value, spec),
            timestamp_ms,
            checked_headers(headers) if headers else None,
            partition,
        )

    def commit_offsets(
        self, consumer: Consumer | str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> None:
        """Commit positions of a group together with the records.

        consumer:  a consumer, or the name of a group.  With a name, the group's generation is not checked.
        offsets:   positions by partition; required with a name.  None: the positions after the records that the
                   consumer has returned.
        """
        self._open_uploader()
        if isinstance(consumer, Consumer):
            commit, by = consumer.group_commit(offsets), consumer.committer()
            if consumer.history is not None:
                check_read(self._journal.state, Lineage(consumer.history, None), commit)
            self._groups.append(commit)
            if by is not None:
                self._by[commit.group] = by
            return
        if offsets is None:
            raise InvalidRequest('commit_offsets: with a group\'s name, give offsets: ("billing", {tp: 42})')
        positions, state = as_offsets(offsets), self._journal.refresh()
        read = {tp: (self._topics[tp.topic], tp.partition) for tp in positions if tp.topic in self._topics}
        named = Membership(self._journal, consumer).group_commit(group_entries(state, positions, read))
        if named.generation != UNFENCED:
            raise AssertionError(f"positions by a group's name have generation {named.generation}")
        self._groups.append(named)

    def _encode(self, topic: str) -> None:
        """Encode single records before the next append, to keep the order."""
        if rows := self._rows.pop(topic, None):
            try:
                keys, values, times, headers, partitions = zip(*rows, strict=True)
                columns = Columns(keys, values, np.array(times, dtype=np.int64), headers, partitions)
                found, errors = rows_for(spec := self._spec(topic), columns, 0, len(rows))
                if errors and has_other_schema(self._journal, spec):
                    found, errors = rows_for(self._spec(topic), columns, 0, len(rows))
                for row, error in sorted(errors.items()):
                    raise InvalidRecord(f"record {row} of those sent to topic {topic!r}: {error}") from error
                self._add(self._open_uploader(), topic, found, 0)
            except Exception as error:
                # All of them had been accepted: a commit without them would be incomplete.
                self._failed = error
                raise

    def _add(self, uploader: Uploader, topic: str, rows: Rows, first: int) -> None:
        """first:  as for `Uploader.append`."""
        ensure_topic(self._journal, topic)
        uploader.append(self._spec(topic), rows, self._journal.context.clock.now_ms(), first)

    def _spec(self, topic: str) -> TopicSpec:
        return topic_spec(self._journal.state, topic, self._first.get(topic))

    def _check_time(self) -> None:
        """Raises TransactionTimedOut after the timeout, ProducerFenced if a newer one has taken over the id.

        The order matters: after TransactionTimedOut a caller retries, and would take the id back.
        """
        if self._journal.context.clock.monotonic_ms() > self._deadline_ms:
            known = self._journal.refresh().producers.get(self._producer)
            if known is not None and known.epoch != self.epoch:
                raise ProducerFenced(
                    f"transaction {self.transactional_id!r}: epoch {self.epoch} is not the current one, {known.epoch}: "
                    "a newer one has taken over the id",
                    current=known.epoch,
                )
            raise TransactionTimedOut(
                f"transaction {self.transactional_id!r} has been open for longer than transaction_timeout_ms "
                f"({self._timeout_ms}): nothing was committed; retry it, or increase the timeout"
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
