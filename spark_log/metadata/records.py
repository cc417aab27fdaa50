"""The contents of a metadata log: records, in batches of one version each.

Every record that names an object has the upload epoch under which the object was written.  The order in the log decides
conflicts; `replay.py` applies records, `decide/` decides when to write them, `batch_format.py` encodes them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from spark_log.bounds import (
    AnyLong,
    Checksum,
    Document,
    Free,
    Int,
    IntOrLess,
    Known,
    Long,
    LongOrNone,
    Size,
    Stats,
    Text,
    Time,
    TimeKind,
)
from spark_log.groups.group import Roster
from spark_log.metadata.commits.kafka_batches import KafkaBatches
from spark_log.metadata.replicas.replica_state import FenceCause
from spark_log.model import ACKS_ALL, DataObject, Placed, Run, Slice

TakeOverPurpose: TypeAlias = Literal["lead", "moving", "moved", "arrived", "recovered"]
"""Why the log is taken over: a coordinator leads it; it is closed until a move to another URL ends; it can be opened
only there; a move, or a recovery, has ended in this place."""


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Slices of one partition in an index object instead of the state: rows of one Arrow stream (slice_index.py)."""

    start: Long
    end: Long
    object: Known
    """The index object, `data/<upload epoch>/<id>.idx`."""
    position: Size
    length: Size
    crc: Checksum
    """crc32c of bytes [position, position + length)."""
    slices: Int
    bytes: Long
    """Data bytes of the slices."""
    min_us: Time
    max_us: Time
    time_kind: TimeKind = 0
    """`APPEND_TIME` overrides the slices' times by `min_us`; otherwise each slice has its time kind."""


class OffsetEntry(NamedTuple):
    """A group's position in one partition."""

    topic_id: Known
    partition: Int
    offset: AnyLong
    metadata: Free = ""


class GroupCommit(NamedTuple):
    """Positions that a group commits, alone or with records."""

    group: Text
    generation: IntOrLess
    """Generation of the consumer; -1: not fenced (admin, or a transaction that names the group only)."""
    offsets: tuple[OffsetEntry, ...]


class Record(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True
):
    """Base of all records.  A field with its default is left out, so that an older pylog can read the record."""


class CreateTopicRecord(Record, frozen=True, kw_only=True, tag="create_topic"):
    topic_id: Text
    name: Text
    partitions: Int
    configs: dict[Text, Text] = {}
    replicas: tuple[tuple[Int, ...], ...] = ()
    """The brokers of each partition; empty: all are in the log's own root."""
    schema: Document = ""
    """The JSON of the first version of its schema; empty: values are bytes."""


class AddPartitionsRecord(Record, frozen=True, kw_only=True, tag="add_partitions"):
    topic_id: Text
    total: Int
    replicas: tuple[tuple[Int, ...], ...] = ()
    """The brokers of each new partition."""


class SetConfigsRecord(Record, frozen=True, kw_only=True, tag="set_configs"):
    """Configs of a topic, or of the whole log if `topic_id` is empty; a value of None restores the default."""

    topic_id: Text = ""
    configs: dict[Text, Text | None]


class SetSchemaRecord(Record, frozen=True, kw_only=True, tag="set_schema"):
    """A version of a topic's schema.  Void unless it is the next one."""

    topic_id: Text
    version: Long
    schema: Document
    """The JSON of its `StructType`."""


class DeleteTopicRecord(Record, frozen=True, kw_only=True, tag="delete_topic"):
    """The name is free immediately; swaps remove the slices later."""

    topic_id: Text


class TrimRecord(Record, frozen=True, kw_only=True, tag="trim"):
    """Records before `start` are no longer visible; swaps remove the slices below it later."""

    topic_id: Text
    partition: Int
    start: Long


