"""Decisions: `decide_x(state, command, now_ms)` reads a state and returns the records of a command, and a reply.

The state has the version that the records will get, but not their effects (`replay.next_version`).

A decision never changes anything.  If its work is already done (a retry of a commit, an offset that is committed), it
returns the reply and no records.  If the command is rejected, it raises an error of `spark_log.errors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Generic, NamedTuple, TypeVar

from spark_log.errors import (
    ClockSkewed,
    GroupInUse,
    IllegalGeneration,
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    InvalidTxnState,
    InvalidTxnTimeout,
    NotCoordinator,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    SequenceConflict,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    TransactionTimedOut,
    UnknownProducerId,
    UnknownTopicOrPartition,
    UploadFenced,
)
from spark_log.groups.group import Roster
from spark_log.groups.messages import Code
from spark_log.groups.offset_deletion import METADATA_BYTES_MAX, check_metadata
from spark_log.metadata import records as r
from spark_log.metadata.features import SUPPORTED, levels_of
from spark_log.metadata.replay import admits, known_objects, next_generation
from spark_log.metadata.shared_groups import expired_positions, members_in_force
from spark_log.metadata.state import GroupState, ProducerState, State, Topic, TopicKey
from spark_log.model import PROGRESS_TOPIC
from spark_log.positions import format_timestamp_ms
from spark_log.settings import (
    check_config_names,
    check_topic_name,
    cluster_config,
    collision_key,
    validate_cluster_configs,
    validate_topic_configs,
)
from spark_log.text import counted

STREAM_RETENTION = "streaming.identity.retention.ms"
PARTITIONS_MAX = 100_000

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Reply]):
    """The records to write, and the reply after they are durable."""

    records: tuple[r.AnyRecord, ...]
    reply: Reply


class Committed(NamedTuple):
    """The offsets of a commit's records."""

    version: int
    ranges: dict[TopicKey, range]
    """By (topic id, partition).  Empty for a duplicate so old that its offsets have expired."""
    repeated: bool
    """The commit is a duplicate: nothing was added."""
    last: int = -1
    """For a duplicate: the sequence of the producer's last commit."""


def topic_named(state: State, name: str) -> tuple[str, Topic]:
    """(id, topic) of a live topic.  Raises UnknownTopicOrPartition, with the nearest names."""
    topic_id = state.names.get(name)
    if topic_id is None:
        refuse_progress_topic(name)
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist{_nearest(name, state.names)}")
    return topic_id, state.topics[topic_id]


def refuse_progress_topic(name: str) -> None:
    """Raises InvalidTopic for `__consumer_offsets`, in operations that do not support it."""
    if name == PROGRESS_TOPIC:
        raise InvalidTopic(
            f"topic {name!r} has the positions of groups and is read-only: read it by Spark with the option subscribe, "
            "log.read, log.scan and `pylog consume`; change groups by `pylog group seek` and `pylog group delete`"
        )


def _nearest(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), n=3)
    return f"; did you mean {' or '.join(near)}?" if near else "; `pylog topic list` shows the topics"


# --------------------------------------------------------------------------------------------------------------- topics


def decide_create_topic(
    state: State, name: str, partitions: int, configs: Mapping[str, str], topic_id: str
) -> Decision[str]:
    """Create a topic with the caller's id.  The reply is the id."""
    check_topic_name(name)
    refuse_progress_topic(name)
    values, _ = validate_topic_configs(configs)
    if state.names.get(name) == topic_id:
        return Decision((), topic_id)
    if name in state.names:
        raise TopicAlreadyExists(f"topic {name!r} exists already")
    key = collision_key(name)
    twin = (
        next((other for other in state.names if collision_key(other) == key), None)
        if "." in name or "_" in name
        else None
    )
    if twin is not None:
        raise InvalidTopic(
            f"topic {name!r} collides with {twin!r}: names that differ only in '.' and '_' are equal in Kafka's tools"
        )
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidPartitions(
            f"topic {name!r}: {partitions} partitions; expected a number from 1 to {PARTITIONS_MAX}"
        )
    return Decision(
        (r.CreateTopicRecord(topic_id=topic_id, name=name, partitions=partitions, configs=values),), topic_id
    )


