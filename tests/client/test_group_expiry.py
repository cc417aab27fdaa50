"""Positions of groups that nobody is in any more, for longer than `offsets.retention.minutes`: what consumers and
operators find.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import spark_log
from simulation.harness.clocks import SkewedClock
from spark_log import TopicPartition
from spark_log.errors import GroupIdNotFound
from spark_log.maintenance.maintain import maintain_once
from spark_log.model import PROGRESS_TOPIC
from spark_log.runtime.clock import SystemClock
from tests.cli.commands import Pylog
from tests.client import logs

T0 = TopicPartition("t", 0)
HALF_MINUTE_MS = 30_000


class Place:
    """A log that keeps positions of groups for a minute, by a clock on the wall where changes are decided."""

    def __init__(self, folder: Path) -> None:
        running = None if logs.services is None else logs.services.start(folder / "log")
        self.log = logs.new_log(folder, t=1)
        self.wall = SkewedClock(SystemClock())
        journal = self.log.journal if running is None else running.coordinator.journal
        journal.metadata_log.context = replace(journal.context, clock=self.wall)
        self.keeper = self.log if running is None else spark_log.Log(journal)
        self.log.admin.incremental_alter_configs({None: {"offsets.retention.minutes": "1"}})
        self.log.append("t", [{"value": b"1"}, {"value": b"2"}])

    def consumer(self, auto_offset_reset: str = "earliest") -> spark_log.Consumer:
        return self.log.consumer("t", group_id="g", auto_offset_reset=auto_offset_reset)

    def pass_half_a_minute(self) -> None:
        """Half a minute passes, and the log is maintained, as by `pylog maintain` or a coordinator."""
        self.wall.skew_ms += HALF_MINUTE_MS
        maintain_once(self.keeper)

    def told(self) -> list[int | None]:
        """Offsets in the records of `__consumer_offsets`; None where a position was removed."""
        found = self.log.read(PROGRESS_TOPIC, columns=["value"]).column("value").to_pylist()
        return [None if value is None else json.loads(value)["offset"] for value in found]

    def read(self, consumer: spark_log.Consumer) -> list[int]:
        """Offsets of what a consumer is given, till it stands at the end."""
        found: list[int] = []
        while T0 not in consumer.assignment() or consumer.position(T0) < consumer.end_offsets([T0])[T0]:
            found += [record.offset for record in consumer.poll(100).get(T0, ())]
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def expire(place: Place) -> None:
    """Have a member commit and go, and nobody come for longer than positions are kept."""
    with place.consumer() as consumer:
        assert place.read(consumer) == [0, 1]
    place.pass_half_a_minute()
    assert place.told() == [2]
    place.pass_half_a_minute()
    place.pass_half_a_minute()


# Promise: service.md#groups
def test_a_group_that_is_empty_for_too_long_is_not_known_any_more(place: Place, tmp_path: Path) -> None:
    """Neither to the admin nor to `pylog group`."""
    expire(place)
    assert "group 'g' has committed nothing" in Pylog(logs.log_url(tmp_path)).refused("group", "describe", "g")
    assert place.log.admin.describe_consumer_groups(["g"])["g"].state == "Dead"
    assert place.log.admin.list_consumer_groups() == []
    with pytest.raises(GroupIdNotFound):
        place.log.admin.list_consumer_group_offsets("g")


@pytest.mark.parametrize(("reset", "read"), [("earliest", [0, 1, 2]), ("latest", [])])
def test_who_joins_after_the_positions_expired_starts_where_it_would_without(
    place: Place, reset: str, read: list[int]
) -> None:
    """By `auto_offset_reset`, and continues from there."""
    expire(place)
    place.log.append("t", [{"value": b"3"}])
    with place.consumer(reset) as consumer:
        assert place.read(consumer) == read
        place.log.append("t", [{"value": b"4"}])
        assert place.read(consumer) == [3]
    assert place.log.admin.list_consumer_group_offsets("g")[T0].offset == 4


def test_positions_that_expired_are_told_as_removed(place: Place) -> None:
    """`__consumer_offsets` has a record without a value in the place of the position."""
    expire(place)
    assert place.told() == [None]


def test_positions_of_a_group_with_a_member_stay(place: Place) -> None:
    """Although nothing is committed for far longer than they are kept; the time counts from when it has gone."""
    with place.consumer() as consumer:
        assert place.read(consumer) == [0, 1]
        consumer.commit()
        for _ in range(6):
            place.pass_half_a_minute()
            assert consumer.poll(10) == {}
    place.pass_half_a_minute()
    assert place.log.admin.list_consumer_group_offsets("g")[T0].offset == 2
    with place.consumer() as again:
        place.log.append("t", [{"value": b"3"}])
        assert place.read(again) == [2]
