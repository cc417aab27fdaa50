"""A stream between topics with replicas, while the S3 server of one root is stopped and continues."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_log import Log, connect
from spark_log.maintenance.replicate import replicate_every
from tests.processes import eventually
from tests.replication.replicated_logs import add_broker, create_topic, group_of, replicated_log
from tests.s3_server import s3_process


# Promise: replicas.md#when-a-disk-fails
@pytest.mark.classic("the client does not matter here")
def test_a_stream_goes_on_while_an_s3_server_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    """Its reads and writes hang then.  Each record is in the target once, and all roots have it in the end."""
    with s3_process() as (url, pid):
        times = {"replica_lag_time_max_ms": "1000", "broker_session_timeout_ms": "2000"}
        log = replicated_log(tmp_path, 1, broker_heartbeat_interval_ms="300", **times)
        add_broker(log, 2, "s3://bucket/root", key="key", secret="secret", endpoint_url=url)
        create_topic(log, "in", (2, 1, 0))
        create_topic(log, "out", (0, 1, 2))
        frame = spark.readStream.format("pylog").option("subscribe", "in").option("startingOffsets", "earliest")
        stream = frame.load(log.url).select("value").writeStream.format("pylog").option("topic", "out")
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start(log.url)
        try:
            with replicating(log):
                pass_through(log, range(20))
                os.kill(pid, signal.SIGSTOP)
                pass_through(log, range(20, 40))
                eventually(lambda: log.journal.refresh().brokers[2].fenced)
                pass_through(log, range(40, 60))
                os.kill(pid, signal.SIGCONT)
                eventually(lambda: all(2 in group_of(log.journal.refresh(), topic).isr for topic in ("in", "out")))
                pass_through(log, range(60, 80))
                assert query.exception() is None
        finally:
            query.stop()
        assert all(copies.brokers == (0, 1, 2) for copies in log.journal.refresh().copies.values())


def pass_through(log: Log, numbers: range) -> None:
    """Append to one topic, and wait until all records so far are in the other one, once and in order."""
    log.append("in", [{"value": b"%d" % number} for number in numbers])
    eventually(lambda: len(values(log)) >= numbers.stop)
    assert values(log) == list(range(numbers.stop))


def values(log: Log) -> list[int]:
    return [int(value) for value in log.read("out", columns=["value"]).column("value").to_pylist()]


@contextmanager
def replicating(log: Log) -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        for _ in replicate_every(connect(log.url, durability="os"), 200, stop=stop):
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
