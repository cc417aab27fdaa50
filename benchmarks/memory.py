"""How much memory does a task need at its peak, for any segment size?

A writer needs at most its buffer (64 MB) and about two batches; a reader about three batches.  Each runs in a separate
process over 0.25, 0.5 and 1 GB of values that compress by half.  `rss` is the growth of the process over its size after
one record was written and read, including the allocator's waste.  `live` is the memory in use at the peak, Arrow's and
Python's.  It is measured in another run, because tracing also needs memory.
"""

from __future__ import annotations

import json
import subprocess
import sys

import common

BATCH_BYTES = 2 << 20

CHILD = """
import resource, sys, json, tracemalloc
import numpy as np, pyarrow as pa
import spark_log
from spark_log.client.reader.fetch import fetch
pool = pa.system_memory_pool()
pa.set_memory_pool(pool)
what, measure, url, megabytes = *sys.argv[1:4], int(sys.argv[4])
log = spark_log.connect(url)
rng = np.random.default_rng(1)
schema = pa.schema({"value": pa.binary()})

def batches():
    for _ in range(megabytes):
        yield pa.record_batch([pa.array([2 * rng.bytes(500) for _ in range(1000)], pa.binary())], schema=schema)

def read(topic):
    return sum(part.records.num_rows for read in log.plan(topic) for part in fetch(log.journal.objects, read))

log.append("warm", [{"value": b"x"}])
read("warm")
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if measure == "live":
    tracemalloc.start()
if what == "write":
    log.append("t", pa.RecordBatchReader.from_batches(schema, batches()))
else:
    rows = read("t")
    assert rows == megabytes * 1000, rows
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle
live = tracemalloc.get_traced_memory()[1] + pool.max_memory()
print(json.dumps(live / 2**20 if measure == "live" else grown / 1024))
"""


def run(what: str, measure: str, url: str, megabytes: int) -> float:
    """One child's figure, in MB."""
    command = [sys.executable, "-c", CHILD, what, measure, url, str(megabytes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return round(json.loads(done.stdout), 1)


def main() -> None:
    given = common.arguments(__doc__, rows=1000, of="megabytes of the largest segment", rounds=None, warm=None)
    figures: dict[str, float] = {}
    for megabytes in sorted({given.rows // 4, given.rows // 2, given.rows} - {0}):
        with common.folder() as url:
            for what, measure in (("write", "rss"), ("read", "rss"), ("read", "live")):
                figures[f"{what}_{measure}_{megabytes}_mb"] = run(what, measure, url, megabytes)
        with common.folder() as url:
            figures[f"write_live_{megabytes}_mb"] = run("write", "live", url, megabytes)
    common.report(
        "memory",
        unit="MB",
        write_target=64 + 2 * BATCH_BYTES / (1 << 20),
        read_target=3 * BATCH_BYTES / (1 << 20),
        **figures,
    )


if __name__ == "__main__":
    main()
