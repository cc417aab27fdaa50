"""The sticky assignors: balance first, then let each member keep as many of its partitions as possible (KIP-54,
KIP-429).

This module assigns in one pass if all members read the same topics; `sticky_general` handles the other case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_log.groups.racks import Cluster, Racks
from spark_log.groups.range_and_round_robin import Assigned
from spark_log.groups.sticky_general import assign_general
from spark_log.groups.subscription import Subscriber
from spark_log.model import TopicPartition


class StickyAssignor:
    """Balanced with few moves.  Each possible leader has one object, which remembers the newest generation."""

    name = "sticky"
    cooperative = False

    def __init__(self, visits: Sequence[str] = ()) -> None:
        """visits: ids of members to process first, if the order decides who keeps the larger share."""
        self.max_generation = -1
        """The newest generation that any member has named."""
        self._visits = {member_id: place for place, member_id in enumerate(visits)}

    def assign(self, cluster: Cluster, members: Sequence[Subscriber]) -> Assigned:
        return self._assign(cluster, members)[0]

    def _assign(self, cluster: Cluster, members: Sequence[Subscriber]) -> tuple[Assigned, Mapping[TopicPartition, str]]:
        """The assignment, and which assigned partitions another member still owns."""
        ordered = sorted(members, key=lambda member: member.member_id)
        self.max_generation = max([self.max_generation, *(member.generation for member in ordered)])
        claims = read_claims(cluster, ordered)
        if len({frozenset(member.topics) for member in ordered}) <= 1:
            ordered.sort(key=lambda member: self._visits.get(member.member_id, len(self._visits)))
            return _assign_equal(cluster, ordered, claims)
        assigned = assign_general(cluster, ordered, claims.kept, self.max_generation)
        owners = {tp: member.member_id for member in ordered for tp in member.owned}
        return assigned, _transferring(assigned, ordered, owners)


class CooperativeStickyAssignor(StickyAssignor):
    """Assigns as StickyAssignor does, in two rebalances: a partition is only assigned after its owner has revoked
    it.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, cluster: Cluster, members: Sequence[Subscriber]) -> Assigned:
        assigned, transferring = self._assign(cluster, members)
        return {
            member_id: [tp for tp in partitions if transferring.get(tp) != member_id]
            for member_id, partitions in assigned.items()
        }


def _transferring(
    assigned: Assigned, members: Sequence[Subscriber], owners: Mapping[TopicPartition, str]
) -> Mapping[TopicPartition, str]:
    had = {member.member_id: frozenset(member.owned) for member in members}
    return {
        tp: member_id
        for member_id, partitions in assigned.items()
        for tp in partitions
        if tp in owners and tp not in had[member_id]
    }


@dataclass(frozen=True, slots=True)
class Claims:
    """The partitions that members own, after conflicts are resolved by generation."""

    kept: Mapping[str, list[TopicPartition]]
    """By member id."""
    disputed: frozenset[TopicPartition]
    """Claimed by several members in the same generation: none keeps them."""


def read_claims(cluster: Cluster, members: Sequence[Subscriber]) -> Claims:
    """The newer generation wins a partition; a member that missed a generation loses it."""
    newest: dict[TopicPartition, tuple[int, int]] = {}
    for member in members:
        for tp in dict.fromkeys(member.owned):
            generation, several = newest.get(tp, (-2, 0))
            if member.generation > generation:
                newest[tp] = (member.generation, 1)
            elif member.generation == generation:
                newest[tp] = (generation, several + 1)
    kept = {
        member.member_id: [
            tp for tp in dict.fromkeys(member.owned) if newest[tp] == (member.generation, 1) and cluster.has(tp)
        ]
        for member in members
    }
    return Claims(kept, frozenset(tp for tp, (_, several) in newest.items() if several > 1))


