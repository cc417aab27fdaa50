"""Decisions: commits of records, with the positions of groups that are committed with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from spark_log.bounds import LONG_MAX
from spark_log.configs.settings import has_cleanup_policy
from spark_log.errors import (
    ConcurrentChange,
    DataLoss,
    InvalidRecord,
    InvalidRequest,
    NotEnoughReplicas,
    OutOfOrderSequence,
    ProducerFenced,
    SequenceConflict,
    TransactionTimedOut,
    UnknownProducerId,
    UnknownTopicOrPartition,
    UploadFenced,
)
from spark_log.metadata import records as r
from spark_log.metadata.commits.decide_transactional_ids import is_timed_out
from spark_log.metadata.commits.identities import producer_of
from spark_log.metadata.commits.kafka_producers import check_batches
from spark_log.metadata.commits.last_commit import source_offsets
from spark_log.metadata.commits.pending_commits import (
    PENDING_MAX,
    LackingObject,
    is_full,
    lacking_objects,
    pending_of,
    stuck_partition,
    waited_for,
)
from spark_log.metadata.decision import Decision
from spark_log.metadata.erasures import erased_at
from spark_log.metadata.groups.decide_groups import check_generation, check_positions
from spark_log.metadata.replay import admits, known_objects, replay_records
from spark_log.metadata.replicas.decide_replicas import check_replicas, without_places
from spark_log.metadata.replicas.replicas import group_number
from spark_log.metadata.restores import history_of, restores_after
from spark_log.metadata.state import ProducerState, State, TopicKey
from spark_log.metadata.topics.decide_schemas import check_versions
from spark_log.model import ACKS_ALL, ACKS_LEADER
from spark_log.text import counted


class Committed(NamedTuple):
    """The offsets of a commit's records."""

    version: int
    ranges: dict[TopicKey, range]
    """By (topic id, partition).  Empty for a duplicate whose offsets are forgotten."""
    repeated: bool
    """The commit is a duplicate: nothing was added."""
    last: int = -1
    """For a duplicate: the sequence of the producer's last commit."""
    time_ms: int = 0
    """The log's time at the commit; 0 for a duplicate that is not the producer's last commit."""
    pending: bool = False
    """Readers do not see the records yet: an acks=all commit is not acknowledged before they do."""
    lacking: tuple[LackingObject, ...] = ()
    """The objects that replicas must get before; some of them if there are many."""
    restored_after: int = -1
    """For the first version of an application since the log was restored from a copy: the last one that the copy has.
    Those between may be lost.  -1: nothing is missing."""


class ReadBasis(NamedTuple):
    """The log as the writer of a commit has read it, to compute the records."""

    erased: Mapping[str, int] = MappingProxyType({})
    """By topic id, the last erasure when records were read, as `erased_at` has it."""
    spans: tuple[tuple[str, int, int, int], ...] = ()
    """(topic id, partition, start, end) of partitions that were read as a whole."""


def check_basis(state: State, basis: ReadBasis) -> None:
    """Raises ConcurrentChange if records were erased since, or a partition has other records."""
    for topic_id, version in basis.erased.items():
        if erased_at(state, topic_id) != version:
            raise ConcurrentChange(
                f"records were erased from topic {_name(state, topic_id)!r} after they were read: nothing was written"
            )
    for topic_id, number, *span in basis.spans:
        part = state.partitions.get((topic_id, number))
        if part is None or [part.start, part.end] != span:
            raise ConcurrentChange(
                f"records of {_name(state, topic_id)}-{number} were written or removed after it was read: nothing was "
                "written"
            )


def _name(state: State, topic_id: str) -> str:
    return state.topics[topic_id].name if topic_id in state.topics else topic_id


