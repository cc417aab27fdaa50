"""Automatic commits of a consumer's positions: at an interval, and before it gives partitions up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spark_log.client.consumer.membership import Membership
from spark_log.errors import IllegalGeneration, SparkLogError
from spark_log.log_lines import logger
from spark_log.metadata.records import OffsetEntry
from spark_log.runtime.clock import Clock

REMOVED = "this consumer was removed from the group; poll() rejoins, and records may be read twice"


class AutoCommit:
    """Commits for one consumer.  Without a group or without `enable_auto_commit`, it is never due."""

    def __init__(self, membership: Membership | None, settings: Mapping[str, Any], clock: Clock) -> None:
        self.enabled: bool = settings["enable_auto_commit"]
        self._membership = membership
        self._interval_ms: int = settings["auto_commit_interval_ms"]
        self._clock = clock
        self._committed_ms = clock.monotonic_ms()

    def until_due_ms(self) -> float:
        """Time until the next commit; infinite if it is never due."""
        if self._membership is None or not self.enabled:
            return math.inf
        return float(max(1, self._committed_ms + self._interval_ms - self._clock.monotonic_ms()))

    def is_due(self, force: bool) -> bool:
        """Whether the interval has passed, or does not count."""
        if self._membership is None or not self.enabled:
            return False
        return force or self._clock.monotonic_ms() - self._committed_ms >= self._interval_ms

    def commit(self, positions: Sequence[OffsetEntry]) -> IllegalGeneration | None:
        """Commit.  Errors are logged, except IllegalGeneration without a coordinator, which is returned: another
        consumer has taken over the group."""
        membership = self._membership
        assert membership is not None, "is_due was false"
        self._committed_ms = self._clock.monotonic_ms()
        try:
            membership.commit(positions)
        except IllegalGeneration as error:
            if membership.alone:
                return error
            logger.warning("auto-commit of group %s failed: %s", membership.group, REMOVED)
        except SparkLogError as error:
            logger.warning("auto-commit of group %s failed: %s", membership.group, error)
        return None
