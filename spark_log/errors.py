"""Every error that pylog raises on purpose: one tree under `SparkLogError`.

A kind answers three questions: whose fault is it (the message says what to do), may the same call be made again
(`retriable`), and may it already have happened (`maybe_applied`).  Retry code reads the two class attributes and nothing
else.  An error carries the value that is needed to recover.  Names are Kafka's where Kafka has one.
"""

from __future__ import annotations


class SparkLogError(Exception):
    """Root of the tree.  Never raised itself."""

    retriable: bool = False
    """The same call, made again, may succeed."""
    maybe_applied: bool = False
    """The call may have taken effect although it failed."""


# ------------------------------------------------------------------------------------------------- the caller's input


class InvalidRequest(SparkLogError, ValueError):
    """An argument or option is wrong.  The message names it, the value found and the values that are possible."""


class InvalidTopic(InvalidRequest):
    """A topic name breaks Kafka's rules."""


class InvalidConfig(InvalidRequest):
    """A topic or cluster config is unknown or has a value out of its range."""


class InvalidPartitions(InvalidRequest):
    """A partition count that cannot be: zero, or fewer than there are."""


class InvalidRecord(InvalidRequest):
    """A record or a column cannot be written: wrong type, no topic, a partition that does not exist."""


class InvalidTimestamp(InvalidRecord):
    """A record's timestamp lies outside what the topic accepts (`message.timestamp.before.max.ms`, `.after.max.ms`)."""


class MessageTooLarge(InvalidRecord):
    """A record is larger than the topic's `max.message.bytes`."""


class OffsetMetadataTooLarge(InvalidRequest):
    """The text that is committed with a position is longer than positions may carry."""


class UnknownTopicOrPartition(SparkLogError, LookupError):
    """No such topic, or no such partition of it."""


class TopicAlreadyExists(SparkLogError):
    """A topic of that name is there already."""


class TopicDeletionDisabled(SparkLogError):
    """`delete.topic.enable` is false."""


class GroupIdNotFound(SparkLogError, LookupError):
    """The group has committed nothing, or was deleted."""


