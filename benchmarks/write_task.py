"""What does a row cost one task of a Spark write, and how much more when the rows name their topics?

The task alone, without Spark: Arrow batches of 10,000 rows, as Spark sends them, go through the sink's checks,
partitions and encoder into an object on a local disk, synced and not committed.  CPU of the process, for rows of 100 B
and 1 kB, with and without keys.  Topics by column (1 and 10 of 4 partitions, 1,000 of 1) run in turn with the same rows
under the option `topic`.  By hand: zstd takes 200 ns of a row of 100 B, hashing, ordering and copying 100 more; names
of topics add a lookup, 50 ns.  With 1,000 topics a batch has 320 rows instead of 10,000, because 32 MiB may wait, and
zstd starts for each of its five buffers: 170 ns a row.  Rows are copied twice, 100 ns, and a batch costs 30 us besides:
100 ns.  So at most 3 times the single topic, and less than 1 us.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import common
import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from pyspark_pylog.sink.writer import batch_writer

import spark_log

BATCH_ROWS = 10_000
PARTITIONS = {1: 4, 10: 4, 1_000: 1}
"""Partitions of a topic, by the number of topics."""
SIZES = {"100B": 100, "1kB": 1_000}


def main() -> None:
    given = common.arguments(__doc__, rows=1_000_000)
    figures: dict[str, object] = {}
    for size, value_bytes in SIZES.items():
        for keyed in (True, False):
            rows = max(given.rows * 100 // value_bytes, 1)
            for topics in PARTITIONS:
                case = f"{size}_{'keyed' if keyed else 'keyless'}_{topics}_topics"
                batches = make_batches(rows, value_bytes, keyed, topics)
                figures |= measure(case, batches, topics, given.rounds, given.warm)
    common.report("write_task", rows=given.rows, **figures)


def measure(case: str, batches: Sequence[pa.RecordBatch], topics: int, rounds: int, warm: int) -> dict[str, float]:
    """Microseconds of CPU a row, by column and by option, and the ratio of the two."""
    rows = sum(batch.num_rows for batch in batches)
    with common.folder() as url:
        admin = spark_log.connect(url).admin
        admin.create_topics([spark_log.NewTopic(name_of(number), PARTITIONS[topics]) for number in range(topics)])
        pair = common.pairs(task(url, batches, {}), task(url, batches, {"topic": name_of(0)}), rounds=rounds, warm=warm)
    return {
        f"{case}_us": pair.ours / rows * 1e6,
        f"{case}_by_option_us": pair.other / rows * 1e6,
        f"{case}_times_option": 1 / pair.ratio,
    }


def task(url: str, batches: Sequence[pa.RecordBatch], options: dict[str, str]) -> Callable[[], object]:
    """One task of a write."""
    names = batches[0].schema.names
    schema = StructType([StructField(name, StringType() if name == "topic" else BinaryType()) for name in names])
    writer = batch_writer({"path": url, **options}, schema, False)
    return lambda: writer.write(iter(batches))


def name_of(number: int) -> str:
    return f"topic-{number:04}"


def make_batches(rows: int, value_bytes: int, keyed: bool, topics: int) -> list[pa.RecordBatch]:
    """Rows of random topics.  Values are JSON, half of which repeats."""
    rng = np.random.default_rng(7)
    batches = []
    for start in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - start)
        columns = {"topic": pa.array([name_of(n) for n in rng.integers(0, topics, count).tolist()])}
        if keyed:
            columns["key"] = pa.array([b"user-%d" % n for n in rng.integers(0, 100_000, count).tolist()], pa.binary())
        random = rng.bytes(count * value_bytes // 4).hex()
        columns["value"] = pa.array([text(start + n, random, n, value_bytes) for n in range(count)], pa.binary())
        batches.append(pa.record_batch(columns))
    return batches


def text(number: int, random: str, row: int, value_bytes: int) -> bytes:
    half = value_bytes // 2
    body = random[row * half : (row + 1) * half]
    return b'{"id":%d,"path":"/product/%d","session":"%s"}' % (number, number % 977, body.encode())


if __name__ == "__main__":
    main()
