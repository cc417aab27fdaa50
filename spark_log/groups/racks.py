"""Racks of members and replicas.  A partition is near a member if one of its replicas is in the member's rack."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_log.groups.subscription import Subscriber
from spark_log.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Cluster:
    """Topics, as assignors see them."""

    partitions: Mapping[str, int]
    """Partition counts; a topic that is not here does not exist."""
    racks: Mapping[str, Sequence[Collection[str | None]]] = field(default_factory=dict)
    """For each partition of a topic, the racks of its replicas; None for one without a rack."""

    def known(self, topics: Iterable[str]) -> list[str]:
        """Those of `topics` that have partitions, sorted, without duplicates."""
        return sorted({topic for topic in topics if self.partitions.get(topic, 0) > 0})

    def has(self, partition: TopicPartition) -> bool:
        return 0 <= partition.partition < self.partitions.get(partition.topic, 0)


class Racks:
    """Which partitions are near which members; all are near if racks do not matter."""

    def __init__(self, cluster: Cluster, topics: Iterable[str], members: Iterable[Subscriber]) -> None:
        of_members = {member.member_id: member.rack for member in members if member.rack}
        of_partitions = {
            TopicPartition(topic, number): frozenset(rack for rack in racks if rack)
            for topic in topics
            for number, racks in enumerate(cluster.racks.get(topic, ()))
        }
        everywhere = frozenset().union(*of_partitions.values())
        self.decide = not everywhere.isdisjoint(of_members.values()) and any(
            racks != everywhere for racks in of_partitions.values()
        )
        self._of_members = of_members if self.decide else {}
        self._of_partitions = of_partitions

    def near(self, member_id: str, partition: TopicPartition) -> bool:
        rack = self._of_members.get(member_id)
        return rack is None or rack in self._of_partitions.get(partition, ())

    def count_near(self, partition: TopicPartition) -> int:
        """Number of members in a rack of the partition."""
        racks = self._of_partitions.get(partition, frozenset())
        return sum(rack in racks for rack in self._of_members.values())
