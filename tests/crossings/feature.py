"""Something that users rely on, and the log after an operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from spark_log import Log, NewTopic
from spark_log.errors import UnknownTopicOrPartition

FIRST = 4
"""Records of each phase."""


@dataclass(frozen=True)
class After:
    """The log after an operation."""

    log: Log
    url: str
    """By which users open it."""
    is_older: bool = False
    """Whether it is an older copy, without what was written later."""
    is_same_topic: bool = True
    """False: topics were created again, or lost their identity."""
    gone: frozenset[str] = frozenset()
    """Keys of records that the operation removes."""
    is_erased: bool = False
    """Whether nobody may read these again, also who had planned it before."""

    is_where_it_was: bool = True
    """Whether a process that had it open can continue."""


def rows(feature: str, phase: str, count: int = FIRST) -> list[dict[str, Any]]:
    """Records of a phase.  Each has its own key, `k0`, `k1`, … in each phase."""
    return [{"key": f"{phase}-k{n}", "value": f"{feature}/{phase}/{n}"} for n in range(count)]


def values(log: Log, topic: str) -> list[str]:
    """All values of a topic, in order; none if there is no such topic."""
    try:
        return [value.decode() for value in log.read(topic, columns=["value"])["value"].to_pylist()]
    except UnknownTopicOrPartition:
        return []


def assert_each_is_seen(seen: Iterable[str], log: Log, topic: str) -> None:
    """No reader skips: what the log has, it has seen."""
    missed = [value for value in values(log, topic) if value not in set(seen)]
    assert not missed, f"skipped without a word: {missed}"


def assert_no_double(seen: Iterable[str]) -> None:
    twice = [value for value, times in Counter(seen).items() if times > 1]
    assert not twice, f"more than once: {twice}"


def is_gone(value: str, after: After) -> bool:
    _, phase, number = value.split("/")
    return f"{phase}-k{number}" in after.gone


class Feature:
    """Something that users rely on."""

    head: ClassVar[str]
    """Of its column in docs/crossings.md."""
    topics: tuple[str, ...] = ()
    """Its topics.  Operations on topics apply to all of them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def create(self, log: Log) -> None:
        """Create the topics."""
        log.admin.create_topics([NewTopic(topic, 1) for topic in self.topics if topic not in log.admin.list_topics()])

    def write(self, log: Log, phase: str) -> None:
        """Write records; once before the operation, and once later, beside it or after it."""

    def read(self, log: Log, phase: str) -> None:
        """Read them, after each time."""

    def check(self, after: After) -> None:
        """Use it again, and check that all is whole.  Raises SparkLogError if it is refused."""
        raise NotImplementedError
