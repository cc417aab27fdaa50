"""How fast does compaction clean a changelog, and is the topic read in proportion afterwards?

10,000,000 updates of 1,000,000 keys at random, in commits of a tenth, which are merged first.  One pass cleans them
all.  Then a tenth as many updates follow, and a pass that reads the keys of the clean part, too.  Expected by hand for
each record of the first pass: decoding and hashing its key, and sorting it into the map, 0.6 us; decoding all of it,
0.1 us; writing what stays, a tenth of 0.5 us.  Target: 1,000,000 records a second, and a read that takes the share of
the records that are left.  Seconds of CPU are those of this process, all threads.
"""

from __future__ import annotations

import time

import common
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import spark_log
from spark_log.maintenance.maintain import compact, merge
from spark_log.rewriting.compaction_rounds import CompactionTally

UPDATES_PER_KEY = 10
COMMITS = 10
DAY_MS = 86_400_000
CONFIGS = {"cleanup.policy": "compact", "segment.ms": str(DAY_MS), "min.cleanable.dirty.ratio": "0.05"}


def main() -> None:
    given = common.arguments(__doc__, rows=10_000_000, of="updates", rounds=None, warm=None)
    keys, rng = given.rows // UPDATES_PER_KEY, np.random.default_rng(1)
    with common.folder() as url:
        log = spark_log.connect(url)
        log.create_topic(spark_log.NewTopic("t", 1, CONFIGS))
        for _ in range(COMMITS):
            append(log, rng, given.rows // COMMITS, keys)
        merge(log)
        before, bytes_before = common.clock(lambda: read(log), time.process_time), size(log)
        first = Timed(log)
        after, bytes_after, left = common.clock(lambda: read(log), time.process_time), size(log), read(log)
        append(log, rng, keys, keys)
        second = Timed(log)
    common.report(
        "compaction",
        updates=given.rows,
        keys=keys,
        first_pass_cpu_seconds=first.cpu,
        first_pass_seconds=first.wall,
        records_a_cpu_second=given.rows / first.cpu,
        target=1_000_000,
        removed=first.tally.records,
        left=left,
        bytes_before=bytes_before,
        bytes_after=bytes_after,
        read_cpu_seconds_before=before,
        read_cpu_seconds_after=after,
        read_share=after / before,
        records_share=left / given.rows,
        second_pass_cpu_seconds=second.cpu,
        second_removed=second.tally.records,
    )


class Timed:
    """A pass, and the seconds that it takes."""

    def __init__(self, log: spark_log.Log) -> None:
        self.tally = CompactionTally()
        cpu = time.process_time()
        self.wall = common.clock(lambda: self._run(log))
        self.cpu = time.process_time() - cpu

    def _run(self, log: spark_log.Log) -> None:
        self.tally = compact(log)


def append(log: spark_log.Log, rng: np.random.Generator, rows: int, keys: int) -> None:
    """Updates that are two days old, so that they are not in the active segment."""
    old_us = (int(time.time() * 1000) - 2 * DAY_MS) * 1000
    numbers = pa.array(rng.integers(0, keys, rows)).cast(pa.string())
    joined = pc.binary_join_element_wise
    log.append(
        "t",
        pa.table(
            {
                "key": joined("user-", numbers, "").cast(pa.binary()),
                "value": joined("state of ", numbers, ", " + "x" * 40, "").cast(pa.binary()),
                "timestamp": pa.repeat(pa.scalar(old_us, pa.timestamp("us", "UTC")), rows),
            }
        ),
    )


def read(log: spark_log.Log) -> int:
    return sum(batch.num_rows for batch in log.scan("t"))


def size(log: spark_log.Log) -> int:
    return sum(one.slice.length for one in log.plan("t"))


if __name__ == "__main__":
    main()
