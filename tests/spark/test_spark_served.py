"""Spark without rights on `meta/`: a coordinator serves the metadata, and neither the driver nor a task uses it on the
storage."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store
from tests.services import Services


class AtUrl(Wrapper):
    """A store that says another URL."""

    def __init__(self, inner: ObjectStore, url: str) -> None:
        super().__init__(inner)
        self._url = url

    @property
    def url(self) -> str:
        return self._url


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a coordinator that sends its clients to a folder with the records alone: in place of `meta/` is a file."""
    own, objects = tmp_path / "log", tmp_path / "objects"
    for folder in (own, objects / "data"):
        folder.mkdir(parents=True)
    (own / "data").symlink_to(objects / "data")
    (objects / "meta").write_text("")
    services = Services()
    store = AtUrl(open_store(str(own), None, "os"), f"file://{objects}")
    yield services.start(own, store, metadata="served").coordinator.address
    services.close()
    assert (objects / "meta").read_text() == "" and list((own / "meta" / "pin").iterdir())


def snapshots(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        found = re.search(r"^pylog_snapshots_total (\d+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


# Promise: service.md#clients-without-rights-on-meta
def test_batches_and_a_stream_without_rights_on_meta(spark: SparkSession, address: str, tmp_path: Path) -> None:
    """The query's pin is a claim that the coordinator makes, and a query's tasks share it."""
    url = f"pylog://{address}"
    frame = spark.range(40).selectExpr("cast(id as string) as value").repartition(4)
    frame.write.format("pylog").mode("append").option("topic", "t").save(url)
    read = spark.read.format("pylog").option("subscribe", "t").option("minPartitions", 8).load(url)
    with spark_log.connect(url) as log:
        log.append("t", [{"value": b"40"}])  # after the plan: the tasks agree on it
    assert read.selectExpr("cast(cast(value as string) as int) as n").distinct().count() == 41
    stream = spark.readStream.format("pylog").option("subscribe", "t").option("startingOffsets", "earliest")
    query = (
        stream.load(url)
        .select("value")
        .writeStream.format("pylog")
        .option("topic", "copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(url)
    )
    query.awaitTermination(120)
    assert query.exception() is None
    with spark_log.connect(url) as log:
        assert log.read("copy", columns=["value"]).num_rows == 41
    assert snapshots(address) == 1
