"""Planned reads whose objects are gone are planned again, a limited number of times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import spark_log
from spark_log import NewTopic
from spark_log.client.reader.fetch import Fetched, fetch
from spark_log.client.reader.plan import REPLAN_TRIES, SliceRead
from spark_log.client.reader.plan_again import NotRead, ReadSource, read_planned
from spark_log.client.reader.request_ahead import Coming
from spark_log.errors import ConcurrentChange, ObjectNotFound
from spark_log.roots.read_failover import CopiesAway


@dataclass
class Restless:
    """A log in which something happens to each object before it is read, `times` times."""

    log: spark_log.Log
    times: int
    error: type[NotRead] = ObjectNotFound
    erases: bool = False
    latest: bool = False
    happened: int = 0
    planned: list[SliceRead] = field(default_factory=list)

    def fetch(self, read: SliceRead, coming: Coming | None) -> Iterator[Fetched]:
        if self.happened < self.times and not self.erases:
            self.happened += 1
            raise self.error(read.slice.object, key=read.slice.object)
        yield from fetch(self.log.journal.objects, read, coming=coming)

    def was_erased(self, topic_id: str) -> bool:
        self.happened += self.erases
        return self.erases and self.happened <= self.times

    def plan_again(self, rest: SliceRead, error: NotRead | None) -> tuple[Restless, list[SliceRead]]:
        self.planned.append(rest)
        return self, [rest]


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    log = spark_log.connect(str(tmp_path / "log"), durability="os")
    log.admin.create_topics([NewTopic("t", 1)])
    log.append("t", [{"value": b"v"}] * 3)
    return log


def offsets(source: ReadSource, log: spark_log.Log) -> list[int]:
    return [one for part in read_planned(source, log.plan("t")[0]) for one in part.offsets]


def test_what_is_replaced_again_and_again_is_given_up(log: spark_log.Log) -> None:
    """With the error of the last object."""
    assert offsets(Restless(log, REPLAN_TRIES), log) == [0, 1, 2]
    source = Restless(log, 1000)
    with pytest.raises(ObjectNotFound):
        offsets(source, log)
    assert len(source.planned) == REPLAN_TRIES


def test_a_root_that_is_away_is_waited_for_once(log: spark_log.Log) -> None:
    """The newest state may name another object."""
    assert offsets(Restless(log, 1, CopiesAway), log) == [0, 1, 2]
    with pytest.raises(CopiesAway):
        offsets(Restless(log, 2, CopiesAway), log)


def test_erasures_do_not_count(log: spark_log.Log) -> None:
    """A view is of one version, so it is not planned again."""
    source = Restless(log, 2 * REPLAN_TRIES, erases=True)
    assert offsets(source, log) == [0, 1, 2] and len(source.planned) == 2 * REPLAN_TRIES
    with pytest.raises(ConcurrentChange, match="records were erased from topic 't'"):
        offsets(Restless(log, 1, erases=True, latest=True), log)
