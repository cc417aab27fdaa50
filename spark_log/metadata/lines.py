"""The line of versions: each batch names the one that it follows, and a state knows the last ones.  Pure.

A file that was copied from another line does not follow, and a plan that was made on a state of another line is not
carried out: the log was set back in between, by a snapshot of its disk or by `cp`
(docs/decisions/0141-lines-of-versions.md).
"""

from __future__ import annotations

import re

from spark_log.errors import ConcurrentChange
from spark_log.metadata.records import Batch
from spark_log.metadata.restores import check_history, history_of
from spark_log.metadata.state import State

LINE_VERSIONS = 128
"""Versions of which a state knows the batch: more than there are between two checkpoints by default."""
MARK_CHARS = 8
_PLAN = re.compile(rf"([^@]*)(?:@([0-9]{{1,19}}):(.{{1,{MARK_CHARS}}}))?", re.DOTALL)


def mark_of(batch: Batch) -> str:
    """By what the next batch names this one: half of its random id is enough to tell two of one version apart."""
    return batch.id[-MARK_CHARS:]


def last_mark(state: State) -> str:
    """The mark of the last batch that counts; empty: not known."""
    return state.line[-1] if state.line else ""


def follows(state: State, batch: Batch) -> bool:
    """Whether the batch before it is the last one that counts.  A batch of a quorum does not name it."""
    return not batch.after or batch.after == last_mark(state)


def has_line_of(state: State, older: State) -> bool:
    """Whether a state has the version of an older one, as far as it knows; not if that was given to another batch."""
    return _has(state, older.version, last_mark(older))


def _has(state: State, version: int, mark: str) -> bool:
    at = version - state.version - 1
    return not -len(state.line) <= at < 0 or not mark or state.line[at] in (mark, "")


def plan_of(state: State) -> str:
    """A plan remembers this of the state that it was made on: the history, and the place in the line."""
    mark = last_mark(state)
    return f"{history_of(state)}@{state.version}:{mark}" if mark else history_of(state)


def is_of_plan(state: State, plan: str) -> bool:
    """Whether a state continues the one of a plan: the log was neither restored nor set back since, as far as it
    knows."""
    found = _PLAN.fullmatch(plan)
    if found is None or found[1] != history_of(state):
        return False
    return found[2] is None or (int(found[2]) <= state.version and _has(state, int(found[2]), found[3]))


def check_plan(state: State, plan: str, doing: str) -> None:
    """Raises ConcurrentChange if the log was restored from a copy, or set back to an older one, since a plan.

    doing:  what was begun then, for the message.
    """
    found = _PLAN.fullmatch(plan)
    check_history(state, plan if found is None else found[1], doing)
    if not is_of_plan(state, plan):
        raise ConcurrentChange(
            f"{doing}: the log was set back to an older copy meanwhile, and may lack what this has found or changed: run "
            "it again"
        )
