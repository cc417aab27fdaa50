"""Committing uploads: one record for all of them, under an identity that makes retries idempotent.

Five loops, each within the next one, repeat a commit that fails:

| loop                      | what it repeats                    | until                             |
|---------------------------|------------------------------------|-----------------------------------|
| `RetryingStore._repeat`   | one request, no put-if-absent      | 30 s, or the caller's deadline    |
| `commit_protocol.propose` | the record, at the next version    | 200 attempts, 14 without effect   |
| `_persist`                | a proposal of unknown outcome      | `retries`, a minute, the deadline |
| `_persist_on_replicas`    | the commit, for lack of replicas   | two minutes, or the deadline      |
| `Delivery.deliver`        | the upload, if nothing was applied | the deadline                      |

The deadline is `delivery_timeout_ms` of a producer.  The first three keep the identity of the commit, so a repeat finds
what an earlier attempt has applied.  The last two may replace objects: of a root that failed, or of an upload that was
fenced.  In place of the last one, `log.append` uploads once more, and Spark runs its task again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from spark_log.client.producer.lacking_replicas import copied
from spark_log.client.producer.pending_copies import await_visible, copy_in_background
from spark_log.client.producer.upload import Uploaded, join_uploads
from spark_log.configs.settings import has_cleanup_policy, topic_config
from spark_log.errors import (
    CommitUnknown,
    ConcurrentChange,
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NotCoordinator,
    NotEnoughReplicas,
    SparkLogError,
    StorageUnavailable,
)
from spark_log.journal.journal import Journal
from spark_log.journal.proposal_queue import failure_of
from spark_log.journal.store_operations import OWN_ROOT, Put, Steps
from spark_log.log_lines import logger
from spark_log.metadata.commands import SLICES_INLINE_MAX, Append
from spark_log.metadata.commits.decide_commits import Committed, ReadBasis
from spark_log.metadata.commits.kafka_batches import KafkaBatches
from spark_log.metadata.formats.slice_index import IndexPart, encode_index
from spark_log.metadata.groups.group_commands import Committer
from spark_log.metadata.object_tags import tagged
from spark_log.metadata.records import CommitRecord, GroupCommit
from spark_log.metadata.replicas.replica_state import OWN_GROUP
from spark_log.metadata.set_backs import Lineage, lineage_of
from spark_log.metadata.state import State, TopicKey
from spark_log.model import (
    ACKS_ALL,
    CREATE_TIME,
    DataObject,
    Placed,
    Run,
    Slice,
    TopicPartition,
    kind_and_stats,
)
from spark_log.positions import format_timestamp_ms
from spark_log.roots.replica_puts import REPLICAS_BACKOFF_MS, REPLICAS_BACKOFF_MS_MAX, REPLICAS_MS_MAX
from spark_log.runtime.clock import Clock
from spark_log.runtime.fork_safety import renew_after_fork
from spark_log.store.object_names import data_key

STORAGE_MS_MAX = 60_000
"""How long a commit with an unknown outcome is retried; one storage request may take as long as that."""
SECONDS_MIN, SECONDS_MAX = 1_000_000_000, 4_102_444_800
"""2001-09-09 and 2100-01-01, in seconds."""
FUTURE_MS = 86_400_000
"""A record that is further in the future is surprising, and retention waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The producer of a commit: the fields of `records.CommitRecord` by which duplicates are detected."""

    producer: str
    sequence: int
    epoch: int = 0
    birth: int = -1
    dense: bool = True
    holder: str = ""
    source: str = ""
    skip_older: bool = False
    """The `after` of `decide_commit`."""
    after: int | None = None


class RetryPolicy(NamedTuple):
    """How often a commit with an unknown outcome is retried."""

    tries: int = 5
    deadline_ms: int | None = None
    """On the monotonic clock; None: limited by `tries` only."""
    backoff_ms: int = 0
    backoff_ms_max: int = 0
    """Upper limit of the pause before a retry; the pause doubles each time."""
    patient: bool = True
    """Whether a commit is tried again that too few replicas have, or for which a placement group has no leader."""


RETRY_POLICY = RetryPolicy()
NO_BASIS = ReadBasis()
Propose = Callable[..., Committed]
"""`Journal.propose`, for an upload."""


def commit_uploads(
    journal: Journal,
    identity: Identity,
    epoch: int,
    uploads: Sequence[Uploaded],
    groups: Sequence[GroupCommit] = (),
    retry: RetryPolicy = RETRY_POLICY,
    by: Sequence[tuple[str, Committer]] = (),
    *,
    maintenance: bool = True,
    acks: int = ACKS_ALL,
    basis: ReadBasis = NO_BASIS,
    kafka_batches: tuple[KafkaBatches, ...] = (),
) -> Committed:
    """Commit uploads in their order, together with positions of groups.

    epoch:   the upload epoch under which the uploads were made.
    by:      by group, the member that commits the positions.
    maintenance:  as for `propose`.
    acks:    with `ACKS_LEADER`, readers may not see the records yet when the call returns.
    basis:   what the records were computed from.
    kafka_batches:  those of Kafka's idempotent producers.

    Raises ConcurrentChange if the basis has changed; OutOfOrderSequence for a batch of Kafka's that is in the log, or
    not the next one of its producer.
    Raises CommitUnknown if the storage failed repeatedly, so the commit may have been applied; a retry with the same
    identity applies it once.
    Raises NotEnoughReplicas or LeaderNotAvailable if too few replicas answer until the deadline, or for
    `REPLICAS_MS_MAX` if there is no deadline.  If `retry` is patient, objects are copied meanwhile to the replicas that
    lack them.
    Raises RequestTimedOut if, by then, readers do not see a commit with acks=all, because earlier commits with acks=1
    are not on all in-sync replicas.
    """
    upload = join_uploads(uploads)
    append = _append(journal, identity, epoch, upload, groups, by, acks, basis, kafka_batches)
    propose = partial(journal.propose, set_back=upload.lineage.set_back)
    committed = _persist_on_replicas(journal, propose, append, retry, maintenance)
    _warn_of_times(journal, upload.slices)
    return committed


def _append(
    journal: Journal,
    identity: Identity,
    epoch: int,
    upload: Uploaded,
    groups: Sequence[GroupCommit],
    by: Sequence[tuple[str, Committer]],
    acks: int,
    basis: ReadBasis,
    kafka_batches: tuple[KafkaBatches, ...],
) -> Append:
    """The command for an upload: one with many slices has them in an object, which is put here."""
    commit = CommitRecord(
        producer=identity.producer,
        epoch=identity.epoch,
        sequence=identity.sequence,
        birth=identity.birth,
        dense=identity.dense,
        holder=identity.holder,
        upload_epoch=epoch,
        objects=upload.objects,
        slices=upload.slices,
        groups=tuple(groups),
        source=identity.source,
        placed=upload.placed,
        acks=acks,
        stats=upload.stats,
        kafka_batches=kafka_batches,
    )
    if len(upload.slices) > SLICES_INLINE_MAX:
        commit = _with_pieces(journal, commit)
    return Append(
        commit=commit,
        by=tuple(by),
        skip_older=identity.skip_older,
        after=identity.after,
        keyless=upload.keyless,
        schemas=dict(upload.schemas),
        history=upload.lineage.history,
        first_schemas=dict(upload.first_schemas),
        erased=dict(basis.erased),
        spans=basis.spans,
    )


def offsets_by_name(state: State, committed: Committed) -> dict[TopicPartition, range]:
    """The offsets of a commit, by topic name."""
    return {
        TopicPartition(state.topics[topic_id].name, number): span
        for (topic_id, number), span in sorted(committed.ranges.items())
        if topic_id in state.topics
    }


_warned: set[tuple[str, str, Callable[..., str]]] = set()
"""(cluster id, topic id, check): a process warns once."""


def _warn_of_times(journal: Journal, slices: Iterable[tuple[int, Run]]) -> None:
    """Warn of topics whose records are unexpectedly old, by the newest record of the oldest run, or of the future."""
    state, now_ms = journal.state, journal.context.clock.now_ms()
    newest: dict[str, tuple[int, int]] = {}
    for _, run in slices:
        low, high = newest.get(run.topic_id, (run.max_us, run.max_us))
        newest[run.topic_id] = min(run.max_us, low), max(run.max_us, high)
    for topic_id, (low_us, high_us) in newest.items():
        topic = state.topics.get(topic_id)
        if topic is None or topic_config(topic.configs, "message.timestamp.type") != "CreateTime":
            continue
        for check, time_us in ((_like_seconds, low_us), (_expired, low_us), (_of_the_future, high_us)):
            key = journal.cluster_id, topic_id, check
            if key not in _warned and (warning := check(topic.configs, time_us // 1000, now_ms)):
                _warned.add(key)
                logger.warning("topic %s: records with timestamps up to %s", topic.name, warning)


def _like_seconds(configs: Mapping[str, str], time_ms: int, now_ms: int) -> str:
    """Timestamps in seconds (of 2001 to 2100), taken as milliseconds, fall into January or February 1970."""
    if not SECONDS_MIN <= time_ms < SECONDS_MAX:
        return ""
    return (
        f"{format_timestamp_ms(time_ms)} were written. A bigint column 'timestamp' is in milliseconds since 1970; "
        f"{time_ms} seconds would be {format_timestamp_ms(time_ms * 1000)}: if these are seconds, write "
        "timestamp_seconds(column) in Spark, or 1000 times the number"
    )


def _expired(configs: Mapping[str, str], time_ms: int, now_ms: int) -> str:
    """Event times of a backfill are often older than the retention, and Kafka's sink in Spark drops such records."""
    retention_ms = topic_config(configs, "retention.ms")
    if not has_cleanup_policy(configs, "delete") or not 0 <= retention_ms < now_ms - time_ms:
        return ""
    return (
        f"{format_timestamp_ms(time_ms)} were written, which are older than retention.ms={retention_ms}: the next "
        "`pylog maintain` can remove them; set retention.ms=-1 to keep them"
    )


