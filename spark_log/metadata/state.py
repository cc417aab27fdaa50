"""The state of a log at one version: the result of `replay`.

A state is a value.  Its maps are persistent (`immutables.Map`), so versions share unchanged parts, a reader may keep an
old state, and trying a decision on a copy costs nothing.  The two maps that may have millions of rows keep most of them
in columns (`layered_map.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from immutables import Map
from msgspec import Struct

from spark_log.groups.group import Roster
from spark_log.groups.member_share import Share
from spark_log.metadata.changes import ChangedNames, merged, no_changes
from spark_log.metadata.commits.last_commit import LastCommit
from spark_log.metadata.features import SUPPORTED
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.records import GroupCommit, Piece, TakeOverPurpose
from spark_log.metadata.replicas.replica_state import Broker, Copies, PlacementGroup, Reassignment
from spark_log.model import ACKS_LEADER, Slice

Key = TypeVar("Key")
Value = TypeVar("Value")
TopicKey = tuple[str, int]
"""(topic id, partition)."""


class Topic(NamedTuple):
    name: str
    partitions: int
    configs: Map[str, str]
    created_ms: int
    deleted: bool = False
    """Its name is free; its slices will be pruned."""


class Partition(NamedTuple):
    """Records [start, end) of a partition, and their slices."""

    start: int = 0
    end: int = 0
    """The next record gets this offset."""
    edition: int = 0
    """Grows with every swap, but not with appends and trims."""
    entries: tuple[Slice | Piece, ...] = ()
    """In offset order, without gaps, up to `readable_end`; the first ones may be below `start`."""

    @property
    def readable_end(self) -> int:
        """The high watermark: readers see the records before it.  Those from here to `end` are in `State.pending`."""
        return self.entries[-1].end if self.entries else self.start


class PendingCommit(NamedTuple):
    """A commit that readers do not see yet: not all in-sync replicas have its objects, or an earlier one waits."""

    producer: str
    sequence: int
    version: int
    objects: tuple[str, ...]
    slices: tuple[tuple[str, int, Slice], ...]
    """(topic id, partition, slice), in the order of offsets within a partition."""
    pieces: tuple[tuple[str, int, Piece], ...] = ()
    """(topic id, partition, piece), for a commit without `slices`."""
    acks: int = ACKS_LEADER


Entries = Mapping[TopicKey, Sequence[Slice | Piece]]
"""By partition."""


def entries_of(commit: PendingCommit) -> Entries:
    """The entries of a pending commit by partition, in the order of offsets."""
    found: dict[TopicKey, list[Slice | Piece]] = {}
    for topic_id, number, piece in commit.slices:
        found.setdefault((topic_id, number), []).append(piece)
    for topic_id, number, piece_of_index in commit.pieces:
        found.setdefault((topic_id, number), []).append(piece_of_index)
    return found


class LostRange(NamedTuple):
    """Offsets that have no records because these were lost, with all roots that had them."""

    start: int
    end: int
    version: int
    """The version of the commit, if readers have not seen it; otherwise, of the record that gave the records up."""


class ObjectRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One live object.  There may be many, so the garbage collector does not track them."""

    size: int
    index_position: int
    live: int
    """Number of its slices in the state and in indexes; for an index object, of its pieces in the state."""
    copies: int = 0
    """Key in `State.copies`; 0, or one that is not there: it is in the log's own root."""


class DroppedList(NamedTuple):
    """A list object with names of dropped objects, which are not in the state."""

    upto: int
    """It has objects that were dropped at or below this version; removed once the fence has passed it."""
    names: int
    """Number of names that left the state for it."""


class TopicSchemas(NamedTuple):
    """The schema of a topic (docs/decisions/0077-typed-topics.md)."""

    versions: tuple[str, ...]
    """The JSON of each version, from version 1 on."""
    starts: tuple[int, ...]
    """The first typed offset of each partition; 0 for partitions that were added later."""


