"""The metadata log in tasks: the only module where they open it.

The driver ships the plan.  A task asks for more only if it is not known before the query runs: the version that the
query reads, records added since the plan, and records that were merged into other objects since.

A task never uses a log that is older than its plan, or another log at the same place.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark_pylog.open_log import KEPT
from pyspark_pylog.planned_log import PlannedLog
from spark_log.client.open_journal import reopen_journal
from spark_log.clock import SystemClock
from spark_log.errors import DataLoss
from spark_log.journal.claims import claimed
from spark_log.journal.journal import Journal
from spark_log.journal.store_operations import Stores, run
from spark_log.net.client import check_cluster


def newest_journal(log: PlannedLog) -> Journal:
    """The journal with the state at the end of the log.

    Raises InconsistentClusterId for another log, and DataLoss for an older copy of the log.
    """
    key = (log.url, log.token, log.roots)
    journal = KEPT.refreshed(key, lambda: reopen_journal(log.url, log.roots.store(), log.cluster_id, log.token))
    check_cluster(journal.cluster_id, log.cluster_id, log.roots.store().url)
    if journal.state.version < log.version:
        raise DataLoss(
            f"the log at {log.roots.store().url} ends at version {journal.state.version}, and this query was planned at version "
            f"{log.version}: an older copy of the log was restored; load again"
        )
    return journal


def journal_since(log: PlannedLog) -> Journal:
    """The journal at any version from `log.version` on.  Sends no request if this process already has one.

    Raises as `newest_journal` does.
    """
    journal = KEPT.get((log.url, log.token, log.roots))
    if journal is None or journal.cluster_id != log.cluster_id or journal.state.version < log.version:
        return newest_journal(log)
    return journal


def agreed_value(log: PlannedLog, name: str, make: Callable[[], bytes]) -> bytes:
    """The value under `name` on which all tasks agree.

    The first claim wins.  A task that finds a claim returns its value without opening the log.
    """
    found = run(claimed(name), Stores.of(log.roots.store()), SystemClock())
    if found is not None:
        return found
    value, journal = make(), journal_since(log)
    return journal.run(journal.metadata_log.claim(name, value))
