"""How much faster is a topic with a schema than the same rows as JSON in bytes?

Orders of 20 columns (`_orders`).  A typed write is compared with a write of the JSON of the same rows, whose making
is not counted, and with a typed write without statistics, by CPU time; a read of two of the columns with a read of all
twenty, and with a read of the JSON; and a read of one row in a hundred with `where`, by a column that grows, with the
same filter after a read of that column.

Bytes are compared with the JSON, and with a Parquet file of 50,000 orders with zstd, as pyarrow writes it.

Targets: a write takes no longer, the data takes at most 1.15 times the space of Parquet, and two columns are read at
least 5 times as fast as all; statistics take at most a twentieth of a write.
"""

from __future__ import annotations

import time

import common
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
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
        block, as_json = one_block(given.rows)
        times = -(-given.rows // block.num_rows)
        typed, plain = pa.concat_tables([block] * times), pa.concat_tables([as_json] * times)
        write = common.pairs(
            lambda: count(log, "typed", typed), lambda: count(log, "bytes", plain), rounds=given.rounds, warm=given.warm
        )
        columns = common.pairs(
            lambda: read(log, "typed", TWO), lambda: read(log, "typed", None), rounds=given.rounds, warm=1
        )
        parsing = common.pairs(
            lambda: read(log, "typed", TWO), lambda: read(log, "bytes", ["value"]), rounds=given.rounds, warm=1
        )
        log.create_topic(spark_log.NewTopic("without", 1, {"stats.columns": ""}, schema=SCHEMA))
        statistics = common.pairs(
            lambda: count(log, "typed", typed),
            lambda: count(log, "without", typed),
            rounds=given.rounds,
            warm=given.warm,
            now=time.process_time,
        )
        where = skipping(log, typed["country"], given.rounds)
        stats_bytes = len(log.plan("typed")[-1].slice.stats)
        log.create_topic(spark_log.NewTopic("block", 1, schema=SCHEMA))
        count(log, "block", block)
        sizes = {name: bytes_a_row(log, name) for name in ("typed", "bytes", "block")}
    common.report(
        "typed",
        rows=typed.num_rows,
        write_seconds=write.ours,
        write_of_json_seconds=write.other,
        write_speed_up=write.ratio,
        write_target=0.95,
        size_of_json=sizes["typed"] / sizes["bytes"],
        size_of_parquet=sizes["block"] / (parquet_bytes(block) / block.num_rows),
        size_of_parquet_target=1.15,
        two_columns_seconds=columns.ours,
        all_columns_seconds=columns.other,
        columns_speed_up=columns.ratio,
        columns_target=5,
        json_unparsed_seconds=parsing.other,
        json_unparsed_speed_up=parsing.ratio,
        write_cpu_seconds=statistics.ours,
        write_without_statistics_cpu_seconds=statistics.other,
        statistics_share_of_write=1 - statistics.ratio,
        statistics_share_target=0.05,
        statistics_bytes_of_a_slice=stats_bytes,
        where_seconds=where.ours,
        filtered_seconds=where.other,
        where_speed_up=where.ratio,
    )


def one_block(rows: int) -> tuple[pa.Table, pa.Table]:
    """Keys and data columns, and the same rows as JSON; at most `BLOCK` rows."""
    block = orders(min(rows, BLOCK))
    keys = pa.array([f"user-{n % 1000}" for n in range(block.num_rows)])
    texts = pa.array([msgspec.json.encode(row) for row in block.to_pylist()], pa.binary())
    return block.append_column("key", keys), pa.table({"key": keys, "value": texts})


def skipping(log: spark_log.Log, countries: pa.ChunkedArray, rounds: int) -> common.Pair:
    """A read of one percent of a topic whose numbers grow: by a condition, and by a filter behind the read."""
    log.create_topic(spark_log.NewTopic("growing", 1, schema="number BIGINT, country STRING"))
    rows = len(countries)
    count(log, "growing", pa.table({"number": pa.array(range(rows), pa.int64()), "country": countries}))
    low, high = rows // 2, rows // 2 + rows // 100
    return common.pairs(
        lambda: read(log, "growing", ["country"], f"number >= {low} and number < {high}"),
        lambda: filtered(log, low, high),
        rounds=rounds,
        warm=1,
    )


def count(log: spark_log.Log, topic: str, table: pa.Table) -> int:
    log.append(topic, table)
    return table.num_rows


def read(log: spark_log.Log, topic: str, columns: list[str] | None, where: str | None = None) -> int:
    return sum(batch.num_rows for batch in log.scan(topic, columns=columns, where=where))


def bytes_a_row(log: spark_log.Log, topic: str) -> float:
    """The topics have different numbers of rows."""
    pieces = [one.slice for one in log.plan(topic)]
    return sum(piece.length for piece in pieces) / sum(piece.end - piece.start for piece in pieces)


def parquet_bytes(table: pa.Table) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return int(sink.getvalue().size)


def filtered(log: spark_log.Log, low: int, high: int) -> int:
    """The filter after the read."""
    condition = (pc.field("number") >= low) & (pc.field("number") < high)
    batches = log.scan("growing", columns=["number", "country"])
    return sum(pa.Table.from_batches([batch]).filter(condition).num_rows for batch in batches)


if __name__ == "__main__":
    main()
