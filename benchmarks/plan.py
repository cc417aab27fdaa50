"""How long does planning a read of 100 partitions and 10,000 segments take?

The log is made of commits that name objects which do not exist, because planning reads only the metadata.  By hand: 100
pieces of 100 slices, 0.1 ms a piece to read and decode, 2 µs a slice: 30 ms.
"""

from __future__ import annotations

import statistics
import time

import common

import spark_log
from spark_log.client.producer.commit import PlainProducer
from spark_log.client.producer.upload import Uploaded
from spark_log.metadata.state import State
from spark_log.model import DataObject, Run

PARTITIONS = 100
TARGET_MS = 100


def main() -> None:
    given = common.arguments(__doc__, rows=10_000, of="segments", rounds=9, warm=None)
    with common.folder() as url:
        log = spark_log.connect(url, durability="os")
        topic = log.create_topic(spark_log.NewTopic("t", PARTITIONS))
        producer = PlainProducer(log.journal)
        for number in range(given.rows // PARTITIONS):
            producer.commit(log.journal.state.version, [segments(topic, number, log.journal.state)])
        opening = [common.clock(lambda: spark_log.connect(url)) for _ in range(given.rounds)]
        times = []
        for _ in range(given.rounds):
            begun = time.perf_counter()
            reads = log.plan("t")
            times.append((time.perf_counter() - begun) * 1000)
        assert len(reads) == given.rows // PARTITIONS * PARTITIONS
        entries = sum(len(part.entries) for _, part in log.journal.state.topic_partitions(topic))
    common.report(
        "plan",
        segments=len(reads),
        partitions=PARTITIONS,
        plan_ms=statistics.median(times),
        target_ms=TARGET_MS,
        open_ms=statistics.median(opening) * 1000,
        entries_in_state=entries,
    )


def segments(topic: str, number: int, state: State) -> Uploaded:
    """One segment per partition, each in a separate object."""
    objects = tuple(
        DataObject(f"data/{state.version:016x}/{number:08x}{partition:08x}.seg", 128 << 20, 127 << 20)
        for partition in range(PARTITIONS)
    )
    runs = tuple(
        (partition, Run(topic, partition, 0, 127 << 20, 0, 1_000_000, 100, number, number + 1))
        for partition in range(PARTITIONS)
    )
    return Uploaded(objects, runs)


if __name__ == "__main__":
    main()
