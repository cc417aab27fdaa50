"""The members of a group, with counts of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

from immutables import Map
from msgspec import Struct

from spark_log.groups.messages import MemberProtocol


class Member(Struct, frozen=True):
    """One member.  A struct, because each heartbeat replaces it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    deadline_ms: int = 0
    """When it is removed, unless it sends a heartbeat or waits for an answer."""
    is_new: bool = False
    """In its first rebalance; it may be removed although it waits."""
    join: int | None = None
    """Correlation id of the JoinGroup that waits."""
    sync: int | None = None
    """Correlation id of the SyncGroup that waits."""
    owes_sync: bool = False
    """It has not requested its assignment in this generation."""
    assignment: bytes = b""

    @property
    def expires_ms(self) -> int | None:
        """None: a member that waits for an answer does not expire."""
        waits = self.join is not None or self.sync is not None
        return self.deadline_ms if self.is_new or not waits else None

    def metadata(self, protocol: str | None) -> bytes:
        return next((known.metadata for known in self.protocols if known.name == protocol), b"")


def bytes_of(protocols: Iterable[MemberProtocol]) -> int:
    """Size of the metadata of one member."""
    return sum(len(known.metadata) for known in protocols)


class Members(Mapping[str, Member]):
    """Members by id, in the order of joining.

    A copy takes constant time, and counts save a request of one member from visiting all others: so joins of thousands
    take linear time.  Only `members[id] = member` and `del members[id]` change it.
    """

    __slots__ = ("_numbered", "_supporting", "changes", "joining", "metadata_bytes", "unsynced")

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self._numbered = Map[str, tuple[int, Member]]()
        """Each with the count of changes when it was added: in this order the members joined."""
        self.joining = 0
        """Members whose JoinGroup waits."""
        self.unsynced = 0
        """Members that have not requested their assignment in this generation."""
        self.changes = 0
        """Incremented when a member is added or removed."""
        self.metadata_bytes = 0
        """Bytes of the metadata of all members, for all protocols."""
        self._supporting: dict[str, int] = {}
        """The number of members that support each protocol."""
        for member in members:
            self[member.member_id] = member

    def copy(self) -> Members:
        other = Members()
        other._numbered, other._supporting = self._numbered, self._supporting.copy()
        other.joining, other.unsynced, other.changes = self.joining, self.unsynced, self.changes
        other.metadata_bytes = self.metadata_bytes
        return other

    def __getitem__(self, member_id: str) -> Member:
        return self._numbered[member_id][1]

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._numbered

    def __len__(self) -> int:
        return len(self._numbered)

    def __iter__(self) -> Iterator[str]:
        return (member.member_id for _, member in sorted(self._numbered.values(), key=itemgetter(0)))

    def __setitem__(self, member_id: str, member: Member) -> None:
        number, before = self._numbered.get(member_id, (self.changes + 1, None))
        if before is None:
            self.changes = number
        if before is None or before.protocols is not member.protocols:
            self._count_protocols(before, -1)
            self._count_protocols(member, 1)
        self._count_waits(before, -1)
        self._count_waits(member, 1)
        self._numbered = self._numbered.set(member_id, (number, member))

    def __delitem__(self, member_id: str) -> None:
        before = self[member_id]
        self.changes += 1
        self._count_protocols(before, -1)
        self._count_waits(before, -1)
        self._numbered = self._numbered.delete(member_id)

    def supporting(self, protocols: Iterable[str]) -> list[str]:
        """The `protocols` that all members support."""
        return [name for name in protocols if self._supporting.get(name, 0) == len(self)]

    def _count_protocols(self, member: Member | None, change: int) -> None:
        if member is not None:
            self.metadata_bytes += change * bytes_of(member.protocols)
            for name in {known.name for known in member.protocols}:
                self._supporting[name] = self._supporting.get(name, 0) + change

    def _count_waits(self, member: Member | None, change: int) -> None:
        if member is not None:
            self.joining += change * (member.join is not None)
            self.unsynced += change * member.owes_sync
