"""What does a round of `pylog maintain` cost in a large log: seconds, requests and objects, by what changed since the
last round?

The log has 100 partitions a topic, and slices that earlier rounds have merged, one per window of time: their objects
hold 1,000 slices each and are never read.  Then 600 commits of 100 slices of 10 records arrive in ten minutes, each in
one topic, as with a commit a second between two rounds of ten minutes.  Measured are the first round of the log, which
seals it; then the first round of a process without and with the memory that another process has saved, as from cron; a
round in which nothing has changed; a round after 600 commits, and the first round of a process after 600 more; and
another round without changes.  The store is in memory, and the seconds are those of the CPU; a request takes 15 to 30
ms on an object store, 48 at a time.

By hand, for 10,000 partitions: each round after 600 commits replaces 60,000 slices of 600 objects, 1.5 KB each, so 90
MB are read, and decoded and encoded at 200 µs a slice: 12 s.  A round without changes is a read of the log's end, and
the first one of a process also of its memory: 1 µs a slice.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import common
import pyarrow as pa

from simulation.harness.clocks import ManualClock
from simulation.harness.stores import MeteredStore
from spark_log import NewTopic
from spark_log.client.log import Log
from spark_log.client.producer.commit import PlainProducer, Uploaded
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import Maintainer
from spark_log.maintenance.maintain_report import MaintainReport
from spark_log.model import DataObject, Run
from spark_log.segment.schema import RECORD_SCHEMA
from spark_log.segment.writer import SegmentWriter
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import data_key

PER_TOPIC = 100
PER_OBJECT = 1000
WINDOW_MS = 3 * 3_600_000
EACH = 10
"""Records of a slice."""


class Measured:
    """A log on a store that counts requests."""

    def __init__(self, partitions: int, slices: int) -> None:
        self.clock = ManualClock()
        self.store = MeteredStore(MemoryStore(uuid.uuid4().hex))
        self.log = self.open()
        self.producer = PlainProducer(self.log.journal)
        each = max(1, slices // partitions)
        configs = {"segment.ms": str(WINDOW_MS), "retention.ms": str((each + 8) * WINDOW_MS)}
        names = [f"topic-{number:04}" for number in range(max(1, partitions // PER_TOPIC))]
        count = min(partitions, PER_TOPIC)
        self.topics = [self.log.create_topic(NewTopic(name, count, configs)) for name in names]
        for window in range(each):
            self.merged(window - each)

    def open(self) -> Log:
        return Log(Journal.open(self.store, clock=self.clock, create=True))

    def merged(self, window: int) -> None:
        """One slice per partition in a window of the past, in objects of 1,000 slices."""
        keys = [(topic, number) for topic in self.topics for number in range(PER_TOPIC)]
        at_us = (self.clock.now_ms() + window * WINDOW_MS) * 1000
        for begin in range(0, len(keys), PER_OBJECT):
            epoch = self.log.journal.state.version
            name = data_key(epoch, f"{uuid.uuid4().hex}.seg")
            self.store.inner.put(name, [b"x"])
            runs = tuple(
                (0, Run(*key, at * 10_000, 10_000, 0, 100, 1, at_us, at_us + 1))
                for at, key in enumerate(keys[begin : begin + PER_OBJECT])
            )
            size = 10_000 * len(runs)
            self.producer.commit(epoch, [Uploaded((DataObject(name, size + 1, size),), runs)])

    def write(self, commits: int) -> None:
        """Ten minutes of commits: one a second, of a slice in each partition of a topic."""
        writer_rows = pa.record_batch(
            [
                pa.array([b"user-%d" % n for n in range(EACH)], pa.binary()),
                pa.array([b"event number %080d" % n for n in range(EACH)], pa.binary()),
                pa.array([self.clock.now_ms() * 1000] * EACH, pa.timestamp("us", "UTC")),
            ],
            schema=RECORD_SCHEMA,
        )
        for number in range(commits):
            topic = self.topics[number % len(self.topics)]
            epoch = self.log.journal.state.version
            writer = SegmentWriter()
            for partition in range(PER_TOPIC):
                writer.append(topic, partition, writer_rows)
            written = writer.finish()
            name = data_key(epoch, f"{uuid.uuid4().hex}.seg")
            self.store.inner.put(name, written.chunks())
            runs = tuple((0, run) for run in written.runs)
            self.producer.commit(epoch, [Uploaded((DataObject(name, written.size, written.index_position),), runs)])
            self.clock.sleep_ms(1000)

    def measure(self, run: Callable[[], MaintainReport]) -> dict[str, Any]:
        """CPU seconds and requests of a round, and what it did."""
        before = self.store.requests.copy()
        reports: list[MaintainReport] = []
        seconds = common.clock(lambda: reports.append(run()), time.process_time)
        requests: dict[str, Any] = {kind: n for kind, n in (self.store.requests - before).items() if n}
        state = self.log.journal.refresh()
        return {
            "cpu_seconds": seconds,
            **requests,
            "merged": reports[0].merged_slices,
            "live_objects": len(state.objects),
            "problems": len(reports[0].problems),
        }


def main() -> None:
    parser = common.argparse.ArgumentParser(
        description=__doc__, formatter_class=common.argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=10_000, help="(10,000)")
    parser.add_argument("--slices", type=int, default=100_000, help="merged before (100,000)")
    parser.add_argument("--commits", type=int, default=600, help="between two rounds (600)")
    parser.add_argument("--idle", action="store_true", help="measure no rounds after commits")
    given = parser.parse_args()
    begun = Measured(given.partitions, given.slices)
    print(f"built {given.partitions:,} partitions", file=sys.stderr)

    def measure(what: str, rounds: Callable[[], MaintainReport]) -> None:
        common.report("maintenance", round=what, **begun.measure(rounds))

    def process() -> Callable[[], MaintainReport]:
        return Maintainer(begun.open(), saves_memory=True).round

    measure("first round of the log", Maintainer(begun.open()).round)
    measure("first round of a process", process())
    measure("first round with a saved memory", process())
    rounds = Maintainer(begun.open()).round
    measure("idle round", rounds)
    if not given.idle:
        begun.write(given.commits)
        measure(f"round after {given.commits} commits", rounds)
        begun.write(given.commits)
        measure(f"first round after {given.commits} more", process())
    measure("idle round", rounds)
    measure("idle round", rounds)


if __name__ == "__main__":
    main()