def decide_add_partitions(state: State, name: str, total: int) -> Decision[None]:
    """Raise a topic's partition count to `total`; as in Kafka, it never decreases."""
    topic_id, topic = topic_named(state, name)
    if total <= topic.partitions:
        raise InvalidPartitions(
            f"topic {name!r} has {counted(topic.partitions, 'partition')} "
            f"already; expected a larger new total, not {total}"
        )
    if total > PARTITIONS_MAX:
        raise InvalidPartitions(f"topic {name!r}: {total} partitions; expected at most {PARTITIONS_MAX}")
    return Decision((r.AddPartitionsRecord(topic_id=topic_id, total=total),), None)


def decide_set_configs(state: State, name: str | None, changes: Mapping[str, str | None]) -> Decision[None]:
    """Set configs of a topic, or of the log if `name` is None; a value of None restores the default."""
    given = {key: value for key, value in changes.items() if value is not None}
    unset = {key: None for key, value in changes.items() if value is None}
    validate = validate_cluster_configs if name is None else validate_topic_configs
    values, _ = validate(given)
    topic_id, current = "", state.configs
    if name is not None:
        topic_id, topic = topic_named(state, name)
        current = topic.configs
    # The configs in place may come from a newer pylog.
    check_config_names((key for key in unset if key not in current), cluster=name is None)
    new: dict[str, str | None] = {**values, **unset}
    if all(current.get(key) == value for key, value in new.items()):
        return Decision((), None)
    return Decision((r.SetConfigsRecord(topic_id=topic_id, configs=new),), None)


def decide_delete_topic(state: State, name: str) -> Decision[str]:
    """Delete a topic: its name is free immediately, and its positions are removed.  The reply is its id."""
    topic_id, _ = topic_named(state, name)
    if not cluster_config(state.configs, "delete.topic.enable"):
        raise TopicDeletionDisabled(f"topic {name!r}: delete.topic.enable is false for this log")
    return Decision((r.DeleteTopicRecord(topic_id=topic_id),), topic_id)


def decide_trim(state: State, starts: Mapping[TopicKey, int]) -> Decision[dict[TopicKey, int]]:
    """Raise partitions' starts; a lower start changes nothing.  The reply is the starts in effect."""
    records, reply = [], {}
    for key, start in starts.items():
        part = state.partitions.get(key)
        if part is None:
            raise UnknownTopicOrPartition(f"partition {key[1]} of topic id {key[0]} does not exist")
        if not 0 <= start <= part.readable_end:
            raise OffsetOutOfRange(
                f"cannot trim {state.topics[key[0]].name}-{key[1]} to {start}: "
                f"expected an offset from {part.start} to its end, {part.readable_end}",
                start=part.start,
                end=part.readable_end,
            )
        if start > part.start:
            records.append(r.TrimRecord(topic_id=key[0], partition=key[1], start=start))
        reply[key] = max(start, part.start)
    return Decision(tuple(records), reply)


# -------------------------------------------------------------------------------------------------------------- commits


def decide_commit(state: State, commit: r.CommitRecord, *, skip_older: bool = False) -> Decision[Committed]:
    """Commit slices and positions under (producer, epoch, sequence); a duplicate returns the offsets of the first
    commit.

    skip_older:  a sequence below the last one succeeds without effect, whatever its content: a version of an
                 application.
    Raises SequenceConflict for a sequence below a stream's last one, and for the last one with other content.
    """
    known = state.producers.get(commit.producer)
    if known is not None and commit.epoch == known.epoch and commit.holder == known.holder:
        if not commit.dense and not (skip_older and commit.sequence < known.last):
            _check_repeat(known, commit)
        for kept in known.kept:
            if kept.sequence == commit.sequence:
                return Decision((), Committed(kept.version, _ranges(kept.ranges), repeated=True, last=known.last))
        if not commit.dense and commit.sequence <= known.last:
            return Decision((), Committed(known.version, {}, repeated=True, last=known.last))
    _check_producer(state, commit)
    _check_time(state, commit)
    if commit.upload_epoch <= state.fence:
        raise UploadFenced(
            f"the upload began at version {commit.upload_epoch}, older "
            f"than the fence at {state.fence}: write the data again"
        )
    _check_objects(state, commit)
    _check_topics(state, commit)
    for group in commit.groups:
        check_generation(state, group)
        _check_positions(state, group)
    return Decision((commit,), Committed(state.version, _next_ranges(state, commit), repeated=False))


