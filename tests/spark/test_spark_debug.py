"""The switch that shows the tracebacks and causes of errors: PYLOG_DEBUG=1."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark_pylog.plain_errors import HIDE, plain, plain_errors

import spark_log
from spark_log.cli.main import pylog
from spark_log.errors import CommitUnknown, NoLog, StorageUnavailable
from spark_log.runtime.debug import DEBUG_VARIABLE
from tests.spark.builders import run_job, script, texts

JOB = """
import sys
import spark_log
spark = session("local[1]")
def show_error(read):
    try:
        read()
    except Exception as error:
        print(str(error).split("JVM stacktrace")[0], "=" * 20)
def load(**options):
    return spark.read.format("pylog").options(subscribe="t", **options).load(sys.argv[1])
show_error(lambda: load(startingTimestamp="what"))
frame = load(startingOffsets=0, endingOffsets=2)
frame.count()
spark_log.connect(sys.argv[1]).admin.delete_records({spark_log.TopicPartition("t", 0): 1})
show_error(frame.collect)
stream = spark.readStream.format("pylog").option("subscribe", "other").load(sys.argv[1])
writer = stream.writeStream.format("noop").option("checkpointLocation", sys.argv[2])
show_error(lambda: writer.trigger(availableNow=True).start().awaitTermination())
"""

SENTENCES = ("option startingTimestamp", r"offsets [0, 1) of t-0 are gone", "topic 'other' does not exist")


# Promise: spark.md#troubleshooting
@pytest.mark.slow
def test_the_switch_works_in_the_driver_in_tasks_and_in_streams(tmp_path: Path) -> None:
    """The lines of pylog that raised an error are there."""
    url = str(tmp_path / "log")
    spark_log.connect(url, durability="os").append("t", texts(4))
    job = script(tmp_path / "job.py", JOB)
    errors = run_job(job, url, str(tmp_path / "checkpoint"), env={DEBUG_VARIABLE: "1"}).split("=" * 20)[:3]
    for error, sentence in zip(errors, SENTENCES, strict=True):
        assert sentence in error and "Traceback (most recent call last)" in error and "spark_log" in error


def test_without_the_switch_an_error_is_one_sentence(
    tmp_path: Path, classic: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the driver, in tasks and in streams."""
    url = str(tmp_path / "log")
    spark_log.connect(url, durability="os").append("t", texts(4))
    monkeypatch.setattr(sys, "argv", ["job.py", url, str(tmp_path / "checkpoint")])
    exec(JOB, {"session": lambda master: classic})
    for error, sentence in zip(capsys.readouterr().out.split("=" * 20)[:3], SENTENCES, strict=True):
        assert sentence in error and "Traceback (most recent call last)" not in error


def _fail() -> None:
    try:
        raise StorageUnavailable("no answer")
    except StorageUnavailable as error:
        raise CommitUnknown("it may be in") from error


# Promise: spark.md#troubleshooting
@pytest.mark.parametrize("debug", ["", "0", "1"])
def test_the_switch_shows_causes(debug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first error in a chain of causes is shown."""
    monkeypatch.setenv(DEBUG_VARIABLE, debug)
    with pytest.raises(CommitUnknown) as caught, plain_errors():
        _fail()
    shown = debug == "1"
    assert (str(caught.value.__cause__) == "no answer") == shown
    assert (HIDE in os.environ) == (not shown)
    assert (plain(caught.value).__traceback__ is None) == (not shown)


# Promise: spark.md#troubleshooting
@pytest.mark.parametrize("debug", ["", "1"])
def test_the_switch_works_in_the_command(tmp_path: Path, debug: str) -> None:
    """It raises what it would say."""
    done = CliRunner(env={DEBUG_VARIABLE: debug}).invoke(pylog, ["-u", str(tmp_path / "none"), "topic", "list"])
    assert isinstance(done.exception, NoLog if debug else SystemExit)
    assert ("there is no log at" in done.output) == (not debug)
