"""The duties of a coordinator that leads: maintenance, and the roots of brokers, beside the commits.

They use the log like any other client: through the coordinator, which is in the same process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from spark_log.client.log import Log
from spark_log.errors import SparkLogError
from spark_log.log_lines import logger
from spark_log.maintenance.maintain import Maintainer
from spark_log.maintenance.maintain_report import MaintainReport
from spark_log.maintenance.replicate import keep_brokers
from spark_log.monitoring.coordinator_metrics import Metrics
from spark_log.runtime.clock import Clock
from spark_log.runtime.threads import SYSTEM_THREADS, Threads
from spark_log.server.service import Service

LOOK_S = 1.0
"""How often maintenance looks whether it is due."""


class Duties:
    """The duties of one coordinator."""

    def __init__(
        self,
        coordinator: Service,
        open_log: Callable[[], Log],
        metrics: Metrics,
        clock: Clock,
        maintain_ms: int | None,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        """
        open_log:     opens the log through the coordinator.
        maintain_ms:  interval of `pylog maintain`; None: never.
        """
        self._coordinator = coordinator
        self._open_log = open_log
        self._metrics = metrics
        self._clock = clock
        self._maintain_ms = maintain_ms
        self._threads = threads
        self.last: tuple[int, MaintainReport] | None = None
        """When this process last ran `pylog maintain`, in milliseconds since 1970, and the result."""

    def begin(self) -> threading.Event:
        """Run them in threads, until the event is set: they end at their next command, which is rejected."""
        stop = threading.Event()
        self._threads.start(partial(self._keep, stop), "pylog-maintenance")
        self._threads.start(partial(self._keep_brokers, stop), "pylog-brokers")
        return stop

    def _keep_brokers(self, stop: threading.Event) -> None:
        """Check the roots of brokers, and copy to them."""
        coordinator = self._coordinator
        keep_brokers(self._open_log, lambda: bool(coordinator.state.brokers), stop, self._metrics.replicas.note_report)

    def _keep(self, stop: threading.Event) -> None:
        """Seal and expire as soon as it is due, and maintain the log at its interval."""
        url, due = self._coordinator.storage, None
        if self._maintain_ms is not None:
            due = self._clock.monotonic_ms() + self._maintain_ms
        maintainer: Maintainer | None = None
        while not stop.wait(LOOK_S):
            try:
                if maintainer is None:
                    maintainer = Maintainer(self._open_log())
                maintainer.log.journal.run_maintenance()
                if due is not None and self._clock.monotonic_ms() >= due:
                    due = self._clock.monotonic_ms() + (self._maintain_ms or 0)
                    self._maintain(maintainer)
            except SparkLogError as error:
                if not stop.is_set():
                    logger.warning("maintenance of %s failed, retrying in its next run: %s", url, error)
            except Exception:
                logger.exception("maintenance of %s failed, restarting it", url)
                maintainer = None

    def _maintain(self, maintainer: Maintainer) -> None:
        report = maintainer.round()
        self.last = self._clock.now_ms(), report
        self._metrics.retention.note(report.expired_topics, self._clock.now_ms())
        self._metrics.compaction.note(report)
        logger.info("maintenance ended: %s", report)
        journal = maintainer.log.journal
        self._metrics.checkpoint_lag = max(0, report.version - journal.run(journal.metadata_log.status()).checkpoint)