def _ranges(rows: Iterable[tuple[str, int, int, int]]) -> dict[TopicKey, range]:
    return {(topic_id, number): range(start, end) for topic_id, number, start, end in rows}


def _check_repeat(known: ProducerState, commit: r.CommitRecord) -> None:
    """Spark replays only a query's newest batch, with the same source offsets.  Its rows may go to other partitions or
    topics: rows that were bad may be valid now."""
    if commit.sequence > known.last:
        return
    last = known.kept[-1]
    if commit.sequence < last.sequence:
        why = f"commit {commit.sequence} is older than the last one, {last.sequence}"
    elif last.source and commit.source and last.source != commit.source:
        why = f"commit {commit.sequence} read other source offsets than the commit of that number in the log"
    elif (then := sum(map(len, _ranges(last.ranges).values()))) != (now := sum(_rows(commit).values())):
        why = f"commit {commit.sequence} has {counted(now, 'row')}, and in the log it has {counted(then, 'row')}"
    else:
        return
    raise SequenceConflict(f"producer {commit.producer}: {why}", last=last.sequence, version=last.version)


def _check_producer(state: State, commit: r.CommitRecord) -> None:
    if admits(state, commit):
        return
    known, name = state.producers.get(commit.producer), commit.producer
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
    raise OutOfOrderSequence(f"producer {name}: commit {commit.sequence} does not follow {known.last}")


def _check_time(state: State, commit: r.CommitRecord) -> None:
    """A transaction that is listed as timed out must not commit later."""
    known = state.producers.get(commit.producer)
    if known is not None and is_timed_out(known, state.time):
        raise TransactionTimedOut(
            f"producer {commit.producer}: its transaction was open for {state.time - known.time} ms, longer than "
            f"transaction_timeout_ms ({known.timeout_ms}): nothing was committed; repeat it, or raise the timeout"
        )


def is_timed_out(known: ProducerState, now_ms: int) -> bool:
    """Whether a transaction has not been committed in time."""
    return known.timeout_ms > 0 and not known.kept and now_ms - known.time > known.timeout_ms


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


def decide_init_producer(state: State, producer: str, timeout_ms: int = 0) -> Decision[int]:
    """Take over a transactional id.  The reply is the new epoch; the previous holder is fenced.

    timeout_ms:  timeout of the transaction that begins; 0: no transaction begins.
    Raises InvalidTxnTimeout if it exceeds the log's maximum.
    """
    limit = cluster_config(state.configs, "transaction.max.timeout.ms")
    if timeout_ms > limit:
        raise InvalidTxnTimeout(
            f"transaction {producer.partition(':')[2]!r}: transaction_timeout_ms={timeout_ms} is above this log's "
            f"transaction.max.timeout.ms, {limit}: use a shorter timeout, or raise the limit with `pylog config alter`"
        )
    known = state.producers.get(producer)
    record = r.InitProducerRecord(producer=producer, timeout_ms=timeout_ms)
    return Decision((record,), 0 if known is None else known.epoch + 1)


