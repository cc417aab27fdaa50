"""The part of a state that knows brokers and replicas.  Plain values.

A *broker* is a storage root in which objects can have copies.  Broker 0 is the log's own root: it exists without being
registered, and is never fenced, because the metadata log is there.  A *placement group* is an ordered list of replicas
with one leader and one ISR: what Kafka keeps for each partition is kept once for all partitions of a group, so fencing
a broker of 100,000 partitions is a small change.  Group 0 has the single replica 0.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

OWN_BROKER = 0
"""The log's own root."""
OWN_GROUP = 0
"""The group of partitions whose only replica is broker 0."""
NO_LEADER = -1
FenceCause: TypeAlias = Literal["admin", "check", "other_id"]
"""An administrator fences a broker and takes it back; a check of its root fences it, and the checks take it back.
After `other_id`, the root is right, and the id of the log is not: nothing is lost."""

Role = Literal["isr", "joining", "out"]
"""The role of a replica in its group.  Writers wait for `isr` and `joining`; the replicator copies to all."""


class Broker(NamedTuple):
    """A registered broker."""

    url: str
    """URL of its root; empty for broker 0, which has a row only if it has a rack."""
    directory: str
    """Random id of the folder on that root with its copies: another disk in the same place does not have it."""
    rack: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """Storage options without secrets, such as an endpoint."""
    is_async: bool = False
    """Copies go to it, and no writer ever waits for it; it is never in an ISR."""
    epoch: int = 0
    """Version of its registration or last return, or since which it is fenced by hand although its root had failed:
    copies that were put under an older one do not count."""
    fenced: bool = False
    reason: str = ""
    """Why it is fenced."""
    since: int = 0
    """The log's time when it was registered, fenced or returned."""
    keep_ms: int = 0
    """It keeps the objects of about this time only, by when they were written; 0: all of them."""
    dropped: int = 0
    """Its copies of uploads at or below this version were dropped, and none of them counts again."""
    deletable: int = 0
    """`dropped` as it was before: their files are deleted later, because readers may still use them."""
    marks: tuple[tuple[int, int], ...] = ()
    """Some versions of the log after `dropped`, with their times."""
    dropped_at: tuple[int, int] = (0, 0)
    """Version and time of the last record that dropped copies, or of its registration."""
    drained: bool = False
    """It gets no replicas automatically any more, because it is to be removed."""
    former: tuple[tuple[str, int], ...] = ()
    """Directories that it had before, with the versions at which they were replaced, the newest first."""
    mount_point: str = ""
    """Where the disk of its root was mounted on the machine that registered it; empty: not known, or the system's."""
    cause: FenceCause = "admin"
    """The cause in the record that fenced it; `admin` for a broker that is not fenced."""

    @property
    def returns(self) -> bool:
        """Whether it is fenced until its root passes a check."""
        return self.fenced and self.cause != "admin"

    @property
    def has_other_id(self) -> bool:
        """Whether it is fenced because the log has another id than before."""
        return self.fenced and self.cause == "other_id"


class ReplicaMember(NamedTuple):
    """A replica of a group."""

    broker: int
    role: Role
    since: int = 0
    """Version since which it is out, or since which writers wait for it."""
    missed: int = 0
    """The log's time when it last missed a write; 0: never."""
    misses: int = 0
    """How many times it left after a missed write, with less than `MISSES_KEPT_MS` between two of them."""


class PlacementGroup(NamedTuple):
    """Partitions with the same replicas."""

    members: tuple[ReplicaMember, ...]
    """In replica order; the first is the preferred leader."""
    leader: int = NO_LEADER
    leader_epoch: int = 0

    @property
    def replicas(self) -> tuple[int, ...]:
        """Broker ids, in order."""
        return tuple(member.broker for member in self.members)

    @property
    def isr(self) -> tuple[int, ...]:
        """Broker ids of the in-sync replicas, in replica order."""
        return tuple(member.broker for member in self.members if member.role == "isr")

    @property
    def joining(self) -> tuple[int, ...]:
        """Broker ids of the replicas that are about to enter the ISR."""
        return tuple(member.broker for member in self.members if member.role == "joining")


OWN = PlacementGroup((ReplicaMember(OWN_BROKER, "isr"),), OWN_BROKER)
"""Group 0."""


class Reassignment(NamedTuple):
    """A partition whose replicas were changed, until no upload for its former replicas can be committed any more."""

    origin: int
    """The group to which a cancellation returns; that of the partition if it does not move."""
    left: tuple[int, ...]
    """Groups with other brokers whose objects may have records of the partition; none: it does not move (any more)."""
    former: tuple[int, ...]
    """Groups that the partition has had: uploads that began before `version` may be in their objects."""
    version: int
    """Version of the last change."""
    end: int = -1
    """The partition's end at that version, if its new group had none of its records; otherwise -1."""
    edition: int = -1
    """The partition's edition at that version, as with `end`.  As long as both are those of the partition, the group
    has none of its records."""
    late: int = 0
    """Version of the last commit with objects of a former group; 0: none."""


class Copies(NamedTuple):
    """Objects of one group that have copies on the same brokers."""

    group: int
    brokers: tuple[int, ...]
    """Those that have the objects whole and durably, ascending; none: no good copy is known."""
    objects: int
    """How many live objects there are."""
    bytes: int
    """Their size."""
    pending: bool = False
    """They are of commits that readers do not see yet: a replica that lacks them may be in the ISR."""
