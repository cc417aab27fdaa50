"""From stored records to the columns that Spark asks for; no session is needed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark_pylog.source.read_columns import TYPES, to_batch

import spark_log
from spark_log.client.reader.fetch import fetch
from spark_log.segment.arrays.numpy_arrays import KEPT_ROWS

SCHEMA = pa.schema([(name, TYPES[name][1]) for name in ("topic", "partition", "offset", "timestampType", "value")])


@pytest.mark.parametrize("rows", [1, KEPT_ROWS, KEPT_ROWS + 1, 3 * KEPT_ROWS])
def test_constant_columns_are_as_long_as_the_batch(tmp_path: Path, rows: int) -> None:
    """And of the batch's own topic and partition, whatever was asked for before it."""
    log = spark_log.connect(str(tmp_path / "log"), durability="os")
    for topic in ("a", "bb"):
        log.create_topic(spark_log.NewTopic(topic, 2))
        for partition in (0, 1):
            log.append(topic, pa.table({"value": ["v"] * rows, "partition": [partition] * rows}))
    for topic in ("bb", "a"):
        table = pa.Table.from_batches(
            to_batch(part, SCHEMA) for read in log.plan(topic) for part in fetch(log.journal.objects, read, ["value"])
        )
        assert table.num_rows == 2 * rows
        assert table["topic"].unique().to_pylist() == [topic]
        assert table["partition"].to_pylist() == [0] * rows + [1] * rows
        assert table["offset"].to_pylist() == [*range(rows), *range(rows)]
        assert table["timestampType"].unique().to_pylist() == [0]