def decide_abort(state: State, producer: str, epoch: int | None) -> Decision[int]:
    """Abort the transaction of an id, so that it cannot commit.  The reply is the current epoch.

    epoch:  epoch of the transaction; None: the open one.
    Raises InvalidTxnState if it has committed, InvalidRequest for an unknown id.
    """
    known, name = state.producers.get(producer), producer.partition(":")[2]
    if known is None:
        raise InvalidRequest(
            f"transactional id {name!r} is unknown; log.admin.list_transactions() lists the known ones"
        )
    if known.aborted or (epoch is not None and epoch != known.epoch):
        return Decision((), known.epoch)
    if known.kept:
        raise InvalidTxnState(
            f"transaction {name!r} has committed with epoch {known.epoch}: no transaction of this id is open"
        )
    return Decision((r.InitProducerRecord(producer=producer, aborted=True),), known.epoch + 1)


def epoch_of_holder(state: State, producer: str, holder: str) -> int:
    """Epoch under which `holder` may commit for an identity with successive holders.

    Raises ProducerFenced if a later holder has replaced it.
    """
    known = state.producers.get(producer)
    if known is None:
        return 0
    if holder in known.former:
        raise ProducerFenced(f"{producer}: {holder} was replaced by {known.holder}", current=known.epoch)
    return known.epoch if holder == known.holder else known.epoch + 1


# --------------------------------------------------------------------------------------------------------------- groups


def check_generation(state: State, commit: r.GroupCommit) -> None:
    """Raises IllegalGeneration if a newer consumer owns the group."""
    current = state.groups.get(commit.group, GroupState()).generation
    if commit.generation not in (-1, current):
        raise IllegalGeneration(
            f"group {commit.group!r}: generation {commit.generation} was "
            f"replaced by {current}: a newer consumer owns it",
            current=current,
        )


def _check_positions(state: State, commit: r.GroupCommit) -> None:
    """Raises InvalidRequest for a negative offset, OffsetMetadataTooLarge for too much metadata."""
    for entry in commit.offsets:
        if entry.offset < 0:
            raise InvalidRequest(
                f"group {commit.group!r}: invalid offset {entry.offset} for "
                f"{_partition_name(state, entry)}: expected 0 or more"
            )
        if check_metadata(entry.metadata) is not Code.NONE:
            raise OffsetMetadataTooLarge(
                f"group {commit.group!r}: the metadata of {_partition_name(state, entry)} has "
                f"{len(entry.metadata.encode())} bytes; expected at most {METADATA_BYTES_MAX}: commit less, and "
                "keep the rest in a topic"
            )


def _partition_name(state: State, entry: r.OffsetEntry) -> str:
    topic = state.topics.get(entry.topic_id)
    return f"{entry.topic_id if topic is None else topic.name}-{entry.partition}"


def decide_commit_offsets(state: State, commits: tuple[r.GroupCommit, ...]) -> Decision[None]:
    """Commit positions of groups; unchanged positions are not written."""
    for commit in commits:
        check_generation(state, commit)
        _check_positions(state, commit)
        for entry in commit.offsets:
            topic = state.topics.get(entry.topic_id)
            if topic is None or topic.deleted or entry.partition >= topic.partitions:
                raise UnknownTopicOrPartition(
                    f"partition {entry.partition} of topic id {entry.topic_id} does not exist"
                )
    if all(stands(state, commit) for commit in commits):
        return Decision((), None)
    return Decision((r.CommitOffsetsRecord(commits=commits),), None)


def stands(state: State, commit: r.GroupCommit) -> bool:
    """Whether a group already has the positions of a commit."""
    offsets = state.groups.get(commit.group, GroupState()).offsets
    found = [offsets.get((entry.topic_id, entry.partition)) for entry in commit.offsets]
    return all(
        position is not None and position[:2] == (entry.offset, entry.metadata)
        for position, entry in zip(found, commit.offsets, strict=True)
    )


def check_group_free(state: State, group: str, now_ms: int, token: str = "") -> None:
    """Raises GroupInUse if another holder, with another token, has a live session."""
    held = state.groups.get(group, GroupState())
    if held.session is None or (token and held.session.token == token):
        return
    left = held.seen + held.session.timeout_ms - now_ms
    if left > 0:
        raise GroupInUse(
            f"group {group!r} is held by {held.session.owner} since {format_timestamp_ms(held.session.since)}, last "
            f"heartbeat at {format_timestamp_ms(held.seen)}: stop that consumer, or use another group; if it died, the "
            f"group is free in {-(-left // 1000)} s",
            owner=held.session.owner,
        )


