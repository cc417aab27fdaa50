"""Metrics of a log in a process that is not its coordinator, in Prometheus's text format."""

from __future__ import annotations

from spark_log.client.log import Log
from spark_log.maintenance.maintain_report import MaintainReport
from spark_log.monitoring.coordinator_metrics import CompactionMetrics, RetentionMetrics, log_lines
from spark_log.monitoring.log_metrics import GroupMetrics, TopicMetrics
from spark_log.monitoring.replica_metrics import replica_lines


class EmbeddedMetrics:
    """Metrics of the log, of the lag of its groups, and, if it `maintains`, of the maintenance of this process.

    Thread-safe.
    """

    def __init__(self, log: Log, *, maintains: bool = False) -> None:
        self._log = log
        self._maintains = maintains
        self._topics = TopicMetrics()
        self._groups = GroupMetrics()
        self._retention = RetentionMetrics()
        self._compaction = CompactionMetrics()

    def note(self, report: MaintainReport) -> None:
        """A round of maintenance has ended in this process."""
        self._retention.note(report.expired_topics, self._log.journal.context.clock.now_ms())
        self._compaction.note(report)

    def text(self) -> str:
        """All metrics, of the newest state: reads the metadata log to its end.  Raises SparkLogError."""
        state = self._log.journal.refresh()
        lines = [*log_lines(state, self._topics), *replica_lines(state)]
        if self._maintains:
            lines += [*self._retention.lines(state), *self._compaction.lines(state)]
        return "\n".join(lines) + "\n" + self._groups.text(state, {}, None)