class CleanedPart(NamedTuple):
    """How far compaction has come in a partition (docs/decisions/0058-compaction.md)."""

    upto: int
    """The cleaner point: all records before it have been in a pass."""
    horizons: tuple[tuple[int, int], ...] = ()
    """(offset, time), ascending in both: the records before the offset were in a pass by that time."""


class ProducerState(NamedTuple):
    epoch: int = 0
    holder: str = ""
    former: tuple[str, ...] = ()
    """Holders that were fenced."""
    plain: bool = False
    """A random id of a plain writer, which expires sooner than a stream's."""
    version: int = 0
    """Version of its last commit or registration."""
    time: int = 0
    last_commit: LastCommit | None = None
    """The last commit of this epoch."""
    timeout_ms: int = 0
    """Timeout of this epoch's transaction; 0: no timeout, or no transaction."""
    aborted: bool = False
    """This epoch was aborted."""
    lost: tuple[int, ...] = ()
    """Sequences below the last one whose commits were lost before readers saw them: their repeats are written."""

    @property
    def last(self) -> int:
        """Sequence of the last commit of this epoch; -1: none."""
        return -1 if self.last_commit is None else self.last_commit.sequence


class KafkaProducer(NamedTuple):
    """The last batches of an idempotent producer of Kafka in a partition, all of one epoch."""

    topic_id: str
    epoch: int
    version: int
    """Version of the last one."""
    time: int
    packed: bytes
    """msgpack of (sequence, records, first offset, the log's time or -1) for each batch, oldest first."""


ProducerKey = tuple[int, str, int]
"""(producer id, topic name, partition)."""


class GroupPosition(NamedTuple):
    """A group's committed position in one partition."""

    offset: int
    metadata: str
    time: int
    version: int = 0
    """Version of the log with this commit; 0 in checkpoints of older pylogs."""


class Forgotten(NamedTuple):
    """The removal of a group's position."""

    version: int
    time: int


class MemberSession(NamedTuple):
    """The session of a member that owns a group as long as it sends heartbeats."""

    token: str
    owner: str
    timeout_ms: int
    since: int
    """Time of its join."""


class ShareMember(NamedTuple):
    """A member that owns a share of a group's partitions."""

    share: Share
    member: str
    generation: int
    """Generation of the group when it joined: its commits have it."""
    seen: int
    """Time of its join or last commit."""
    session: MemberSession

    def fences(self, commit: GroupCommit) -> bool:
        """Whether a commit is not its own."""
        return commit.generation != self.generation or not all(self.share.owns(o.partition) for o in commit.offsets)


class GroupState(NamedTuple):
    generation: int = 0
    member: str = ""
    offsets: Map[TopicKey, GroupPosition] = Map()
    seen: int = 0
    """Time of the last join, leave or commit under the generation."""
    session: MemberSession | None = None
    """The member's session; None if a newer member may take the group at any time."""
    roster: Roster | None = None
    """For a group of a coordinator: the members of this generation and their assignments."""
    shares: tuple[ShareMember, ...] = ()
    """Members with a share of the partitions by number.  A group that has some has no other members."""

    def admits(self, commit: GroupCommit) -> bool:
        """Whether a commit is of the current owner of its positions, or of nobody."""
        if commit.generation == -1:
            return True
        if self.shares:
            return not all(member.fences(commit) for member in self.shares)
        return commit.generation == self.generation

    def generation_of(self, member: str) -> int | None:
        """The generation of a member without a coordinator; "" is the member of a group without members."""
        if self.shares:
            return next((one.generation for one in self.shares if one.member == member), None)
        return self.generation if self.member == member else None


class Restore(NamedTuple):
    """The log was restored from a copy (restores.py)."""

    history: str
    """Id of the history that began."""
    version: int
    """The last version that the log has in common with the former history."""
    progress_end: int
    """The end of `__consumer_offsets` at that time."""
    ends: tuple[tuple[str, tuple[int, ...]], ...]
    """By topic id, the ends of the partitions at that time."""


class SetBack(NamedTuple):
    """This process found the log set back to an older copy, of which no record tells (set_backs.py)."""

    id: str
    ends: Mapping[TopicKey, int]
    """Where the records of each partition end that it had before, too."""


