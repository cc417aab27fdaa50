"""Spark's declarative pipelines, names of sources, and the log of Python workers, with `format("pylog")`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_log
from tests.spark.builders import append, copy, load, texts

VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark-streams.md").read_text()
EVOLUTION, LOGGING = (
    "spark.sql.streaming.queryEvolution.enableSourceEvolution",
    "spark.sql.pyspark.worker.logging.enabled",
)


@pytest.fixture
def setting(classic: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """A setting of Spark, for a test."""
    classic.conf.set(request.param, "true")
    yield
    classic.conf.unset(request.param)


# Promise: spark-streams.md#declarative-pipelines
@pytest.mark.skipif(VERSION < (4, 1), reason="Spark 4.1 has the first pipelines")
def test_a_declarative_pipeline_writes_and_reads_topics(server: str, log: spark_log.Log, tmp_path: Path) -> None:
    """The program of the page, twice: the flow continues from its checkpoint."""
    log.append("orders", texts(3))
    (program,) = (block.partition("```")[0] for block in PAGE.split("```python\n") if "dp.create_sink" in block)
    (tmp_path / "flows.py").write_text(program.replace("s3://bucket/log", log.url))
    spec = {"name": "orders", "storage": f"file://{tmp_path}/storage", "libraries": [{"glob": {"include": "flows.py"}}]}
    (tmp_path / "spark-pipeline.yml").write_text(json.dumps(spec))
    env = {**os.environ, "SPARK_REMOTE": server, "SPARK_CONNECT_MODE_ENABLED": "1"}
    for count in (3, 5):
        command = (sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", "spark-pipeline.yml")
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(log.read("copy")["value"].to_pylist()) == [b"%d" % n for n in range(count)]
        log.append("orders", texts(2, 3))


def both(spark: SparkSession, url: str, names: list[str]) -> DataFrame:
    """Two named sources, in an order."""
    frames = []
    for topic in names:
        reader = spark.readStream.format("pylog").name(f"from_{topic}").option("subscribe", topic)
        frames.append(reader.option("startingOffsets", "earliest").load(url).select("value"))
    return frames[0].union(frames[1])


# Promise: spark-streams.md#names-of-sources
@pytest.mark.skipif(VERSION < (4, 2), reason="Spark 4.2 has the first names of sources")
@pytest.mark.parametrize("setting", [EVOLUTION], indirect=True)
@pytest.mark.usefixtures("setting")
def test_named_sources_keep_their_positions_in_another_order(
    classic: SparkSession, log: spark_log.Log, tmp_path: Path
) -> None:
    """Each record is copied once."""
    for topic in ("a", "b"):
        log.append(topic, [{"value": f"{topic}1"}])
    copy(both(classic, log.url, ["a", "b"]), log.url, "copy", tmp_path / "ck")
    for topic in ("a", "b"):
        log.append(topic, [{"value": f"{topic}2"}])
    copy(both(classic, log.url, ["b", "a"]), log.url, "copy", tmp_path / "ck")
    assert sorted(log.read("copy")["value"].to_pylist()) == [b"a1", b"a2", b"b1", b"b2"]


# Promise: spark-streams.md#names-of-sources
@pytest.mark.skipif(VERSION < (4, 2), reason="Spark 4.2 has the first names of sources")
@pytest.mark.parametrize("setting", [EVOLUTION], indirect=True)
@pytest.mark.usefixtures("setting")
def test_a_batch_of_a_named_source_that_is_planned_again_is_a_repeat(
    classic: SparkSession, log: spark_log.Log, tmp_path: Path
) -> None:
    """Its line in the checkpoint begins with the name, and holds keys that change with each plan."""
    log.append("t", texts(3))

    def run() -> None:
        reader = classic.readStream.format("pylog").name("orders").option("subscribe", "t")
        copy(
            reader.option("startingOffsets", "earliest").load(log.url).select("value"), log.url, "copy", tmp_path / "ck"
        )

    run()
    for folder in ("offsets", "commits"):
        for file in (tmp_path / "ck" / folder).iterdir():
            file.unlink()
    log.append("other", texts(1))  # the log is at another version
    run()
    assert len(log.read("copy")) == 3


# Promise: monitoring.md#watch-a-query
@pytest.mark.skipif(VERSION < (4, 1), reason="Spark 4.1 has the first log of workers")
@pytest.mark.parametrize("setting", [LOGGING], indirect=True)
@pytest.mark.usefixtures("setting")
def test_warnings_of_tasks_are_in_sparks_log_of_workers(classic: SparkSession, log: spark_log.Log) -> None:
    """A loss that a task finds, and rows that a write sends to a dead-letter topic."""
    log.append("t", texts(3))
    append(classic.createDataFrame([("v", 9)], "value string, partition int"), log.url, "t", badRecords="topic:bad")
    frame = load(classic, log.url, "t", failOnDataLoss="false", nativeRead="false")
    assert frame.count() == 3
    for file in (Path(log.url.removeprefix("file://")) / "data").rglob("*.seg"):
        file.unlink()
    assert frame.select("value").collect() == []
    found = [row.msg for row in classic.tvf.python_worker_logs().where("logger = 'spark_log'").collect()]  # type: ignore[attr-defined]
    assert any(message.startswith("offsets [0, 3) of t-0 are gone, 3 records") for message in found), found
    assert any(message.startswith("1 row could not be written and went to topic 'bad'") for message in found), found
