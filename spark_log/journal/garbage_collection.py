"""Garbage collection: deletes unreferenced objects below the fence."""

from __future__ import annotations

from collections.abc import Iterable

from spark_log.journal.object_names import (
    DATA,
    upload_epoch,
)
from spark_log.journal.proposal import Context
from spark_log.journal.store_operations import OWN_ROOT, Delete, List, Steps
from spark_log.metadata.state import State


def garbage(state: State, names: Iterable[str]) -> list[str]:
    """Objects of a listing of `data/` without a current or future reference: uploads at or below the fence.

    The state remembers dropped objects until the fence has passed, so that readers can finish.
    """
    return [
        name
        for name in names
        if upload_epoch(name) <= state.fence and name not in state.objects and name not in state.dropped
    ]


def collect(state: State, context: Context) -> Steps[list[str]]:
    """Delete garbage; returns the names.  The state must be confirmed before the listing begins."""
    names = yield List(DATA, OWN_ROOT)
    old = garbage(state, names)[: context.limits.deletes_max]
    if old:
        yield Delete(old, OWN_ROOT)
    return old
