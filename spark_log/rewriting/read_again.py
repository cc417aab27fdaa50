"""Reads slices again that maintenance has set aside."""

from __future__ import annotations

from itertools import groupby, islice

from spark_log.journal.failure_isolation import OnFailure, partition_name
from spark_log.journal.set_aside import WAIT_MS_MAX, SetAside
from spark_log.journal.store_operations import Steps
from spark_log.log_lines import logger
from spark_log.metadata.state import State, TopicKey
from spark_log.rewriting.merge_candidates import live_slices
from spark_log.rewriting.rewrite import can_rewrite

AGAIN_MAX = 256
"""Slices that one round reads again."""


def read_again(state: State, aside: SetAside, now_ms: int, on_failure: OnFailure) -> Steps[list[TopicKey]]:
    """Read those of the slices that are due, and forget those that can be read or that others have replaced.

    Returns the partitions of which slices were forgotten.  A slice that still cannot be read is not reported again.
    """
    aside.keep(state)
    due = list(islice(((key, one) for key, one in aside if one.again_ms <= now_ms), AGAIN_MAX))
    live = yield from live_slices(state, {key for key, _ in due}, on_failure, aside)
    changed = list[TopicKey]()
    for key, some in groupby((each for each in due if each[0] in live), lambda each: each[0]):
        pieces = frozenset(live[key])
        for _, one in some:
            if one.piece in pieces and (one.is_index or not (yield from can_rewrite(state, key, one.piece))):
                aside.add(key, one._replace(again_ms=now_ms + one.wait_ms, wait_ms=min(2 * one.wait_ms, WAIT_MS_MAX)))
                continue
            aside.drop(key, one.piece.start)
            changed.append(key)
            logger.info(
                "maintenance does not set %s of %s aside any more", one.piece.object, partition_name(state, key)
            )
    return changed
