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
from spark_log.journal.protocol import Context, Proposal, propose
from spark_log.journal.sealing import prune, seal
from spark_log.journal.store_operations import Steps
from spark_log.metadata.commands import Expire, Fence
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
    view = yield from seal_and_expire(view, context)
    return (yield from checkpoint_and_truncate(view, context, fence_before))


def seal_and_expire(view: View, context: Context) -> Steps[View]:
    """Seal, prune, advance the fence, expire."""
    view = yield from seal(view, context)
    view = yield from prune(view, context)
    return (yield from fence_and_expire(view, context))


def fence_and_expire(view: View, context: Context) -> Steps[View]:
    """Advance the fence as far as its age allows, and expire producers and positions."""
    fence, expire = Proposal(Fence()), Proposal(Expire())
    return (yield from propose(view, [fence, expire], context))


# ---------------------------------------------------------------------------------------------------- sealing and pruning


# -------------------------------------------------------------------------------------------- checkpoints and truncation


# ----------------------------------------------------------------------------------------------------------------- garbage