def decide_commit(
    state: State,
    commit: r.CommitRecord,
    *,
    skip_older: bool = False,
    after: int | None = None,
    keyless: Sequence[str] = (),
    schemas: Mapping[str, int] = MappingProxyType({}),
    history: str = "",
) -> Decision[Committed]:
    """Commit slices and positions under (producer, epoch, sequence); a duplicate returns the offsets of the first
    commit.

    skip_older:  a sequence below the last one succeeds without effect, whatever its content: a version of an
                 application.
    after:       the sequence that the last commit must have, -1: there must be none; None: any.  It does not refuse a
                 repeat of the last commit.
    keyless:     ids of the topics of which the commit has records without a key.
    schemas:     by topic id, the version of the schema by which rows were converted; topics with bytes are left out.
    history:     of the log when the upload began: a copy of the log may not have its objects, nor what it has read.
    Raises SequenceConflict for a sequence below a stream's last one, for the last one with other content, and for
    another last one than `after`; OutOfOrderSequence as `check_batches` does; NotEnoughReplicas and LeaderNotAvailable
    as `check_replicas` and `_check_pending` do.
    """
    commit = without_places(commit)
    known = producer_of(state, commit.producer, commit.sequence)
    if known is not None and _may_repeat(known, commit):
        earlier = _repeated(state, known, commit, skip_older=skip_older, after=after)
        if earlier is not None:
            return Decision((), _with_pending(state, commit, earlier))
    _check_history(state, known, commit, history)
    _check_after(known, commit, after)
    _check_producer(state, commit)
    _check_time(state, commit)
    _check_upload(state, commit.upload_epoch)
    _check_objects(state, commit)
    _check_topics(state, commit)
    check_batches(state, commit, _rows(commit))
    _check_keys(state, keyless)
    check_versions(state, [topic_id for topic_id, _ in _rows(commit)], schemas)
    _check_room(state, commit)
    check_replicas(state, commit)
    _check_pending(state, commit)
    for group in commit.groups:
        check_generation(state, group)
        check_positions(state, group)
    _check_acks(commit)
    committed = Committed(
        state.version,
        _next_ranges(state, commit),
        repeated=False,
        time_ms=state.time,
        restored_after=_last_in_copy(state, known, commit),
    )
    _check_ends(state, committed.ranges)
    if commit.acks != ACKS_ALL or state.pending:
        committed = _with_pending(replay_records(state, [commit]), commit, committed)
    return Decision((commit,), committed)


def _check_upload(state: State, epoch: int) -> None:
    """Raises UploadFenced unless the upload began in this log, above its fence."""
    began = f"the upload began at version {epoch}"
    if epoch <= state.fence:
        raise UploadFenced(f"{began}, older than the fence at {state.fence}: write the data again")
    if epoch >= state.version:  # which the commit gets
        raise UploadFenced(
            f"{began}, and the log is at version {state.version - 1}: it was set back to an older copy, which may lack "
            "the uploaded objects: write the data again"
        )


def _repeated(
    state: State, known: ProducerState, commit: r.CommitRecord, *, skip_older: bool, after: int | None
) -> Committed | None:
    """The answer to a commit whose sequence is in the log already, or below the last one; None for a new commit.

    Raises SequenceConflict for other content than in the log.
    """
    if not commit.dense and not (skip_older and commit.sequence < known.last):
        _check_repeat(known, commit)
    last = known.last_commit
    if last is not None and last.sequence == commit.sequence:
        repeat = Committed(last.version, last.ranges, repeated=True, last=last.sequence, time_ms=known.time)
        _check_lost(state, repeat)
        return repeat
    if after is None and not commit.dense and commit.sequence <= known.last:
        return Committed(known.version, {}, repeated=True, last=known.last)
    return None


def _last_in_copy(state: State, known: ProducerState | None, commit: r.CommitRecord) -> int:
    """The value of `Committed.restored_after`.  Versions may have gaps, so nobody knows whether others are lost."""
    if known is None or commit.dense or not state.restores or known.version > state.restores[-1].version:
        return -1
    return known.last if known.last + 1 < commit.sequence else -1


def _may_repeat(known: ProducerState, commit: r.CommitRecord) -> bool:
    """Whether a commit is of the producer's present epoch, and not the repeat of a lost one, which is a new commit."""
    is_lost = not commit.dense and commit.sequence in known.lost
    return (commit.epoch, commit.holder) == (known.epoch, known.holder) and not is_lost


def _check_room(state: State, commit: r.CommitRecord) -> None:
    """Raises NotEnoughReplicas if too many earlier commits of a partition are pending."""
    for key in _rows(commit):
        if is_full(state, key):
            raise NotEnoughReplicas(
                f"{state.topics[key[0]].name}-{key[1]} has {PENDING_MAX} commits with acks=0 or 1, or after such ones, "
                "that readers do not see yet: bring the brokers of its in-sync replicas back, or lower "
                "min.insync.replicas; `pylog topic describe` shows these",
                lacking={},
                placement_group=group_number(state, key),
            )


