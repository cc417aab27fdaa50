"""Maintenance looks for lost versions before it writes: a version that it writes would hide a lost one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from spark_log.errors import CorruptObject
from spark_log.journal.journal import Journal
from spark_log.journal.lost_versions import lost_ahead, lost_record, partly_restored
from spark_log.journal.metadata_log import LogView
from spark_log.journal.store_operations import OWN_ROOT, List, Steps
from spark_log.metadata.replicas.replicas import is_active
from spark_log.metadata.state import State
from spark_log.runtime.daemon_tasks import Task
from spark_log.store.object_names import listed, prefixes_above

WAIT_S = 2.0
"""How long the roots of brokers may take to answer."""


def lost_end(journal: Journal, view: LogView) -> Steps[CorruptObject | None]:
    """The error if versions right after those of a view are lost; it is noted, so that no objects are deleted."""
    state, look, now_ms = view.state, partial(journal.metadata_log.refresh, view), journal.context.clock.now_ms()
    found = yield [List(prefix, OWN_ROOT) for prefix in prefixes_above(state.version)]
    gone = -1 if journal.metadata_log.is_served else (yield from lost_record(state))
    error = yield from lost_ahead(state, [name for names in found for name in names], now_ms, look, OWN_ROOT, gone)
    for broker, names in _on_brokers(journal, state):
        error = error or (yield from lost_ahead(state, names, now_ms, look, broker, gone))
    return error or (yield from partly_restored(state))


def _on_brokers(journal: Journal, state: State) -> Iterator[tuple[int, list[str]]]:
    """By broker, the objects of the next versions; without roots that are away: other duties report them."""
    prefixes = prefixes_above(state.version)

    def look(broker: int) -> list[str]:
        return [name for prefix in prefixes for name in listed(journal.roots[broker], prefix)]

    brokers = [broker for broker in sorted(state.brokers) if is_active(state, broker)]
    tasks = {broker: Task(partial(look, broker), f"pylog-look-{broker}", journal.context.threads) for broker in brokers}
    for broker, task in tasks.items():
        if task.wait(WAIT_S) and task.error is None:
            yield broker, task.result()
