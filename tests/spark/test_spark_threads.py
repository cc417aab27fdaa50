"""Threads of the caller write and read, whichever thread made their frames."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_log
from tests.spark.builders import append, as_bytes, load, load_stream, numbers, started, texts, values

THREADS = 4
PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.fixture
def frames(spark: SparkSession) -> list[DataFrame]:
    """One for each thread, made in this one."""
    return [numbers(spark, range(number, number + 2)) for number in range(THREADS)]


# Promise: spark.md#threads
def test_a_pool_writes_frames_that_were_made_outside(spark: SparkSession, url: str, frames: list[DataFrame]) -> None:
    """Each of its threads is registered by the pool's initializer; reads need nothing."""
    with ThreadPoolExecutor(THREADS, initializer=spark_log.register, initargs=(spark,)) as pool:
        list(pool.map(lambda number: append(frames[number], url, f"t{number}"), range(THREADS)))
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda number: values(load(spark, url, f"t{number}")), range(THREADS)))
    assert found == [as_bytes(range(number, number + 2)) for number in range(THREADS)]


# Promise: spark.md#threads
def test_the_pool_of_the_page_writes(spark: SparkSession, url: str) -> None:
    """As it is printed in docs/spark.md."""
    section = PAGE.read_text().partition("### Threads\n")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    exec(code, {"spark": spark, "spark_log": spark_log, "URL": url})
    assert values(load(spark, url, "orders,payments")) == [b"orders", b"payments"]


@pytest.mark.classic("Spark Connect has no session that belongs to a thread")
@pytest.mark.skipif(os.environ.get("PYLOG_PUSH_DOWN") != "false", reason="only with PYLOG_PUSH_DOWN=false")
def test_what_a_thread_lacks_is_the_active_session(spark: SparkSession, url: str, frames: list[DataFrame]) -> None:
    """Spark's own rule, for which `register` is there: if a Spark drops it, so can the docs."""

    def write_twice(frame: DataFrame) -> str:
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            append(frame, url)
        spark_log.register(spark)
        append(frame, url)
        return "written"

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(write_twice, frames[0]).result() == "written"


@pytest.mark.classic("Spark Connect has no session that belongs to a thread")
@pytest.mark.skipif(os.environ.get("PYLOG_PUSH_DOWN") == "false", reason="PYLOG_PUSH_DOWN=false turns it off")
def test_threads_of_a_registered_session_lack_nothing(url: str, frames: list[DataFrame]) -> None:
    """The wrapper is found by Spark's class path, for which the thread does not matter."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(append, frames[0], url).result()
    assert values(load(frames[0].sparkSession, url)) != []


# Promise: spark.md#threads
@pytest.mark.classic("under Spark Connect the function of `foreachBatch` runs in a process of the server")
def test_a_sink_writes_from_a_pool_inside_of_a_batch(
    spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """Several topics in parallel, each exactly once; threads inherit the query's identity from the batch's."""
    from pyspark import inheritable_thread_target

    log.append("t", texts(5))
    sinks = [spark_log.sink(url, topic=f"out{number}") for number in range(2)]

    def both(frame: DataFrame, batch_id: int) -> None:
        def write(sink: Any) -> None:
            sink(frame, batch_id)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(inheritable_thread_target(frame.sparkSession)(write), sinks))

    writer = load_stream(spark, url).writeStream.foreachBatch(both).trigger(availableNow=True)
    started(writer.option("checkpointLocation", str(tmp_path / "checkpoint"))).awaitTermination()
    assert [values(load(spark, url, f"out{number}")) for number in range(2)] == [as_bytes(range(5))] * 2
