"""A coordinator's metrics, in Prometheus's text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from spark_log.http.connection_limits import Connections
from spark_log.maintenance.maintain_report import MaintainReport
from spark_log.maintenance.retention import ExpiredTopic
from spark_log.metadata.state import State
from spark_log.monitoring.log_metrics import TopicMetrics, many_lines, one_line
from spark_log.monitoring.quota_usage import Usage
from spark_log.monitoring.replica_metrics import ReplicaMetrics

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

PRINCIPALS = {
    "topics": "Topics that a token has access to.",
    "partitions": "Their partitions.",
    "groups": "Groups that a token has access to.",
    "connections": "Open connections that have sent a complete request with a token.",
    "commits": "Changes requested with a token, without heartbeats.",
    "refused": "Changes and connections rejected because of a quota.",
}
COUNTED = ("commits", "refused")
RETENTION = (
    ("pylog_topic_expired_records_total", "Records of a topic that retention removed.", "counter"),
    ("pylog_topic_expired_bytes_total", "Size of the removed segments.", "counter"),
    ("pylog_topic_expired_timestamp_seconds", "When retention last removed records of a topic.", "gauge"),
)
"""Names, meanings and types."""
COMPACTION = (
    ("pylog_compaction_passes_total", "Passes of compaction over partitions that have ended."),
    ("pylog_compaction_removed_records_total", "Records that compaction removed."),
    ("pylog_compaction_removed_bytes_total", "By how much compaction made segments smaller."),
)


class Latencies:
    """A histogram of durations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        with self._lock:
            self.counts[bisect_left(BOUNDS_S, seconds)] += 1
            self.seconds += seconds

    def lines(self, name: str, text: str) -> Iterator[str]:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} histogram"
        with self._lock:
            counts, seconds = list(self.counts), self.seconds
        total = 0
        for bound, count in zip(BOUNDS_S, counts, strict=False):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f'{name}_bucket{{le="+Inf"}} {sum(counts)}'
        yield f"{name}_sum {seconds}"
        yield f"{name}_count {sum(counts)}"


class RetentionMetrics:
    """Records that retention has removed, in the maintenance of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._removed: dict[str, tuple[int, int, int]] = {}
        """By topic: records, bytes, and when it removed the last of them, in seconds since 1970."""
        self._ended_s = 0

    def note(self, topics: Iterable[ExpiredTopic], now_ms: int) -> None:
        """A round of maintenance has ended."""
        with self._lock:
            self._ended_s = now_ms // 1000
            for one in topics:
                records, size, _ = self._removed.get(one.topic, (0, 0, 0))
                self._removed[one.topic] = records + one.records, size + one.bytes, self._ended_s

    def lines(self, state: State) -> Iterator[str]:
        """The lines of the topics that exist."""
        with self._lock:
            self._removed = {name: row for name, row in self._removed.items() if name in state.names}
            removed, ended_s = {(name,): row for name, row in self._removed.items()}, self._ended_s
        yield from one_line(
            "pylog_maintenance_timestamp_seconds", "gauge", "When a round of maintenance last ended.", ended_s
        )
        for column, (name, text, kind) in enumerate(RETENTION):
            yield from many_lines(name, text, ("topic",), {key: row[column] for key, row in removed.items()}, kind)


class CompactionMetrics:
    """Passes of compaction, in the maintenance of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes = self._records = self._bytes = self._uncleanable = self._set_aside = self._second_logs = 0
        self._ratios: dict[str, float] = {}
        """By topic, as of the last round that looked."""

    def note(self, report: MaintainReport) -> None:
        """A round of maintenance has ended."""
        with self._lock:
            self._passes += report.cleaned_partitions
            self._records += report.removed_records
            self._bytes += max(0, report.removed_bytes)  # a counter: small segments may grow
            self._uncleanable, self._set_aside = len(report.uncleanable), len(report.set_aside)
            self._second_logs = len(report.second_logs)
            self._ratios |= report.dirty_ratios

    @property
    def set_aside(self) -> int:
        """Objects, as of the last round."""
        return self._set_aside

    def lines(self, state: State) -> Iterator[str]:
        """The lines of the topics that exist."""
        with self._lock:
            self._ratios = {name: ratio for name, ratio in self._ratios.items() if name in state.names}
            ratios: dict[tuple[str, ...], float] = {(name,): round(ratio, 4) for name, ratio in self._ratios.items()}
            sums = self._passes, self._records, self._bytes
            uncleanable, set_aside, second_logs = self._uncleanable, self._set_aside, self._second_logs
        for (name, text), total in zip(COMPACTION, sums, strict=True):
            yield from one_line(name, "counter", text, total)
        text = "Partitions of which compaction leaves out records that it failed to read."
        yield from one_line("pylog_uncleanable_partitions", "gauge", text, uncleanable)
        text = "Objects that maintenance has set aside since it failed to read them."
        yield from one_line("pylog_set_aside_objects", "gauge", text, set_aside)
        text = "Other logs at URLs from which this one was moved: clients that still use such a URL write to them."
        yield from one_line("pylog_second_logs", "gauge", text, second_logs)
        text = "Highest share of a partition of a compacted topic that is not compacted and may be."
        yield from many_lines("pylog_topic_dirty_ratio", text, ("topic",), ratios, "gauge")
        text = "When a pass of compaction last ended in a topic."
        yield from many_lines("pylog_topic_cleaned_timestamp_seconds", text, ("topic",), _cleaned_s(state), "gauge")


