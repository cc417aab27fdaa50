"""Transactional ids as an administrator sees them.

An open transaction holds nothing: its objects are staged, its one commit is still to come.  What the log knows of it is
that somebody has taken the id with so much time, and what became of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spark_log.errors import InvalidRequest
from spark_log.metadata.commands import TRANSACTIONAL
from spark_log.metadata.decide import is_timed_out
from spark_log.metadata.state import ProducerState, State
from spark_log.model import TopicPartition


class TransactionListing(NamedTuple):
    """A transactional id and its newest transaction."""

    transactional_id: str
    producer_epoch: int
    state: str
    """Kafka's: Ongoing, CompleteCommit, CompleteAbort (also when its time is over), or Empty: the id was taken, and
    nothing opened."""
    last_change_ms: int
    """When it began, as long as it is ongoing; else when it ended."""
    timeout_ms: int
    """So long it may stay open."""


class TransactionDescription(NamedTuple):
    """One of them, with what it committed."""

    listing: TransactionListing
    offsets: dict[TopicPartition, range]
    """Of its records; of topics that are still there."""


def list_transactions(state: State, now_ms: int) -> list[TransactionListing]:
    """All that are known, by id."""
    return [
        _listing(name.removeprefix(TRANSACTIONAL), known, now_ms)
        for name, known in sorted(state.producers.items())
        if name.startswith(TRANSACTIONAL)
    ]


def describe_transactions(state: State, ids: Iterable[str], now_ms: int) -> dict[str, TransactionDescription]:
    """Raises InvalidRequest for an id that is not known."""
    found = {}
    for name in ids:
        known = state.producers.get(TRANSACTIONAL + name)
        if known is None:
            raise InvalidRequest(
                f"transactional id {name!r} is not known; log.admin.list_transactions() shows those that are"
            )
        offsets = {
            TopicPartition(state.topics[topic_id].name, number): range(start, end)
            for kept in known.kept
            for topic_id, number, start, end in kept.ranges
            if topic_id in state.topics and not state.topics[topic_id].deleted
        }
        found[name] = TransactionDescription(_listing(name, known, now_ms), offsets)
    return found


def _listing(name: str, known: ProducerState, now_ms: int) -> TransactionListing:
    ended = known.time
    if known.kept:
        state = "CompleteCommit"
    elif is_timed_out(known, now_ms):
        state, ended = "CompleteAbort", known.time + known.timeout_ms
    elif known.timeout_ms:
        state = "Ongoing"
    else:
        state = "CompleteAbort" if known.aborted else "Empty"
    return TransactionListing(name, known.epoch, state, ended, known.timeout_ms)
