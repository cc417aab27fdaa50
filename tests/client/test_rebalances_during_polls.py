"""The group changes while a poll of one of its consumers reconciles its partitions with a state that it has taken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import spark_log
from spark_log.client.consumer.group_member import SharedMembership
from spark_log.model import TopicPartition
from tests.client.team import ALL, Listener, Team
from tests.processes import eventually


class OnWarning(logging.Handler):
    """Something happens when a consumer warns that a topic does not exist, in the middle of its poll."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__(logging.WARNING)
        self._happens: Callable[[], object] | None = happens

    def emit(self, record: logging.LogRecord) -> None:
        if "does not exist" in record.getMessage() and self._happens is not None:
            happens, self._happens = self._happens, None
            happens()

    @property
    def has_happened(self) -> bool:
        return self._happens is None


@contextmanager
def on_warning(happens: Callable[[], object]) -> Iterator[OnWarning]:
    handler, logger = OnWarning(happens), logging.getLogger("spark_log")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def membership_of(consumer: spark_log.Consumer) -> SharedMembership:
    found = consumer._membership
    assert isinstance(found, SharedMembership)
    return found


def test_a_new_owner_begins_at_the_positions_of_the_previous_one(team: Team) -> None:
    """The previous owner commits, and the rebalance ends, after the poll of the new one has taken its state."""
    team.log.admin.create_topics([spark_log.NewTopic("x", 1)])
    team.fill()
    settings = {"partition_assignment_strategy": "range", "auto_commit_interval_ms": 600_000}
    team.join(**settings)
    team.poll_until(lambda: len(team.got) == 20)
    newcomer = team.join(topics=["t", "x"], **settings)
    team.members.remove(newcomer)
    newcomer.poll(0)
    team.log.admin.delete_topics(["x"])

    def rebalance() -> None:
        team.poll_until(lambda: membership_of(newcomer)._new is not None)

    with on_warning(rebalance) as handler:
        while not handler.has_happened:
            assert not newcomer.poll(20)
    team.members.append(newcomer)
    team.poll_until(team.is_shared)
    team.fill(8)
    team.poll_until(lambda: len(team.got) >= 28)
    assert len(team.got) == len(set(team.got)) == 28


def test_a_member_that_is_removed_in_its_poll_gives_its_partitions_up(team: Team) -> None:
    """Others had them since then, so it calls its listener, and continues at the positions of the group."""
    team.log.admin.create_topics([spark_log.NewTopic("x", 1)])
    team.fill(400)
    listener = Listener()
    settings = {"partition_assignment_strategy": "cooperative-sticky", "enable_auto_commit": False}
    member = team.join(listener, topics=["t", "x"], max_poll_records=8, **settings)
    team.poll_until(lambda: len(team.got) == 8)

    def pass_to_another() -> None:
        team.log.admin.remove_members_from_consumer_group("g")
        eventually(lambda: membership_of(member)._lost, 20)
        with spark_log.connect(team.url).consumer("t", group_id="g", auto_offset_reset="earliest") as other:
            read = 0
            while read < 400:
                read += sum(map(len, other.poll(100).values()))

    team.log.admin.delete_topics(["x"])
    with on_warning(pass_to_another) as handler:
        while not handler.has_happened:
            for tp, records in member.poll(20, 1).items():
                team.got += [(*tp, record.offset) for record in records]
    before = len(team.got)
    team.poll_until(lambda: ("lost", [0, 1, 2, 3]) in listener.told and member.assignment() == ALL)
    team.fill(4)
    team.poll_until(lambda: len(team.got) >= before + 4)
    assert sorted(offset for _, _, offset in team.got[before:]) == [100] * 4
    assert {TopicPartition(*one[:2]) for one in team.got[before:]} == ALL
