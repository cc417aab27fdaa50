"""How a stream continues in a log that was restored from a copy: decided by its offset and the log's state.

Up to where the copy ended, the stream has read the same records.  Beyond that, its offsets are those of other records.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace

from pyspark_pylog.driver_log import notice
from pyspark_pylog.progress.offset_format import Ends, Offset
from spark_log.errors import DataLoss
from spark_log.journal.journal import Journal
from spark_log.journal.storage.seen_log import is_set_back
from spark_log.metadata.restores import common_end, history_of, restores_after
from spark_log.metadata.set_backs import Lineage, lineage_of
from spark_log.metadata.state import State
from spark_log.model import PROGRESS_TOPIC, TopicPartition


class RestoredLog:
    """Compares the offsets of one query with its log.  Tells each difference once.

    fail:  raise DataLoss if the query has read what is not in the log; otherwise continue, with a warning.
    """

    def __init__(self, url: str, *, fail: bool) -> None:
        self._url = url
        self._fail = fail
        self._compared: tuple[str, Lineage] | None = None
        """The log in which an offset was checked."""

    def begin(self, journal: Journal) -> None:
        """Compare no offset with the log as it is now: there is no checkpoint, so this process makes the first one."""
        self._compared = journal.cluster_id, lineage_of(journal.state)

    def in_it(self, at: Offset, journal: Journal) -> Offset:
        """An offset in the log as it is now.  Where it is beyond the copy that was restored, it is set back to its end.

        Raises DataLoss if `fail`.
        """
        if not at.log:
            return at
        now = journal.cluster_id, lineage_of(journal.state)
        is_new, self._compared = now != self._compared, now
        if is_new and at.log != journal.cluster_id:
            self._tell(_another_log(at, self._url, journal.cluster_id))
        elif is_new and _was_set_back(at, journal):
            self._tell(_set_back(at, journal.state, self._url))
        ends = _ends_of_copy(journal.state, at)
        if ends and (is_new or self._fail):
            self._tell(_beyond(journal.state, at, ends, self._url))
        return replace(at, ends={**at.ends, **ends}, moved=frozenset(ends)) if ends else at

    def _tell(self, what: str) -> None:
        if self._fail:
            self._compared = None
            raise DataLoss(f"{what}, or set failOnDataLoss=false to continue")
        notice(logging.WARNING, f"{what}. The query continues (failOnDataLoss=false)")


def _was_set_back(at: Offset, journal: Journal) -> bool:
    """False if the offset is beyond an end: other messages say more."""
    return all(end <= _end(journal.state, tp) for tp, end in at.ends.items()) and is_set_back(journal, at.seen)


def _end(state: State, tp: TopicPartition) -> int:
    if tp.topic == PROGRESS_TOPIC:
        return state.progressed + 1
    part = state.partitions.get((state.names.get(tp.topic, ""), tp.partition))
    return 0 if part is None else part.readable_end


def _ends_of_copy(state: State, at: Offset) -> Ends:
    """Where the copy ended, in the partitions of which the stream has read more."""
    if at.seen.history == history_of(state):
        return {}
    ends: Ends = {}
    for tp, end in at.ends.items():
        now = PROGRESS_TOPIC if tp.topic == PROGRESS_TOPIC else state.names.get(tp.topic)
        if now is None or not at.same_topic(tp.topic, now):
            continue  # it was deleted, which is another loss
        known = common_end(state, at.seen.history, (now, tp.partition))
        if known is not None and known < end:
            ends[tp] = known
    return ends


def _another_log(at: Offset, url: str, cluster_id: str) -> str:
    return (
        f"the checkpoint is of a log with the id {at.log}, and {url} has the id {cluster_id}: if it was restored from a "
        "backup, the offsets since then are of other records; start the query with a new checkpoint"
    )


def _set_back(at: Offset, state: State, url: str) -> str:
    return (
        f"the checkpoint has seen version {at.seen.version} of the log, and {url} was set back to an older copy since, "
        f"such as a snapshot of its disk (it has version {state.version} now): the offsets since then may be of other "
        "records; start the query with a new checkpoint"
    )


def _beyond(state: State, at: Offset, ends: Ends, url: str) -> str:
    tp, end = min(ends.items())
    told = f"the checkpoint is at offset {at.ends[tp]} of {tp.topic}-{tp.partition}, and {url} was restored from a copy"
    begin = _nested({**at.ends, **ends})
    if restores_after(state, at.seen.history) is None:
        return f"{told} that was made before what the query has read last; start the query with a new checkpoint"
    return (
        f"{told} that ended at {end}: the records from there on are others; start the query with a new checkpoint and "
        f"startingOffsets={begin}, where the copy ended"
    )


def _nested(ends: Mapping[TopicPartition, int]) -> str:
    nested: dict[str, dict[str, int]] = {}
    for tp, end in sorted(ends.items()):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = end
    return json.dumps(nested, separators=(",", ":"))