def decide_join_group(
    state: State, group: str, member: str, *, token: str = "", owner: str = "", timeout_ms: int = 0
) -> Decision[int]:
    """Take all partitions of a group.  The reply is the generation; consumers of older ones are rejected from now on.

    With a timeout the member owns the group as long as it sends heartbeats (`check_group_free`).
    """
    current = state.groups.get(group, GroupState())
    if current.member == member:
        return Decision((), current.generation)
    join = r.JoinGroupRecord(group=group, member=member, token=token, owner=owner, timeout_ms=timeout_ms)
    return Decision((join,), next_generation(state, group))


def decide_sign_of_life(state: State, group: str, generation: int) -> Decision[None]:
    """Extend the session of a group's owner."""
    sign = r.GroupCommit(group, generation, ())
    check_generation(state, sign)
    return Decision((r.CommitOffsetsRecord(commits=(sign,)),), None)


def decide_set_generation(state: State, group: str, roster: Roster) -> Decision[None]:
    """Journal a generation from the group protocol."""
    current = state.groups.get(group, GroupState())
    # A generation without a roster belongs to an embedded consumer or a stream that took the group meanwhile.
    last = state.last_generation(group)
    if roster.generation < last + (current.roster is None):
        raise IllegalGeneration(
            f"group {group!r}: generation {roster.generation} was replaced by {last}",
            current=last,
        )
    return Decision((r.GroupGenerationRecord(group=group, roster=roster),) if roster != current.roster else (), None)


def decide_delete_offsets(state: State, group: str, keys: tuple[TopicKey, ...]) -> Decision[None]:
    """Remove positions of a group; if `keys` is empty, all of them and the group."""
    known = state.groups.get(group)
    if known is None:
        return Decision((), None)
    if not keys:
        return Decision((r.DeleteOffsetsRecord(group=group),), None)
    found = any(key in known.offsets for key in keys)
    return Decision((r.DeleteOffsetsRecord(group=group, partitions=keys),) if found else (), None)


# --------------------------------------------------------------------------------------------------------- coordinators


def decide_take_over(state: State, expected: int, address: str, host: str, cluster_id: str) -> Decision[int]:
    """Take over the log from epoch `expected`, whose coordinator is dead or has released it.  The reply is the new
    epoch.

    Raises NotCoordinator if another process was faster.
    """
    held = state.coordinator
    if held.epoch != expected:
        raise NotCoordinator(
            f"another coordinator has taken the log over, with epoch {held.epoch}, at {held.address or 'no address'}",
            address=held.address,
            epoch=held.epoch,
        )
    new = r.TakeOverRecord(epoch=expected + 1, address=address, host=host, cluster_id=cluster_id)
    return Decision((new,), new.epoch)


def decide_release(state: State, epoch: int) -> Decision[bool]:
    """Release the log to embedded writers: under the coordinator's epoch, or under the next one, which fences it.

    The reply is False, and nothing is written, if the epoch does not match.
    """
    held = state.coordinator
    if not held.address or epoch not in (held.epoch, held.epoch + 1):
        return Decision((), False)
    return Decision((r.ReleaseRecord(epoch=epoch),), True)


# --------------------------------------------------------------------------------------------------------------- upkeep


def decide_fence(state: State, now_ms: int) -> Decision[int]:
    """Advance the fence to the version before the newest one stamped older than `gc.fence.age.ms`.

    It is the version before, because a record is stamped after its writer saw its predecessor, but may be written long
    after that.  The reply is the fence in effect.
    """
    limit = now_ms - cluster_config(state.configs, "gc.fence.age.ms")
    upto = max((version for version, time in state.times if time <= limit), default=0) - 1
    if upto <= state.fence:
        return Decision((), state.fence)
    return Decision((r.FenceRecord(upto=upto),), upto)


