"""Run a small log for a month of simulated time, and measure everything that its size depends on.

    python -m simulation.month [--days 30] [--seed 0]

One process appends a trickle and bursts, replaces topics, commits positions, runs transactions and ends them, and runs
`pylog maintain` every hour.  The store is in memory, and the test moves the clock.  The daily need of such a log must
not grow, neither in storage nor in memory nor in requests.  Afterwards nobody uses the log, and its maintenance must
stop writing.  Exits 1 if a bound was exceeded.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from simulation.harness.clocks import ManualClock
from simulation.harness.stores import MeteredStore
from spark_log.client.log import Log
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.formats.checkpoint_format import encode_checkpoint
from spark_log.metadata.state import State
from spark_log.model import NewTopic
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import DATA, META

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MINUTES = 24 * 60
BEGIN_MS = 1_700_000_000_000
TRICKLE_MINUTES = 5
"""Time between two appends of a single record."""
BURSTS_A_DAY, BURST = 4, 60
MAINTAIN_MINUTES = 60
RETENTION_MS = 6 * HOUR_MS
WINDOW_MS = RETENTION_MS // 8
"""The longest time that a merged segment may span."""
CONFIGS = {
    "gc.fence.age.ms": str(6 * HOUR_MS),
    "producer.id.expiration.ms": str(6 * HOUR_MS),
    "offsets.retention.minutes": str(6 * 60),
    "streaming.identity.retention.ms": str(6 * HOUR_MS),
}
"""One day is longer than every retention time of the log."""
LEVEL_DAYS = 2
"""From this day on, the daily need does not grow."""
SPREAD = 1.5
"""Days differ: a later day may need this many times what the first ones did."""
BOUNDS = {
    "objects": 60,
    "slices": 60,
    "checkpoint_bytes": 16_000,
    "meta_files": 450,
    "data_files": 600,
    "late_ms": WINDOW_MS + MAINTAIN_MINUTES * MINUTE_MS,
    "puts": 2_000,
    "gets": 12_000,
    "listings": 2_000,
}
"""Bounds for any day, with its 530 appends and 24 rounds of maintenance: about twice what was measured; of the
gets, a third is the last 128 records, which the first round of a process compares with the state.
"""
SILENT_DAYS = 2
"""The days after which an abandoned log must write nothing more."""
TOPICS = ("trickle", "bursts")


class _Aborted(Exception):
    """End a transaction: commit it or not."""


class Size(NamedTuple):
    """The size of the log after a round of maintenance."""

    objects: int
    """Objects in the state."""
    slices: int
    """Slices in the entries of partitions."""
    checkpoint_bytes: int
    """Bytes of the state, encoded as a checkpoint."""
    meta_files: int
    data_files: int
    data_bytes: int
    late_ms: int
    """How much longer than `retention.ms` the oldest record has been kept."""


class Requests(NamedTuple):
    """The requests to the log's storage."""

    gets: int
    listings: int
    puts: int
    deletes: int

    @classmethod
    def of(cls, kinds: Counter[str]) -> Requests:
        """The requests by their kinds."""
        return cls(
            gets=kinds["get"] + kinds["size"],
            listings=kinds["list"],
            puts=kinds["put"] + kinds["put_new"],
            deletes=kinds["delete"],
        )


class Day(NamedTuple):
    most: Size
    """The largest value of each figure."""
    requests: Requests

    def figures(self) -> dict[str, int]:
        """All figures by name."""
        return {**self.most._asdict(), **self.requests._asdict()}


