"""Does a read of one time window touch only the batches that overlap it?

A topic of 100 days in order of time and a window of one of them: about 1 batch in 100, and the bytes that were fetched
are those of the batches and of the index.  Counted, not timed.
"""

from __future__ import annotations

import common
import numpy as np
import pyarrow as pa

import spark_log
from spark_log.client.fetch import batches_touched
from spark_log.client.scan import scan_batches, scan_schema
from spark_log.testing.stores import LatencyStore

DAYS = 100
DAY_US = 86_400_000_000


def main() -> None:
    given = common.arguments(__doc__, rows=2_000_000)
    with common.folder() as url:
        log = spark_log.connect(url)
        log.create_topic(spark_log.NewTopic("t", 4, {"retention.ms": "-1"}))
        log.append("t", events(given.rows))
        window = (50 * DAY_US, 51 * DAY_US)
        touched, total = batches_touched(log.journal, log.plan("t"), window)
        counted = LatencyStore(log.journal.store, get_ms=0, put_ms=0)
        log.journal.store = counted
        reads = log.plan("t", window=window)
        counted.requests.clear()
        rows = sum(batch.num_rows for batch in scan_batches(log.journal, reads, scan_schema(["timestamp"]), window))
    common.report(
        "window",
        rows=given.rows,
        batches=total,
        batches_touched=touched,
        share=touched / total,
        share_by_hand=1 / DAYS + 4 / total,
        rows_given=rows,
        rows_in_window=given.rows // DAYS,
        gets=counted.requests["get"],
    )


def events(rows: int) -> pa.Table:
    times = np.arange(rows, dtype=np.int64) * (DAYS * DAY_US // rows)
    return pa.table(
        {
            "key": pa.array(np.arange(rows) % 1000).cast(pa.string()),
            "value": pa.array(np.arange(rows)).cast(pa.string()),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


if __name__ == "__main__":
    main()