class OffsetOutOfRange(SparkLogError, LookupError):
    """An offset lies outside [start, end) of its partition."""

    def __init__(self, message: str, *, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        """First offset that is there."""
        self.end = end
        """One past the last."""


class DataLoss(SparkLogError):
    """Records that were asked for are not there any more (trimmed, expired, or their topic is gone)."""


class NoOffsetForPartition(SparkLogError, LookupError):
    """The group has no committed offset and `auto_offset_reset` is 'none'."""


# ------------------------------------------------------------------------------------------------ somebody newer is there


class ProducerFenced(SparkLogError):
    """A newer holder of the same transactional or producer id has taken over."""

    def __init__(self, message: str, *, current: int) -> None:
        super().__init__(message)
        self.current = current
        """The epoch in force."""


class TransactionTimedOut(SparkLogError):
    """A transaction was open for longer than its `transaction_timeout_ms`: nothing of it is in, nor will be."""


class InvalidTxnTimeout(InvalidRequest):
    """A transaction asks for more time than the log's `transaction.max.timeout.ms`."""


class InvalidTxnState(SparkLogError):
    """A transaction cannot be aborted: it has committed."""


class OutOfOrderSequence(SparkLogError):
    """A producer skipped a sequence number, or repeats one too old to be recognised."""


class SequenceConflict(OutOfOrderSequence):
    """A commit has a sequence below its producer's last one, or the last one and other content: it is not a repeat."""

    def __init__(self, message: str, *, last: int, version: int) -> None:
        super().__init__(message)
        self.last = last
        """Sequence of the producer's last commit."""
        self.version = version
        """Version of the log with that commit."""


class UnknownProducerId(SparkLogError):
    """The log does not know the producer (any more): its commit may or may not have been in before it was forgotten."""

    maybe_applied = True


class IllegalGeneration(SparkLogError):
    """A newer consumer owns the group's partitions; the commit was refused."""

    def __init__(self, message: str, *, current: int) -> None:
        super().__init__(message)
        self.current = current
        """The generation in force."""


class RebalanceInProgress(SparkLogError):
    """The members of the group are sharing its partitions out anew, and who commits what is not settled; `poll` takes part."""

    retriable = True


class FencedInstanceId(SparkLogError):
    """Another consumer has started with the same `group_instance_id`, and has this one's place."""


class GroupInUse(SparkLogError):
    """A stream holds the group and is alive; nothing was done.  It is free when the stream ends, or stays silent too long."""

    def __init__(self, message: str, *, owner: str) -> None:
        super().__init__(message)
        self.owner = owner
        """Who holds it."""


class NotCoordinator(SparkLogError):
    """The log is written by a coordinator, and whoever was asked is not the one.  Nothing was done."""

    retriable = True

    def __init__(self, message: str, *, address: str, epoch: int) -> None:
        super().__init__(message)
        self.address = address
        """Of the one that is; empty if there is none."""
        self.epoch = epoch
        """In force."""


class InconsistentClusterId(SparkLogError):
    """The coordinator has another log than the one that was meant."""


class ClockSkewed(SparkLogError):
    """The writer's clock is further than `log.clock.skew.max.ms` from the storage's and the log's.  Nothing was done: set the clock."""


class UploadFenced(SparkLogError):
    """The upload is older than the garbage-collection fence (`gc.fence.age.ms`): nothing was written, upload again."""

    retriable = True


class ConcurrentChange(SparkLogError):
    """Others kept changing the same thing; nothing was done."""

    retriable = True


# --------------------------------------------------------------------------------------------------------- the storage


class StorageError(SparkLogError, OSError):
    """The storage refused: permissions, no space, no such bucket.  The message has the storage's own words."""


class NoSpace(StorageError):
    """The disk is full, or its quota is used up: nothing was written."""


class StorageUnavailable(StorageError):
    """The storage did not answer, or was busy, for as long as requests are repeated.  Unless `maybe_applied`, nothing was committed."""

    retriable = True


class ObjectNotFound(StorageError, FileNotFoundError):
    """An object is not there."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key
        """Its name, relative to the log's root."""


class StoreNotExclusive(StorageError):
    """The storage let two writers create the same name: a log on it would lose data, so it is refused."""


class NoLog(StorageError):
    """There is no log at the URL, and none may be created there."""


class CorruptObject(SparkLogError):
    """Bytes are not what was written.  Nothing was skipped; the message names object, position, topic and partition."""


class RecordDeserialization(SparkLogError):
    """The user's deserializer fails at a record.  Polls give what is before it, and then this; `seek` goes past it."""

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class UnsupportedVersion(SparkLogError):
    """An object or log was written by a version of pylog that is newer than this one, or by something else."""


class CoordinatorNotAvailable(SparkLogError):
    """No coordinator answered for as long as a call waits for one.  Unless `maybe_applied`, nothing was done."""

    retriable = True


class AuthenticationFailed(SparkLogError, PermissionError):
    """The coordinator does not know the token, or was given none."""


class AuthorizationFailed(SparkLogError, PermissionError):
    """The token's role, topics or groups do not allow the operation."""


class QuotaExceeded(SparkLogError):
    """The token has as many topics, partitions, groups or connections as its quota allows; nothing was done."""


class ThrottlingQuotaExceeded(QuotaExceeded):
    """The token has made as many changes in this second as its quota allows; nothing was done."""

    retriable = True

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        """Retry after so many milliseconds."""


class RequestTimedOut(SparkLogError, TimeoutError):
    """It was not done in time, and it will not be done later."""

    retriable = True


class CommitUnknown(SparkLogError):
    """The storage failed while a commit was under way: it may be in.  Made again with the same identity it lands once."""

    maybe_applied = True
