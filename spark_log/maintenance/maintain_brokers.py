"""The duties of `pylog maintain` for brokers: it checks their roots, and copies what they lack."""

from __future__ import annotations

from dataclasses import dataclass

from spark_log.client.log import Log
from spark_log.errors import StorageUnavailable
from spark_log.journal.failure_isolation import Failures
from spark_log.replication.broker_prober import Prober, ProbeReport
from spark_log.replication.leader_balance import LeaderBalance
from spark_log.replication.replicator import Replicator

COPY_MS_MAX = 60_000
"""How long a round copies; `pylog replicate` has no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMaintenanceReport:
    """The result of a round."""

    fenced: tuple[str, ...] = ()
    returned: tuple[int, ...] = ()
    copied: int = 0
    copied_bytes: int = 0
    joined: int = 0


class BrokerMaintenance:
    """Rounds of one log.  A log without brokers has nothing to do, and makes no request."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._prober = Prober(log)
        self._replicator = Replicator(log)
        self._balance = LeaderBalance(log.journal, waits=False)

    def round(self, failed: Failures) -> BrokerMaintenanceReport:
        """Failures are reported, and stop nothing."""
        if not self._log.journal.state.brokers:
            return BrokerMaintenanceReport()
        probed = ProbeReport()
        try:
            probed = self._prober.until_sure()
        except Exception as error:  # noqa: BLE001  after any error, the other duties run
            failed("checking the roots of brokers", error)
        copied, size, joined = 0, 0, 0
        clock = self._log.journal.context.clock
        until_ms = clock.monotonic_ms() + COPY_MS_MAX
        try:
            while True:
                report = self._replicator.round(max(0, until_ms - clock.monotonic_ms()))
                copied, size, joined = copied + report.objects, size + report.bytes, joined + len(report.joined)
                if self._replicator.is_done(report) or clock.monotonic_ms() >= until_ms:
                    break
            for problem in report.problems:
                failed("replication", StorageUnavailable(problem))
            self._balance.round()
        except Exception as error:  # noqa: BLE001  after any error, the other duties run
            failed("replication", error)
        return BrokerMaintenanceReport(
            fenced=probed.fenced, returned=probed.returned, copied=copied, copied_bytes=size, joined=joined
        )
