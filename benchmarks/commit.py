"""How long does a small commit take, and does it grow with the log?

One record per append, on a local disk with fsync: an object, a record and a listing.  By hand: 3 synced operations of
about 0.35 ms, and 1 ms of Python.  The 10,000th commit is compared with the 100th: medians of 101 around each, upkeep
included.  Then a fresh process opens the log and reads one record.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import common

import spark_log

READ_ONE = """
import sys, time
import spark_log, spark_log.client.log
begun = time.perf_counter()
table = spark_log.connect(sys.argv[1]).read("t", partition=0, start=int(sys.argv[2]), end=int(sys.argv[2]) + 1)
assert table.num_rows == 1
print((time.perf_counter() - begun) * 1000)
"""


def main() -> None:
    given = common.arguments(__doc__, rows=10_000, of="commits", warm=None)
    around = min(50, given.rows // 10)
    early = min(100, given.rows // 2)
    with common.folder() as url:
        log = spark_log.connect(url)
        log.create_topic(spark_log.NewTopic("t", 1))
        times = []
        for number in range(given.rows):
            begun = time.perf_counter()
            log.append("t", [{"key": b"k", "value": b"%d" % number}])
            times.append((time.perf_counter() - begun) * 1000)
        opened = [
            float(
                subprocess.run(
                    [sys.executable, "-c", READ_ONE, url, str(given.rows // 2)],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
            )
            for _ in range(given.rounds)
        ]
        state = log.journal.state
        checkpoints = log.journal.metadata.list("meta/ckpt/")
        size = log.journal.metadata.size(checkpoints[-1]) if checkpoints else 0
    first = statistics.median(times[early - around : early + around])
    last = statistics.median(times[-2 * around :])
    common.report(
        "commit",
        commits=given.rows,
        p50_ms=statistics.median(times),
        p99_ms=sorted(times)[len(times) * 99 // 100],
        mean_ms=statistics.mean(times),
        growth=last / first,
        growth_target=1.2,
        open_and_read_one_ms=statistics.median(opened),
        open_target_ms=300,
        checkpoint_bytes=size,
        live_objects=len(state.objects),
    )


if __name__ == "__main__":
    main()
