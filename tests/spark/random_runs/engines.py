"""Two ways to run the same operations: real Spark, and the calls that Spark makes, in its order, without a JVM.

The second is a hundred times as fast, so it runs thousands of seeds; the first shows that Spark calls so.
"""

from __future__ import annotations

import json
import os
import pickle
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark_pylog import DefaultSource
from pyspark_pylog.plain_errors import HIDE
from pyspark_pylog.sink.writer import stream_writer

from tests.spark.builders import DEADLINE_S
from tests.spark.driver import Frame, read_task
from tests.spark.random_runs.model import Record, Row

READ_SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())]
)
COPY_SCHEMA = from_arrow_schema(pa.schema([("key", pa.string()), ("value", pa.binary())]))

Options = Mapping[str, str]


class Kept(Protocol):
    """A frame that was loaded, to be read any number of times."""

    def rows(self) -> list[Row]: ...


class Engine(Protocol):
    """The parts of Spark that operations need."""

    def copy(self, url: str, checkpoint: Path, read: Options, write: Options) -> None:
        """An available-now run of a stream from the log into the log; keys say topic and partition."""

    def load(self, url: str, read: Options) -> Kept: ...

    def append(self, url: str, records: Sequence[tuple[int, Record]], write: Options) -> None:
        """A batch write of records, each into its partition."""


class SparkEngine:
    """Real Spark."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def copy(self, url: str, checkpoint: Path, read: Options, write: Options) -> None:
        stream = self._session.readStream.format("pylog").options(**read).load(url)
        frame = stream.selectExpr("topic || '-' || partition as key", "value")
        writer = frame.writeStream.format("pylog").options(**write).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start(url)
        try:
            query.awaitTermination(DEADLINE_S)
        finally:
            query.stop()

    def load(self, url: str, read: Options) -> Kept:
        return SparkFrame(self._session.read.format("pylog").options(**read).load(url))

    def append(self, url: str, records: Sequence[tuple[int, Record]], write: Options) -> None:
        rows = [(number, record.value) for number, record in records]
        frame = self._session.createDataFrame(rows, "partition int, value string").coalesce(1)
        frame.write.format("pylog").mode("append").options(**write).save(url)


class SparkFrame:
    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self._frame.rdd.getNumPartitions()  # plans it

    def rows(self) -> list[Row]:
        found = self._frame.selectExpr("topic", "partition", "offset", "string(value) as value").collect()
        return sorted(Row(*row) for row in found)


class CallsEngine:
    """Spark's calls.  Each run of a query is a new driver over its checkpoint, as `MicroBatchExecution` has it."""

    def copy(self, url: str, checkpoint: Path, read: Options, write: Options) -> None:
        try:
            Execution(url, checkpoint, read, write).run()
        finally:
            os.environ.pop(HIDE, None)

    def load(self, url: str, read: Options) -> Kept:
        return CallsFrame(url, read)

    def append(self, url: str, records: Sequence[tuple[int, Record]], write: Options) -> None:
        batch = pa.record_batch(
            {
                "partition": pa.array([number for number, _ in records], pa.int32()),
                "value": [record.value for _, record in records],
            }
        )
        texts = {"path": url, **{name.lower(): value for name, value in write.items()}}
        writer: Any = DefaultSource(texts).writer(from_arrow_schema(batch.schema), overwrite=False)
        message = pickle.loads(pickle.dumps(writer)).write(iter([batch]))
        writer.commit(pickle.loads(pickle.dumps([message])))


class CallsFrame:
    def __init__(self, url: str, read: Options) -> None:
        self._frame = Frame(url, None, schema=READ_SCHEMA, **read)

    def rows(self) -> list[Row]:
        frame, query = self._frame, uuid.uuid4().hex
        reader = pickle.loads(pickle.dumps(frame.reader))
        batches = [batch for task in frame.tasks for batch in read_task(reader, task, query, frame.store)]
        return sorted(
            Row(row["topic"], row["partition"], row["offset"], row["value"].decode())
            for batch in batches
            for row in batch.to_pylist()
        )