class Leadership(NamedTuple):
    """Which coordinator writes the log, or where the log moves to."""

    epoch: int = 0
    """Epoch of the last coordinator; 0: there was none."""
    address: str = ""
    """`host:port`, or a URL as in `TakeOverRecord`; empty: there is no coordinator, and every process that opens the
    log may write it."""
    host: str = ""
    since: int = 0
    """Time of the takeover."""
    purpose: TakeOverPurpose = "lead"

    @property
    def in_force(self) -> int:
        """The epoch whose batches are valid; 0: those of embedded writers."""
        return self.epoch if self.address else 0


class OpenErasure(NamedTuple):
    """An erasure of which copies may be left on some roots."""

    version: int
    """The version at its end: what it has removed was dropped at or below it.  Until then: at its beginning."""
    time: int
    """The log's time at that version."""
    roots: tuple[tuple[int, str], ...]
    """(broker, directory) of the roots whose copies maintenance has not deleted; broker 0 has no directory."""
    incomplete: bool = False
    """It has not ended, or had problems, so records may be left, too."""
    running: str = ""
    """A random name of an erasure that has not ended: its process may be gone.  Empty: it has ended."""


class ErasedTopic(NamedTuple):
    """The erasures of a topic (docs/decisions/0108-erasures-in-the-state.md)."""

    name: str
    """The name of the topic, which may be deleted since."""
    version: int
    """The version at the end of the last erasure: what was planned before it is planned again."""
    unfinished: tuple[OpenErasure, ...] = ()
    """Erasures that are not done, in the order of their versions."""
    time: int = 0
    """The log's time at `version`."""


class FormerRoot(NamedTuple):
    """A root that a broker had.  Nobody has said that its files are gone."""

    broker: int
    url: str
    version: int
    """Since which the log does not use it."""
    is_copied: bool = False
    """It is of the log of which this one is a copy, and which may be in use."""


