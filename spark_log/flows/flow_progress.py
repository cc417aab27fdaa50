"""The progress of a flow, and its text in Prometheus's format.  Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spark_log.text import label_value

PREFIX = "pylog_flow_"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowProgress:
    """How far a flow is.  Numbers are of this process, except the lag."""

    state: str
    """`running`, `stopped` or `failed`."""
    records_in: int
    """Records whose effect is committed."""
    records_out: int
    """Records that were committed to targets, to the topic of the state, and to the dead-letter topic."""
    bad_records: int
    """Records at which the function failed, and that were skipped or kept as dead letters."""
    batches: int
    restarts: int
    """How often a task has joined the group again after an error."""
    error: str
    """The error that ended the flow, that keeps the log from being read now, or after which a task has continued last;
    empty: none."""
    lag: int
    """Records of the sources that no process of the flow has committed yet.  While the log cannot be read: by what this
    process knows of it."""
    lookup_records: int
    """Records in the tables of lookups, of all tasks."""
    state_keys: int
    """Keys with a state in the partitions of all tasks."""
    batch_ms_p50: float
    """Half of the last batches took at most this long: function, upload and commit.  NaN: there was none."""
    batch_ms_p99: float


class FlowMetric(NamedTuple):
    """A metric, by its name behind the prefix."""

    name: str
    kind: str
    help: str
    values: Mapping[str, float]
    """By further labels, as text."""


def flow_metrics(name: str, found: FlowProgress) -> str:
    """The metrics of a flow in this process, by its progress."""
    return "\n".join(line for metric in _metrics(found) for line in _lines(metric, name)) + "\n"


def _metrics(found: FlowProgress) -> Iterator[FlowMetric]:
    yield FlowMetric("running", "gauge", "Whether the flow runs.", {"": found.state == "running"})
    yield FlowMetric("records_in_total", "counter", "Records whose effect is committed.", {"": found.records_in})
    yield FlowMetric("records_out_total", "counter", "Records that were committed to targets.", {"": found.records_out})
    yield FlowMetric("bad_records_total", "counter", "Records at which the function failed.", {"": found.bad_records})
    yield FlowMetric("batches_total", "counter", "Batches that were committed.", {"": found.batches})
    yield FlowMetric("restarts_total", "counter", "How often a task has begun again.", {"": found.restarts})
    yield FlowMetric("lag_records", "gauge", "Records that no process of the flow has committed.", {"": found.lag})
    yield FlowMetric("lookup_records", "gauge", "Records in the tables of lookups.", {"": found.lookup_records})
    yield FlowMetric(
        "state_keys", "gauge", "Keys with a state in the partitions of this process.", {"": found.state_keys}
    )
    times = {',quantile="0.5"': found.batch_ms_p50 / 1000, ',quantile="0.99"': found.batch_ms_p99 / 1000}
    yield FlowMetric("batch_seconds", "gauge", "How long the last batches took.", times)


def _lines(metric: FlowMetric, flow: str) -> Iterator[str]:
    known = {labels: value for labels, value in metric.values.items() if math.isfinite(value)}
    if known:
        yield f"# HELP {PREFIX}{metric.name} {metric.help}"
        yield f"# TYPE {PREFIX}{metric.name} {metric.kind}"
    for labels, value in known.items():
        yield f'{PREFIX}{metric.name}{{flow="{label_value(flow)}"{labels}}} {value if isinstance(value, float) else int(value)}'
