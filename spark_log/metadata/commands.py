"""Commands: decisions as values with all of their arguments, so that another process can carry them out.

Calling a command decides it.  The sender draws random ids, so that a retry after a lost answer is recognised as a
duplicate where possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace as with_values
from typing_extensions import Self

from spark_log.bounds import AnyLong, Document, Int, Known, Long, LongOrNone, Text
from spark_log.errors import ClockSkewed, ConcurrentChange, InvalidRequest, InvalidTxnState, UnknownTopicOrPartition
from spark_log.metadata import records as r
from spark_log.metadata.command_base import Command, HeldPosition, PlannedCommand, topic_names
from spark_log.metadata.commits import decide_commits as commits
from spark_log.metadata.commits import decide_transactional_ids as transactional_ids
from spark_log.metadata.commits.pending_commits import LackingObject
from spark_log.metadata.decision import Decision, decide_if_changed
from spark_log.metadata.erasures import name_of_own
from spark_log.metadata.features import SUPPORTED
from spark_log.metadata.groups.group_commands import (
    CommitOffsets,
    Committer,
    DeleteOffsets,
    JoinGroup,
    LeaveGroup,
    RemoveMember,
    RenewSession,
    check_unfenced,
)
from spark_log.metadata.lines import plan_of
from spark_log.metadata.maintenance import decide_maintenance as maintenance
from spark_log.metadata.replay import replay_records
from spark_log.metadata.replicas.replica_commands import (
    AddPendingCopies,
    AlterBroker,
    AlterReassignments,
    DropCopies,
    ElectLeader,
    FenceBroker,
    JoinIsr,
    RegisterBroker,
    RemoveBroker,
    ResetReplicas,
    ReturnBroker,
)
from spark_log.metadata.state import State, TopicKey
from spark_log.metadata.topics import decide_topics as topics
from spark_log.metadata.topics.decide_schemas import decide_set_schema, first_schema_records
from spark_log.metadata.topics.schemas import schema_of
from spark_log.positions import format_timestamp_ms

TRANSACTIONAL = "txn:"
"""Prefix of the producer of a transactional id in the state."""
WHOLE = -1
"""Used instead of an offset: all records that exist when the command is decided."""
SLICES_INLINE_MAX = 1000
"""A commit with more slices refers to index objects instead."""

# --------------------------------------------------------------------------------------------------------------- topics


class TopicCommand(Command, frozen=True, kw_only=True):
    """Base of commands of one topic."""

    name: Text

    def topics(self, state: State) -> Sequence[str]:
        return (self.name,)


class CreateTopic(TopicCommand, frozen=True, kw_only=True, tag="create_topic"):
    role = "write"
    partitions: AnyLong
    configs: dict[Text, Text] = msgspec.field(default_factory=dict)
    topic_id: Text
    replication_factor: AnyLong | None = None
    replicas: tuple[tuple[Int, ...], ...] = ()
    """The brokers of each partition, instead of `replication_factor`."""
    schema: Document = ""
    """The schema, as `decide_create_topic` takes it."""

    def __call__(self, state: State, now_ms: int) -> Decision[str]:
        return topics.decide_create_topic(
            state,
            self.name,
            self.partitions,
            self.configs,
            self.topic_id,
            replication_factor=self.replication_factor,
            replicas=self.replicas,
            schema=self.schema,
        )


class AddPartitions(TopicCommand, frozen=True, kw_only=True, tag="add_partitions"):
    total: AnyLong
    known: Int = 0
    """The old total.  A retry succeeds if the new total is already in place."""
    topic_id: Text = ""
    """Id of the topic: a new topic of the same name is kept as it is."""

    def __call__(self, state: State, now_ms: int) -> Decision[None]:
        if self.topic_id and state.names.get(self.name) != self.topic_id:
            raise UnknownTopicOrPartition(f"topic {self.name!r} was deleted, and another one has its name")
        if self.known and self.known < self.total == topics.topic_named(state, self.name)[1].partitions:
            return Decision((), None)
        return topics.decide_add_partitions(state, self.name, self.total)


class SetConfigs(Command, frozen=True, kw_only=True, tag="set_configs"):
    name: Text | None
    """None: the log's configs."""
    changes: dict[Text, Text | None]

    def __call__(self, state: State, now_ms: int) -> Decision[None]:
        return topics.decide_set_configs(state, self.name, self.changes)

    def topics(self, state: State) -> Sequence[str]:
        return () if self.name is None else (self.name,)


