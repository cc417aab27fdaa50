"""The rules of erasures, each removed in turn: the simulation has to notice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.mutation import Mutation, Patch
from spark_log.journal.context import Context
from spark_log.journal.store_operations import Steps
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice
from spark_log.rewriting import erasing
from spark_log.rewriting.erasing import Erased, Erasing
from spark_log.rewriting.rewrite import Rewriting, open_spool, rewrite
from spark_log.segment.offsets import as_array
from spark_log.segment.reader import Decoded

_search = erasing._search


def _matches_to_end(wanted: Erasing, key: TopicKey, piece: Slice, batch: Decoded) -> npt.NDArray[np.bool_]:
    return wanted.keys.matches(batch.records.column("key"))


def _matches_before_last(wanted: Erasing, key: TopicKey, piece: Slice, batch: Decoded) -> npt.NDArray[np.bool_]:
    offsets = as_array(batch.offsets) + piece.start
    return wanted.keys.matches(batch.records.column("key")) & (offsets < wanted.ends.get(key[1], 0) - 1)


def _erase_once(state: State, context: Context, wanted: Erasing, checked: Iterable[str] = ()) -> Steps[Erased]:
    """One round: what others have rewritten meanwhile is not looked for."""
    result = Erased()
    found = yield from _search(state, wanted, checked)
    how = Rewriting(
        name="erase",
        activity="erasing from",
        open_spool=open_spool,
        on_failure=wanted.failures,
        keep=wanted.keep,
    )
    yield from rewrite(state, context, (yield from erasing._stretches(state, wanted, found)), how)
    return result


def _search_no_dead(*_: Any) -> Steps[None]:
    yield from ()


ERASURE_MUTATIONS = {
    "erased_beyond": Mutation(
        "an erasure removes records before its offset, and no later ones",
        (Patch(Erasing, "matches", _matches_to_end),),
    ),
    "erased_too_few": Mutation(
        "an erasure removes all records before its offset",
        (Patch(Erasing, "matches", _matches_before_last),),
    ),
    "erased_once": Mutation(
        "an erasure searches until it finds nothing",
        (Patch(erasing, "erase", _erase_once),),
    ),
    "dead_copies_left": Mutation(
        "an erasure finds the copies in dead slices",
        (Patch(erasing, "_search_dead", _search_no_dead),),
    ),
}
