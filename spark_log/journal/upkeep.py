"""What keeps a log small, as steps: sealing, pruning, checkpoints, truncation, and collecting garbage.

Whoever commits a log 100 versions past its newest checkpoint does `upkeep_steps`; `pylog maintain` does the rest as well.
Each duty may be done by any number of processes at once and given up at any point: only immutable names are written,
swaps re-check what they replace, and deleting is idempotent.
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
    """Whether the log has gone far enough past its newest checkpoint, or a newer one is damaged."""
    past = view.state.version - checkpoint_version(view.checkpoint)
    interval = cluster_config(view.state.configs, "metadata.checkpoint.interval")
    return past >= interval or any(name > view.checkpoint for name in view.damaged)


def upkeep_steps(view: View, context: Context) -> Steps[View]:
    """Make the state small, and write it down, unless somebody else has done so."""
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
    """Advance the fence as far as the age allows, and forget producers and positions that are past theirs."""
    fence, expire = Proposal(Fence()), Proposal(Expire())
    return (yield from propose(view, [fence, expire], context))


# ---------------------------------------------------------------------------------------------------- sealing and pruning


# -------------------------------------------------------------------------------------------- checkpoints and truncation


# ----------------------------------------------------------------------------------------------------------------- garbage
