"""Listing and describing transactional ids.

An open transaction holds no locks: its objects are staged, and one commit follows at the end.  The log knows only that
the id was taken over, the transaction's timeout, and its outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spark_log.client.representations import described
from spark_log.errors import InvalidRequest
from spark_log.metadata.commands import TRANSACTIONAL
from spark_log.metadata.commits.decide_transactional_ids import is_timed_out
from spark_log.metadata.state import ProducerState, State
from spark_log.model import TopicPartition


@described
class TransactionListing(NamedTuple):
    """A transactional id and its newest transaction."""

    transactional_id: str
    producer_epoch: int
    state: str
    """Kafka's: Ongoing; PrepareAbort, if it timed out but a commit that is being written can still succeed, until the
    log's next change; CompleteCommit, CompleteAbort; or Empty: the id was taken over, but no transaction has begun."""
    last_change_ms: int
    """When it began if it is ongoing, otherwise when it ended."""
    timeout_ms: int
    """How long it may stay open."""


@described
class TransactionDescription(NamedTuple):
    """A transactional id, with the records of its newest transaction."""

    listing: TransactionListing
    offsets: dict[TopicPartition, range]
    """Offsets of its records, without topics that have been deleted."""


def list_transactions(state: State, now_ms: int) -> list[TransactionListing]:
    """All transactional ids, sorted."""
    return [
        _listing(name.removeprefix(TRANSACTIONAL), known, state.time, now_ms)
        for name, known in sorted(state.producers.items())
        if name.startswith(TRANSACTIONAL)
    ]


def describe_transactions(state: State, ids: Iterable[str], now_ms: int) -> dict[str, TransactionDescription]:
    """Raises InvalidRequest for an unknown id."""
    found = {}
    for name in ids:
        known = state.producers.get(TRANSACTIONAL + name)
        if known is None:
            raise InvalidRequest(f"transactional id {name!r} is unknown: `pylog transaction list` lists the known ones")
        offsets = {
            TopicPartition(state.topics[topic_id].name, number): span
            for (topic_id, number), span in (known.last_commit.ranges if known.last_commit else {}).items()
            if topic_id in state.topics and not state.topics[topic_id].deleted
        }
        found[name] = TransactionDescription(_listing(name, known, state.time, now_ms), offsets)
    return found


def _listing(name: str, known: ProducerState, log_time_ms: int, now_ms: int) -> TransactionListing:
    """
    log_time_ms:  a commit that was decided before this time is decided again, because its version is taken.
    """
    ended = known.time
    if known.last_commit is not None:
        state = "CompleteCommit"
    elif is_timed_out(known, max(log_time_ms, now_ms)):
        state = "CompleteAbort" if is_timed_out(known, log_time_ms) else "PrepareAbort"
        ended += known.timeout_ms
    elif known.timeout_ms:
        state = "Ongoing"
    else:
        state = "CompleteAbort" if known.aborted else "Empty"
    return TransactionListing(name, known.epoch, state, ended, known.timeout_ms)
