"""How much faster is a topic with a schema than the same rows as JSON in bytes?

Orders of 20 columns (`_orders`).  A typed write is compared with a write of the JSON of the same rows, whose making
is not counted; and a read of two of the columns with a read of all twenty, and with a read of the JSON.

Targets: a write takes no longer, the data takes at most half the space, and two columns are read at least 5 times as
fast as all.
"""

from __future__ import annotations

import common
import msgspec
import pyarrow as pa
from _orders import SCHEMA, orders

import spark_log

BLOCK = 50_000
TWO = ["quantity", "country"]


def main() -> None:
    given = common.arguments(__doc__, rows=500_000)
    with common.folder() as url:
        log = spark_log.connect(url)
        log.create_topic(spark_log.NewTopic("typed", 1, schema=SCHEMA))
        log.create_topic(spark_log.NewTopic("bytes", 1))
        block = orders(min(given.rows, BLOCK))
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
