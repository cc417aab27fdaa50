"""Logs with small slices, for the tests of jobs that rewrite them."""

from __future__ import annotations

import time

import pyarrow as pa

from spark_log import Log

COMPACT = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0"}
PARTITIONS = 4
ROUNDS = 3
KEYS = 5


def append_old(log: Log, topic: str, first: int = 0) -> None:
    """Each key several times in each partition, in records that are old enough for compaction."""
    old = int(time.time() * 1000) - 7_200_000
    for number in range(first, first + ROUNDS):
        rows = [(partition, key) for partition in range(PARTITIONS) for key in range(KEYS)]
        log.append(
            topic,
            pa.table(
                {
                    "key": pa.array([b"k%d" % key for _, key in rows], pa.binary()),
                    "value": pa.array([b"%d" % number for _ in rows], pa.binary()),
                    "timestamp": [old] * len(rows),
                    "partition": [partition for partition, _ in rows],
                }
            ),
        )


def pairs(log: Log, topic: str = "t") -> list[tuple[int, bytes, bytes]]:
    """(partition, key, value), sorted."""
    table = log.read(topic, columns=["partition", "key", "value"])
    return sorted(tuple(row.values()) for row in table.to_pylist())
