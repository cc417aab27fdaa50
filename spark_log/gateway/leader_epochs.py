"""Leader epochs, by which Kafka's clients notice that a partition has other records than those that they have read.
Pure.

The leader does not change, but a topic may be created again, and a log may be restored from a copy.  Both have a time,
which is later than all before it, so the newest of them gives the epoch.  After lost versions were given up, all epochs
are one later, and none of before has records in common with the log.  A client that has read under an earlier epoch
asks where that epoch ends (OffsetForLeaderEpoch), and continues there, or where its `auto.offset.reset` says.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_log.gateway.error_codes import FENCED_LEADER_EPOCH, NONE, UNKNOWN_LEADER_EPOCH
from spark_log.metadata.renewed_ids import VERSIONS
from spark_log.metadata.restores import KEPT, history_time, restored_end
from spark_log.metadata.state import State, TopicKey

FIRST_MS = 1_767_225_600_000
"""2026-01-01: the time of epoch 0.  Epochs have 31 bits, which end in 2043."""
EPOCH_MS = 250
UNDEFINED = -1
"""In place of an epoch and of its end: the partition has no records of it."""


class EpochBegin(NamedTuple):
    """An epoch of a partition, and the offset of its first record."""

    epoch: int
    start: int


def leader_epoch(state: State, topic_id: str) -> int:
    """The epoch of all partitions of a topic that the state has."""
    return _epochs(state, (topic_id, 0))[-1].epoch


def epoch_error(asked: int, current: int) -> int:
    """The error code for a client that knows another epoch than the current one; -1: it knows none."""
    if asked in (UNDEFINED, current):
        return NONE
    return FENCED_LEADER_EPOCH if asked < current else UNKNOWN_LEADER_EPOCH


def fetch_error(state: State, key: TopicKey, offset: int, current: int, fetched: int) -> int:
    """The error code for a client that reads from an offset.

    current:  as for `epoch_error`.
    fetched:  the epoch of the record before the offset; -1: not known.  If that record is not in the log any more, the
              client has to look where its epoch ends, also if it does not know the current one.
    """
    newest = leader_epoch(state, key[0])
    if 0 <= fetched < newest and end_of_epoch(state, key, fetched)[1] < offset:
        return FENCED_LEADER_EPOCH
    return epoch_error(current, newest)


def end_of_epoch(state: State, key: TopicKey, asked: int) -> tuple[int, int]:
    """The last epoch up to the asked one, and where its records end.

    An epoch before the first one is of a topic that was deleted, or of a log that is not known any more: it ends where
    the partition began, and has no records in common with it.
    """
    epochs = _epochs(state, key)
    known = [one for one in epochs if one.epoch <= asked]
    later = epochs[len(known) :]
    end = min([state.partitions[key].readable_end, *(one.start for one in later)])
    return (known[-1].epoch if known else asked), end


def _epochs(state: State, key: TopicKey) -> list[EpochBegin]:
    """The epochs of a partition, as far as the state remembers restores."""
    losses = state.version // VERSIONS
    found = [EpochBegin(_epoch(state.topics[key[0]].created_ms) + losses, 0)]
    for one in state.restores:
        if any(topic_id == key[0] for topic_id, _ in one.ends):  # it is as old as the restore
            epoch = max(_epoch(history_time(one.history) or 0) + losses, found[-1].epoch + 1)
            is_before_a_loss = one.version // VERSIONS < losses
            found.append(EpochBegin(epoch, 0 if is_before_a_loss else restored_end(one, key)))
    return [EpochBegin(found[1].epoch, 0), *found[1:]] if len(found) > KEPT else found


def _epoch(time_ms: int) -> int:
    return max(0, time_ms - FIRST_MS) // EPOCH_MS