def _assign_equal(
    cluster: Cluster, members: Sequence[Subscriber], claims: Claims
) -> tuple[Assigned, Mapping[TopicPartition, str]]:
    if not members:
        return {}, {}
    topics = cluster.known(members[0].topics)
    work = _Equal(
        racks=Racks(cluster, topics, members),
        count=len(members),
        total=sum(cluster.partitions[topic] for topic in topics),
        disputed=claims.disputed,
    )
    read = frozenset(topics)
    for member in members:
        work.keep(member.member_id, [tp for tp in claims.kept[member.member_id] if tp.topic in read])
    taken = {tp for partitions in work.assigned.values() for tp in partitions}
    left = [
        tp
        for topic in topics
        for n in range(cluster.partitions[topic])
        if (tp := TopicPartition(topic, n)) not in taken
    ]
    work.distribute(left)
    return work.assigned, work.transferring


@dataclass(slots=True)
class _Equal:
    """An assignment in progress, if all members read the same (AbstractStickyAssignor's constrained assignment)."""

    racks: Racks
    count: int
    total: int
    disputed: frozenset[TopicPartition]
    assigned: Assigned = field(default_factory=dict)
    revoked: dict[TopicPartition, str] = field(default_factory=dict)
    """By partition, the previous owner."""
    transferring: dict[TopicPartition, str] = field(default_factory=dict)
    """By partition, the new owner."""
    over: int = 0
    """Number of members that have the larger share."""
    under: list[str] = field(default_factory=list)
    """Members below the smaller share."""
    exact: deque[str] = field(default_factory=deque)
    """Members at the smaller share that may get one more."""

    @property
    def small(self) -> int:
        return self.total // self.count

    @property
    def large(self) -> int:
        return -(-self.total // self.count)

    @property
    def over_expected(self) -> int:
        """Number of members that get the larger share."""
        return self.total % self.count

    def keep(self, member_id: str, owned: Sequence[TopicPartition]) -> None:
        """Let a member keep its partitions, up to its share."""
        near = sorted((tp for tp in owned if self.racks.near(member_id, tp)), key=lambda tp: (tp.partition, tp.topic))
        self.revoked.update((tp, member_id) for tp in owned if not self.racks.near(member_id, tp))
        if len(near) < self.small:
            share = len(near)
            self.under.append(member_id)
        elif len(near) >= self.large and self.over < self.over_expected:
            share = self.large
            self._one_more_over()
        else:
            share = self.small
            if self.over < self.over_expected:
                self.exact.append(member_id)
        self.assigned[member_id] = near[:share]
        self.revoked.update((tp, member_id) for tp in near[share:])

    def distribute(self, left: list[TopicPartition]) -> None:
        """Assign all remaining partitions; first, if racks matter, to near members."""
        self.under.sort()
        self.exact = deque(sorted(self.exact))
        if self.racks.decide:
            left = self._distribute_near(sorted(left, key=self.racks.count_near))
        at = 0
        for tp in left:
            if not self.under:
                self._give(tp, self.exact.popleft())
                continue
            at %= len(self.under)
            at = self._give_under(tp, at)

    def _distribute_near(self, left: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The partitions that no near member could get."""
        far = []
        at = 0
        for tp in left:
            start = at
            found = next(
                (i % len(self.under) for i in range(start, start + len(self.under)) if self._near_under(i, tp)), None
            )
            if found is not None:
                at = self._give_under(tp, found)
                at = at % len(self.under) if self.under else 0
            elif (member_id := next((name for name in self.exact if self.racks.near(name, tp)), None)) is not None:
                self.exact.remove(member_id)
                self._give(tp, member_id)
            else:
                far.append(tp)
        return far

    def _near_under(self, index: int, tp: TopicPartition) -> bool:
        return self.racks.near(self.under[index % len(self.under)], tp)

    def _give_under(self, tp: TopicPartition, at: int) -> int:
        """Assign to member `at` of those below their share; returns the index of the next one."""
        member_id = self.under[at]
        full = len(self.assigned[member_id]) + 1 >= self.small
        if full:
            del self.under[at]
            if self.over < self.over_expected:
                self.exact.append(member_id)
        self._give(tp, member_id)
        return at if full else at + 1

    def _give(self, tp: TopicPartition, member_id: str) -> None:
        self.assigned[member_id].append(tp)
        if len(self.assigned[member_id]) > self.small:
            self._one_more_over()
        if tp in self.disputed or self.revoked.get(tp, member_id) != member_id:
            self.transferring[tp] = member_id

    def _one_more_over(self) -> None:
        self.over += 1
        if self.over == self.over_expected:
            self.exact.clear()