def decide_reset_clock(state: State, now_ms: int, *, force: bool = False) -> Decision[int]:
    """Set the log's time back to the present; the reply is by how many ms it was ahead, 0 if it was not.

    Raises ClockSkewed if commits at several times are later than this clock, unless `force`.  A slow clock cannot be
    distinguished from a right one after a long time of writes by a fast one.
    """
    ahead = state.time - now_ms
    later = [(version, time) for version, time in state.times if time > now_ms]
    if len(later) > 1 and not force:
        (first, since), (last, until) = later[0], later[-1]
        raise ClockSkewed(
            f"the writer's clock, {format_timestamp_ms(now_ms)}, is earlier than the commits from version {first} "
            f"({format_timestamp_ms(since)}) to {last} ({format_timestamp_ms(until)}): if that clock is behind, set "
            "it (NTP); if it is right, and another one was ahead for that long, reset with --force (force=True)"
        )
    return Decision((r.ResetClockRecord(time=now_ms),), ahead) if ahead > 0 else Decision((), 0)


def decide_update_feature(state: State, name: str, level: int) -> Decision[int]:
    """Raise a feature to a level; the reply is the level before.  Raises InvalidRequest."""
    levels = levels_of(state.features)
    if name not in levels:
        raise InvalidRequest(f"feature {name!r} is unknown: expected one of {', '.join(levels)}")
    if not levels[name] <= level <= SUPPORTED[name]:
        raise InvalidRequest(
            f"feature {name}: invalid level {level}: expected {levels[name]}, the level of the log, to "
            f"{SUPPORTED[name]}, the highest that this pylog supports; a level is never lowered"
        )
    return Decision((r.FeatureLevelRecord(name=name, level=level),) if level > levels[name] else (), levels[name])


def decide_expire(state: State, now_ms: int, held: frozenset[tuple[str, str, int]] = frozenset()) -> Decision[int]:
    """Remove idle producers and expired positions of groups.  The reply counts them.

    held:  (group, topic id, partition) of positions to keep.
    """
    ages = {
        True: cluster_config(state.configs, "producer.id.expiration.ms"),
        False: cluster_config(state.configs, STREAM_RETENTION),
    }
    idle = sorted(
        name
        for name, known in state.producers.items()
        if known.version <= state.fence and known.time < now_ms - ages[known.plain]
    )
    records: list[r.AnyRecord] = [r.ExpireProducersRecord(producers=tuple(idle))] if idle else []
    usual = now_ms - cluster_config(state.configs, "offsets.retention.minutes") * 60_000
    for name, group in sorted(state.groups.items()):
        # Never joined: a bookmark.  Its next run may be a month later, and would begin from the start.
        limit = usual if group.generation else min(usual, now_ms - ages[False])
        expired = (
            expired_positions(state, name, limit) if group.roster is not None else _expired_alone(group, usual, limit)
        )
        old = tuple(sorted(key for key in expired if (name, *key) not in held))
        whole = len(old) == len(group.offsets) and not members_in_force(state, name)
        if old or (whole and group.seen <= limit):
            records.append(r.DeleteOffsetsRecord(group=name, partitions=() if whole else old))
    return Decision(tuple(records), len(idle) + sum(isinstance(x, r.DeleteOffsetsRecord) for x in records))


def _expired_alone(group: GroupState, usual: int, limit: int) -> Iterator[TopicKey]:
    """For a group without members.  Kafka's rule: the time counts from the group's last use."""
    if group.seen <= usual:
        yield from (key for key, position in group.offsets.items() if position.time <= limit)


def decide_swap(state: State, swap: r.SwapRecord) -> Decision[bool]:
    """Write a prepared swap.  The reply is False, and nothing is written, if it would be void."""
    fits = swap.upload_epoch > state.fence and not known_objects(state, swap.objects)
    fits = fits and all(
        (part := state.partitions.get((c.topic_id, c.partition))) is not None and part.edition == c.edition
        for c in swap.changes
    )
    return Decision((swap,), True) if fits and swap.changes else Decision((), False)
