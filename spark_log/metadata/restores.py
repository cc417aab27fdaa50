"""Restores of a log from a copy, and what a reader may take over from the time before.  Pure.

A copy that continues as the log gives the offsets after its end to other records.  So each restore begins a new
*history*, which has an id, and the state keeps where each partition ended at that time.  A reader that is kept
outside of the log remembers the history that it has read: up to that end, it has read the same records.
"""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

from spark_log.errors import ConcurrentChange
from spark_log.metadata import records as r
from spark_log.metadata.state import Restore, State, TopicKey
from spark_log.model import PROGRESS_TOPIC

TIME_DIGITS = 12
KEPT = 16
"""Restores that the state remembers.  A reader of an older history has to begin again."""


class SeenLog(NamedTuple):
    """The log as a reader has seen it, to be compared later."""

    history: str = ""
    """Empty: the one in which the log began."""
    version: int = 0
    time_ms: int = 0
    """The log's time at that version."""
    record: str = ""
    """Identifies the record of that version (`record_id`); empty: not known."""


def history_of(state: State) -> str:
    """The id of the current history."""
    return state.restores[-1].history if state.restores else ""


def new_history(state: State, now_ms: int, unique: str, after: str = "") -> str:
    """The id of the history that begins after a state.  It begins with a time, which is not before that of the present
    history, whatever the clocks say.

    after:  another id, whose time is earlier.
    """
    began = max(now_ms, state.time, history_time(history_of(state)) or 0, (history_time(after) or 0) + 1)
    return f"{began:0{TIME_DIGITS}x}-{unique}"


def began_ms(state: State) -> int | None:
    """When the current history began; None: the log was never restored from a copy."""
    return history_time(history_of(state))


def history_time(history: str) -> int | None:
    """The time in an id of `new_history`; None: it has none."""
    time, dash, _ = history.partition("-")
    return int(time, 16) if dash and re.fullmatch(f"[0-9a-f]{{{TIME_DIGITS}}}", time) else None


def is_former(state: State, history: str) -> bool:
    """Whether a history is none that began in this log after the state: records of it are void.

    It ended in a restore that the log knows, or it began before the present one did: the log was restored once more
    from a copy that lacks it.
    """
    if history == history_of(state):
        return False
    began, present = history_time(history), history_time(history_of(state))
    earlier = not history or (began is not None and present is not None and began < present)
    return earlier or restores_after(state, history) is not None


def check_history(state: State, history: str, doing: str) -> None:
    """Raises ConcurrentChange if the log was restored from a copy since it had this history.

    doing:  what was begun then, for the message.
    """
    if history_of(state) != history:
        raise ConcurrentChange(
            f"{doing}: the log was restored from a copy meanwhile, and may lack what this has found or changed: run it "
            "again"
        )


def seen_in(state: State) -> SeenLog:
    return SeenLog(history_of(state), state.version, state.time)


def record_id(head: bytes) -> str:
    """A short text by which a record is recognised, from its first line."""
    return blake2b(head, digest_size=6).hexdigest()


def replay_restore(state: State, record: r.RestoreRecord) -> State | None:
    """Void if the history is known: the command was sent twice."""
    if any(one.history == record.history for one in state.restores):
        return None
    return with_restore(state, record.history, record.version)


def with_restore(state: State, history: str, version: int) -> State:
    """A state in which a new history begins, after a version that the former one had, too."""
    ends = tuple(
        (topic_id, tuple(part.end for _, part in state.topic_partitions(topic_id)))
        for _, topic_id in sorted(state.names.items())
    )
    one = Restore(history, version, state.progressed + 1, ends)
    return replace(state, restores=(*state.restores, one)[-KEPT:])


def common_end(state: State, history: str, key: TopicKey) -> int | None:
    """The offset before which a partition has the records that it had in a history; None: all of them are the same.

    0 if the history is not known here: it began after the copy was made that is the log now.
    key:  with the topic's id, or with the name of `__consumer_offsets`.
    """
    if history == history_of(state):
        return None
    later = restores_after(state, history)
    return 0 if later is None else min(restored_end(one, key) for one in later)


def has_read(state: State, history: str, key: TopicKey, offset: int) -> bool:
    """Whether the log has the records before an offset that was reached in a history.  key: as for `common_end`."""
    end = common_end(state, history, key)
    return end is None or offset <= end


def restores_after(state: State, history: str) -> tuple[Restore, ...] | None:
    """The restores since a history; None if it is not known."""
    known = [number for number, one in enumerate(state.restores, 1) if one.history == history]
    if known:
        return state.restores[known[0] :]
    return state.restores if not history and len(state.restores) < KEPT else None


def common_version(state: State, other: State) -> int:
    """The last version of a state that another state of the same log has, too, as far as their histories tell."""
    both = {one.history for one in state.restores} & {one.history for one in other.restores}
    begun = [one.version for one in (*state.restores, *other.restores) if one.history not in both]
    return min([state.version, *begun])


def restored_end(restore: Restore, key: TopicKey) -> int:
    """Where the records of a partition end that were in the copy, too.  key: as for `common_end`."""
    topic_id, number = key
    if topic_id == PROGRESS_TOPIC:
        return restore.progress_end
    ends = dict(restore.ends).get(topic_id, ())
    return ends[number] if number < len(ends) else 0


def was_set_back(state: State, seen: SeenLog) -> bool:
    """Whether a log of the same history is an older copy of what a reader has seen, such as a snapshot of its disk.

    That is certain if the log has not reached the version again, or reached an earlier version at a later time.
    Otherwise nothing says so: no command has begun a history.
    """
    if seen.history != history_of(state):
        return False
    return state.version < seen.version or any(
        version <= seen.version and time > seen.time_ms for version, time in state.times
    )