class Execution:
    """One available-now run."""

    def __init__(self, url: str, checkpoint: Path, read: Options, write: Options) -> None:
        self._checkpoint = checkpoint
        self._write = {"path": url, "checkpointlocation": str(checkpoint)} | {k.lower(): v for k, v in write.items()}
        for kind in ("offsets", "commits"):
            (checkpoint / kind).mkdir(parents=True, exist_ok=True)
        self._query = self._query_id()
        options = {"path": url, **{name.lower(): value for name, value in read.items()}}
        self._reader: Any = DefaultSource(options).streamReader(from_arrow_schema(READ_SCHEMA))

    def _query_id(self) -> str:
        path = self._checkpoint / "metadata"
        if not path.exists():
            path.write_text(json.dumps({"id": str(uuid.uuid4())}))
        return str(json.loads(path.read_text())["id"])

    def run(self) -> None:
        """Raises what ends the query."""
        self._reader.prepareForTriggerAvailableNow()
        limit = self._reader.getDefaultReadLimit()
        number, committed, available, constructed = self._stand()
        while True:
            if not constructed:
                start = committed if committed is not None else self._reader.initialOffset()
                available = _kept(self._reader.latestOffset(start, limit))
                if available == committed:
                    break
                self._plan(number, available)
                if committed is not None:
                    self._reader.commit(committed)
            start = committed if committed is not None else _kept(self._reader.initialOffset())
            self._run_batch(number, start, available)
            number, committed, constructed = number + 1, available, False
        self._reader.stop()

    def _stand(self) -> tuple[int, Any, Any, bool]:
        """The next batch, where it begins, the end of the last planned one, and whether that one is run first."""
        latest = max((int(path.name) for path in (self._checkpoint / "offsets").glob("[0-9]*")), default=None)
        if latest is None:
            return 0, None, None, False
        available = self._offset(latest)
        if latest == max((int(path.name) for path in (self._checkpoint / "commits").glob("[0-9]*")), default=None):
            return latest + 1, available, available, False
        return latest, (self._offset(latest - 1) if latest else None), available, True

    def _offset(self, number: int) -> Any:
        return json.loads((self._checkpoint / "offsets" / str(number)).read_text().splitlines()[2])

    def _plan(self, number: int, end: Any) -> None:
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": uuid.uuid4().int % 10**13})
        _put_new(self._checkpoint / "offsets" / str(number), f"v1\n{head}\n{json.dumps(end)}")

    def _run_batch(self, number: int, start: Any, end: Any) -> None:
        writer: Any = stream_writer(self._write, COPY_SCHEMA, overwrite=False)
        tasks = pickle.loads(pickle.dumps(list(self._reader.partitions(start, end))))
        messages = [self._task(writer, task, number) for task in tasks]
        writer.commit(pickle.loads(pickle.dumps(messages)), number)
        _put_new(self._checkpoint / "commits" / str(number), "v1\n{}")

    def _task(self, writer: Any, task: Any, number: int) -> Any:
        reader = pickle.loads(pickle.dumps(self._reader))
        rows = (_copied(batch) for batch in reader.read(task))
        written = pickle.loads(pickle.dumps(writer)).write(rows)
        return replace(written, query_id=self._query, batch_id=number)


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    number = pc.cast(batch.column("partition"), pa.string())
    key = pc.binary_join_element_wise(batch.column("topic"), number, "-")
    return pa.record_batch({"key": key, "value": batch.column("value")})


def _put_new(path: Path, text: str) -> None:
    """As Spark's log of a checkpoint does it: a file that exists is another run's."""
    if path.exists():
        raise RuntimeError(f"CONCURRENT_STREAM_LOG_UPDATE: {path.parent.name} has batch {path.name} already")
    path.write_text(text)


def _kept(offset: dict[str, Any]) -> Any:
    return json.loads(json.dumps(offset))