def _of_the_future(configs: Mapping[str, str], time_ms: int, now_ms: int) -> str:
    """Retention removes a partition's records in order, so one of the future keeps those after it."""
    retention_ms = topic_config(configs, "retention.ms")
    if not has_cleanup_policy(configs, "delete") or retention_ms < 0 or time_ms <= now_ms + FUTURE_MS:
        return ""
    return (
        f"{format_timestamp_ms(time_ms)} were written, which is in the future: retention.ms={retention_ms} counts from "
        "that time, and keeps the later records of their partitions as long; remove them earlier with `pylog topic trim`"
    )


def _persist_on_replicas(
    journal: Journal, propose: Propose, append: Append, retry: RetryPolicy, maintenance: bool
) -> Committed:
    """Does what `_persist` does, until enough in-sync replicas have the objects and their groups have leaders."""
    clock, wait = journal.context.clock, max(retry.backoff_ms, REPLICAS_BACKOFF_MS)
    until_ms = clock.monotonic_ms() + REPLICAS_MS_MAX if retry.deadline_ms is None else retry.deadline_ms
    while True:
        try:
            committed = _persist(journal.context.clock, propose, append, retry, maintenance)
            return _acknowledged(journal, propose, append, committed, retry, until_ms)
        except (NotEnoughReplicas, LeaderNotAvailable) as error:
            left_ms = until_ms - clock.monotonic_ms() - REPLICAS_BACKOFF_MS
            if left_ms <= 0 or not retry.patient:
                raise
            if isinstance(error, NotEnoughReplicas) and error.lacking:
                commit = copied(journal, append.commit, error, until_ms)
                if commit != append.commit:
                    append, wait = replace(append, commit=commit), max(retry.backoff_ms, REPLICAS_BACKOFF_MS)
                    continue
            logger.info("the commit is tried again: %s", error)
        clock.sleep_ms(min(wait, left_ms))
        with suppress(StorageUnavailable):
            journal.refresh(round(until_ms))  # it was refused on the state that this process knew
        wait = min(2 * wait, REPLICAS_BACKOFF_MS_MAX)


