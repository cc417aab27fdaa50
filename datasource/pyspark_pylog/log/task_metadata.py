"""The metadata log in tasks: the only module where they open it.

The driver ships the plan.  A task asks for more only if it is not known before the query runs: the version that the
query reads, records added since the plan, and records that were merged into other objects since.

A task never uses a log that is older than its plan, or another log at the same place.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from pyspark_pylog.log.open_log import KEPT
from pyspark_pylog.log.planned_log import PlannedLog
from spark_log.client.open_journal import find_claim, reopen_journal
from spark_log.errors import DataLoss, NoLog
from spark_log.journal.journal import Journal
from spark_log.roots.broker_roots import check_is_mounted
from spark_log.rpc.client import check_cluster

AGREED_MAX = 4
"""Values that a process keeps: the pins of the last queries, of up to a few MB each."""
_agreed: OrderedDict[tuple[str, str], bytes] = OrderedDict()
"""By cluster id and name."""


def newest_journal(log: PlannedLog, *, peek: bool = False) -> Journal:
    """The journal of a planned log, with the state at the end of the log.

    peek:  bring only `newest` there, in fewer rounds of requests; `state` may be behind.  A task that changes the log
           passes True.
    Raises InconsistentClusterId if the storage has another log, DataLoss if it has an older copy of the log, and
    WrongRoot if this machine does not have the log's folder.
    """
    key = (log.url, log.token, log.roots)
    journal = KEPT.refreshed(key, lambda: _opened(log), peek=peek)
    check_cluster(journal.cluster_id, log.cluster_id, log.roots.store().url)
    if journal.newest.version < log.version:
        raise DataLoss(
            f"the log at {log.roots.store().url} ends at version {journal.newest.version}, and this query was planned at version "
            f"{log.version}: an older copy of the log was restored; load again"
        )
    return journal


def _opened(log: PlannedLog) -> Journal:
    store = log.roots.store()
    try:
        return reopen_journal(log.url, store, log.cluster_id, log.token, log.roots.options, served=log.served)
    except NoLog:
        check_is_mounted(store)  # the driver has found the log, so it must not be created here
        raise


def journal_since(log: PlannedLog) -> Journal:
    """The journal of a planned log, with `newest` at `log.version` or a later version.

    Sends no request if this process already has such a journal.  Raises as `newest_journal`.
    """
    journal = KEPT.get((log.url, log.token, log.roots))
    if journal is None or journal.cluster_id != log.cluster_id or journal.newest.version < log.version:
        return newest_journal(log)
    return journal


def agreed_value(log: PlannedLog, name: str, make: Callable[[Journal], bytes]) -> bytes:
    """The value under `name` on which all tasks agree: the value of the first task that claims the name.

    A process asks only once.  If it has a journal, the journal is refreshed while the claim is looked up.  A claim that
    exists is returned without waiting for the refresh.

    make:  makes the value to claim, if there is no claim yet.  It gets the journal, with the state at the end of the
           log.
    """
    key = (log.cluster_id, name)
    if key not in _agreed:
        _agreed[key] = _agreed_on(log, name, make)
        while len(_agreed) > AGREED_MAX:
            _agreed.popitem(last=False)
    return _agreed[key]


def _agreed_on(log: PlannedLog, name: str, make: Callable[[Journal], bytes]) -> bytes:
    is_known = KEPT.get((log.url, log.token, log.roots)) is not None
    refreshed = _pool(os.getpid()).submit(newest_journal, log) if is_known else None
    found = find_claim(log.url, log.roots.store(), log.cluster_id, name, log.token, served=log.served)
    if found is not None:
        return found
    journal = newest_journal(log) if refreshed is None else refreshed.result()
    return journal.run(journal.metadata_log.claim(name, make(journal)))


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """One pool per process: Spark forks its workers, and threads do not survive that."""
    return ThreadPoolExecutor(1, thread_name_prefix=f"pylog-refresh-{pid}")
