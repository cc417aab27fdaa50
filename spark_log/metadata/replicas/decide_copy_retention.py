"""Decisions: brokers that keep only the newest objects."""

from __future__ import annotations

from spark_log.errors import InvalidRequest
from spark_log.metadata import records as r
from spark_log.metadata.decision import Decision
from spark_log.metadata.replicas.copy_retention import next_dropped
from spark_log.metadata.state import State

KEEP_MS_MIN = 60_000
"""A broker keeps objects for this long at least: copies take time, too."""


def check_keep(broker: int, keep_ms: int, *, is_async: bool) -> None:
    """Raises InvalidRequest if a broker cannot keep the objects of this time only."""
    if keep_ms and not is_async:
        raise InvalidRequest(
            f"broker {broker} is to keep only the newest objects, so it cannot be in an ISR: register it as asynchronous, "
            "by --async (is_async=True)"
        )
    if keep_ms and keep_ms < KEEP_MS_MIN:
        raise InvalidRequest(
            f"broker {broker}: {keep_ms} ms is too short a time to keep objects; expected 1 minute or more"
        )


def decide_drop(state: State, broker: int, answering: tuple[int, ...], now_ms: int) -> Decision[bool]:
    """Drop a broker's copies of objects that are older than it keeps them, if it is time.  Whether it was.

    answering:  the brokers whose roots have just answered.
    """
    known = state.brokers.get(broker)
    upto = None if known is None else next_dropped(known, state.version - 1, now_ms)
    if known is None or upto is None:
        return Decision((), False)
    return Decision((r.DropCopiesRecord(broker=broker, epoch=known.epoch, upto=upto, answering=answering),), True)