def _acknowledged(
    journal: Journal, propose: Propose, append: Append, committed: Committed, retry: RetryPolicy, until_ms: float
) -> Committed:
    """With acks=all wait until readers see the commit; with acks=1 copy what replicas lack in the background."""
    if append.commit.acks == ACKS_ALL:
        again = partial(_persist, journal.context.clock, propose, append, retry, False)
        return await_visible(journal, committed, again, until_ms)
    copy_in_background(journal, committed.lacking)
    return committed


def _persist(clock: Clock, propose: Propose, append: Append, retry: RetryPolicy, maintenance: bool) -> Committed:
    """Propose until the commit is applied or rejected.  A rejection after an attempt with an unknown outcome mentions
    that attempt.

    A coordinator that does not reply is retried if there is a deadline, or an attempt that it may have received.
    """
    wait, unknown, began = retry.backoff_ms, False, clock.monotonic_ms()
    for left in reversed(range(retry.tries)):
        try:
            return propose(append, retry.deadline_ms, maintenance=maintenance)
        except SparkLogError as failed:
            error, away = failed, isinstance(failed, CoordinatorNotAvailable)
            unchecked = away or isinstance(error, NotCoordinator | StorageUnavailable) or not error.retriable
            error.maybe_applied = error.maybe_applied or (unknown and unchecked)
            if isinstance(error, StorageUnavailable):  # before this attempt put anything
                error = failure_of(error)
            waited_for = away and (unknown or retry.deadline_ms is not None)
            if not (waited_for or isinstance(error, CommitUnknown | ConcurrentChange)):
                raise error  # noqa: B904  it has its cause
            unknown = unknown or not away
            now = clock.monotonic_ms() + wait
            late = now - began >= STORAGE_MS_MAX and isinstance(error, CommitUnknown)
            if not left or late or (retry.deadline_ms is not None and now >= retry.deadline_ms):
                raise error  # noqa: B904  it has its cause
        clock.sleep_ms(wait)
        wait = min(2 * wait, retry.backoff_ms_max)
    raise AssertionError("the last try returns or raises")


