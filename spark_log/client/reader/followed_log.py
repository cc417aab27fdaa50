"""Positions that a command keeps itself, in a log that may be restored or set back while it follows it."""

from __future__ import annotations

from collections.abc import Mapping

from spark_log.errors import OffsetOutOfRange
from spark_log.log_lines import logger
from spark_log.metadata.set_backs import beyond, lineage_of
from spark_log.metadata.state import State, TopicKey
from spark_log.model import TopicPartition


class FollowedLog:
    """The log that one reader follows."""

    def __init__(self, state: State) -> None:
        self._read_in = lineage_of(state)

    def moved(
        self, state: State, positions: Mapping[TopicPartition, tuple[TopicKey, int]]
    ) -> dict[TopicPartition, int]:
        """Where to continue in a newer state, for those positions before which the log has other records by now.

        Warns.  Raises OffsetOutOfRange if that cannot be told.
        """
        before, self._read_in = self._read_in, lineage_of(state)
        if before == self._read_in:
            return {}
        found = beyond(state, before, positions)
        for tp, (at, end) in found.items():
            what = f"{tp.topic}-{tp.partition}: {end.text(at)}"
            if not end.told:
                raise OffsetOutOfRange(f"{what}; start again at an offset or a time", start=end.offset, end=at)
            logger.warning("%s: reading continues at %d", what, end.offset)
        return {tp: end.offset for tp, (_, end) in found.items()}
