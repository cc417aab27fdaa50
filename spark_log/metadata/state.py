"""The state of a log at one version: what `replay` folds records into.

A state is a value.  Its maps are persistent (`immutables.Map`), so a new version shares all that did not change, a reader
may keep an old one for as long as it likes, and a decision can be tried out on a copy for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from immutables import Map
from msgspec import Struct

from spark_log.groups.group import Roster
from spark_log.metadata.records import Piece
from spark_log.model import Slice

KEPT_SEQUENCES = 5

TopicKey = tuple[str, int]
"""(topic id, partition)."""


class Topic(NamedTuple):
    name: str
    partitions: int
    configs: Map[str, str]
    created_ms: int
    deleted: bool = False
    """Its name is free, its slices wait to be pruned."""


class Partition(NamedTuple):
    """Records [start, end) of a partition and where they lie."""

    start: int = 0
    end: int = 0
    edition: int = 0
    """Grows with every swap; appends and trims leave it."""
    entries: tuple[Slice | Piece, ...] = ()
    """In offset order, without gaps, up to `end`; the first ones may lie below `start`."""

    @property
    def readable_end(self) -> int:
        """The high watermark: readers see the records before it.  These are all that are committed."""
        return self.end


class ObjectRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One live object.  There may be many: the garbage collector does not follow them."""

    size: int
    index_position: int
    live: int
    """Slices of it in the state and in indexes; of an index object, its pieces in the state."""


class Kept(NamedTuple):
    """A commit that a producer made, as long as it is remembered."""

    sequence: int
    version: int
    ranges: tuple[tuple[str, int, int, int], ...]
    """(topic id, partition, first offset, end)."""
    source: str = ""
    """As in its record."""


class ProducerState(NamedTuple):
    epoch: int = 0
    holder: str = ""
    former: tuple[str, ...] = ()
    """Holders that were fenced."""
    plain: bool = False
    """An id drawn at random by a plain writer, forgotten sooner than a stream's."""
    version: int = 0
    """Of its last commit or registration."""
    time: int = 0
    kept: tuple[Kept, ...] = ()
    """The last five commits of this epoch."""
    timeout_ms: int = 0
    """So long after it began, this epoch's transaction can commit no more; 0: as long as it likes, or there is none."""
    aborted: bool = False
    """This epoch ended a transaction."""

    @property
    def last(self) -> int:
        """Sequence of the last commit of this epoch; -1: none."""
        return self.kept[-1].sequence if self.kept else -1


class Position(NamedTuple):
    """What a group committed for one partition."""

    offset: int
    metadata: str
    time: int
    version: int = 0
    """Of the log, with this commit; 0 in checkpoints of before it was kept."""


class Forgotten(NamedTuple):
    """When a position of a group was removed."""

    version: int
    time: int


class MemberSession(NamedTuple):
    """What a member said who keeps a group as long as it gives signs of life."""

    token: str
    owner: str
    timeout_ms: int
    since: int
    """When it joined."""


class GroupState(NamedTuple):
    generation: int = 0
    member: str = ""
    offsets: Map[TopicKey, Position] = Map()
    seen: int = 0
    """When somebody last joined, left or committed under the generation."""
    session: MemberSession | None = None
    """Of the member; None if a newer one may take the group at any time."""
    roster: Roster | None = None
    """Of a group that a coordinator runs: its members of this generation and what each was assigned."""


class Leadership(NamedTuple):
    """Who writes the log."""

    epoch: int = 0
    """Of the last one that there was; 0: there never was any."""
    address: str = ""
    """`host:port`; empty: nobody has the log, and whoever opens it writes it."""
    host: str = ""
    since: int = 0
    """When it took the log over."""

    @property
    def in_force(self) -> int:
        """The epoch whose batches count; 0: those of embedded writers."""
        return self.epoch if self.address else 0


@dataclass(frozen=True, slots=True)
class State:
    """The fold of a log's records up to `version`."""

    version: int = 0
    time: int = 0
    changed: int = 0
    """The last version with a record that is not a fence."""
    fence: int = -1
    """Uploads with an epoch at or below it are void."""
    times: tuple[tuple[int, int], ...] = ((0, 0),)
    """(version, time) of some versions above the fence, ascending, dense enough to place the next one."""
    configs: Map[str, str] = field(default_factory=Map)
    names: Map[str, str] = field(default_factory=Map)
    """Topic name to id."""
    topics: Map[str, Topic] = field(default_factory=Map)
    """By id, deleted ones that still have slices included."""
    partitions: Map[TopicKey, Partition] = field(default_factory=Map)
    objects: Map[str, ObjectRow] = field(default_factory=Map)
    dropped: Map[str, int] = field(default_factory=Map)
    """Objects without slices, by the version that dropped them, until the fence has passed it."""
    producers: Map[str, ProducerState] = field(default_factory=Map)
    groups: Map[str, GroupState] = field(default_factory=Map)
    coordinator: Leadership = field(default_factory=Leadership)
    forgotten: Map[tuple[str, str, int], Forgotten] = field(default_factory=Map)
    """Positions that were removed, by group, topic's name and partition, until the fence has passed that."""
    progressed: int = 0
    """The last version that set or removed a position."""
    generations: int = 0
    """The highest generation of a group that was deleted or expired."""
    features: Map[str, int] = field(default_factory=Map)
    """Levels that were raised; see `features.py`."""

    def last_generation(self, group: str) -> int:
        """Of a group.  One that has had none yet goes on after all groups that are gone: it may have been one of them."""
        known = self.groups.get(group)
        return known.generation if known is not None and known.generation else self.generations

    def topic_partitions(self, topic_id: str) -> Iterator[tuple[int, Partition]]:
        """The partitions of a topic, in order."""
        for number in range(self.topics[topic_id].partitions):
            yield number, self.partitions[topic_id, number]
