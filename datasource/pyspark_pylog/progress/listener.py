"""`spark_log.metrics_listener(PATH)`: lag and rates of an application's queries in one file, for a textfile collector.

The file is replaced atomically after each event, so that a reader sees all metrics of one moment.  A query that ended
stays in it, marked, with its last values, so that the end of an available-now run is visible; the same query started
again replaces it.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_pylog.progress.openmetrics import QueryMetrics, openmetrics, parse_batch
from spark_log.errors import InvalidRequest
from spark_log.log_lines import logger
from spark_log.runtime.clock import Clock, SystemClock
from spark_log.text import type_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

ENDED_MAX = 100
"""How many ended queries are kept, the latest ones."""


class MetricsListener(StreamingQueryListener):
    """Writes metrics of its events to a file in OpenMetrics format (`openmetrics.py`)."""

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InvalidRequest(f"metrics_listener: expected the path of a file to write, got {type_of(path)}")
        path = os.fspath(path)
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise InvalidRequest(
                f"metrics_listener: {path!r} is to be a local file, and {folder} is not a folder; make it"
            )
        self.path = path
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._queries: dict[str, QueryMetrics] = {}
        """By id; ended ones in the order of their end."""
        self._failing = False

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's name
        with self._lock:
            query_id = str(event.id)
            self._queries[query_id] = QueryMetrics(
                id=query_id, run_id=str(event.runId), name=event.name or "", seen_ms=self._clock.now_ms()
            )
            self._write()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  Spark's name
        progress = json.loads(event.progress.json)
        self._update(progress["id"], progress["runId"], progress["name"] or "", batch=parse_batch(progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  Spark's name
        self._update(str(event.id), str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  Spark's name
        self._update(str(event.id), str(event.runId), active=False, failed=event.exception is not None)

    def _update(self, query_id: str, run_id: str, name: str = "", **values: Any) -> None:
        """Set values of the query of an event, which is a new one if it started before the listener was added.

        Spark reports a start synchronously, and everything else later: events of an earlier run are left out.
        """
        with self._lock:
            now_ms = self._clock.now_ms()
            query = self._queries.get(query_id) or QueryMetrics(id=query_id, run_id=run_id, name=name, seen_ms=now_ms)
            if query.run_id != run_id:
                return
            if not values.get("active", True):
                self._queries.pop(query_id, None)  # the end decides the order of ended ones
            self._queries[query_id] = replace(query, seen_ms=now_ms, **values)
            self._forget()
            self._write()

    def _forget(self) -> None:
        ended = [query.id for query in self._queries.values() if not query.active]
        for query_id in ended[:-ENDED_MAX]:
            del self._queries[query_id]

    def _write(self) -> None:
        """Replace the file.  An error does not fail the query: it is logged once."""
        part = f"{self.path}.tmp"
        try:
            with open(part, "w", encoding="utf-8") as file:
                file.write(openmetrics(self._queries.values()))
            os.replace(part, self.path)
            self._failing = False
        except OSError as error:
            if not self._failing:
                logger.warning("metrics of the queries were not written to %s: %s", self.path, error)
            self._failing = True
