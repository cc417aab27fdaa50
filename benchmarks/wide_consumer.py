"""What does a version of the log cost a consumer of 100,000 partitions?

One consumer reads all topics of a log by a pattern, with all of their records read.  Then others write: records of one
partition, positions of a group, a topic that matches, and one that does not.  Measured is CPU of the poll that picks
the version up, at a hundredth of the partitions and at all of them.  By hand: a poll visits the partitions that the
version names, so the two are nearly equal, and far below 5 ms; a new topic copies the map of partitions, some
nanoseconds for each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import common

import spark_log
from spark_log.metadata.commands import CreateTopic
from spark_log.metadata.groups.group_commands import CommitOffsets
from spark_log.metadata.records import GroupCommit, OffsetEntry

WIDE = 100
"""Partitions of a topic."""


def filled(folder: str, partitions: int) -> None:
    """A log of empty topics."""
    with spark_log.connect(folder, durability="os") as log:
        for number in range(partitions // WIDE):
            log.journal.propose(CreateTopic(name=f"in{number}", partitions=WIDE, topic_id=f"in{number}"))


def poll_ms(consumer: Any, rounds: int, change: Callable[[int], object]) -> float:
    """CPU of the poll after a change."""
    times = []
    for number in range(rounds):
        change(number)
        begun = time.thread_time()
        consumer.poll()
        times.append(time.thread_time() - begun)
    return statistics.median(times) * 1e3


def measured(folder: str, rounds: int) -> dict[str, float]:
    with (
        spark_log.connect(folder, durability="os") as log,
        spark_log.connect(folder, durability="os") as other,
        log.consumer(auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe(pattern="in.*")
        for _ in range(3):
            consumer.poll()
        entry = OffsetEntry("in0", 0, 0)
        return {
            "records": poll_ms(consumer, rounds, lambda number: other.append("in0", [{"value": b"x"}])),
            "positions": poll_ms(
                consumer,
                rounds,
                lambda number: other.journal.propose(CommitOffsets(commit=GroupCommit(f"g{number}", -1, (entry,)))),
            ),
            "matching_topic": poll_ms(
                consumer, rounds, lambda number: other.create_topic(spark_log.NewTopic(f"in-new{number}"))
            ),
            "other_topic": poll_ms(
                consumer, rounds, lambda number: other.create_topic(spark_log.NewTopic(f"out{number}"))
            ),
        }


def main() -> None:
    given = common.arguments(__doc__, rows=100_000, of="partitions", rounds=15, warm=None)
    found = {}
    for partitions in (max(WIDE, given.rows // 100), given.rows):
        with common.folder() as folder:
            filled(folder, partitions)
            found[partitions] = measured(folder, given.rounds)
    few, many = found.values()
    common.report(
        "wide_consumer",
        partitions=given.rows,
        **{f"{name}_poll_ms": value for name, value in many.items()},
        **{f"{name}_ratio_to_a_hundredth": many[name] / few[name] for name in many},
    )


if __name__ == "__main__":
    main()