class InitProducerRecord(Record, frozen=True, kw_only=True, tag="init_producer"):
    """A new holder of a transactional id: the epoch grows by one, sequences start at 0, the last holder is fenced."""

    producer: Text
    timeout_ms: Int = 0
    """Timeout of the transaction that begins; 0: none begins."""
    aborted: bool = False
    """The id has no holder: this ends a transaction without a commit."""


class CommitRecord(Record, frozen=True, kw_only=True, tag="commit"):
    """Records of any number of partitions, and positions of groups; or nothing.

    Base offsets follow from the order of `slices` (task, run), or of `pieces` if there are too many slices to list
    here.
    """

    producer: Text
    epoch: Long = 0
    sequence: Long
    birth: LongOrNone = -1
    """Version at which a plain producer's id was drawn; -1: an identity that expires later (stream, application)."""
    dense: bool = True
    """The sequence must be the next one; otherwise greater than the last is enough (streams skip empty batches)."""
    holder: Text = ""
    """The holder of the epoch, for identities with successive holders (a query id under a producerId)."""
    upload_epoch: Long
    objects: tuple[DataObject, ...] = ()
    slices: tuple[tuple[Int, Run], ...] = ()
    """(number of the object in `objects`, run)."""
    counts: tuple[Int, ...] = ()
    """With pieces: live slices of each of `objects`; the index objects come last, counting their pieces."""
    pieces: tuple[tuple[Known, Int, Piece], ...] = ()
    """(topic id, partition, piece), with offsets relative to the base that the partition will get."""
    groups: tuple[GroupCommit, ...] = ()
    source: Text = ""
    """For a streaming batch: a fingerprint of the source offsets that it has read; empty if unknown to the sink.

    `<fingerprint>@<plan>` if equal offsets may be of other records where the batch was planned again.
    """
    placed: tuple[Placed, ...] = ()
    """Where each of `objects` is; empty: all are in the log's own root."""
    acks: IntOrLess = ACKS_ALL
    """`ACKS_LEADER`: one in-sync replica has the objects; readers see the records when all have them."""
    stats: tuple[Stats, ...] = ()
    """Statistics of the data columns of each of `slices` (segment/statistics.py); empty: none have any."""
    kafka_batches: tuple[KafkaBatches, ...] = ()
    """Batches of Kafka's idempotent producers among the records (commits/kafka_producers.py)."""


class CommitOffsetsRecord(Record, frozen=True, kw_only=True, tag="commit_offsets"):
    """Positions of groups.  With a generation it also extends the session, even without any position."""

    commits: tuple[GroupCommit, ...]


class JoinGroupRecord(Record, frozen=True, kw_only=True, tag="join_group"):
    """A consumer takes all partitions of a group, or its share of them: the generation goes up by one, and commits of
    earlier owners of these partitions are refused."""

    group: Text
    member: Text
    """A random id for each join; empty: the member leaves the group."""
    token: Text = ""
    """For a member with a session: the same each time that the same query joins."""
    owner: Text = ""
    """A name of the member for people."""
    timeout_ms: Int = 0
    """Session timeout: nobody else may join so soon after a heartbeat.  0: no session, newer members may join."""
    number: Int = 0
    """Number of a member that owns a share of the partitions (groups/member_share.py)."""
    of: Int = 0
    """How many such members the group has; 0: the member owns all partitions."""


class GroupGenerationRecord(Record, frozen=True, kw_only=True, tag="group_generation"):
    """A generation of a group whose members share its partitions through a coordinator; it may have no members."""

    group: Text
    roster: Roster


class DeleteOffsetsRecord(Record, frozen=True, kw_only=True, tag="delete_offsets"):
    """Remove positions of a group; without partitions, the group."""

    group: Text
    partitions: tuple[tuple[Text, Int], ...] = ()


class Change(NamedTuple):
    """The change of one partition by a swap: entries that cover [start, end) are replaced."""

    topic_id: Known
    partition: Int
    edition: Long
    """Edition of the partition when the swap was prepared: swaps of one partition exclude each other."""
    start: Long
    end: Long
    slices: tuple[Slice, ...] = ()
    pieces: tuple[Piece, ...] = ()


