"""Second logs: at a previous URL of a log, or at a URL of the log of which it is a copy.

Clients that still have the previous URL write there.  A copy that was restored there does not know that the log was
moved, and a log that a client created in the empty folder knows nothing of this one.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

from spark_log.journal.journal import Journal
from spark_log.metadata.decide_coordinators import moved_to, moving_to
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.state import FormerRoot
from spark_log.runtime.daemon_tasks import Task
from spark_log.store.open import open_store

WAIT_S = 2.0
"""How long a place may take to answer."""
OFTEN_MS = 600_000
"""A process that asks often looks again after this time."""


class SecondLog(NamedTuple):
    """A log at a previous URL of another one."""

    text: str
    is_defect: bool
    """Whether this log was moved from there.  Otherwise it is a copy, and both may be in use."""


class _Look(NamedTuple):
    began_ms: int
    task: Task[str]


_LOOKS: WeakKeyDictionary[Journal, dict[str, _Look]] = WeakKeyDictionary()
"""By the URL of the place: one that hangs keeps one thread, however often a process asks."""
_LOCK = threading.Lock()


def second_logs(journal: Journal, age_ms: int = 0, *, of_copies: bool = True) -> list[SecondLog]:
    """The logs at previous URLs of this log, as far as they answer.

    age_ms:     an answer may be that old.
    of_copies:  look also at the places of a log of which this one is a copy.
    """
    state, own = journal.state, journal.metadata.url
    if journal.is_mirror:
        return []
    looks = [
        (known, directory, _look(journal, known.url, age_ms))
        for directory, known in sorted(state.former_roots.items())
        if known.broker == OWN_BROKER and known.url not in ("", own) and (of_copies or not known.is_copied)
    ]
    found = [
        (known, directory, look.result()) for known, directory, look in looks if look.wait(WAIT_S) and not look.error
    ]
    return [_second(known, directory, there, journal.cluster_id) for known, directory, there in found if there]


def _look(journal: Journal, url: str, age_ms: int) -> Task[str]:
    now_ms = journal.context.clock.monotonic_ms()
    with _LOCK:
        looks = _LOOKS.setdefault(journal, {})
        known = looks.get(url)
        if known is None or (known.task.ended and now_ms - known.began_ms >= age_ms):
            options = journal.roots.options.at(url).own()
            task = Task(partial(_log_at, url, options), "pylog-former-place", journal.context.threads)
            known = looks[url] = _Look(now_ms, task)
    return known.task


def _log_at(url: str, options: dict[str, object]) -> str:
    """The id of the log at a URL; empty if it is a mirror, or was moved from there."""
    there = Journal.open(open_store(url, options), create=False)
    held = there.state.coordinator
    return "" if there.is_mirror or moved_to(held) or moving_to(held) else there.cluster_id


def _second(known: FormerRoot, directory: str, there: str, own: str) -> SecondLog:
    forget = f"`pylog broker forget-root {directory}`"
    if there == own and known.is_copied:
        text = (
            f"the log of which this one is a copy is at {known.url}, and accepts writes: if this one has replaced it, stop its "
            f"clients, append to this log what only the other has, delete the other, and run {forget}"
        )
    elif there == own:
        text = (
            f"there is a second log with the same id at {known.url}, where this log was before: a copy was restored there, or "
            "it was opened again. Clients that have that URL write to it. Stop them, append to this log what only the other "
            "has, and delete the other"
        )
    else:
        was = "the log of which this one is a copy" if known.is_copied else "this log"
        text = (
            f"there is another log at {known.url}, where {was} was before: its id is {there}. Clients that have that URL write "
            f"to it: stop them, append to this log what they have written there, and delete the other. If that log is meant "
            f"to be there, run {forget}"
        )
    return SecondLog(text, not known.is_copied)
