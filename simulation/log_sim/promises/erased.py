"""The promises about records that erasures remove, from the records one by one.

A record may be missing from the moment at which an erasure of its key begins.  From the version at which the erasure
ended, no read has it, and one fence age later no stored object has a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from simulation.log_sim.content import Row, has_keys
from simulation.verdict import Violation
from spark_log.metadata.state import TopicKey


@dataclass(slots=True, eq=False)
class Request:
    """An erasure that an operator wants.  It is run again until it has ended."""

    topic_id: str
    keys: frozenset[str]
    ends: Mapping[int, int]
    """By partition: records before this offset."""
    version: int | None = None
    """The version at which it had ended."""

    def has_ended(self, version: int) -> bool:
        """Whether no read at this version may have the records."""
        return self.version is not None and self.version <= version

    def offsets(self, key: TopicKey, rows: Sequence[Row]) -> Iterator[int]:
        """The records of a partition that it removes; rows: all that were appended."""
        if key[0] == self.topic_id:
            for offset, row in enumerate(rows[: self.ends.get(key[1], 0)]):
                if row.key in self.keys:
                    yield offset


class Erased:
    """The erasures of a run."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        """Those that have begun."""

    def open(self) -> list[Request]:
        """Those that have not ended."""
        return [one for one in self.requests if one.version is None]

    def removable(self, key: TopicKey, rows: Sequence[Row]) -> frozenset[int]:
        """The records of a partition that may be missing."""
        if not has_keys(key):
            return frozenset()
        return frozenset(offset for one in self.requests for offset in one.offsets(key, rows))

    def check(self, key: TopicKey, version: int, rows: Sequence[Row], found: Iterable[int]) -> None:
        """A reader got the rows at these offsets of a whole partition at a version."""
        there = frozenset(found)
        for one in self.requests:
            if one.has_ended(version) and (left := there.intersection(one.offsets(key, rows))):
                raise Violation(f"erased: version {version} of {key} has {sorted(left)}, erased at {one.version}")

    def check_copies(self, rows: Mapping[TopicKey, Sequence[Row]], stored: Mapping[Row, str]) -> None:
        """These rows are in objects, which maintenance keeps; by row, the name of the object."""
        for one in self.requests:
            for key, appended in rows.items() if one.version is not None else ():
                for offset in one.offsets(key, appended):
                    if name := stored.get(appended[offset]):
                        raise Violation(f"erased: {name} has a copy of offset {offset} of {key}")
