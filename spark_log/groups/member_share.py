"""The share of a group's partitions that a member owns by its number.  Pure."""

from __future__ import annotations

from typing import NamedTuple

from spark_log.bounds import Int

MEMBERS_MAX = 1000


class Share(NamedTuple):
    """Number 1 of 3 owns the partitions 1, 4, 7 … of every topic: new partitions have an owner without any message.

    Topics of one key, with equally many partitions, so stay together, as with Kafka's range assignor.
    """

    number: Int
    of: Int

    def owns(self, partition: int) -> bool:
        return partition % self.of == self.number

    def overlaps(self, other: Share) -> bool:
        """Whether a partition may belong to both."""
        return self.of != other.of or self.number == other.number

    @property
    def is_valid(self) -> bool:
        return 0 <= self.number < self.of <= MEMBERS_MAX

    def __str__(self) -> str:
        return f"number {self.number} of {self.of}"
