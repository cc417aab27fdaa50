"""After one `maintain`, is a topic of many small commits as fast to read as a topic of one large commit?

10,000 commits of 100 records are compared with one of 1 M records: read to the end, in turn.  Target: at most 1.2 times
the time, and one object per partition and 128 MB.
"""

from __future__ import annotations

import common
import pyarrow as pa

import spark_log
from spark_log.maintenance.maintain import maintain_once

EACH = 100


def main() -> None:
    given = common.arguments(__doc__, rows=10_000, of="commits of 100 records")
    with common.folder() as url:
        log = spark_log.connect(url)
        for topic in ("small", "once"):
            log.create_topic(spark_log.NewTopic(topic, 1))
        rows = pa.table(
            {"key": [f"user-{n}" for n in range(EACH)], "value": [f"event number {n:060}" for n in range(EACH)]}
        )
        for _ in range(given.rows):
            log.append("small", rows)
        log.append("once", pa.concat_tables([rows] * given.rows))
        before = common.clock(lambda: read(log, "small"))
        maintained = common.clock(lambda: maintain_once(log))
        pair = common.pairs(lambda: read(log, "small"), lambda: read(log, "once"), rounds=given.rounds, warm=given.warm)
        objects = {read.slice.object for read in log.plan("small")}
        size = sum(read.slice.length for read in log.plan("small"))
    common.report(
        "merge",
        commits=given.rows,
        maintain_seconds=maintained,
        read_before_seconds=before,
        read_after_seconds=pair.ours,
        read_once_seconds=pair.other,
        times_as_long=1 / pair.ratio,
        target=1.2,
        objects=len(objects),
        objects_allowed=-(-size // (128 << 20)),
    )


def read(log: spark_log.Log, topic: str) -> int:
    return sum(batch.num_rows for batch in log.scan(topic))


if __name__ == "__main__":
    main()
