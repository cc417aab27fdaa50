"""The base of streaming reads, which follow a log, also to where it was moved."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader

from pyspark_pylog.log.open_log import journal_of, patiently
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.source.restored import RestoredLog
from pyspark_pylog.spark_compat import SupportsTriggerAvailableNow
from spark_log.client.consumer.poll_interval import PollBackoff
from spark_log.errors import LogMoved
from spark_log.journal.journal import Journal
from spark_log.metadata.state import State
from spark_log.runtime.clock import Clock, SystemClock

LONG_POLL_MS = 200
"""Maximum wait of Spark for an answer; then it asks again."""
LOOKS_SHARE = 0.02
"""Share of the time since the last record until the next poll: records are late by 1 % of it, on average."""


class FollowingReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """A streaming read, with its journal.  Pickled without it: tasks do not use it."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, clock: Clock | None = None) -> None:
        self.options = options
        self.schema = schema
        self.clock = clock or SystemClock()
        self._journal: Journal | None = None
        self._restored = RestoredLog(options.location.url, fail=options.fail_on_data_loss)
        self._initial: dict[str, Any] | None = None
        self._known: dict[str, Any] | None = None
        """The last planned offset, because Spark 4.0 and 4.1 do not report it."""
        self._latest: dict[str, Any] | None = None

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        return self._latest

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_journal": None}

    @property
    def journal(self) -> Journal:
        if self._journal is None:
            self._journal = journal_of(self.options.location)
        return self._journal

    @cached_property
    def backoff(self) -> PollBackoff:
        return PollBackoff(self.clock, local=self.journal.metadata.local, most_ms=LONG_POLL_MS, share=LOOKS_SHARE)

    def _followed(self, look: Callable[[], State]) -> State:
        """Read from the log, wherever it was moved to meanwhile."""
        try:
            return patiently(look, self.options, self.clock)
        except LogMoved:
            self._journal = None
            return patiently(look, self.options, self.clock)

    def _refreshed(self) -> State:
        return self._followed(lambda: self.journal.refresh())