def _check_lost(state: State, repeat: Committed) -> None:
    """Raises DataLoss for a repeat of a commit that was lost."""
    for (topic_id, number), span in repeat.ranges.items():
        if any(
            one.version == repeat.version and one.start == span.start for one in state.lost.get((topic_id, number), ())
        ):
            name = state.topics[topic_id].name if topic_id in state.topics else topic_id
            raise DataLoss(
                f"offsets {span.start} to {span.stop - 1} of {name}-{number} (version "
                f"{repeat.version}) were lost before all in-sync replicas had them: write the records again as new ones"
            )


def _check_pending(state: State, commit: r.CommitRecord) -> None:
    """Raises NotEnoughReplicas for acks=all behind a pending commit that no active broker can make visible.

    It would only be visible after that one, and so would later commits of all of its partitions.
    """
    key = stuck_partition(state, _rows(commit)) if commit.acks == ACKS_ALL and state.pending else None
    if key is not None:
        raise NotEnoughReplicas(
            f"earlier records of {state.topics[key[0]].name}-{key[1]}, written with acks 0 or 1, are not on all in-sync "
            "replicas, and their only brokers are fenced, or too few replicas are in sync. A coordinator or `pylog "
            "replicate` copies them while the roots of these brokers can be read; otherwise bring these back; after "
            "`replica.lost.after.ms` the records are given up. Nothing was written",
            lacking={},
            placement_group=group_number(state, key),
            partition=key,
        )


def _check_acks(commit: r.CommitRecord) -> None:
    """Identities that outlive a process, and positions of groups, are for exactly-once writes."""
    if commit.acks not in (ACKS_ALL, ACKS_LEADER):
        raise InvalidRequest(f"acks={commit.acks} in a commit: expected {ACKS_ALL} or {ACKS_LEADER}")
    if commit.acks != ACKS_ALL and (commit.birth < 0 or commit.groups):
        raise InvalidRequest("streams, transactions and versions of an application need acks=all")


def _with_pending(state: State, commit: r.CommitRecord, committed: Committed) -> Committed:
    """The reply for a commit that is pending in a state, with the objects that must be copied first.

    For acks=all also those of the commits before it, for which it waits.
    """
    waiting = pending_of(state, commit.producer, commit.sequence) if state.pending else None
    if waiting is None:
        return committed
    some = waited_for(state, waiting) if commit.acks == ACKS_ALL else (waiting,)
    return committed._replace(pending=True, lacking=lacking_objects(state, some))


def _check_repeat(known: ProducerState, commit: r.CommitRecord) -> None:
    """Spark replays only a query's newest batch, with the same source offsets.  Its rows may go to other partitions or
    topics: rows that were bad may be valid now.  There may be fewer of them: compaction, an erasure or retention may
    remove records of the source.  So rows are compared only where it is not known that source offsets are the same."""
    last = known.last_commit
    if last is None or commit.sequence > last.sequence:
        return
    if commit.sequence < last.sequence:
        why = f"commit {commit.sequence} is older than the last one, {last.sequence}"
    elif last.source and last.source == commit.source:
        return
    elif last.source and commit.source and source_offsets(last.source) != source_offsets(commit.source):
        why = f"commit {commit.sequence} read other source offsets than the commit of that number in the log"
    elif last.rows != (now := sum(_rows(commit).values())):
        why = f"commit {commit.sequence} has {counted(now, 'row')}, and in the log it has {counted(last.rows, 'row')}"
    else:
        return
    raise SequenceConflict(f"producer {commit.producer}: {why}", last=last.sequence, version=last.version)


def _check_after(known: ProducerState | None, commit: r.CommitRecord, after: int | None) -> None:
    """A writer that planned a commit by what the log had must not add it to what another one has written since."""
    last = -1 if known is None else known.last
    if after is not None and last != after:
        raise SequenceConflict(
            f"producer {commit.producer}: commit {commit.sequence} follows {after}, and the last one in the log is {last}",
            last=last,
            version=-1 if known is None else known.version,
        )


