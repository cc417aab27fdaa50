"""Does a busy log that has been in use for a month cost more than on its third day?

In simulated time, on an object store in memory that counts requests: 100 topics of 100 partitions; each second one
commit of 100 slices, so each partition gets a slice every 100 s; `retention.ms` of a day, and a round of `pylog
maintain` every 10 minutes, with its own view of the log, as in a separate process; all other settings have their
defaults.  The commit, its maintenance, merging, retention and garbage collection are real.  The uploaded object is
encoded once for each group of 100 partitions, and put again under a new name for each commit.

`--scale N` divides topics, partitions and slices of a commit by N, and commits every N seconds: a partition gets what
it gets in the whole log, there are N x N times fewer partitions and N times fewer commits.

By hand: a record stays a day and a window of an eighth, and its object another day for the fence, so all is level after
51 hours, in the third day.  A partition then has 8 or 9 full segments, and at most 1 + log2 n smaller ones.  The
metadata log has the commits of a day.  A dropped object is remembered for a day.

Exits 1 if a figure of a later day is more than 5 % above the third day, or if CPU times have doubled in most of five or
more later days.

    --days N      30; 0.05 is 7 rounds of maintenance
    --scale N     10: 10 topics of 10 partitions, a commit of 10 slices every 10 s.  1: the whole log, an hour a day
    --json FILE   the table, for the page
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import common
from object_store import PRICES_OF, dollars

from simulation.harness.clocks import ManualClock
from simulation.harness.stores import MeteredStore
from spark_log.client.log import Log
from spark_log.client.producer.commit import PlainProducer
from spark_log.client.producer.topic_rules import topic_spec
from spark_log.client.producer.upload import Uploaded, Uploader
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import Maintainer
from spark_log.metadata.records import Piece
from spark_log.model import NewTopic
from spark_log.segment.record_columns import conform
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import CHECKPOINTS, DATA, META, data_key

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
TOPICS = PARTITIONS = SLICES = 100
"""Topics, partitions of each, and slices of a commit, one commit a second."""
MAINTAIN_MS = 10 * MINUTE_MS
ROUNDS = DAY_MS // MAINTAIN_MS
VALUE = b"a record of a busy log: some hundred bytes, as an event or a reading has them. " + b"." * 21
OPENS = 3
LEVEL_DAY = 3
"""The last of the first days, in which the log may grow."""
SPREAD = 1.05
PACE_SPREAD = 2.0
"""Times of a shared machine differ: this many times that of the third day, in half of the later days."""
PACE_DAYS = 5
"""With fewer later days, times are not judged: one slow minute of the machine would be half of them."""

TABLES = {
    "sizes": {
        "objects": "objects",
        "slices": "slices",
        "waiting": "dropped objects",
        "data_files": "files in data/",
        "meta_files": "files in meta/",
    },
    "bytes": {
        "checkpoint_kb": "a checkpoint, kB",
        "checkpoints_mb": "all checkpoints, MB",
        "open_mb": "memory of an open log, MB",
        "data_mb": "data, MB",
    },
    "requests": {"get": "gets", "put": "puts", "list": "listings", "dollars": "dollars"},
    "times": {"commit_ms": "a commit, CPU ms", "maintain_s": "a round of maintenance, CPU s"},
}
"""The tables of the page: figures with their labels."""


class Size(NamedTuple):
    """The size of the log after a round of maintenance."""

    objects: int
    """Live objects in the state."""
    slices: int
    """In the state and in slice indexes."""
    waiting: int
    """Dropped objects, which are deleted when the fence has passed them."""
    checkpoint_kb: float
    """The largest file below `meta/ckpt/`."""
    meta_files: int
    data_files: int
    data_mb: float


class Day(NamedTuple):
    """The needs of a day."""

    most: Size
    """The largest value of each."""
    open_mb: float
    """Memory of a process that opens the log at the end of the day."""
    checkpoints_mb: float
    """Bytes of all checkpoints of the day."""
    get: int
    put: int
    list: int
    dollars: float
    """The price of all requests; storage is extra."""

    def figures(self) -> dict[str, float]:
        """All figures by name."""
        found = self._asdict()
        return {**found.pop("most")._asdict(), **found}


class Pace(NamedTuple):
    """The CPU time that it took, in all threads."""

    commit_ms: float
    """The mean of the day, with the commit's share of maintenance."""
    maintain_s: float
    """A round's median of the day."""