class Month:
    """The log and all its users, in one process."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._clock = ManualClock(BEGIN_MS)
        self._store = MeteredStore(MemoryStore(f"month-{seed}-{id(self)}"))
        self.log = Log(Journal.open(self._store, create=True, clock=self._clock, rng=random.Random(seed)))
        self.log.admin.incremental_alter_configs({None: CONFIGS})
        for name in TOPICS:
            self.log.create_topic(NewTopic(name, 2, {"retention.ms": str(RETENTION_MS)}))
        self._standby = Journal.open(self._store, create=False, clock=self._clock, rng=random.Random(seed + 1))
        """The view of a process that follows the log, as a standby coordinator does."""
        self._appended: dict[tuple[str, int], list[int]] = {}
        """Times of all records, by partition."""

    def days(self, count: int) -> Iterator[Day]:
        """Use the log for this many days."""
        for number in range(count):
            yield self._day(number, in_use=True)

    def silence(self, count: int) -> Iterator[Day]:
        """Run only maintenance for this many days."""
        for number in range(count):
            yield self._day(number, in_use=False)

    def _day(self, number: int, *, in_use: bool) -> Day:
        before, sizes = Counter(self._store.requests), list[Size]()
        bursts = set(self._rng.sample(range(0, DAY_MINUTES, TRICKLE_MINUTES), BURSTS_A_DAY)) if in_use else set()
        for minute in range(0, DAY_MINUTES, TRICKLE_MINUTES):
            if in_use:
                self._use(number, minute, minute in bursts)
            self._standby.run_maintenance()
            if minute % MAINTAIN_MINUTES == 0:
                maintain_once(self.log)
                sizes.append(self._measure())
            self._clock.sleep_ms(TRICKLE_MINUTES * MINUTE_MS)
        return Day(Size(*map(max, zip(*sizes, strict=True))), Requests.of(self._store.requests - before))

    def _use(self, day: int, minute: int, burst: bool) -> None:
        self._append("trickle", 1)
        if burst:
            for _ in range(BURST):
                self._append("bursts", self._rng.randint(1, 20))
        if minute % 360 == 0:
            self._transact(f"job-{day}-{minute}")
            self._consume(f"group-{day}-{minute}")
        if minute == 0:
            self._replace_topic(day)

    def _append(self, topic: str, count: int) -> None:
        now = self._clock.now_ms()
        rows = [{"value": b"x" * self._rng.randint(10, 200), "timestamp": now} for _ in range(count)]
        for (name, partition), offsets in self.log.append(topic, rows).items():
            self._appended.setdefault((name, partition), []).extend([now] * len(offsets))

    def _transact(self, name: str) -> None:
        """One transaction that commits, and one that does not."""
        with self.log.transaction(name) as transaction:
            transaction.send("daily", b"in")
        with suppress(_Aborted), self.log.transaction(f"{name}-aborted") as transaction:
            transaction.send("daily", b"out")
            raise _Aborted

    def _consume(self, group: str) -> None:
        """Use a group once."""
        with self.log.consumer("trickle", group_id=group, auto_offset_reset="earliest") as consumer:
            consumer.poll()

    def _replace_topic(self, day: int) -> None:
        if "daily" in self.log.journal.refresh().names:
            self.log.admin.delete_topics(["daily"])
        self.log.create_topic(NewTopic("daily", 1))

    def _measure(self) -> Size:
        state = self.log.journal.refresh()
        data = self._store.inner.list(DATA)
        return Size(
            objects=len(state.objects),
            slices=sum(len(part.entries) for part in state.partitions.values()),
            checkpoint_bytes=len(encode_checkpoint(state)),
            meta_files=len(self._store.inner.list(META)),
            data_files=len(data),
            data_bytes=sum(self._store.inner.size(name) or 0 for name in data),
            late_ms=max(self._late_ms(state, name) for name in TOPICS),
        )

    def _late_ms(self, state: State, topic: str) -> int:
        now = self._clock.now_ms()
        parts = ((number, part) for number, part in state.topic_partitions(state.names[topic]) if part.start < part.end)
        ages = [now - self._appended[topic, number][part.start] for number, part in parts]
        return max((age - RETENTION_MS for age in ages), default=0)


def excesses(days: Sequence[Day]) -> list[str]:
    """Figures that exceeded their bound on a day, or grew from day to day."""
    found = []
    for name in days[0].figures():
        values = [day.figures()[name] for day in days]
        level, later = max(values[:LEVEL_DAYS]), max(values[LEVEL_DAYS:], default=0)
        if later > SPREAD * level:
            found.append(f"{name} grew to {later}, at first it was {level}: {values}")
        if max(values) > BOUNDS.get(name, sys.maxsize):
            found.append(f"{name} was {max(values)}, at most {BOUNDS[name]} are needed: {values}")
    return found


def unrest(last: Day) -> list[str]:
    """The activity of an abandoned log on its last day."""
    requests = last.requests
    busy = {"puts": requests.puts, "deletes": requests.deletes}
    return [f"an abandoned log has {count} {name} a day" for name, count in busy.items() if count]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the days, print them with every exceeded bound, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulation.month", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--days", type=int, default=30, help="how many (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="of what happens (default 0)")
    args = parser.parse_args(arguments)
    month = Month(args.seed)
    print(*Size._fields, *Requests._fields)
    days, silent = list(_shown(month.days(args.days))), list(_shown(month.silence(SILENT_DAYS)))
    found = excesses(days) + unrest(silent[-1])
    for line in found:
        print(line)
    return int(bool(found))


def _shown(days: Iterable[Day]) -> Iterator[Day]:
    for day in days:
        print(*day.most, *day.requests, flush=True)
        yield day


if __name__ == "__main__":
    sys.exit(main())
