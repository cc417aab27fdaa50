"""Builders of the data source's tests: sessions, frames, queries, and jobs in separate processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

CONFS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
DEADLINE_S = 300
"""For what is known to come: only a failure waits so long."""
CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""PySpark's variable: set, functions and columns are Spark Connect's."""


def connect_session(server: str) -> SparkSession:
    """A new client of a Spark Connect server, next to the session of this process, which PySpark's builder does not
    allow.
    """
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    return cast("SparkSession", ConnectSession.builder.remote(server).create())


def is_connect(spark: SparkSession) -> bool:
    """Whether it is a client of a server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def asked(url: str = "/log", topics: str | None = "t", /, **options: Any) -> dict[str, str]:
    """Options of a read as Spark hands them over: lower-case names, everything a text."""
    given = {"path": url, **options} if topics is None else {"path": url, "subscribe": topics, **options}
    return {
        name.lower(): json.dumps(value) if isinstance(value, dict | list | bool) else str(value)
        for name, value in given.items()
    }


def append(frame: DataFrame, url: str, topic: str | None = "t", /, **options: Any) -> None:
    """A batch write."""
    writer = frame.write.format("pylog").mode("append").options(**options)
    (writer if topic is None else writer.option("topic", topic)).save(url)


def load(spark: SparkSession, url: str, topics: str | None = "t", /, **options: Any) -> DataFrame:
    """A batch read."""
    reader = spark.read.format("pylog").options(**options)
    return (reader if topics is None else reader.option("subscribe", topics)).load(url)


def load_stream(spark: SparkSession, url: str, topics: str | None = "t", /, **options: Any) -> DataFrame:
    """A stream from the first record on, unless the options say otherwise."""
    reader = spark.readStream.format("pylog").options(**{"startingOffsets": "earliest", **options})
    return (reader if topics is None else reader.option("subscribe", topics)).load(url)


def copy(frame: DataFrame, url: str, topic: str, checkpoint: Path, /, **options: Any) -> StreamingQuery:
    """An available-now run of a stream into a topic, awaited."""
    writer = frame.writeStream.format("pylog").option("topic", topic).options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(url)
    query.awaitTermination(DEADLINE_S)
    return query


def to_sink(
    frame: DataFrame, sink: Batches | Callable[[DataFrame, int], None], checkpoint: Path, mode: str = "append"
) -> None:
    """An available-now run of a stream, awaited; into a function through `foreachBatch`."""
    writer = sink.writer(frame) if isinstance(sink, Batches) else frame.writeStream.foreachBatch(sink)
    writer = writer.outputMode(mode).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    started(writer).awaitTermination(DEADLINE_S)


def started(writer: DataStreamWriter, tries: int = 5) -> StreamingQuery:
    """Under Spark Connect the process of a function must come up within ten seconds, which a busy machine may miss."""
    try:
        return writer.start()
    except PySparkException as error:
        if "failed to connect back" not in str(error) or tries == 1:
            raise
        return started(writer, tries - 1)


class Batches:
    """A sink that keeps the values of each micro-batch apart: text files, and Spark's list of those of each batch."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="batches-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def writer(self, frame: DataFrame) -> DataStreamWriter:
        """Of a stream whose values are numbers."""
        return frame.selectExpr("string(value)").writeStream.format("text").option("path", str(self.folder))

    @property
    def seen(self) -> list[list[int]]:
        """The batches, in order."""
        lists = (path for path in self.folder.glob("_spark_metadata/[0-9]*"))
        known: list[str] = []
        batches = []
        for path in sorted(lists, key=lambda path: int(path.stem)):
            files = [json.loads(line)["path"] for line in path.read_text().splitlines()[1:]]
            new = [file.removeprefix("file:") for file in files if file not in known]
            batches.append(sorted(int(line) for file in new for line in Path(file).read_text().splitlines()))
            known += files
        return batches

    @property
    def rows(self) -> list[int]:
        return [value for batch in self.seen for value in batch]


def numbers(spark: SparkSession, values: Iterable[int]) -> DataFrame:
    """A frame of numbers as text, in one partition."""
    return spark.createDataFrame([(str(value),) for value in values], "value string").coalesce(1)


def values(frame: DataFrame) -> list[bytes]:
    """The values of a frame, sorted."""
    return sorted(bytes(row[0]) for row in frame.select("value").collect())


def texts(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Records for `log.append`, with the value their number."""
    return [{"value": str(number)} for number in range(first, first + count)]


def as_bytes(numbers: Iterable[int]) -> list[bytes]:
    """The result of `values` for `numbers`."""
    return sorted(str(number).encode() for number in numbers)


def last_commit(checkpoint: Path) -> Path:
    """The file that says that the last batch of a query is done."""
    return max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()), key=lambda p: int(p.name)
    )


def wait_until(true: Callable[[], bool], seconds: float = DEADLINE_S) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.02)
    return true()


PRELUDE = f"""
from pyspark.sql import SparkSession
import sys
def session(master, **confs):
    builder = SparkSession.builder.master(master)
    for name, value in {CONFS!r}.items():
        builder = builder.config(name, value)
    for name, value in confs.items():
        builder = builder.config(name if "." in name else name.replace("_", "."), value)
    return builder.getOrCreate()
"""


def script(path: Path, code: str) -> Path:
    """A job as a file; it has `session(master, **confs)`, underscores standing for dots."""
    path.write_text(PRELUDE + textwrap.dedent(code))
    return path


def environment(**more: str) -> dict[str, str]:
    """For a job that starts a new Spark, whatever this process is a client of."""
    return {**{name: value for name, value in os.environ.items() if name != CONNECT_MODE}, **more}


def run_job(path: Path, *arguments: str, env: dict[str, str] | None = None, timeout: float = 600) -> str:
    """Standard output of a job that must succeed."""
    return finished_job(path, *arguments, env=env, timeout=timeout).stdout


def finished_job(
    path: Path, *arguments: str, env: dict[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """A job that must succeed, with what it printed and what it logged."""
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    return done
