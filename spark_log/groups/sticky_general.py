"""The sticky assignment if members read different topics (AbstractStickyAssignor's general assignment).

First each unowned partition goes to the eligible member with the fewest partitions.  Then partitions are moved from
members with more to members with fewer, until nothing moves.  If the result is not more balanced, the moves are undone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from spark_log.groups.racks import Cluster, Racks
from spark_log.groups.range_and_round_robin import Assigned
from spark_log.groups.subscription import Subscriber
from spark_log.model import TopicPartition


def assign_general(
    cluster: Cluster, members: Sequence[Subscriber], kept: Mapping[str, Sequence[TopicPartition]], max_generation: int
) -> Assigned:
    """members: by id.  kept: their partitions, without duplicates.  max_generation: the newest ever named."""
    topics = cluster.known(topic for member in members for topic in member.topics)
    work = _General(cluster, topics, members, max_generation)
    revocation = False
    for member_id, partitions in kept.items():
        for tp in partitions:
            if tp.topic not in work.readers:
                continue
            if tp.topic in work.reads[member_id] and work.racks.near(member_id, tp):
                work.owned[member_id][tp] = None
                work.owner[tp] = member_id
            else:
                revocation = True
    work.balance(revocation)
    return {member_id: list(partitions) for member_id, partitions in work.owned.items()}


class _General:
    def __init__(
        self, cluster: Cluster, topics: Sequence[str], members: Sequence[Subscriber], max_generation: int
    ) -> None:
        self.cluster = cluster
        self.racks = Racks(cluster, topics, members)
        self.reads = {member.member_id: frozenset(member.topics) & frozenset(topics) for member in members}
        self.readers: dict[str, list[str]] = {
            topic: [member_id for member_id, read in self.reads.items() if topic in read] for topic in topics
        }
        self.owned: dict[str, dict[TopicPartition, None]] = {member.member_id: {} for member in members}
        """Dicts used as ordered sets."""
        self.owner: dict[TopicPartition, str] = {}
        self.previous = _previous_owners(members, max_generation)
        self.order: list[tuple[int, str]] = []
        """(number of partitions, member id), of the participating members."""
        self.moves = _Moves()
        by_readers = sorted(topics, key=lambda topic: (len(self.readers[topic]), topic))
        self.partitions = [TopicPartition(topic, n) for topic in by_readers for n in range(cluster.partitions[topic])]
        """Partitions with the fewest possible owners first."""

    def balance(self, revocation: bool) -> None:
        """revocation: some member must give up partitions in any case."""
        self.order = sorted((len(partitions), member_id) for member_id, partitions in self.owned.items())
        fresh = self.order[-1][0] == 0
        unassigned = [tp for tp in self.partitions if tp not in self.owner]
        self._assign(unassigned)
        movable = frozenset(topic for topic, readers in self.readers.items() if len(readers) > 1)
        self.order = [(count, member_id) for count, member_id in self.order if self._takes_part(member_id, movable)]
        taking_part = [member_id for _, member_id in self.order]
        before = {member_id: dict(self.owned[member_id]) for member_id in taking_part}
        if not revocation:
            self._reassign([tp for tp in unassigned if tp.topic in movable])
        moved = self._reassign([tp for tp in self.partitions if tp.topic in movable])
        if not fresh and moved and _unevenness(self.owned, taking_part) >= _unevenness(before, taking_part):
            self.owned.update(before)

    def _assign(self, unassigned: Sequence[TopicPartition]) -> None:
        left = unassigned
        if self.racks.decide:
            left = [tp for tp in unassigned if not self._give_first(tp, near=True)]
        for tp in left:
            self._give_first(tp, near=False)

    def _give_first(self, tp: TopicPartition, *, near: bool) -> bool:
        """Assign to the eligible member with the fewest partitions."""
        member_id = self._first(tp, near=near)
        if member_id is None:
            return False
        self._put(tp, member_id)
        return True

    def _first(self, tp: TopicPartition, *, near: bool) -> str | None:
        """The first eligible member in order."""
        able = (member_id for _, member_id in self._in_order(tp.topic) if not near or self.racks.near(member_id, tp))
        return next(able, None)

    def _in_order(self, topic: str) -> Iterator[tuple[int, str]]:
        """Readers of a topic, those with the fewest partitions first.  Few readers are sorted; of many, only the first
        ones are searched."""
        readers = self.readers[topic]
        if len(readers) * 8 < len(self.order):
            return iter(sorted((len(self.owned[member_id]), member_id) for member_id in readers))
        return (entry for entry in self.order if topic in self.reads[entry[1]])

    def _put(self, tp: TopicPartition, member_id: str) -> None:
        """Assign a partition and remove it from its previous owner."""
        before = self.owner.get(tp)
        if before is not None:
            self._reorder(before, -1)
            del self.owned[before][tp]
        self._reorder(member_id, 1)
        self.owned[member_id][tp] = None
        self.owner[tp] = member_id

    def _reorder(self, member_id: str, by: int) -> None:
        count = len(self.owned[member_id])
        del self.order[bisect_left(self.order, (count, member_id))]
        insort(self.order, (count + by, member_id))

    def _takes_part(self, member_id: str, movable: frozenset[str]) -> bool:
        """Whether it could get more partitions, or another member could get one of its."""
        most = sum(self.cluster.partitions[topic] for topic in self.reads[member_id])
        return len(self.owned[member_id]) < most or any(tp.topic in movable for tp in self.owned[member_id])

    def _reassign(self, partitions: Sequence[TopicPartition]) -> bool:
        """Move partitions to members with fewer, in passes, until a pass moves none.  Returns whether any moved."""
        moved = False
        while self._reassign_once(partitions):
            moved = True
        return moved

    def _reassign_once(self, partitions: Sequence[TopicPartition]) -> bool:
        moved = False
        for tp in partitions:
            if self.order[-1][0] - self.order[0][0] <= 1:
                break
            to = self._better(tp)
            if to is not None:
                self._move(tp, to)
                moved = True
        return moved

    def _better(self, tp: TopicPartition) -> str | None:
        """A better owner of a partition: its previous owner, or a member with fewer partitions."""
        has = len(self.owned[self.owner[tp]])
        home = self.previous.get(tp)
        if home is not None and tp.topic in self.reads[home] and has > len(self.owned[home]) + 1:
            return home
        for near in (True, False) if self.racks.decide else (False,):
            member_id = self._first(tp, near=near)
            if member_id is not None and has > len(self.owned[member_id]) + 1:
                return member_id
        return None

    def _move(self, tp: TopicPartition, to: str) -> None:
        """Move a partition; or, if one of its topic has moved in the other direction, move that one back."""
        actual = self.moves.actual(tp, self.owner[tp], to)
        if len(self.owned[self.owner[actual]]) <= len(self.owned[to]) + 1:
            actual = tp  # the other move would not improve the balance, and so could repeat forever
        self.moves.record(actual, self.owner[actual], to)
        self._put(actual, to)


class _Moves:
    """The moves of partitions, with source and target, so that no two members exchange partitions of a topic."""

    def __init__(self) -> None:
        self._pair: dict[TopicPartition, tuple[str, str]] = {}
        self._by_pair: dict[tuple[str, str, str], set[TopicPartition]] = defaultdict(set)

    def actual(self, tp: TopicPartition, owner: str, to: str) -> TopicPartition:
        """The partition to move instead of `tp`."""
        came_from = self._pair[tp][0] if tp in self._pair else owner
        back = self._by_pair.get((tp.topic, to, came_from))
        return min(back) if back else tp

    def record(self, tp: TopicPartition, owner: str, to: str) -> None:
        came_from = owner
        if tp in self._pair:
            came_from, went_to = self._pair.pop(tp)
            self._by_pair[tp.topic, came_from, went_to].remove(tp)
        if came_from != to:
            self._pair[tp] = (came_from, to)
            self._by_pair[tp.topic, came_from, to].add(tp)


def _previous_owners(members: Sequence[Subscriber], max_generation: int) -> dict[TopicPartition, str]:
    """The owner of a partition in the latest generation before the newest one."""
    found: dict[TopicPartition, tuple[int, str]] = {}
    for member in members:
        if member.generation < max_generation:
            for tp in member.owned:
                if tp not in found or found[tp][0] < member.generation:
                    found[tp] = (member.generation, member.member_id)
    return {tp: member_id for tp, (_, member_id) in found.items()}


def _unevenness(owned: Mapping[str, Mapping[TopicPartition, None]], members: Sequence[str]) -> int:
    """The sum of differences of partition counts over all pairs of members."""
    counts = sorted(len(owned[member_id]) for member_id in members)
    return sum(count * (2 * place - len(counts) + 1) for place, count in enumerate(counts))
