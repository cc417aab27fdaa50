"""How much faster is a topic with a schema than the same rows as JSON in bytes?

Rows of 20 columns (numbers, times, short and long strings).  A typed write is compared with a write of the JSON of the
same rows, whose making is not counted; and a read of two of the columns with a read of all twenty, and with a read of
the JSON.  Targets: a write takes no longer, the data takes at most half the space, and two columns are read at least 5
times as fast as all.
"""

from __future__ import annotations

import random

import common
import msgspec
import pyarrow as pa

import spark_log
from spark_log.schema.topic_schema import as_schema

SCHEMA = as_schema(
    ", ".join(
        [f"count_{n} BIGINT" for n in range(6)]
        + [f"ratio_{n} DOUBLE" for n in range(4)]
        + [f"word_{n} STRING" for n in range(6)]
        + ["at TIMESTAMP_NTZ", "session STRING", "path STRING", "ok BOOLEAN"]
    )
)
BLOCK = 50_000
TWO = ["count_0", "path"]


def rows_of(count: int, seed: int) -> pa.Table:
    """Random rows.  Half of the numbers are small, words come from small sets, and sessions do not compress."""
    rng = random.Random(seed)
    columns: dict[str, list[object]] = {}
    for field in SCHEMA:
        name = field.name
        if name.startswith("count"):
            columns[name] = [rng.randrange(1000 if name < "count_3" else 10**9) for _ in range(count)]
        elif name.startswith("ratio"):
            columns[name] = [round(rng.random() * 100, 3) for _ in range(count)]
        elif name.startswith("word"):
            columns[name] = [f"word{rng.randrange(50)}" for _ in range(count)]
        elif name == "at":
            columns[name] = [1_700_000_000_000_000 + rng.randrange(10**12) for _ in range(count)]
        elif name == "ok":
            columns[name] = [rng.random() < 0.9 for _ in range(count)]
        elif name == "path":
            columns[name] = [f"/product/{rng.randrange(500)}" for _ in range(count)]
        else:
            columns[name] = [f"{rng.getrandbits(64):016x}" for _ in range(count)]
    return pa.table({name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()})


def main() -> None:
    given = common.arguments(__doc__, rows=500_000)
    with common.folder() as url:
        log = spark_log.connect(url)
        log.create_topic(spark_log.NewTopic("typed", 1, schema=SCHEMA))
        log.create_topic(spark_log.NewTopic("bytes", 1))
        block = rows_of(min(given.rows, BLOCK), 1)
        times = -(-given.rows // block.num_rows)
        keys = pa.array([f"user-{n % 1000}" for n in range(block.num_rows)])
        texts = pa.array([msgspec.json.encode(row) for row in block.to_pylist()], pa.binary())
        typed = pa.concat_tables([block.append_column("key", keys)] * times)
        plain = pa.concat_tables([pa.table({"key": keys, "value": texts})] * times)
        write = common.pairs(
            lambda: count(log, "typed", typed), lambda: count(log, "bytes", plain), rounds=given.rounds, warm=given.warm
        )
        columns = common.pairs(
            lambda: read(log, "typed", TWO), lambda: read(log, "typed", None), rounds=given.rounds, warm=1
        )
        parsing = common.pairs(
            lambda: read(log, "typed", TWO), lambda: read(log, "bytes", ["value"]), rounds=given.rounds, warm=1
        )
        sizes = {name: sum(one.slice.length for one in log.plan(name)) for name in ("typed", "bytes")}
    common.report(
        "typed",
        rows=typed.num_rows,
        write_seconds=write.ours,
        write_of_json_seconds=write.other,
        write_speed_up=write.ratio,
        write_target=1.0,
        size_of_json=sizes["typed"] / sizes["bytes"],
        size_target=0.5,
        two_columns_seconds=columns.ours,
        all_columns_seconds=columns.other,
        columns_speed_up=columns.ratio,
        columns_target=5,
        json_unparsed_seconds=parsing.other,
        json_unparsed_speed_up=parsing.ratio,
    )


def count(log: spark_log.Log, topic: str, table: pa.Table) -> int:
    log.append(topic, table)
    return table.num_rows


def read(log: spark_log.Log, topic: str, columns: list[str] | None) -> int:
    return sum(batch.num_rows for batch in log.scan(topic, columns=columns))


if __name__ == "__main__":
    main()
