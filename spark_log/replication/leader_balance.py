"""Makes preferred replicas the leaders again, some time after they have returned."""

from __future__ import annotations

from spark_log.configs.settings import cluster_config
from spark_log.errors import SparkLogError
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.replicas.leader_election import imbalanced_groups
from spark_log.metadata.replicas.replica_commands import ElectLeader


class LeaderBalance:
    """Checks of one log, every `leader.imbalance.check.interval.seconds`.  Several processes may check."""

    def __init__(self, journal: Journal, *, waits: bool = True) -> None:
        """waits:  the first check is one interval after the start, because a process that runs once has no other."""
        self._journal, self._clock = journal, journal.context.clock
        self._checked_ms = self._clock.monotonic_ms() if waits else None

    def round(self) -> tuple[int, ...]:
        """Elect preferred leaders if a check is due.  Returns the placement groups whose leader has changed.

        Uses the newest state in this process.  An election that comes too late is left out.
        """
        state, now_ms = self._journal.state, self._clock.monotonic_ms()
        every_ms = cluster_config(state.configs, "leader.imbalance.check.interval.seconds") * 1000
        if self._checked_ms is not None and now_ms - self._checked_ms < every_ms:
            return ()
        self._checked_ms = now_ms
        if not cluster_config(state.configs, "auto.leader.rebalance.enable"):
            return ()
        most = cluster_config(state.configs, "leader.imbalance.per.broker.percentage")
        return tuple(number for number, leader in imbalanced_groups(state, most) if self._elect(number, leader))

    def _elect(self, number: int, leader: int) -> bool:
        try:
            return bool(self._journal.propose(ElectLeader(group=number, leader=leader)))
        except SparkLogError as error:
            logger.warning("broker %d does not lead its partitions again: %s", leader, error)
            return False
