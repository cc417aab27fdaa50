"""`jobs/bench.py`: it does what it counts, and leaves nothing behind.  The rates and times are those of the machine."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.jobs.bench import bench, parse_args, parsed, value_of

from spark_log import Log, NewTopic

SMALL = ("--rows", "300", "--rounds", "2", "--partitions", "2", "--rate", "40", "--duration", "1s")


# Promise: performance.md#measure-your-own-storage
@pytest.mark.tasks
def test_each_part_counts_its_records_and_the_topics_are_deleted(
    spark: SparkSession, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates and percentiles of batches, latencies of all records of the stream; a topic of a killed run is named."""
    log.admin.create_topics([NewTopic("pylog-bench-killed", 1)])
    found, status = bench(spark, parse_args(["--url", log.url, *SMALL]))
    assert status == 0 and "pylog-bench-killed" in capsys.readouterr().err
    for part, records in (("write", 300), ("read", 900)):
        assert found[part]["records"] == records
        assert found[part]["seconds_p50"] <= found[part]["seconds_p99"] <= found[part]["seconds_max"]
    assert (found["stream"]["records"], found["stream"]["missing"]) == (40, 0)
    assert 0 < found["stream"]["latency_p50_ms"] <= found["stream"]["latency_p99_ms"]
    assert log.admin.list_topics() == ["pylog-bench-killed"]


# Promise: performance.md#measure-your-own-storage
def test_a_dry_run_says_what_would_be_written(spark: SparkSession, log: Log) -> None:
    """A round for warming up among it, and both topics of the stream."""
    found, status = bench(spark, parse_args(["--url", log.url, *SMALL, "--dry-run", "--record-size", "92"]))
    assert (status, found["records"], found["bytes"]) == (0, 300 * 3 + 2 * 41, (300 * 3 + 2 * 41) * 100)
    assert log.admin.list_topics() == []


@pytest.mark.parametrize("wrong", [("--parts", "read"), ("--parts", "write,all"), ("--rate", "0")])
def test_wrong_usage_is_refused(wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """With exit status 2 and the argument."""
    with pytest.raises(SystemExit) as refused:
        parse_args(["--url", "x", *wrong])
    assert refused.value.code == 2 and wrong[0] in capsys.readouterr().err


def test_a_value_has_its_number_and_the_time_and_the_size_that_was_asked_for() -> None:
    number, _ = parsed(value_of(7, 100))
    assert number == 7 and len(value_of(7, 100)) == 100
    assert parsed(value_of(8, 1))[0] == 8
