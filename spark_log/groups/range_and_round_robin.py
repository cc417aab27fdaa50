"""The range and the round-robin assignor, which ignore previous assignments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from spark_log.groups.racks import Cluster, Racks
from spark_log.groups.subscription import Subscriber
from spark_log.model import TopicPartition

Assigned = dict[str, list[TopicPartition]]
"""By member id."""


def member_order(members: Sequence[Subscriber]) -> list[Subscriber]:
    """Static members by instance id, then the others by member id, so that a static member keeps its place."""
    return sorted(members, key=lambda m: (m.group_instance_id is None, m.group_instance_id or m.member_id))


class RangeAssignor:
    """A range of consecutive partitions of each topic for each member; the first members get one more if it is uneven.

    Topics with equal partition counts and subscribers are assigned alike, so that one member gets the same partition of
    all of them (Kafka's RangeAssignor, KIP-881 for racks).
    """

    name = "range"
    cooperative = False

    def assign(self, cluster: Cluster, members: Sequence[Subscriber]) -> Assigned:
        ordered = member_order(members)
        topics = cluster.known(topic for member in ordered for topic in member.topics)
        layouts = [_Layout(cluster, topic, [m for m in ordered if topic in m.topics]) for topic in topics]
        if any(layout.racks.decide for layout in layouts):
            _assign_near(layouts)
        for layout in layouts:
            layout.fill()
        assigned: Assigned = {member.member_id: [] for member in ordered}
        for layout in layouts:
            for member_id, numbers in layout.given.items():
                assigned[member_id].extend(TopicPartition(layout.topic, number) for number in sorted(numbers))
        return assigned


class _Layout:
    """The assignment of one topic, in progress."""

    def __init__(self, cluster: Cluster, topic: str, members: Sequence[Subscriber]) -> None:
        self.topic = topic
        self.count = cluster.partitions[topic]
        self.members = [member.member_id for member in members]
        self.alike = (tuple((member.member_id, member.rack) for member in members), self.count)
        """Topics with an equal value are assigned alike."""
        self.racks = Racks(cluster, [topic], members)
        self.left = dict.fromkeys(range(self.count))
        self.given: dict[str, list[int]] = {member_id: [] for member_id in self.members}
        self.base, self.extras = divmod(self.count, len(members))

    def quota(self, member_id: str) -> int:
        """How many more partitions the member may get."""
        return self.base + (1 if self.extras > 0 else 0) - len(self.given[member_id])

    def near(self, member_id: str, number: int) -> bool:
        return self.racks.near(member_id, TopicPartition(self.topic, number))

    def give(self, member_id: str, number: int) -> None:
        del self.left[number]
        self.given[member_id].append(number)
        if len(self.given[member_id]) == self.base + 1:
            self.extras -= 1

    def fill(self) -> None:
        """Assign the remaining partitions within the quotas."""
        for member_id in self.members:
            for number in list(self.left)[: max(self.quota(member_id), 0)]:
                self.give(member_id, number)


def _assign_near(layouts: Sequence[_Layout]) -> None:
    """Assign partitions to members in their racks, within the same quotas."""
    alike: dict[object, list[_Layout]] = defaultdict(list)
    for layout in layouts:
        alike[layout.alike].append(layout)
    for together in alike.values():
        if len(together) > 1:
            _give_together(together)
        elif together[0].racks.decide:
            _give_near(together[0])


def _give_together(layouts: Sequence[_Layout]) -> None:
    """Assign a partition of all topics to one member that is near to all of them."""
    remaining = list(layouts[0].members)
    for number in range(layouts[0].count):
        for member_id in remaining:
            if all(layout.near(member_id, number) and layout.quota(member_id) > 0 for layout in layouts):
                for layout in layouts:
                    layout.give(member_id, number)
                if all(layout.quota(member_id) <= 0 for layout in layouts):
                    remaining.remove(member_id)
                break


def _give_near(layout: _Layout) -> None:
    for member_id in layout.members:
        near = [number for number in layout.left if layout.near(member_id, number)]
        for number in near:
            if layout.quota(member_id) <= 0:
                break
            layout.give(member_id, number)


class RoundRobinAssignor:
    """All partitions in turn to the members that read them (Kafka's RoundRobinAssignor)."""

    name = "roundrobin"
    cooperative = False

    def assign(self, cluster: Cluster, members: Sequence[Subscriber]) -> Assigned:
        ordered = member_order(members)
        reads = [frozenset(member.topics) for member in ordered]
        assigned: Assigned = {member.member_id: [] for member in ordered}
        at = 0
        for topic in cluster.known(topic for topics in reads for topic in topics):
            for number in range(cluster.partitions[topic]):
                while topic not in reads[at]:
                    at = (at + 1) % len(ordered)
                assigned[ordered[at].member_id].append(TopicPartition(topic, number))
                at = (at + 1) % len(ordered)
        return assigned
