"""Which file of a replica's log comes next, and which may be deleted.  Pure.

Files have consecutive numbers.  A unit may remove entries of earlier files, so a file's number says nothing about
offsets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from spark_log.errors import CorruptObject
from spark_log.quorum.messages import Position

_LOG = re.compile(r"([0-9]{10})\.log")
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


def log_name(number: int) -> str:
    return f"{number:010}.log"


def snapshot_name(snapshot: Position) -> str:
    """The name that Kafka gives: the end of the snapshot, and the epoch of the entry before."""
    return f"{snapshot.offset:020}-{snapshot.epoch:010}.checkpoint"


def snapshots_among(names: list[str]) -> list[Position]:
    """The snapshots among the files of a directory, the newest last."""
    found = filter(None, map(_SNAPSHOT.fullmatch, names))
    return sorted((Position(int(one[2]), int(one[1])) for one in found), key=lambda one: (one.offset, one.epoch))


def log_names(names: list[str], path: str) -> list[str]:
    """The files of the log, the oldest first.  Raises CorruptObject if one between them is missing."""
    found = sorted(name for name in names if _LOG.fullmatch(name))
    for before, after in pairwise(found):
        if number_of(after) != number_of(before) + 1:
            raise CorruptObject(
                f"{path} has {before} and {after}, and not {log_name(number_of(before) + 1)}: restore this replica's "
                "disk, or replace it"
            )
    return found


def number_of(name: str) -> int:
    return int(name.partition(".")[0])


@dataclass(slots=True)
class LogFile:
    number: int
    size: int
    end: int
    """Offset behind its last entry that was not removed later."""

    @property
    def name(self) -> str:
        return log_name(self.number)


@dataclass(slots=True)
class LogFiles:
    """The files of a log, the oldest first.  The last one is appended to."""

    segment_bytes: int
    files: list[LogFile] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Offset behind the last entry; 0 if there is none."""
        return max((one.end for one in self.files), default=0)

    def next_file(self, is_reset: bool) -> LogFile:
        """The file for the next unit: a new one if the last one is large enough, or the log begins again."""
        last = self.files[-1] if self.files else None
        if last is None or last.size >= self.segment_bytes or (is_reset and last.size):
            return LogFile(last.number + 1 if last else 1, 0, 0)
        return last

    def appended(self, file: LogFile, size: int, truncate_to: int | None, end: int | None) -> None:
        """A unit of so many bytes is in `file`; its last entry is before `end`."""
        if file not in self.files:
            self.files.append(file)
        if truncate_to is not None:
            for one in self.files:
                one.end = min(one.end, truncate_to)
        file.size += size
        file.end = file.end if end is None else end

    def drop_before(self, keep_from: int) -> list[str]:
        """Forget the oldest files, all of whose entries are before an offset; never the last file."""
        count = 0
        while count < len(self.files) - 1 and self.files[count].end <= keep_from:
            count += 1
        dropped, self.files = self.files[:count], self.files[count:]
        return [file.name for file in dropped]