class LostOffsets(NamedTuple):
    """Offsets whose records are given up."""

    topic_id: Known
    partition: Int
    start: Long
    end: Long


class SwapRecord(Record, frozen=True, kw_only=True, tag="swap"):
    """Sealing, merging, pruning and compaction: other entries for the same offsets.  All of `changes`, or none.

    `added` and `removed` count the entries that each object gains and loses, in the state and in indexes; an object
    without entries is dropped at this version.
    """

    upload_epoch: Long
    changes: tuple[Change, ...]
    objects: tuple[DataObject, ...] = ()
    """The new objects."""
    added: dict[Known, Int] = {}
    removed: dict[Known, Int] = {}
    placed: tuple[Placed, ...] = ()
    """Where each of `objects` is; empty: all are in the log's own root."""
    lost: tuple[LostOffsets, ...] = ()
    """No broker had the objects of the old slices any more, and readers skip these offsets from here on."""


class ListDroppedRecord(Record, frozen=True, kw_only=True, tag="list_dropped"):
    """The objects that were dropped at or below `upload_epoch` are in a list object from here on.

    The list has the names in the state at version `upload_epoch`, or more.
    """

    upload_epoch: LongOrNone
    object: Text
    """The list, `data/<upload epoch>/<id>.dropped`."""


class Cleaned(NamedTuple):
    """A partition in which a compaction pass has ended."""

    topic_id: Text
    partition: Int
    upto: LongOrNone
    """All records before this offset have been in a pass."""


class CleanedRecord(Record, frozen=True, kw_only=True, tag="cleaned"):
    """The ends of compaction passes.  The swaps of a pass come before it."""

    partitions: tuple[Cleaned, ...]


class FenceRecord(Record, frozen=True, kw_only=True, tag="fence"):
    """Voids later records with an upload epoch at or below `upto`."""

    upto: LongOrNone


class TakeOverRecord(Record, frozen=True, kw_only=True, tag="take_over"):
    """A coordinator takes over the log, or a move closes it: batches of older epochs, and of embedded writers, are void
    from here on.
    """

    epoch: Long
    """The previous epoch plus one; otherwise the record is void."""
    address: Text
    """`host:port` of the coordinator, for clients.  For a move, the new URL; for its end there, and a recovery, the URL
    of the log."""
    host: Text
    """Name of the machine, for an address that is only valid there."""
    cluster_id: Text
    purpose: TakeOverPurpose = "lead"


class ReleaseRecord(Record, frozen=True, kw_only=True, tag="release"):
    """The log has no coordinator.  Written by the coordinator under its epoch, or by hand under the next one."""

    epoch: Long


class RestoreRecord(Record, frozen=True, kw_only=True, tag="restore"):
    """A copy continues as the log: offsets from here on may have had other records.  Void if the history is known."""

    history: Text
    """Id of the history that begins (`restores.new_history`)."""
    version: Long
    """The version that the copy had."""


class ResetClockRecord(Record, frozen=True, kw_only=True, tag="reset_clock"):
    """Sets the log's time back to `time` after commits by a fast clock.  Void if the log's time is not later."""

    time: Long


class FeatureLevelRecord(Record, frozen=True, kw_only=True, tag="feature_level"):
    """Raises a feature's level: the log may hold its records from here on (as in Kafka).  Void if not higher."""

    name: Text
    level: Int


class ExpireProducersRecord(Record, frozen=True, kw_only=True, tag="expire_producers"):
    producers: tuple[Text, ...] = ()
    kafka: tuple[tuple[Long, Known, Int], ...] = ()
    """(producer id, topic name, partition) of rows of Kafka's producers."""