class SetSchema(TopicCommand, frozen=True, kw_only=True, tag="set_schema"):
    """Give a topic a schema, or the next version of it."""

    role = "write"
    topic_id: Text
    """Id of the topic: a new topic of the same name is kept as it is."""
    schema: Document
    """In any form."""
    first: bool = False
    """Changes nothing if the topic has a schema: another first write was faster."""

    def __call__(self, state: State, now_ms: int) -> Decision[int]:
        topic_id, _ = topics.topic_named(state, self.name)
        if topic_id != self.topic_id:
            raise ConcurrentChange(f"topic {self.name!r} was deleted and created again meanwhile: nothing was changed")
        if self.first and (known := schema_of(state, topic_id)) is not None:
            return Decision((), known.version)
        return decide_set_schema(state, self.name, topic_id, self.schema)


class DeleteTopic(TopicCommand, frozen=True, kw_only=True, tag="delete_topic"):
    topic_id: Text = ""
    """Id of the topic.  A retry succeeds if the topic is gone, and a new topic of the same name is kept."""

    def __call__(self, state: State, now_ms: int) -> Decision[str]:
        if self.topic_id and state.names.get(self.name) != self.topic_id:
            return Decision((), self.topic_id)
        return topics.decide_delete_topic(state, self.name)


class Start(NamedTuple):
    """The new first offset of a partition."""

    topic_id: Text
    partition: Int
    offset: AnyLong
    """An offset, or `WHOLE`."""


class Trim(PlannedCommand, frozen=True, kw_only=True, tag="trim"):
    void: ClassVar[dict[TopicKey, int]] = {}
    starts: tuple[Start, ...]
    known_only: bool = False
    """Skip partitions that do not exist, instead of rejecting the command."""

    def decide(self, state: State, now_ms: int) -> Decision[dict[TopicKey, int]]:
        wanted = {}
        for topic_id, partition, offset in self.starts:
            part = state.partitions.get((topic_id, partition))
            if part is not None or not self.known_only:
                wanted[topic_id, partition] = part.readable_end if part is not None and offset == WHOLE else offset
        return topics.decide_trim(state, wanted)

    def topics(self, state: State) -> Sequence[str]:
        return topic_names(state, [start.topic_id for start in self.starts])

    def pack(self, reply: dict[TopicKey, int]) -> list[Start]:
        return [Start(*key, offset) for key, offset in reply.items()]

    def unpack(self, packed: Any) -> dict[TopicKey, int]:
        return {(start.topic_id, start.partition): start.offset for start in msgspec.convert(packed, list[Start])}


# -------------------------------------------------------------------------------------------------------------- commits


class _PackedCommitted(NamedTuple):
    version: int
    ranges: list[tuple[Text, int, int, int]]
    repeated: bool
    last: int = -1
    time_ms: int = 0
    pending: bool = False
    lacking: tuple[LackingObject, ...] = ()
    restored_after: int = -1


class Append(Command, frozen=True, kw_only=True, tag="append", omit_defaults=True):
    """Add uploads to the log as records, with positions of groups."""

    role = "write"
    commit: r.CommitRecord
    by: tuple[tuple[Text, Committer], ...] = ()
    """By group: the member that the coordinator must find in groups whose positions are committed."""
    skip_older: bool = False
    """A parameter of `decide_commit`, as `after` and `keyless` are."""
    after: LongOrNone | None = None
    keyless: tuple[Text, ...] = ()
    schemas: dict[Text, Int] = msgspec.field(default_factory=dict)
    """By topic id, the version of the schema by which rows were converted."""
    history: Text = ""
    first_schemas: dict[Text, Document] = msgspec.field(default_factory=dict)
    """By topic id, the schema that topics without one get with the commit: see `first_schema_records`."""
    erased: dict[Text, LongOrNone] = msgspec.field(default_factory=dict)
    """The fields of a `ReadBasis`; nothing: the records do not depend on those of the log."""
    spans: tuple[tuple[Text, Int, Long, Long], ...] = ()

    def __call__(self, state: State, now_ms: int) -> Decision[commits.Committed]:
        _check_objects(self.commit)
        first = first_schema_records(state, self.first_schemas)
        decision = commits.decide_commit(
            replay_records(state, first) if first else state,
            self.commit,
            skip_older=self.skip_older,
            after=self.after,
            keyless=self.keyless,
            schemas=self.schemas,
            history=self.history,
        )
        if decision.records:  # a duplicate was applied, whatever has changed since
            check_unfenced(state, self.commit.groups, now_ms)
            commits.check_basis(state, commits.ReadBasis(self.erased, self.spans))
            return Decision((*first, *decision.records), decision.reply)
        return decision

    def topics(self, state: State) -> Sequence[str]:
        commit = self.commit
        ids = [run.topic_id for _, run in commit.slices] + [topic_id for topic_id, _, _ in commit.pieces]
        ids += [*self.first_schemas, *self.erased, *(topic_id for topic_id, *_ in self.spans)]
        return topic_names(state, ids + [entry.topic_id for group in commit.groups for entry in group.offsets])

    def groups(self) -> Sequence[str]:
        return [commit.group for commit in self.commit.groups]

    def producers(self) -> Sequence[str]:
        return (self.commit.producer,)

    def pack(self, reply: commits.Committed) -> _PackedCommitted:
        rows = [(*key, span.start, span.stop) for key, span in reply.ranges.items()]
        return _PackedCommitted(reply.version, rows, *reply[2:])

    def unpack(self, packed: Any) -> commits.Committed:
        found = msgspec.convert(packed, _PackedCommitted)
        ranges = {(name, number): range(a, b) for name, number, a, b in found.ranges}
        return commits.Committed(found.version, ranges, *found[2:])