@dataclass(frozen=True, slots=True)
class State:
    """The result of a log's records up to `version`."""

    version: int = 0
    time: int = 0
    changed: int = 0
    """The last version with a record that is not a fence."""
    fence: int = -1
    """Uploads with an epoch at or below it are void."""
    times: tuple[tuple[int, int], ...] = ((0, 0),)
    """(version, time) of some versions, ascending: all but the first above the fence, dense enough for the next."""
    configs: Map[str, str] = field(default_factory=Map)
    names: Map[str, str] = field(default_factory=Map)
    """Topic name to id."""
    topics: Map[str, Topic] = field(default_factory=Map)
    """By id, including deleted ones that still have slices."""
    partitions: LayeredMap[TopicKey, Partition] = field(default_factory=LayeredMap)
    objects: LayeredMap[str, ObjectRow] = field(default_factory=LayeredMap)
    dropped: Map[str, int] = field(default_factory=Map)
    """Objects without slices, by the version that dropped them; removed once the fence has passed it."""
    dropped_lists: Map[str, DroppedList] = field(default_factory=Map)
    """Where there are many dropped objects: the list objects that have most of their names."""
    cleaned: Map[TopicKey, CleanedPart] = field(default_factory=Map)
    """The partitions that have been compacted."""
    producers: Map[str, ProducerState] = field(default_factory=Map)
    kafka_producers: Map[ProducerKey, KafkaProducer] = field(default_factory=Map)
    kafka_expired: int = -1
    """The latest time of a row of `kafka_producers` that has expired; -1: none has."""
    groups: Map[str, GroupState] = field(default_factory=Map)
    coordinator: Leadership = field(default_factory=Leadership)
    forgotten: Map[tuple[str, str, int], Forgotten] = field(default_factory=Map)
    """Removed positions, by group, topic's name and partition, until the fence has passed the removal."""
    progressed: int = 0
    """The last version that set or removed a position."""
    generations: int = 0
    """The highest generation of a group that was deleted or expired."""
    brokers: Map[int, Broker] = field(default_factory=Map)
    """Registered brokers by id.  Broker 0 exists without a row."""
    placement_groups: Map[int, PlacementGroup] = field(default_factory=Map)
    """By number.  Group 0, the log's own root alone, has no row."""
    assignments: Map[str, tuple[int, ...]] = field(default_factory=Map)
    """By topic id, the group of each partition; topics that are in group 0 only have no row."""
    groups_made: int = 0
    """The highest number of a group that was removed: a number is never used again."""
    reassignments: Map[TopicKey, Reassignment] = field(default_factory=Map)
    """The partitions whose replicas were changed above the fence, and those that move."""
    copies: Map[int, Copies] = field(default_factory=Map)
    """Which brokers have copies of objects.  Objects of a group with the same holders share a row."""
    copies_made: int = 0
    """The highest key that `copies` has had: a key is never used again."""
    pending: tuple[PendingCommit, ...] = ()
    """Commits that readers do not see yet, in the order of their offsets."""
    schemas: Map[str, TopicSchemas] = field(default_factory=Map)
    """By topic id; topics without a schema have no row."""
    lost: Map[TopicKey, tuple[LostRange, ...]] = field(default_factory=Map)
    """Ranges of lost commits, ascending, as far as they are not below the partition's start."""
    erasures: Map[str, ErasedTopic] = field(default_factory=Map)
    """By topic id."""
    former_roots: Map[str, FormerRoot] = field(default_factory=Map)
    """By directory, the roots of removed and replaced brokers."""
    restores: tuple[Restore, ...] = ()
    """The last restores, oldest first."""
    line: tuple[str, ...] = ()
    """For each of the last versions: the mark of the last batch that counts, which the next one follows; empty for a
    version that has not ended."""
    strays: tuple[int, ...] = ()
    """Versions above the fence whose batch does not count, because it follows another one."""
    features: Map[str, int] = field(default_factory=Map)
    """Raised levels; see `features.py`."""
    recent: tuple[ChangedNames, ...] = field(default=(), compare=False, repr=False)
    """The changes of the last versions that this process has replayed; not part of the log's contents."""
    set_backs: tuple[SetBack, ...] = field(default=(), compare=False, repr=False)
    """Times that this process found the log set back, oldest first; not part of the log's contents."""

    @property
    def levels(self) -> dict[str, int]:
        """The level of each supported feature.  The first batch of a log raises it to the highest."""
        return {name: self.features.get(name, 1) if self.version else highest for name, highest in SUPPORTED.items()}

    def last_generation(self, group: str) -> int:
        """The last generation of a group.  A new group continues after all removed groups: it may have been one of
        them.
        """
        known = self.groups.get(group)
        return known.generation if known is not None and known.generation else self.generations

    def changes_since(self, known: State) -> ChangedNames | None:
        """Names of everything that may have changed since a state of this process; None: they are not known.

        A state is identified by its last changes, not by its version: a restored log has the same versions.
        """
        last = known.recent[-1] if known.recent else None
        if self is known:
            return no_changes(self.version)
        if last is None or last.version != known.version or not self.recent or self.recent[-1].version != self.version:
            return None
        for number in range(len(self.recent), 0, -1):
            if self.recent[number - 1] is last:
                return merged(self.recent[number:]) if number < len(self.recent) else no_changes(self.version)
        return None

    def live_topic(self, topic_id: str) -> Topic | None:
        """None if the topic was deleted, or is unknown."""
        topic = self.topics.get(topic_id)
        return None if topic is None or topic.deleted else topic

    def topic_partitions(self, topic_id: str) -> Iterator[tuple[int, Partition]]:
        """The partitions of a topic, in order."""
        for number in range(self.topics[topic_id].partitions):
            yield number, self.partitions[topic_id, number]


def without(entries: Map[Key, Value], keys: Iterable[Key]) -> Map[Key, Value]:
    """Without some keys, of which not all need be there."""
    for key in keys:
        if key in entries:
            entries = entries.delete(key)
    return entries
