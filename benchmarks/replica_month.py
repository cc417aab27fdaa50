"""Does a log with brokers that has been in use for a month need more than on its second day?

In simulated time, with roots in memory: brokers 0, 1, 2, and 3, which is asynchronous and keeps the newest hours only.
Every half an hour records are written with acks=all and acks=1, and a process checks roots, copies, moves partitions,
elects preferred leaders and does maintenance.  Each day the root of broker 2 is away twice and comes back, broker 2 is
fenced by hand, partitions get other replicas four times, and broker 1 loses its disk twice together with the only copy
of records that were written with acks=1, which are given up.  `retention.ms`, `gc.fence.age.ms` and the expiration of
producers are 6 hours.

By hand: a record stays 6 hours and its window, its object another 6 for the fence; so all days after the first are
equal.  Exits 1 if a figure of a later day is more than 5 % and 3 above that of the second day, or if one of these
things did not happen.

    --days N   30
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import common

from simulation.harness.broker_roots import commit_on_leader, register_broker
from simulation.harness.clocks import ManualClock
from spark_log.client.admin.brokers import fence_broker, return_broker
from spark_log.client.log import Log
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import Maintainer
from spark_log.maintenance.partition_moves import Mover
from spark_log.model import NewTopic, TopicPartition
from spark_log.replication.broker_prober import Prober
from spark_log.replication.copy_throttle import pace_of
from spark_log.replication.leader_balance import LeaderBalance
from spark_log.replication.replicator import Replicator
from spark_log.roots.broker_roots import BROKER_KEY
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import CHECKPOINTS, DATA, META

HOUR_MS = 3_600_000
ROUND_MS = HOUR_MS // 2
ROUNDS = 48
"""Rounds of a day."""
KEPT_MS = 6 * HOUR_MS
CONFIGS = dict.fromkeys(("gc.fence.age.ms", "producer.id.expiration.ms"), str(KEPT_MS))
TOPIC = {"retention.ms": str(KEPT_MS), "message.timestamp.type": "LogAppendTime"}
LEVEL_DAY = 2
SPREAD, SLACK = 1.05, 3
MOVES = ((0, 1), (1, 2))
"""Replicas of a partition that moves, in turn."""


class Day(NamedTuple):
    """The largest value of each figure in a day."""

    objects: int
    slices: int
    copies: int
    """Rows that say which brokers have objects."""
    groups: int
    dropped: int
    pending: int
    lost: int
    """Ranges of offsets without records."""
    producers: int
    moving: int
    checkpoint_bytes: int
    meta_files: int
    root0: int
    """Objects on the root of broker 0."""
    root1: int
    root2: int
    root3: int
    live: int
    """Python's containers in the memory of the processes, at the end of the day."""