class Template(NamedTuple):
    """An object of some partitions, to be put under many names."""

    data: bytes
    uploaded: Uploaded


class BusyMonth:
    """The log, its writer and its maintainer."""

    def __init__(self, scale: int) -> None:
        self._every_ms = 1000 * scale
        self._clock = ManualClock()
        name = uuid.uuid4().hex
        self._meta, self._data = (MeteredStore(MemoryStore(f"{name}-{kind}")) for kind in ("meta", "data"))
        self._writer = self._open(create=True)
        self._maintainer = Maintainer(self._open(create=False))
        configs = {"retention.ms": str(DAY_MS), "message.timestamp.type": "LogAppendTime"}
        topics = [f"t{number}" for number in range(TOPICS // scale)]
        for topic in topics:
            self._writer.create_topic(NewTopic(topic, PARTITIONS // scale, configs))
        slots = [(topic, number) for topic in topics for number in range(PARTITIONS // scale)]
        # As tasks of a job have them, the partitions of a commit are of all topics.
        slots.sort(key=lambda slot: (slot[1], slot[0]))
        each = SLICES // scale
        self._templates = [self._template(slots[at : at + each]) for at in range(0, len(slots), each)]
        self._producer = PlainProducer(self._writer.journal)
        self._commits = 0

    def _open(self, *, create: bool) -> Log:
        rng = random.Random(int(create))
        return Log(Journal.open(self._meta, self._data, create=create, clock=self._clock, rng=rng))

    def _template(self, slots: Sequence[tuple[str, int]]) -> Template:
        """A record for each of the partitions, in one object."""
        scratch, now = MemoryStore(uuid.uuid4().hex), self._clock.now_ms()
        uploader = Uploader(scratch, 0, random.Random(0))
        for topic, number in slots:
            spec = topic_spec(self._writer.journal.state, topic)
            for rows in conform([{"value": VALUE, "partition": number}], now_us=1000 * now):
                uploader.append(spec, rows, now, 0)
        uploaded = uploader.finish()
        (made,) = uploaded.objects
        return Template(scratch.get(made.name), uploaded)

    def days(self, count: float) -> Iterator[tuple[Day, Pace]]:
        """Each day; the last one may be a part of a day."""
        rounds = round(count * ROUNDS)
        for at in range(0, rounds, ROUNDS):
            yield self._day(min(ROUNDS, rounds - at))

    def _day(self, rounds: int) -> tuple[Day, Pace]:
        asked, wrote = self._requests(), self._checkpoint_bytes()
        sizes, commits, maintains = [], [], []
        for _ in range(rounds):
            commits.append(common.clock(self._commit_for_a_round, time.process_time) * self._every_ms / MAINTAIN_MS)
            maintains.append(common.clock(self._maintainer.round_or_raise, time.process_time))
            sizes.append(self._size())
        requests, written = self._requests() - asked, self._checkpoint_bytes() - wrote
        day = Day(
            Size(*map(max, zip(*sizes, strict=True))),
            open_mb=self._opened_bytes() / 2**20,
            checkpoints_mb=written / 2**20,
            get=requests["get"] + requests["size"],
            put=requests["put"] + requests["put_new"],
            list=requests["list"],
            dollars=dollars(requests),
        )
        return day, Pace(1000 * statistics.mean(commits), statistics.median(maintains))

    def _commit_for_a_round(self) -> None:
        for _ in range(MAINTAIN_MS // self._every_ms):
            journal, (data, uploaded) = self._writer.journal, self._templates[self._commits % len(self._templates)]
            epoch = journal.recent().version
            (made,) = uploaded.objects
            name = data_key(epoch, f"{journal.context.unique()}.seg")
            journal.objects.put(name, [data])
            self._producer.commit(epoch, [uploaded._replace(objects=(made._replace(name=name),))])
            self._commits += 1
            self._clock.sleep_ms(self._every_ms)

    def _requests(self) -> Counter[str]:
        return self._meta.requests + self._data.requests

    def _checkpoint_bytes(self) -> int:
        return self._meta.written[CHECKPOINTS]

    def _size(self) -> Size:
        state, meta, data = self._writer.journal.state, self._meta.inner, self._data.inner
        entries = [entry for part in state.partitions.values() for entry in part.entries]
        names = data.list(DATA)
        return Size(
            objects=len(state.objects),
            slices=sum(entry.slices if isinstance(entry, Piece) else 1 for entry in entries),
            waiting=len(state.dropped),
            checkpoint_kb=max((meta.size(name) or 0 for name in meta.list(CHECKPOINTS)), default=0) / 2**10,
            meta_files=len(meta.list(META)),
            data_files=len(names),
            data_mb=sum(data.size(name) or 0 for name in names) / 2**20,
        )

    def _opened_bytes(self) -> int:
        """The least of a few times: caches that fill meanwhile and threads that start belong to the process."""
        return min(self._open_traced() for _ in range(OPENS))

    def _open_traced(self) -> int:
        tracemalloc.start()
        log = self._open(create=False)
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert log.journal.state == self._writer.journal.refresh()
        return size


def to_json(scale: int, days: Sequence[Day], paces: Sequence[Pace]) -> dict[str, object]:
    """The tables of the page."""
    found = [day.figures() | pace._asdict() for day, pace in zip(days, paces, strict=True)]
    x = list(range(1, len(days) + 1))
    tables = {
        table: {
            "varied": "day",
            "x": x,
            "costs": {label: [day[name] for day in found] for name, label in names.items()},
        }
        for table, names in TABLES.items()
    }
    return {"scale": scale, "prices": PRICES_OF, "machine": common.machine(), "tables": tables}


def growing(days: Sequence[Day], paces: Sequence[Pace]) -> list[str]:
    """Figures that are larger than on the third day."""
    first, *later = zip(days[LEVEL_DAY - 1 :], paces[LEVEL_DAY - 1 :], strict=True)
    sizes = {name: (level, [day.figures()[name] for day, _ in later]) for name, level in first[0].figures().items()}
    times = {name: (level, [pace._asdict()[name] for _, pace in later]) for name, level in first[1]._asdict().items()}
    return [
        f"{name} grew from {level:,.2f} on day {LEVEL_DAY} to {high:,.2f}"
        for found, measure, spread, fewest in (
            (sizes, max, SPREAD, 1),
            (times, statistics.median, PACE_SPREAD, PACE_DAYS),
        )
        for name, (level, values) in found.items()
        if len(values) >= fewest and (high := measure(values)) > spread * level
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=30, help="simulated days (30)")
    parser.add_argument("--scale", type=int, default=10, help="a divisor of 100 (10)")
    parser.add_argument("--json", type=Path, help="a file of results, in which what else it holds stays")
    given = parser.parse_args()
    begun, days, paces = time.perf_counter(), list[Day](), list[Pace]()
    for day, pace in BusyMonth(given.scale).days(given.days):
        days.append(day)
        paces.append(pace)
        print(
            len(days), *(f"{name} {value:,.4g}" for name, value in (day.figures() | pace._asdict()).items()), flush=True
        )
    found = growing(days, paces) if len(days) >= LEVEL_DAY else []
    for line in found:
        print(line)
    if given.json:
        common.keep(given.json, {"busy_month": to_json(given.scale, days, paces)})
    common.report(
        "busy_month",
        scale=given.scale,
        days=given.days,
        seconds=time.perf_counter() - begun,
        grows=found,
        **days[-1].figures(),
        **paces[-1]._asdict(),
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
