"""How much memory does a task take at its peak, whatever the size of the segment?

A writer keeps at most its buffer (64 MB) and about two batches; a reader about three batches.  Each runs in a process of
its own over 0.25, 0.5 and 1 GB of values; what counts is how far the peak is above that of the same process doing nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys

import common

BATCH_BYTES = 2 << 20

CHILD = """
import resource, sys, json, random
import numpy as np, pyarrow as pa
import spark_log
from spark_log.client.fetch import fetch
from spark_log.client.upload import Uploader, topic_spec
from spark_log.segment.schema import conform
pa.set_memory_pool(pa.system_memory_pool())
what, url, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = spark_log.connect(url)
rng = np.random.default_rng(1)

def batches():
    for _ in range(megabytes):
        values = [rng.bytes(1000) for _ in range(1000)]
        yield pa.record_batch({"value": pa.array(values, pa.binary())})

log.ensure_topic("t")
warm = next(iter(batches()))
uploader = Uploader(log.journal.store, 0, random.Random(1))
spec = topic_spec(log.journal.state, "t")
for rows in conform(warm, now_us=0):
    uploader.append(spec, rows, 0)
uploader.close()
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if what == "write":
    log.append("t", pa.RecordBatchReader.from_batches(warm.schema, batches()))
else:
    rows = sum(part.records.num_rows for read in log.plan("t") for part in fetch(log.journal.store, read))
    assert rows == megabytes * 1000, rows
print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle) / 1024))
"""


def main() -> None:
    given = common.arguments(__doc__, rows=1000)
    figures: dict[str, float] = {}
    for megabytes in (given.rows // 4, given.rows // 2, given.rows):
        with common.folder() as url:
            for what in ("write", "read"):
                done = subprocess.run(
                    [sys.executable, "-c", CHILD, what, url, str(megabytes)], check=True, capture_output=True, text=True
                )
                figures[f"{what}_{megabytes}_mb"] = round(json.loads(done.stdout), 1)
    common.report(
        "memory",
        unit="MB above idle",
        write_target=64 + 2 * BATCH_BYTES / (1 << 20),
        read_target=3 * BATCH_BYTES / (1 << 20),
        **figures,
    )


if __name__ == "__main__":
    main()
