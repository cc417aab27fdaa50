"""Every error that pylog raises on purpose: one tree under `SparkLogError`.

A class answers three questions: who caused it (the message says what to do), may the call be retried (`retriable`), and
may the call have taken effect (`maybe_applied`).  Retry code reads only these two class attributes.  An error carries
the value that is needed to recover.  Names are Kafka's where Kafka has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_log.text import printable_lines


class SparkLogError(Exception):
    """Root of the tree.  Only its subclasses are raised."""

    retriable: bool = False
    """A retry may succeed."""
    maybe_applied: bool = False
    """The call may have taken effect although it failed."""

    def __str__(self) -> str:
        """Without control characters: names in it may be another's, and it ends on a terminal or in a log."""
        return printable_lines(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(kind: type[SparkLogError], args: tuple[object, ...], fields: Mapping[str, object]) -> SparkLogError:
    """An error without its constructor, which may need more than the message."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


# ------------------------------------------------------------------------------------------------- the caller's input


class InvalidRequest(SparkLogError, ValueError):
    """An argument or option is invalid.  The message names it, the value found and the values that are expected."""


class InvalidTopic(InvalidRequest):
    """A topic name breaks Kafka's rules."""


class InvalidConfig(InvalidRequest):
    """A topic or cluster config is unknown or has a value out of its range."""


class InvalidPartitions(InvalidRequest):
    """The partition count is invalid: zero, or fewer than the topic has."""


class InvalidSchema(InvalidRequest):
    """A schema of a topic cannot be used: an unsupported type, a text that does not parse, names that collide."""


class IncompatibleSchema(InvalidSchema):
    """A schema cannot follow the one that the topic has.  The message names the column and both types."""


class InvalidRecord(InvalidRequest):
    """A record or a column cannot be written: wrong type, no topic, a partition that does not exist."""

    row: int | None = None
    """The number of the row in the caller's data, with which the message begins; None if it names no row."""


class InvalidTimestamp(InvalidRecord):
    """A record's timestamp is not in the topic's range (`message.timestamp.before.max.ms`, `.after.max.ms`)."""


class MessageTooLarge(InvalidRecord):
    """A record is larger than the topic's `max.message.bytes`."""


class OffsetMetadataTooLarge(InvalidRequest):
    """The text that is committed with an offset is too long."""


class UnknownTopicOrPartition(SparkLogError, LookupError):
    """The topic or the partition does not exist."""


class TopicAlreadyExists(SparkLogError):
    """A topic of that name already exists."""


class TopicDeletionDisabled(SparkLogError):
    """`delete.topic.enable` is false."""


class GroupIdNotFound(SparkLogError, LookupError):
    """The group has committed nothing, or was deleted."""


class OffsetOutOfRange(SparkLogError, LookupError):
    """An offset is before the start or after the end of its partition."""

    def __init__(self, message: str, *, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        """First offset of the partition."""
        self.end = end
        """One past the last."""


class DataLoss(SparkLogError):
    """The requested records no longer exist: trimmed, expired, or their topic was deleted."""


class NoOffsetForPartition(SparkLogError, LookupError):
    """The group has no committed offset and `auto_offset_reset` is 'none'."""


# ---------------------------------------------------------------------------------------------- somebody newer is there


class ProducerFenced(SparkLogError):
    """A newer holder of the same transactional or producer id has taken over, or the transaction was aborted."""

    def __init__(self, message: str, *, current: int) -> None:
        super().__init__(message)
        self.current = current
        """The epoch in force."""


class TransactionTimedOut(SparkLogError):
    """A transaction was open for longer than its `transaction_timeout_ms`.  It was aborted; nothing was applied."""


class InvalidTxnTimeout(InvalidRequest):
    """A transaction's timeout is larger than the log's `transaction.max.timeout.ms`."""


class InvalidTxnState(SparkLogError):
    """A transaction cannot be aborted: it has committed."""


class OutOfOrderSequence(SparkLogError):
    """A producer skipped a sequence number, or repeats one too old to be recognised."""


class SequenceConflict(OutOfOrderSequence):
    """A commit's sequence is older than its producer's last one, or is the same with different content."""

    def __init__(self, message: str, *, last: int, version: int) -> None:
        super().__init__(message)
        self.last = last
        """Sequence of the producer's last commit."""
        self.version = version
        """Version of the log with that commit."""


class UnknownProducerId(SparkLogError):
    """The producer is unknown or has expired.  An earlier attempt of the commit may have been applied."""

    maybe_applied = True


class IllegalGeneration(SparkLogError):
    """The consumer is no longer a member of its group, or a newer one took over; the commit was rejected."""

    def __init__(self, message: str, *, current: int, accepted_loss: bool = False) -> None:
        super().__init__(message)
        self.current = current
        """The generation in force."""
        self.accepted_loss = accepted_loss
        """Whether `pylog repair --accept-loss` has ended the membership, and no newer consumer."""


class RebalanceInProgress(SparkLogError):
    """The group is rebalancing, so ownership of its partitions is not final.  Call `poll` to take part."""

    retriable = True


class FencedInstanceId(SparkLogError):
    """Another consumer started with the same `group_instance_id` and replaced this one."""


class GroupInUse(SparkLogError):
    """A stream or other members hold the group until they end or their session expires; nothing was changed."""

    def __init__(self, message: str, *, owner: str) -> None:
        super().__init__(message)
        self.owner = owner
        """The current owner."""


class NotCoordinator(SparkLogError):
    """A coordinator writes the log, but the request went to another process.  Nothing was applied."""

    retriable = True

    def __init__(self, message: str, *, address: str, epoch: int) -> None:
        super().__init__(message)
        self.address = address
        """Address of the current coordinator; empty if there is none."""
        self.epoch = epoch
        """Epoch of the current coordinator."""


class NotLeaderOrFollower(SparkLogError):
    """The node of a quorum does not lead.  Unless `maybe_applied`, nothing was appended."""

    retriable = True

    def __init__(self, message: str, *, leader: int | None, epoch: int) -> None:
        super().__init__(message)
        self.leader = leader
        """Id of the node that leads; None if it is not known."""
        self.epoch = epoch
        """Its epoch."""


class InconsistentClusterId(SparkLogError):
    """The coordinator serves a different log than expected, or the original of a copied log."""


class ClockSkewed(SparkLogError):
    """The writer's clock differs from both the storage's and the log's by more than `log.clock.skew.max.ms`.

    Nothing was applied: set the clock.
    """


class UploadFenced(SparkLogError):
    """The upload is older than the garbage-collection fence (`gc.fence.age.ms`), or the log was restored from a copy
    since it began.  Nothing was written; upload again."""

    retriable = True


class NotEnoughReplicas(SparkLogError):
    """Fewer in-sync replicas than `min.insync.replicas` have the records of a commit, or earlier ones that no active
    broker has are not on all in-sync replicas.  Nothing was applied."""

    retriable = True

    def __init__(
        self,
        message: str,
        *,
        lacking: Mapping[str, Sequence[int]],
        placement_group: int | None = None,
        partition: tuple[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.partition = None if partition is None else (partition[0], partition[1])
        """(topic id, number) of the partition whose earlier records are in the way; None: it is the whole group."""
        self.placement_group = placement_group
        """The group that the replicas are of."""
        self.lacking = {name: tuple(brokers) for name, brokers in lacking.items()}
        """By object: the in-sync replicas that do not have it.  Empty: the ISR has too few members."""


class LeaderNotAvailable(SparkLogError):
    """No in-sync replica of a partition is active: nothing can be appended to it.  Nothing was applied."""

    retriable = True

    def __init__(self, message: str, *, placement_group: int | None = None) -> None:
        super().__init__(message)
        self.placement_group = placement_group
        """The group of the partition."""


class InvalidReplicationFactor(InvalidRequest):
    """A replication factor is invalid, or there are fewer brokers."""


class InvalidReplicaAssignment(InvalidRequest):
    """An assignment names unknown brokers, a broker twice, or not all partitions."""


class ReassignmentInProgress(SparkLogError):
    """Partitions are being moved, and the call did not allow replacing their moves."""


class NoReassignmentInProgress(SparkLogError):
    """The move of a partition cannot be cancelled: it is not being moved, or already returns to its old replicas."""


class BrokerNotAvailable(SparkLogError, LookupError):
    """The broker is not registered."""


class ConcurrentChange(SparkLogError):
    """Other processes kept changing the same state.  Nothing was applied."""

    retriable = True


# --------------------------------------------------------------------------------------------------------- the storage


class StorageError(SparkLogError, OSError):
    """The storage rejected a request: permissions, no space, no such bucket.  The message has the storage's error."""


class NoSpace(StorageError):
    """The disk is full, or its quota is used up.  Nothing was written."""


class SyncFailed(StorageError):
    """A sync to a disk failed, and this process does not trust the disk any more: restart it when the disk is good.

    Unless `maybe_applied`, nothing was committed.
    """


class AccessDenied(StorageError):
    """The storage denied this process a request.  That says nothing of the storage: others may have access."""


class NoCredentials(AccessDenied):
    """This process was given no credentials for a bucket."""


class StorageUnavailable(StorageError):
    """The storage did not answer, or was busy, during all retries.  Unless `maybe_applied`, nothing was committed."""

    retriable = True


class ObjectNotFound(StorageError, FileNotFoundError):
    """An object does not exist."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key
        """Name of the object, relative to the log's root."""


class StoreNotExclusive(StorageError):
    """The storage let two writers create the same name.  A log would lose data there, so pylog rejects the storage."""


class WrongRoot(StorageError):
    """The root of a log or a broker is not the one that was opened: its disk is not mounted, or another one is
    there."""


class NoLog(StorageError):
    """The URL has no log, and the caller did not ask to create one."""


class CorruptObject(SparkLogError):
    """Bytes differ from those written.  Nothing was skipped; the message names object, position and partition."""

    def __init__(self, message: str, *, start: int | None = None, end: int | None = None) -> None:
        super().__init__(message)
        self.start = start
        """First offset of the partition that cannot be read; None if it is not known."""
        self.end = end
        """The offset after the last one: reading can continue there."""


class LogRestored(SparkLogError):
    """An older copy of the log was restored while this process used it.  Restart the process, and check which of its
    last writes are missing."""


class LogMoved(SparkLogError):
    """The log was moved to another URL while this process used it, or is closed for some seconds until it is there.
    Nothing was applied.  Open the log again: the old URL leads to the new one.  If it has only nodes of a quorum
    that another one has replaced, give the addresses of that."""

    def __init__(self, message: str, *, url: str) -> None:
        super().__init__(message)
        self.url = url


class RecordDeserialization(SparkLogError):
    """The user's deserializer fails at a record.  `poll` first returns the records before it; `seek` skips it."""

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class FunctionFailed(SparkLogError):
    """The function of a flow fails at a record.  Nothing of the record's batch was committed."""

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class UnsupportedVersion(SparkLogError):
    """A newer version of pylog, or another program, wrote an object or the log."""


class CoordinatorNotAvailable(SparkLogError):
    """No coordinator answered before the call's timeout.  Unless `maybe_applied`, nothing was applied."""

    retriable = True


class AuthenticationFailed(SparkLogError, PermissionError):
    """The token is missing, or the coordinator does not accept it."""


class AuthorizationFailed(SparkLogError, PermissionError):
    """The token's role, topics or groups do not allow the operation."""


class QuotaExceeded(SparkLogError):
    """The token has as many topics, partitions, groups or connections as its quota allows; nothing was applied."""


class ThrottlingQuotaExceeded(QuotaExceeded):
    """The token has made as many changes in this second as its quota allows; nothing was applied."""

    retriable = True

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        """How long to wait before a retry."""


class RequestTimedOut(SparkLogError, TimeoutError):
    """The call timed out.  It will not take effect later, unless `maybe_applied` is set."""

    retriable = True


class CommitUnknown(SparkLogError):
    """The storage failed during a commit, which may have been applied.  A retry with its identity applies it once."""

    maybe_applied = True