def _check_objects(commit: r.CommitRecord) -> None:
    """Raises InvalidRequest for a commit with names that no upload under its epoch can have."""
    folder = f"data/{commit.upload_epoch:016x}/"
    for name, size, _ in commit.objects:
        if not _OBJECT.fullmatch(name) or not name.startswith(folder):
            raise InvalidRequest(
                f"object {name!r} of {size} bytes does not belong to upload epoch {commit.upload_epoch}"
            )
    for number, run in commit.slices:
        if number >= len(commit.objects) or run.rows == 0 or run.position + run.length > commit.objects[number].size:
            raise InvalidRequest(f"invalid slice {run} of object {number}")
    if len(commit.slices) > SLICES_INLINE_MAX:
        raise InvalidRequest(
            f"a commit has {len(commit.slices):,} slices, more than {SLICES_INLINE_MAX:,}: put them in an index object"
        )
    if commit.stats and len(commit.stats) != len(commit.slices):
        raise InvalidRequest(f"a commit of {len(commit.slices)} slices has statistics of {len(commit.stats)}")
    names = {name for name, _, _ in commit.objects}
    for _, _, piece in commit.pieces:
        if piece.start != 0 or piece.end == 0 or piece.object not in names:
            raise InvalidRequest(f"invalid piece {piece}: it begins at 0, and its index is an object of the commit")
    if commit.counts and len(commit.counts) != len(commit.objects):
        raise InvalidRequest(f"a commit of {len(commit.objects)} objects has counts of {len(commit.counts)}")
    if commit.pieces and commit.slices:
        raise InvalidRequest("a commit has slices or pieces, not both")


OBJECT = r"data/[0-9a-f]{16}/[A-Za-z0-9][A-Za-z0-9._-]*\.(?:seg|idx)"
"""Names of the objects that commits may have."""
_OBJECT = re.compile(OBJECT)


class InitProducer(Command, frozen=True, kw_only=True, tag="init_producer"):
    """Take over a transactional id; with a timeout, also begin a transaction."""

    role = "write"
    producer: Text
    timeout_ms: AnyLong = 0

    def __call__(self, state: State, now_ms: int) -> Decision[int]:
        _check_transactional(self.producer)
        if self.timeout_ms < 0:
            raise InvalidRequest(f"timeout_ms: {self.timeout_ms} is below 0")
        return transactional_ids.decide_init_producer(state, self.producer, self.timeout_ms)

    def producers(self) -> Sequence[str]:
        return (self.producer,)


class AbortTransaction(PlannedCommand, frozen=True, kw_only=True, tag="abort_transaction"):
    """Abort a transaction, so that it cannot commit.  The reply is the current epoch."""

    role = "write"
    producer: Text
    epoch: Long | None = None
    """Epoch of the transaction; None: the open one."""

    def decide(self, state: State, now_ms: int) -> Decision[int]:
        _check_transactional(self.producer)
        known, name = state.producers.get(self.producer), self.producer.partition(":")[2]
        if known is None:
            raise InvalidRequest(f"transactional id {name!r} is unknown: `pylog transaction list` lists the known ones")
        if known.aborted or (self.epoch is not None and self.epoch != known.epoch):
            return Decision((), known.epoch)
        if known.last_commit is not None:
            raise InvalidTxnState(
                f"transaction {name!r} has committed with epoch {known.epoch}: no transaction of this id is open"
            )
        return Decision((r.InitProducerRecord(producer=self.producer, aborted=True),), known.epoch + 1)

    def producers(self) -> Sequence[str]:
        return (self.producer,)