class ReplicaMonth:
    """The log, a writer, and a process that looks after it."""

    def __init__(self) -> None:
        self._clock, self._rng = ManualClock(), random.Random(1)
        self.name = uuid.uuid4().hex
        self.seen, self._lost = Counter[str](), set[object]()
        self._log = self._open(create=True)
        self._log.admin.incremental_alter_configs({None: CONFIGS})
        for broker in (1, 2):
            register_broker(self._log, broker, self._url(broker))
        register_broker(self._log, 3, self._url(3), is_async=True, keep_ms=2 * HOUR_MS)
        for topic, partitions, replicas in (("all", 2, (0, 1, 2, 3)), ("one", 1, (1, 2, 0)), ("moves", 2, MOVES[0])):
            placed = dict.fromkeys(range(partitions), replicas)
            self._log.create_topic(NewTopic(topic, partitions, TOPIC, replica_assignment=placed))
        other = self._open(create=False)
        self._prober, self._replicator = Prober(other), Replicator(other)
        self._mover, self._balance = Mover(other, pace_of(other)), LeaderBalance(other.journal)
        self._maintainer = Maintainer(other)

    def _open(self, *, create: bool) -> Log:
        rng = random.Random(self._rng.random())
        return Log(Journal.open(self._store(0), create=create, clock=self._clock, rng=rng))

    def _url(self, broker: int) -> str:
        return f"memory://{self.name}-{broker}"

    def _store(self, broker: int) -> MemoryStore:
        return MemoryStore(f"{self.name}-{broker}")

    def days(self, count: float) -> Iterator[Day]:
        """Each day; the last one may be a part of a day."""
        rounds = round(count * ROUNDS)
        for at in range(0, rounds, ROUNDS):
            sizes = [self._round(number) for number in range(min(ROUNDS, rounds - at))]
            self.seen["lost"] = len(self._lost)
            gc.collect()
            live = len(gc.get_objects())
            yield Day(*map(max, zip(*sizes, strict=True)), live=live)

    def _round(self, number: int) -> tuple[int, ...]:
        self._happen(number)
        rows = [{"value": b"a record", "partition": number % 2}]
        self._log.append("all", rows)
        self._log.append("moves", rows)
        if number % 4 == 0:
            commit_on_leader(self._log, "one", [{"value": b"a record"}])
        self._clock.sleep_ms(ROUND_MS // 2)
        self._keep()
        self._clock.sleep_ms(ROUND_MS // 2)
        return self._size()

    def _happen(self, number: int) -> None:
        """The faults and changes of this time of the day."""
        if number in (10, 30):
            self._away = self._store(2).get(BROKER_KEY)
            self._store(2).delete([BROKER_KEY])
        elif number in (13, 33):
            self._store(2).put(BROKER_KEY, [self._away])
        elif number in (20, 44):
            self._lose_disk()
        elif number in (4, 16, 28, 40):
            target = MOVES[number < 20]
            self._log.admin.alter_partition_reassignments({TopicPartition("moves", number // 12 % 2): target})
        elif number == 24:
            fence_broker(self._log.journal, 2, "by hand")
        elif number == 26:
            return_broker(self._log.journal, 2)

    def _lose_disk(self) -> None:
        """Broker 1 has the only copy of a pending commit, and loses its disk."""
        commit_on_leader(self._log, "one", [{"value": b"a record that will be lost"}])
        self._store(1).delete([BROKER_KEY])
        disk = self._directory(1)
        disk.delete([*disk.list(META), *disk.list(DATA)])
        register_broker(self._log, 1, self._url(1), replaces=True, lose_data=True)

    def _directory(self, broker: int) -> MemoryStore:
        """The files of a broker on its root."""
        known = self._log.journal.refresh().brokers[broker]
        return MemoryStore(f"{self.name}-{broker}/{known.directory}")

    def _keep(self) -> None:
        """The duties of `pylog replicate` and `pylog maintain`, in turn and not in threads."""
        probed = self._prober.until_sure()
        self.seen["fenced"] += len(probed.fenced)
        self.seen["returned"] += len(probed.returned)
        while (report := self._replicator.round()).busy:
            self.seen["copied"] += report.objects
        self.seen["copied"] += report.objects
        moved, _ = self._mover.move_all()
        self.seen["moved"] += moved.partitions
        self.seen["elected"] += len(self._balance.round())
        self._maintainer.round_or_raise()

    def _size(self) -> tuple[int, ...]:
        state, store = self._log.journal.refresh(), self._store(0)
        meta = store.list(META)
        self._lost.update((key, lost) for key, ranges in state.lost.items() for lost in ranges)
        return (
            len(state.objects),
            sum(len(part.entries) for part in state.partitions.values()),
            len(state.copies),
            len(state.placement_groups),
            len(state.dropped),
            len(state.pending),
            sum(map(len, state.lost.values())),
            len(state.producers),
            len(state.reassignments),
            max((store.size(name) or 0 for name in meta if name.startswith(CHECKPOINTS)), default=0),
            len(meta),
            len(store.list(DATA)),
            *(len(self._directory(broker).list(DATA)) for broker in (1, 2, 3)),
        )


def growing(days: list[Day]) -> list[str]:
    """Figures that are larger than on the second day."""
    level, *later = (day._asdict() for day in days[LEVEL_DAY - 1 :])
    return [
        f"{name} grew from {level[name]:,} on day {LEVEL_DAY} to {high:,}"
        for name in level
        if later and (high := max(day[name] for day in later)) > SPREAD * level[name] + SLACK
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=30, help="simulated days (30)")
    given = parser.parse_args()
    logging.getLogger("spark_log").setLevel(logging.CRITICAL)
    begun, days, month = time.perf_counter(), list[Day](), ReplicaMonth()
    for day in month.days(given.days):
        days.append(day)
        print(len(days), *(f"{name} {value:,}" for name, value in day._asdict().items()), flush=True)
    found = growing(days) if len(days) >= LEVEL_DAY else []
    found += [f"nothing was {name}" for name, count in month.seen.items() if not count and given.days >= 1]
    for line in found:
        print(line)
    seconds = time.perf_counter() - begun
    common.report(
        "replica_month", days=given.days, seconds=seconds, grows=found, seen=dict(month.seen), **days[-1]._asdict()
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
