"""Upkeep keeps a log small: sealing, pruning, checkpoints, truncation, and garbage collection.

A process that commits 100 versions after the newest checkpoint runs `upkeep_steps`; `pylog maintain` runs the other
duties too.  Several processes may run a duty at the same time, and stop at any point: only unique names are written,
swaps re-check the entries that they replace, and deleting is idempotent.
"""

from __future__ import annotations

from spark_log.journal.checkpointing import checkpoint_and_truncate, look_again
from spark_log.journal.object_names import (
    checkpoint_version,
)
from spark_log.journal.opening import View
from spark_log.journal.protocol import Context, Proposal, decided
from spark_log.journal.sealing import prune, seal
from spark_log.journal.store_operations import Decide, Steps
from spark_log.metadata.commands import Expire, Fence
from spark_log.metadata.state import State
from spark_log.settings import cluster_config


def is_due(view: View) -> bool:
    """Whether a checkpoint is due, or a newer one is damaged."""
    past = view.state.version - checkpoint_version(view.checkpoint)
    interval = cluster_config(view.state.configs, "metadata.checkpoint.interval")
    return past >= interval or any(name > view.checkpoint for name in view.damaged)


def upkeep_steps(view: View, context: Context) -> Steps[View]:
    """Seal, prune and checkpoint, unless another process has done so."""
    view = yield from look_again(view)
    if not is_due(view):
        return view
    fence_before = view.state.fence
    view, _ = yield from decided(view, seal_and_expire(view.state, context), context)
    return (yield from checkpoint_and_truncate(view, context, fence_before))


def seal_and_expire(state: State, context: Context) -> Steps[State]:
    """Seal, prune, advance the fence, expire."""
    state = yield from seal(state, context)
    yield from prune(state, context)
    return (yield from fence_and_expire())


def fence_and_expire() -> Steps[State]:
    """Advance the fence as far as its age allows, and expire producers and positions."""
    state: State = yield Decide([Proposal(Fence()), Proposal(Expire())])
    return state