def _check_transactional(producer: str) -> None:
    """Raises InvalidRequest for another identity: a new epoch of a stream would apply its replayed batch twice."""
    if not producer.startswith(TRANSACTIONAL):
        raise InvalidRequest(
            f"{producer!r} is not a transactional id: expected a name that begins with {TRANSACTIONAL!r}"
        )


# ---------------------------------------------------------------------------------------------------------- maintenance


class Fence(Command, frozen=True, kw_only=True, tag="fence"):
    """Advance the fence of garbage collection."""

    copied: Long | None = None
    """The oldest copy of the metadata, see `decide_fence`; the coordinator sets it."""

    def __call__(self, state: State, now_ms: int) -> Decision[int]:
        return maintenance.decide_fence(state, now_ms, self.copied)

    def keeping(self, held: Callable[[], tuple[HeldPosition, ...]], copied: int | None = None) -> Self:
        return with_values(self, copied=copied)


class BeginHistory(Command, frozen=True, kw_only=True, tag="begin_history"):
    """Record that the log is a copy that was restored."""

    history: Text
    """An id of `restores.new_history`."""
    version: Long
    """The version that the copy had."""

    def __call__(self, state: State, now_ms: int) -> Decision[None]:
        if not self.history:
            raise InvalidRequest("a history needs an id: give some random characters")
        if not 0 <= self.version <= state.version:
            raise InvalidRequest(f"a copy with version {self.version}: the log has version {state.version}")
        return Decision((r.RestoreRecord(history=self.history, version=self.version),), None)


class ResetClock(Command, frozen=True, kw_only=True, tag="reset_clock"):
    """Set the log's time back to the present.  The reply is by how many ms it was ahead, 0 if it was not.

    A slow clock cannot be distinguished from a right one after a long time of writes by a fast one.
    """

    force: bool = False
    """Even if commits at several times are later than the present."""

    def __call__(self, state: State, now_ms: int) -> Decision[int]:
        ahead = state.time - now_ms
        later = [(version, time) for version, time in state.times if time > now_ms]
        if len(later) > 1 and not self.force:
            (first, since), (last, until) = later[0], later[-1]
            raise ClockSkewed(
                f"the writer's clock, {format_timestamp_ms(now_ms)}, is earlier than the commits from version {first} "
                f"({format_timestamp_ms(since)}) to {last} ({format_timestamp_ms(until)}): if that clock is behind, set "
                "it (NTP); if it is right, and another one was ahead for that long, reset with --force (force=True)"
            )
        return Decision((r.ResetClockRecord(time=now_ms),), ahead) if ahead > 0 else Decision((), 0)


class UpdateFeature(Command, frozen=True, kw_only=True, tag="update_feature"):
    """Raise a feature of the log to a level.  The reply is the level before."""

    name: Text
    level: AnyLong

    def __call__(self, state: State, now_ms: int) -> Decision[int]:
        name, levels = self.name, state.levels
        if name not in levels:
            raise InvalidRequest(f"feature {name!r} is unknown: expected one of {', '.join(levels)}")
        if not levels[name] <= self.level <= SUPPORTED[name]:
            raise InvalidRequest(
                f"feature {name}: invalid level {self.level}: expected {levels[name]}, the level of the log, to "
                f"{SUPPORTED[name]}, the highest that this pylog supports; a level is never lowered"
            )
        record = r.FeatureLevelRecord(name=name, level=self.level)
        return Decision((record,) if self.level > levels[name] else (), levels[name])


class Expire(Command, frozen=True, kw_only=True, tag="expire"):
    """Remove expired producers and positions."""

    held: tuple[HeldPosition, ...] = ()
    """Positions to keep, because open transactions have requested newer ones."""
    only_producers: tuple[Text, ...] | None = None
    """Check only these, which were found before; None: all."""
    only_groups: tuple[Text, ...] | None = None
    """Check only these groups, which were found before; None: all."""
    only_kafka: tuple[tuple[Long, Known, Int], ...] | None = None
    """Check only these rows of Kafka's producers, which were found before; None: all."""

    def __call__(self, state: State, now_ms: int) -> Decision[int]:
        only = self.only_producers, self.only_groups, self.only_kafka
        return maintenance.decide_expire(state, now_ms, frozenset(self.held), *only)

    def keeping(self, held: Callable[[], tuple[HeldPosition, ...]], copied: int | None = None) -> Self:
        return with_values(self, held=self.held + held())