def _cleaned_s(state: State) -> dict[tuple[str, ...], float]:
    """By topic, the time of the newest pass in any partition."""
    found: dict[tuple[str, ...], float] = {}
    for (topic_id, _), part in sorted(state.cleaned.items()):
        name = (state.topics[topic_id].name,)
        found[name] = max(part.horizons[-1][1] // 1000, found.get(name, 0))
    return found


class Metrics:
    """The metrics of one coordinator."""

    def __init__(self) -> None:
        self.commits = Latencies()
        """Commits that wrote a record: others are faster, and would hide a slow storage."""
        self.commands = 0
        self.checkpoint_lag = 0
        """Versions since the newest checkpoint, at the end of the last round of maintenance."""
        self.topics = TopicMetrics()
        self.retention = RetentionMetrics()
        self.compaction = CompactionMetrics()
        self.replicas = ReplicaMetrics()

    def text(
        self,
        state: State,
        *,
        epoch: int,
        polls: int,
        connections: Connections,
        usage: Sequence[Usage],
        storage_age_s: float,
    ) -> str:
        """All metrics in the text format."""
        lines: list[str] = []
        lines += self.commits.lines("pylog_commit_seconds", "Time to write one record of the metadata log.")
        lines += one_line("pylog_commands_total", "counter", "Commands that were applied or rejected.", self.commands)
        lines += one_line("pylog_leading", "gauge", "1 while this coordinator has the log.", int(epoch > 0))
        lines += one_line("pylog_epoch", "gauge", "Epoch of the coordinator that has the log.", state.coordinator.epoch)
        text = "Versions since the newest checkpoint, at the end of the last round of maintenance."
        lines += one_line("pylog_checkpoint_lag_versions", "gauge", text, self.checkpoint_lag)
        text = "Seconds since a write to the storage was last completed and read back."
        lines += one_line("pylog_storage_write_age_seconds", "gauge", text, storage_age_s)
        lines += one_line("pylog_long_polls", "gauge", "Requests that wait for a change.", polls)
        lines += one_line("pylog_connections", "gauge", "Open connections.", len(connections))
        text = "Open connections that have not sent a complete request with a valid token."
        lines += one_line("pylog_silent_connections", "gauge", text, connections.silent)
        lines += log_lines(state, self.topics)
        lines += self.retention.lines(state)
        lines += self.compaction.lines(state)
        lines += self.replicas.lines(state)
        for kind, text in PRINCIPALS.items():
            rows: dict[tuple[str, ...], float] = {(one.principal,): getattr(one, kind) for one in usage}
            counter = kind in COUNTED
            name = f"pylog_principal_{kind}_total" if counter else f"pylog_principal_{kind}"
            lines += many_lines(name, text, ("principal",), rows, "counter" if counter else "gauge")
        return "\n".join(lines) + "\n"


def log_lines(state: State, topics: TopicMetrics) -> list[str]:
    """The lines of what a log holds, which are the same in every process."""
    records = topics.lines(state)
    return [
        *one_line("pylog_version", "gauge", "Newest version of the metadata log.", state.version),
        *one_line("pylog_topics", "gauge", "Topics.", len(state.names)),
        *one_line("pylog_objects", "gauge", "Live objects.", len(state.objects)),
        *one_line("pylog_objects_bytes", "gauge", "Their size.", topics.objects_bytes),
        *records,
    ]