def _with_pieces(journal: Journal, commit: CommitRecord) -> CommitRecord:
    """A commit with its slices in an index object, which is in the log's own root."""
    name = data_key(commit.upload_epoch, tagged(journal.context.unique(), "idx", journal.context.tag))
    data, pieces = encode_index(name, parts := index_parts(commit.objects, commit.slices, commit.stats))
    journal.run(_put(name, data))
    counts = [0] * len(commit.objects)
    for number, _ in commit.slices:
        counts[number] += 1
    return CommitRecord(
        **{field: getattr(commit, field) for field in commit.__struct_fields__ if field not in _REPLACED},
        objects=(*commit.objects, DataObject(name, len(data), 0)),
        counts=(*counts, len(pieces)),
        placed=(*commit.placed, Placed(OWN_GROUP)) if commit.placed else (),
        pieces=tuple((part.topic_id, part.partition, piece) for part, piece in zip(parts, pieces, strict=True)),
    )


_REPLACED = ("objects", "slices", "counts", "pieces", "placed", "stats")


def _put(name: str, data: bytes) -> Steps[None]:
    yield Put(name, (data,), OWN_ROOT)


def index_parts(
    objects: Sequence[DataObject], slices: Sequence[tuple[int, Run]], stats: Sequence[bytes] = ()
) -> list[IndexPart]:
    """Slices by partition, with offsets from 0 in each.  stats: of each slice; none: empty."""
    parts: dict[TopicKey, list[Slice]] = {}
    for (number, run), of_run in zip(slices, stats or (b"",) * len(slices), strict=True):
        part = parts.setdefault((run.topic_id, run.partition), [])
        start = part[-1].end if part else 0
        part.append(
            Slice(
                start,
                start + run.rows,
                objects[number].name,
                run.position,
                run.length,
                run.crc,
                run.batches,
                run.min_us,
                run.max_us,
                kind_and_stats(CREATE_TIME, of_run),
            )
        )
    return [IndexPart(*key, part) for key, part in sorted(parts.items())]


class PlainProducer:
    """A separate identity for one writer: a random id, sequences from 0, commits in order.

    Thread-safe: one commit at a time.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """A child gets a new identity: with its parent's, commits of one would pass for duplicates of the other's."""
        self._lock = self._journal.context.threads.lock()
        self._producer = ""
        self._birth = self._sequence = 0
        self._version = 0
        """Version of the last commit."""
        self._lineage: Lineage | None = None
        """The log at the last commit."""

    def _is_gone(self, state: State) -> bool:
        """Whether the id may have expired.  A log that was restored from a copy may lack the last commits."""
        return self._lineage != lineage_of(state) or self._version <= state.fence

    def commit(
        self,
        epoch: int,
        uploads: Sequence[Uploaded],
        groups: Sequence[GroupCommit] = (),
        retry: RetryPolicy = RETRY_POLICY,
        acks: int = ACKS_ALL,
        by: Sequence[tuple[str, Committer]] = (),
        basis: ReadBasis = NO_BASIS,
        kafka_batches: tuple[KafkaBatches, ...] = (),
    ) -> Committed:
        """Commit once.  After a failure, the next commit has a new identity.

        by, basis, kafka_batches:  as for `commit_uploads`.
        """
        with self._lock:
            # After a long upload, the producer's id would be that old, and a rejection would not be certain.
            state = self._journal.recent(retry.deadline_ms)
            if not self._producer or (self._sequence and self._is_gone(state)):
                self._producer, self._birth, self._sequence = self._journal.context.unique(), state.version, 0
            self._lineage = lineage_of(state)
            identity = Identity(producer=self._producer, sequence=self._sequence, birth=self._birth)
            try:
                committed = commit_uploads(
                    self._journal,
                    identity,
                    epoch,
                    uploads,
                    groups,
                    retry,
                    by,
                    maintenance=False,
                    acks=acks,
                    basis=basis,
                    kafka_batches=kafka_batches,
                )
            except BaseException:
                # It may have been applied, even after an interrupt: the next commit must not pass for its duplicate.
                self._producer = ""
                raise
            self._sequence, self._version = self._sequence + 1, committed.version
        self._journal.maintenance_after_commit()  # without holding the lock, so that others can commit
        return committed