class RegisterBrokerRecord(Record, frozen=True, kw_only=True, tag="register_broker"):
    """A broker with an empty directory: a new one, or one that replaces the directory that it had."""

    broker: Int
    directory: Text
    url: Text
    rack: Text = ""
    options: dict[Text, Text] = {}
    is_async: bool = False
    keep_ms: Long = 0
    """It keeps only the objects that were written in this time; 0: all."""
    mount_point: Text = ""
    """Where the disk of its root is mounted on the administrator's machine; empty: not known, or on the system's."""


class FenceBrokerRecord(Record, frozen=True, kw_only=True, tag="fence_broker"):
    """A broker does not answer, or is to stop: it leaves ISRs and leads nothing.  Void if it has another epoch.

    If it was fenced by a check, and this is by hand, it gets the reason, and another epoch.
    """

    broker: Int
    epoch: Long
    reason: Text = ""
    cause: FenceCause = "admin"


class ReturnBrokerRecord(Record, frozen=True, kw_only=True, tag="return_broker"):
    """A fenced broker is back, under a new epoch.  Void if it has another epoch."""

    broker: Int
    epoch: Long
    missing: tuple[Text, ...] = ()
    """Objects that the log expects there, and that it does not have."""


class AlterBrokerRecord(Record, frozen=True, kw_only=True, tag="alter_broker"):
    """A broker is in another rack, or gets replicas automatically or not; also broker 0, which is not registered.

    Void if nothing changes.
    """

    broker: Int
    rack: Text | None = None
    """None: as it is."""
    drained: bool | None = None
    """None: as it is; of broker 0 always."""


class RemoveBrokerRecord(Record, frozen=True, kw_only=True, tag="remove_broker"):
    """A broker without replicas is not registered any more."""

    broker: Int


class Copy(NamedTuple):
    """A copy of an object."""

    object: Known
    broker: Int
    epoch: Long
    """The broker's epoch when the copy was put, or when it was read."""


class HeldRecord(Record, frozen=True, kw_only=True, tag="held"):
    """Copies that were made.  Each is void alone: if its object is gone, or its broker has another epoch."""

    copies: tuple[Copy, ...]


class MissingRecord(Record, frozen=True, kw_only=True, tag="missing"):
    """Copies that were found damaged, or absent.  Each is void alone."""

    copies: tuple[Copy, ...]


class DropCopiesRecord(Record, frozen=True, kw_only=True, tag="drop_copies"):
    """A broker that keeps only the newest objects drops its copies of others, if an active broker that keeps all, and
    whose root has just answered, has one.

    Void if it has another epoch, or has dropped more.
    """

    broker: Int
    epoch: Long
    upto: LongOrNone
    """Uploads at or below this version."""
    answering: tuple[Int, ...] = ()
    """The brokers whose roots have answered."""


class JoinIsrRecord(Record, frozen=True, kw_only=True, tag="join_isr"):
    """Replicas that have caught up, or nearly: writers put to them, and they enter the ISR when they lack nothing."""

    members: tuple[tuple[Int, Int], ...]
    """(group, broker)."""


class LagRecord(Record, frozen=True, kw_only=True, tag="lag"):
    """In-sync replicas that did not get the objects of pending commits in time: they leave the ISR.

    Each is void alone: if the object is not pending any more, if the broker has it, or if no active broker has it.
    """

    lacking: tuple[tuple[Text, Int], ...]
    """(object, broker)."""


class LostRecord(Record, frozen=True, kw_only=True, tag="lost"):
    """A pending commit of which no active broker has all objects: its offsets become holes.

    Void if an active broker has each of its objects.
    """

    commit: tuple[Text, ...]
    """Its objects."""
    upload_epoch: Long
    objects: tuple[DataObject, ...]
    """Objects without records, in place of those."""
    slices: tuple[tuple[Int, Run], ...]
    """(number in `objects`, run without rows), one for each partition of the commit."""
    placed: tuple[Placed, ...]
    """Where each of `objects` is."""