class Swap(PlannedCommand, frozen=True, kw_only=True, tag="swap"):
    swap: r.SwapRecord

    def decide(self, state: State, now_ms: int) -> Decision[bool]:
        return maintenance.decide_swap(state, self.swap)


Reported: TypeAlias = (
    r.HeldRecord | r.MissingRecord | r.LostRecord | r.MovedRecord | r.ListDroppedRecord | r.ErasedRecord | r.WipedRecord
)


class Report(PlannedCommand, frozen=True, kw_only=True, tag="report"):
    """Record what a process has done, or has found on the roots.  The reply is False if that changes nothing."""

    record: Reported

    @classmethod
    def of(cls, state: State, record: Reported) -> Report:
        """By a process that has read this state before."""
        return cls(record=record, history=plan_of(state))

    def decide(self, state: State, now_ms: int) -> Decision[bool]:
        return decide_if_changed(state, self.record)


class AddFormerRoot(Command, frozen=True, kw_only=True, tag="add_former_root"):
    """Record where the log had its own root before.  The reply is False if that is known."""

    url: Text

    def __call__(self, state: State, now_ms: int) -> Decision[bool]:
        record = r.FormerRootRecord(url=self.url, directory=name_of_own(self.url))
        known = state.former_roots.get(record.directory)
        return Decision((), False) if known is not None else Decision((record,), True)


class MarkCleaned(PlannedCommand, frozen=True, kw_only=True, tag="mark_cleaned"):
    """Record the ends of compaction passes whose swaps have all been written.

    The reply is False, and nothing is written, if no cleaner point would move.
    """

    partitions: tuple[r.Cleaned, ...]

    def decide(self, state: State, now_ms: int) -> Decision[bool]:
        moved = [one for one in self.partitions if decide_if_changed(state, r.CleanedRecord(partitions=(one,))).reply]
        return Decision((r.CleanedRecord(partitions=tuple(moved)),), True) if moved else Decision((), False)


# -------------------------------------------------------------------------------------------------------------- several


class SeveralCommands(Command, frozen=True, kw_only=True, tag="several"):
    """Commands as one, each decided on the state after the previous ones: all or none.  The reply lists theirs."""

    commands: tuple[Single, ...]

    def __call__(self, state: State, now_ms: int) -> Decision[list[Any]]:
        records: list[r.AnyRecord] = []
        replies = []
        for command in self.commands:
            decision = command(state, now_ms)
            state = replay_records(state, decision.records)
            records += decision.records
            replies.append(decision.reply)
        return Decision(tuple(records), replies)

    def topics(self, state: State) -> Sequence[str]:
        return sorted({name for command in self.commands for name in command.topics(state)})

    def groups(self) -> Sequence[str]:
        return sorted({name for command in self.commands for name in command.groups()})

    def producers(self) -> Sequence[str]:
        return sorted({name for command in self.commands for name in command.producers()})

    def keeping(self, held: Callable[[], tuple[HeldPosition, ...]], copied: int | None = None) -> Self:
        return with_values(self, commands=tuple(command.keeping(held, copied) for command in self.commands))

    def parts(self) -> Sequence[Command]:
        return self.commands

    def check_types(self) -> None:
        for command in self.commands:
            command.check_types()

    def pack(self, reply: list[Any]) -> list[Any]:
        return [command.pack(one) for command, one in zip(self.commands, reply, strict=True)]

    def unpack(self, packed: Any) -> list[Any]:
        return [command.unpack(one) for command, one in zip(self.commands, packed, strict=True)]


Single: TypeAlias = (
    CreateTopic
    | AddPartitions
    | SetConfigs
    | SetSchema
    | DeleteTopic
    | Trim
    | Append
    | InitProducer
    | AbortTransaction
    | CommitOffsets
    | JoinGroup
    | LeaveGroup
    | RenewSession
    | RemoveMember
    | DeleteOffsets
    | Fence
    | BeginHistory
    | ResetClock
    | UpdateFeature
    | Expire
    | Swap
    | Report
    | MarkCleaned
    | AddFormerRoot
    | RegisterBroker
    | AlterBroker
    | FenceBroker
    | ReturnBroker
    | RemoveBroker
    | AddPendingCopies
    | DropCopies
    | JoinIsr
    | ElectLeader
    | AlterReassignments
    | ResetReplicas
)
AnyCommand: TypeAlias = Single | SeveralCommands
