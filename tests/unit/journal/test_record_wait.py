"""Checks for the next record on a disk: before a put that may be too late, and while a reader waits."""

from __future__ import annotations

from pathlib import Path

import spark_log
from simulation.harness.clocks import ManualClock
from simulation.harness.stores import Wrapper
from spark_log import NewTopic
from spark_log.journal.journal import Journal
from spark_log.journal.record_wait import CHECKS_A_LOOK, await_record
from spark_log.runtime.clock import SystemClock
from tests.client.logs import quick_store


class Counting(Wrapper):
    """Counts puts that were too late, and checks of a name, which is there."""

    lost = checks = 0

    def put_new(self, key: str, data: bytes) -> bool:
        created = super().put_new(key, data)
        self.lost += not created
        return created

    def size(self, key: str) -> int | None:
        self.checks += 1
        return 1


class Missing(Counting):
    """No name is there."""

    def size(self, key: str) -> int | None:
        self.checks += 1
        return None


def test_writers_that_take_turns_lose_no_put(tmp_path: Path) -> None:
    """Each looks for records of the others first: a put that is too late costs syncs, a pause and a second attempt."""
    stores = [Counting(quick_store(tmp_path)) for _ in range(2)]
    logs = [spark_log.Log(Journal.open(store, create=True)) for store in stores]
    logs[0].admin.create_topics([NewTopic("t", 1)])
    for store in stores:
        store.lost = 0  # put-if-absent was probed
    for number in range(10):
        logs[number % 2].append("t", [{"value": str(number)}])
    assert [store.lost for store in stores] == [0, 0]
    assert logs[0].read("t").num_rows == 10


def test_a_reader_on_a_disk_wakes_when_the_record_is_there(tmp_path: Path) -> None:
    """Without waiting for the end of its interval."""
    store = Counting(quick_store(tmp_path))
    await_record(store, 1, 500, SystemClock())
    assert store.checks == 1 < CHECKS_A_LOOK


def test_a_wait_has_few_checks(tmp_path: Path) -> None:
    """It ends in time if no record comes."""
    store, clock = Missing(quick_store(tmp_path)), ManualClock(0)
    await_record(store, 1, 10, clock)
    assert (store.checks, clock.ms) == (CHECKS_A_LOOK, 10)