class ElectLeaderRecord(Record, frozen=True, kw_only=True, tag="elect_leader"):
    """A leader by hand: the preferred one, or one that is not in the ISR (unclean), which then is the whole ISR."""

    group: Int
    leader: Int


class Replicas(NamedTuple):
    """The new replicas of a partition."""

    topic_id: Text
    partition: Int
    replicas: tuple[Int, ...]


class ReassignRecord(Record, frozen=True, kw_only=True, tag="reassign"):
    """Partitions get other replicas: what is uploaded from this version on is put there.  Swaps move the rest."""

    partitions: tuple[Replicas, ...]


class Moved(NamedTuple):
    """A partition of which no live slice is in an object of other replicas."""

    topic_id: Text
    partition: Int
    version: Long
    """Version of its reassignment."""
    seen: Long
    """Version of the log when its slices were looked at."""


class MovedRecord(Record, frozen=True, kw_only=True, tag="moved"):
    """The ends of reassignments.  Each is void alone: if the partition has changed since."""

    partitions: tuple[Moved, ...]


class ResetReplicasRecord(Record, frozen=True, kw_only=True, tag="reset_replicas"):
    """The log has no brokers, and all objects are in its own root: it was recovered from a mirror."""


class ErasedRecord(Record, frozen=True, kw_only=True, tag="erased"):
    """The beginning or the end of an erasure: reads of the topic that were planned before are planned again."""

    topic_id: Text
    incomplete: bool = False
    """It has begun, or had problems, so records may be left."""
    begins: Text = ""
    """At its beginning: a random name of it.  Empty: it has ended."""
    ends: Text = ""
    """At its end: its name; empty: its beginning was not recorded."""


class WipedRecord(Record, frozen=True, kw_only=True, tag="wiped"):
    """A root has no copies any more of what was dropped at or below a version.

    Of a root that the log does not use any more: it has none at all, and is forgotten.
    """

    broker: Int
    directory: Text
    upto: LongOrNone


class FormerRootRecord(Record, frozen=True, kw_only=True, tag="former_root"):
    """The log had its own root elsewhere, where its files may still be."""

    url: Text
    directory: Text
    """By which it is known: see `erasures.name_of_own`."""


AnyRecord: TypeAlias = (
    CreateTopicRecord
    | AddPartitionsRecord
    | SetConfigsRecord
    | SetSchemaRecord
    | DeleteTopicRecord
    | TrimRecord
    | InitProducerRecord
    | CommitRecord
    | CommitOffsetsRecord
    | JoinGroupRecord
    | GroupGenerationRecord
    | DeleteOffsetsRecord
    | SwapRecord
    | ListDroppedRecord
    | CleanedRecord
    | FenceRecord
    | TakeOverRecord
    | ReleaseRecord
    | RestoreRecord
    | ResetClockRecord
    | FeatureLevelRecord
    | ExpireProducersRecord
    | RegisterBrokerRecord
    | AlterBrokerRecord
    | FenceBrokerRecord
    | ReturnBrokerRecord
    | RemoveBrokerRecord
    | HeldRecord
    | MissingRecord
    | JoinIsrRecord
    | LagRecord
    | LostRecord
    | DropCopiesRecord
    | ElectLeaderRecord
    | ReassignRecord
    | MovedRecord
    | ResetReplicasRecord
    | ErasedRecord
    | WipedRecord
    | FormerRootRecord
)


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The records that share one version."""

    id: Text
    """Random; its writer recognises the batch by it."""
    time: int
    """Milliseconds by its writer's clock; only `ResetClockRecord` decreases the log's time."""
    epoch: int = 0
    """Epoch of the coordinator that wrote it; 0: an embedded writer."""
    history: Text = ""
    """The history on which it was decided (`restores.py`)."""
    after: Text = ""
    """The batch on whose state it was decided, by its mark (`State.line`); empty: not known."""
    records: tuple[AnyRecord, ...] = ()
