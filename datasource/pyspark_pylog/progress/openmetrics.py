"""Metrics of StreamingQueryListener events as OpenMetrics text.  Pure.

Everything comes from progress events: the positions of pylog's sources and the ends of the log are the offsets that
they report.  All metrics are gauges, so that the text is also valid in Prometheus' older format, which some collectors
expect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark_pylog.progress.offset_format import TOPICS, Offset, parse_offset
from spark_log.model import TopicPartition
from spark_log.positions import parse_timestamp_ms
from spark_log.text import label_value

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMetrics:
    """One source of a query, in one batch."""

    input_rows_per_second: float
    processed_rows_per_second: float
    position: Offset | None = None
    """End of the batch; None for a source that is not pylog's."""
    latest: Offset | None = None
    """End of the log when the batch was planned; None before Spark 4.2, which does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetrics:
    """The last batch of a query."""

    id: int
    began_ms: int
    duration_ms: int
    output_rows: int
    """-1 if the sink does not report it."""
    sources: Sequence[SourceMetrics]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMetrics:
    """A query, from its events."""

    id: str
    run_id: str
    name: str
    seen_ms: int
    """Time of the last event."""
    active: bool = True
    failed: bool = False
    batch: BatchMetrics | None = None


class Sample(NamedTuple):
    """One value of a metric."""

    metric: str
    labels: Labels
    value: float


class Metric(NamedTuple):
    """Unit and description of a metric."""

    unit: str
    help: str


PREFIX = "pylog_stream_"
METRICS = {
    "active": Metric("", "Whether the query runs."),
    "failed": Metric("", "Whether the query ended with an error."),
    "last_seen_timestamp_seconds": Metric("seconds", "Time of the last event: a batch, or a check without new data."),
    "last_progress_timestamp_seconds": Metric("seconds", "Time at which the last batch was done."),
    "last_batch_id": Metric("", "Number of the last batch."),
    "batch_duration_seconds": Metric("seconds", "How long the last batch took."),
    "input_rows_per_second": Metric("", "Rows that arrived per second, by source."),
    "processed_rows_per_second": Metric("", "Rows that the last batch read per second, by source."),
    "output_rows_per_second": Metric("", "Rows that the last batch wrote per second, where the sink counts them."),
    "position_offset": Metric("", "The next record that the query will read."),
    "end_offset": Metric("", "The end of the partition when the last batch was planned."),
    "lag_records": Metric("records", "Records between the two."),
}


def parse_batch(progress: Mapping[str, Any]) -> BatchMetrics:
    """Parse the batch in a progress event, given as JSON."""
    sink, sources = progress["sink"], progress["sources"]
    return BatchMetrics(
        id=progress["batchId"],
        began_ms=parse_timestamp_ms(progress["timestamp"], "timestamp of a progress event"),
        duration_ms=progress["batchDuration"],
        output_rows=sink.get("numOutputRows", -1),
        sources=[_parse_source(source) for source in sources],
    )


def _parse_source(source: Mapping[str, Any]) -> SourceMetrics:
    """Spark leaves out rates that are not numbers, e.g. after a batch that took no time."""
    return SourceMetrics(
        input_rows_per_second=source.get("inputRowsPerSecond", math.nan),
        processed_rows_per_second=source.get("processedRowsPerSecond", math.nan),
        position=_parse_offset(source.get("endOffset")),
        latest=_parse_offset(source.get("latestOffset")),
    )


def _parse_offset(found: object) -> Offset | None:
    """Parse an offset of a pylog source; None for another one."""
    return parse_offset(found) if isinstance(found, dict) and TOPICS in found else None


def openmetrics(queries: Iterable[QueryMetrics]) -> str:
    """All queries as one OpenMetrics exposition."""
    by_metric: dict[str, list[Sample]] = {name: [] for name in METRICS}
    for query in queries:
        for sample in _samples(query):
            by_metric[sample.metric].append(sample)
    lines = [line for name, samples in by_metric.items() for line in _family(name, samples)]
    return "\n".join([*lines, "# EOF", ""])


def _family(name: str, samples: Iterable[Sample]) -> Iterator[str]:
    finite = [sample for sample in samples if math.isfinite(sample.value)]
    if not finite:
        return
    unit, text = METRICS[name]
    yield f"# TYPE {PREFIX}{name} gauge"
    if unit:
        yield f"# UNIT {PREFIX}{name} {unit}"
    yield f"# HELP {PREFIX}{name} {text}"
    for sample in finite:
        labels = ",".join(f'{label}="{label_value(value)}"' for label, value in sample.labels.items())
        yield f"{PREFIX}{name}{{{labels}}} {sample.value}"


def _samples(query: QueryMetrics) -> Iterator[Sample]:
    labels = {"query": query.name, "id": query.id}
    yield Sample("active", labels, int(query.active))
    yield Sample("failed", labels, int(query.failed))
    yield Sample("last_seen_timestamp_seconds", labels, query.seen_ms / 1000)
    batch = query.batch
    if batch is None:
        return
    yield Sample("last_progress_timestamp_seconds", labels, (batch.began_ms + batch.duration_ms) / 1000)
    yield Sample("last_batch_id", labels, batch.id)
    if query.active:  # an ended query has no rates
        yield from _rates(batch, labels)
    for number, source in enumerate(batch.sources):
        if source.position is not None:
            yield from _positions(source.position, source.latest, {**labels, "source": str(number)})


def _rates(batch: BatchMetrics, labels: Labels) -> Iterator[Sample]:
    yield Sample("batch_duration_seconds", labels, batch.duration_ms / 1000)
    if batch.output_rows >= 0 and batch.duration_ms > 0:
        yield Sample("output_rows_per_second", labels, round(batch.output_rows * 1000 / batch.duration_ms, 3))
    for number, source in enumerate(batch.sources):
        of_source = {**labels, "source": str(number)}
        yield Sample("input_rows_per_second", of_source, source.input_rows_per_second)
        yield Sample("processed_rows_per_second", of_source, source.processed_rows_per_second)


def _positions(position: Offset, latest: Offset | None, labels: Labels) -> Iterator[Sample]:
    for tp, at in sorted(position.ends.items()):
        yield Sample("position_offset", _of_partition(labels, tp), at)
    for tp, end in sorted(latest.ends.items()) if latest is not None else ():
        yield Sample("end_offset", _of_partition(labels, tp), end)
        yield Sample("lag_records", _of_partition(labels, tp), max(0, end - _read(position, latest, tp)))


def _read(position: Offset, latest: Offset | None, tp: TopicPartition) -> int:
    """How far a partition was read; None if it is new, or its topic was created again since."""
    known = latest is not None and position.same_topic(tp.topic, latest.ids.get(tp.topic))
    return position.ends.get(tp, 0) if known else 0


def _of_partition(labels: Labels, tp: TopicPartition) -> Labels:
    return {**labels, "topic": tp.topic, "partition": str(tp.partition)}
