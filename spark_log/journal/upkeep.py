"""Upkeep keeps a log small: sealing, pruning, checkpoints, truncation, and garbage collection.

A process that commits 100 versions after the newest checkpoint runs `seal_and_expire`, and writes a checkpoint;
`pylog maintain` runs the other duties too.  Several processes may run a duty at the same time, and stop at any point:
only unique names are written, swaps re-check the entries that they replace, and deleting is idempotent.
"""

from __future__ import annotations

from spark_log.journal.proposal import Context, Proposal
from spark_log.journal.sealing import prune, seal
from spark_log.journal.store_operations import Decide, Steps
from spark_log.metadata.commands import Expire, Fence
from spark_log.metadata.state import State


def seal_and_expire(state: State, context: Context) -> Steps[State]:
    """Seal, prune, advance the fence, expire."""
    state = yield from seal(state, context)
    yield from prune(state, context)
    return (yield from fence_and_expire())


def fence_and_expire() -> Steps[State]:
    """Advance the fence as far as its age allows, and expire producers and positions."""
    state: State = yield Decide([Proposal(Fence()), Proposal(Expire())])
    return state
