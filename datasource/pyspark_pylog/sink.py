"""`spark_log.sink(URL, topic=…)`: each micro-batch of a `foreachBatch` appended exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def sink(url: str, *, topic: str | None = None, name: str = "sink", **options: Any) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.foreachBatch`, the way to write streaming aggregates (`outputMode("update")`).

    name:     tells apart several sinks of one query that write the same topic.
    options:  of a batch write, e.g. `partitioner`, `compression`, or `**{"storage.key": …}`.

    A batch that Spark runs again after a crash adds nothing: the write's identity is (query id, name, batch id, topics).
    """

    def append(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("pylog").mode("append")
        writer = writer.option("txnAppId", name).option("txnVersion", batch_id).option("pylog.txnFromQuery", True)
        if topic is not None:
            writer = writer.option("topic", topic)
        writer.options(**options).save(url)

    return append
