"""Several consumers of one group, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import spark_log
from spark_log.client.consumer.consumer import Consumer
from spark_log.model import TopicPartition

ALL = {TopicPartition("t", number) for number in range(4)}


class Listener:
    """Records the calls that it gets."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("assigned", sorted(tp.partition for tp in partitions)))

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("revoked", sorted(tp.partition for tp in partitions)))

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("lost", sorted(tp.partition for tp in partitions)))


class Team:
    """Consumers of one log, each with a separate connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.log = spark_log.connect(self.url)
        self.log.admin.create_topics([spark_log.NewTopic("t", 4)])
        self.members: list[Consumer] = []
        self.got: list[tuple[str, int, int]] = []

    def join(self, listener: Listener | None = None, **settings: object) -> Consumer:
        given = {"group_id": "g", "auto_offset_reset": "earliest", **settings}
        topics, pattern = given.pop("topics", ["t"]), given.pop("pattern", None)
        consumer = spark_log.connect(self.url).consumer(**given)
        consumer.subscribe(() if pattern else topics, pattern=pattern, listener=listener)  # type: ignore[arg-type]
        self.members.append(consumer)
        return consumer

    def poll_until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        """Have all poll in turn, till it is so."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, [sorted(member.assignment()) for member in self.members]
            for member in self.members:
                for tp, records in member.poll(10).items():
                    self.got += [(*tp, record.offset) for record in records]

    def is_shared(self) -> bool:
        """Whether every partition has one owner, and each member some."""
        parts = [member.assignment() for member in self.members]
        return all(parts) and sum(map(len, parts)) == len(ALL) and set().union(*parts) == ALL

    def fill(self, count: int = 20) -> None:
        self.log.append("t", [{"value": b"%d" % n, "partition": n % 4} for n in range(count)])

    def generation(self) -> int:
        return self.log.admin.describe_consumer_groups(["g"])["g"].generation

    def close(self) -> None:
        for member in self.members:
            member.close()