def _check_history(state: State, known: ProducerState | None, commit: r.CommitRecord, history: str) -> None:
    """Raises UploadFenced for an upload of before a restore; UnknownProducerId if the copy may have had its commit, and
    the producer has expired since: if it were written again, it could be there twice."""
    if history == history_of(state):
        return
    later = restores_after(state, history)
    if known is None and (later is None or commit.upload_epoch < later[0].version):
        _check_producer(state, commit)
    raise UploadFenced("the log was restored from a copy since the upload began: write the data again")


def _check_producer(state: State, commit: r.CommitRecord) -> None:
    if admits(state, commit):
        return
    known, name = producer_of(state, commit.producer, commit.sequence), commit.producer
    if known is None:
        raise UnknownProducerId(
            f"producer {name} is unknown or has expired: commit "
            f"{commit.sequence} may have been applied before it expired"
        )
    if commit.epoch != known.epoch or commit.holder != known.holder:
        raise ProducerFenced(
            f"producer {name}: epoch {commit.epoch} is fenced: the current epoch is {known.epoch}, of a newer producer",
            current=known.epoch,
        )
    raise OutOfOrderSequence(
        f"producer {name}: commit {commit.sequence} does not follow {known.last}: the log lacks commits between them, as after an "
        "older copy was restored, or this producer's process has skipped some; open the log and the producer again, and compare "
        "with the log what was acknowledged"
    )


def _check_time(state: State, commit: r.CommitRecord) -> None:
    """A transaction that is listed as timed out must not commit later."""
    known = state.producers.get(commit.producer)
    if known is not None and is_timed_out(known, state.time):
        raise TransactionTimedOut(
            f"producer {commit.producer}: its transaction was open for {state.time - known.time} ms, longer than "
            f"transaction_timeout_ms ({known.timeout_ms}): nothing was committed; repeat it, or raise the timeout"
        )


def _check_objects(state: State, commit: r.CommitRecord) -> None:
    """Raises InvalidRequest for an object that is already in the log."""
    known = known_objects(state, commit.objects)
    if known:
        raise InvalidRequest(
            f"object {known[0]!r} is in the log already, or named twice: a commit "
            "may only name objects that were uploaded for it; upload the data again"
        )


def _check_topics(state: State, commit: r.CommitRecord) -> None:
    named = {(run.topic_id, run.partition) for _, run in commit.slices} | {(t, p) for t, p, _ in commit.pieces}
    for topic_id, number in sorted(named):
        topic = state.topics.get(topic_id)
        if topic is None or topic.deleted:
            raise UnknownTopicOrPartition(f"topic id {topic_id} was deleted while records for it were uploaded")
        if number >= topic.partitions:
            raise UnknownTopicOrPartition(f"topic {topic.name!r} has no partition {number}, it has {topic.partitions}")


def _check_keys(state: State, keyless: Sequence[str]) -> None:
    """Writers check each record by the configs that they know: this is for a policy that has changed meanwhile."""
    for topic_id in keyless:
        topic = state.topics.get(topic_id)
        if topic is not None and has_cleanup_policy(topic.configs, "compact"):
            raise InvalidRecord(
                f"topic {topic.name!r} was changed to cleanup.policy=compact while records without a key were "
                "uploaded: nothing was written; give every record a key, or write to a topic that is not compacted"
            )


def _check_ends(state: State, ranges: Mapping[TopicKey, range]) -> None:
    """Raises InvalidRequest for more records than a partition has offsets."""
    for (topic_id, number), span in ranges.items():
        if span.stop > LONG_MAX:
            raise InvalidRequest(
                f"{state.topics[topic_id].name}-{number} has no offsets for {len(span):,} more records"
            )


def _rows(commit: r.CommitRecord) -> dict[TopicKey, int]:
    rows: dict[TopicKey, int] = {}
    for _, run in commit.slices:
        rows[run.topic_id, run.partition] = rows.get((run.topic_id, run.partition), 0) + run.rows
    for topic_id, number, piece in commit.pieces:
        rows[topic_id, number] = rows.get((topic_id, number), 0) + piece.end - piece.start
    return rows


def _next_ranges(state: State, commit: r.CommitRecord) -> dict[TopicKey, range]:
    rows = _rows(commit)
    ends = {key: state.partitions[key].end for key in rows}
    return {key: range(ends[key], ends[key] + count) for key, count in rows.items()}
