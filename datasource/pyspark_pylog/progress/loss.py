"""Reports lost records: each range is named, in an error or, with failOnDataLoss=false, in a warning."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_pylog.driver_log import notice
from spark_log.errors import DataLoss
from spark_log.model import TopicPartition
from spark_log.text import counted

NAMED = 10
"""Maximum number of ranges in an error."""
TRIMMED = "trimmed or expired"


@dataclass(frozen=True, slots=True)
class Loss:
    """Records [start, end) of a partition; if empty, the partition was removed after all of it had been read."""

    tp: TopicPartition
    start: int
    end: int | None
    """None: the log has no data about the partition any more."""
    why: str

    def __str__(self) -> str:
        name = f"{self.tp.topic}-{self.tp.partition}"
        if self.end is None:
            return f"offsets from {self.start} on of {name} are gone, how many is not known any more: {self.why}"
        count = self.end - self.start
        if count <= 0:
            return f"{name} is gone, all of it had been read: {self.why}"
        return f"offsets [{self.start}, {self.end}) of {name} are gone, {counted(count, 'record')}: {self.why}"


def report(losses: Sequence[Loss], fail: bool) -> None:
    """Raise an error with the ranges if `fail`, else log one warning for each.  Raises DataLoss."""
    if losses and fail:
        more = f"; and {counted(len(losses) - NAMED, 'more range')}" if len(losses) > NAMED else ""
        named = "; ".join(map(str, losses[:NAMED]))
        raise DataLoss(f"{named}{more}; set failOnDataLoss=false to go on with what is there")
    for loss in losses:
        notice(logging.WARNING, f"{loss}; going on with what is there (failOnDataLoss=false)")
