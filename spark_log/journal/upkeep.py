"""What keeps a log small, as steps: sealing, pruning, checkpoints, truncation, and collecting garbage.

Whoever commits a log 100 versions past its newest checkpoint does `housekeeping`; `pylog maintain` does the rest as well.
Each duty may be done by any number of processes at once and given up at any point: only immutable names are written,
swaps re-check what they replace, and deleting is idempotent.
"""

from __future__ import annotations

import logging

from spark_log.journal.checkpointing import look_again, write_down
from spark_log.journal.object_names import (
    checkpoint_version,
)
from spark_log.journal.opening import View
from spark_log.journal.ops import Steps
from spark_log.journal.protocol import Command, Context, propose
from spark_log.journal.sealing import prune, seal
from spark_log.metadata.commands import Expire, Fence
from spark_log.settings import cluster_config

logger = logging.getLogger("spark_log")


def is_due(view: View) -> bool:
    """Whether the log has gone far enough past its newest checkpoint, or a newer one is damaged."""
    past = view.state.version - checkpoint_version(view.checkpoint)
    interval = cluster_config(view.state.configs, "metadata.checkpoint.interval")
    return past >= interval or any(name > view.checkpoint for name in view.damaged)


def housekeeping(view: View, context: Context) -> Steps[View]:
    """Make the state small, and write it down, unless somebody else has done so."""
    view = yield from look_again(view)
    if not is_due(view):
        return view
    fence_before = view.state.fence
    view = yield from shrink(view, context)
    return (yield from write_down(view, context, fence_before))


def shrink(view: View, context: Context) -> Steps[View]:
    """Seal, prune, advance the fence, expire."""
    view = yield from seal(view, context)
    view = yield from prune(view, context)
    return (yield from fence_and_expire(view, context))


def fence_and_expire(view: View, context: Context) -> Steps[View]:
    """Advance the fence as far as the age allows, and forget producers and positions that are past theirs."""
    fence, expire = Command(Fence()), Command(Expire())
    return (yield from propose(view, [fence, expire], context))


# ---------------------------------------------------------------------------------------------------- sealing and pruning


# -------------------------------------------------------------------------------------------- checkpoints and truncation


# ----------------------------------------------------------------------------------------------------------------- garbage
