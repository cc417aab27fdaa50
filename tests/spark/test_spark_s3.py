"""Spark on real S3 servers: `make test-s3`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.servers.s3 import S3Server
from tests.servers.seaweed import Seaweed
from tests.servers.server import running
from tests.servers.versity import Versity
from tests.spark.builders import append, load, load_stream


# Promise: testing.md#real-object-stores
@pytest.mark.s3
@pytest.mark.parametrize("kind", [Versity, Seaweed])
def test_spark_writes_and_reads_in_batches_and_streams(
    spark: SparkSession, tmp_path: Path, kind: type[S3Server]
) -> None:
    """A batch goes in, a stream passes it on and has nothing to do when it starts again, and a batch reads each row."""
    with running(kind(tmp_path)) as server:
        url = f"{server.bucket('bucket')}/log"
        storage = {f"storage.{name}": value for name, value in server.options.items()}
        append(spark.range(10_000).selectExpr("cast(id as string) as value"), url, "in", **storage)
        for _ in range(2):
            stream = load_stream(spark, url, "in", **storage).select("value").writeStream.format("pylog")
            query = stream.options(topic="out", checkpointLocation=str(tmp_path / "checkpoint"), **storage)
            query.trigger(availableNow=True).start(url).awaitTermination()
        found = load(spark, url, "out", **storage).selectExpr("cast(cast(value as string) as bigint) as n")
        counts = found.selectExpr("count(*)", "count(distinct n)", "sum(n)").first()
        assert tuple(counts or ()) == (10_000, 10_000, 49_995_000)
