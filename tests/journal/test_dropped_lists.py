"""Names of many dropped objects are in lists, and no object is deleted before its time."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from simulation.harness.clocks import ManualClock
from simulation.harness.stores import Wrapper
from spark_log import Log, NewTopic
from spark_log.journal.dropped_lists import list_dropped
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import LIMITS
from spark_log.maintenance.maintain import Maintainer, collect_garbage, find_garbage, maintain_once
from spark_log.metadata.formats.checkpoint_format import state_json
from spark_log.metadata.maintenance.accepted_loss import renew
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.recovery.verify import verify
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import DATA
from tests.maintenance.logs import HOUR_MS, append_small, maintenance, new_log, pass_the_fence

DAY_MS = 24 * HOUR_MS
FEW = replace(LIMITS, dropped_inline=3)


def open_log(store: ObjectStore, clock: ManualClock) -> Log:
    return Log(Journal.open(store, create=True, clock=clock, limits=FEW))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> ObjectStore:
    return MemoryStore(f"dropped-{uuid.uuid4().hex}")


@pytest.fixture
def log(store: ObjectStore, clock: ManualClock) -> Log:
    """With five objects that will be merged."""
    log = open_log(store, clock)
    log.create_topic(NewTopic("t", 1, {"retention.ms": "-1"}))
    append_small(log, 5)
    return log


def pass_the_age(log: Log, clock: ManualClock) -> None:
    """The fence moves with a commit that is old enough."""
    clock.sleep_ms(DAY_MS + 1)
    append_small(log, 1)
    clock.sleep_ms(DAY_MS + 1)


def lists(store: ObjectStore) -> list[str]:
    return [name for name in store.list(DATA) if name.endswith(".dropped")]


# Promise: format/metadata.md#lists-of-dropped-objects
@pytest.mark.parametrize("remembers", [True, False], ids=["one maintainer", "a new one each time"])
def test_dropped_objects_go_with_their_list(log: Log, store: ObjectStore, clock: ManualClock, remembers: bool) -> None:
    plan, maintainer = log.plan("t"), Maintainer(log)
    report = maintainer.round_or_raise()
    state = log.journal.refresh()
    assert not state.dropped and list(state.dropped_lists) == lists(store)
    assert (report.waiting, report.collected) == (5, 0)
    assert b"dropped_lists" in state_json(state)
    assert {read.slice.object for read in plan} <= set(store.list(DATA))
    assert find_garbage(log) == [] == collect_garbage(log)
    pass_the_age(log, clock)
    expected = {read.slice.object for read in plan} | set(lists(store))
    if not remembers:
        assert set(find_garbage(log)) == expected
        maintainer = Maintainer(log)
    assert maintainer.round_or_raise().collected == 6
    state = log.journal.refresh()
    assert not state.dropped_lists and not expected & set(store.list(DATA))
    assert log.read("t").num_rows == 18 and verify(log, deep=True) == []


def test_a_maintainer_whose_list_another_one_deleted_looks_at_all_objects(
    log: Log, store: ObjectStore, clock: ManualClock
) -> None:
    """Its names are known from the list only."""
    maintainer = Maintainer(log)
    maintainer.round_or_raise()
    left = store.list(DATA)[0]
    data = store.get(left)
    pass_the_age(log, clock)
    collect_garbage(log)
    store.put(left, [data])  # the other one was killed before it deleted all names
    assert not lists(store)
    maintainer.log.journal.propose(lambda state, now: decide_set_configs(state, None, {"num.partitions": "2"}))
    maintainer.round_or_raise()
    assert left not in store.list(DATA)


def cut(store: ObjectStore, name: str) -> None:
    data = store.get(name)
    store.delete([name])
    store.put(name, [data[:-1]])


def remove(store: ObjectStore, name: str) -> None:
    store.delete([name])


# Promise: format/metadata.md#lists-of-dropped-objects
@pytest.mark.parametrize("damage", [cut, remove])
def test_while_a_list_cannot_be_read_nothing_is_deleted(
    log: Log,
    store: ObjectStore,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[ObjectStore, str], None],
) -> None:
    """Until the fence has passed it: a day later, all is as if it had not been damaged."""
    orphan = "data/0000000000000001/orphan.seg"
    store.put(orphan, [b"never committed"])
    clock.sleep_ms(HOUR_MS)
    append_small(log, 5)
    clock.sleep_ms(DAY_MS // 2)
    maintainer = Maintainer(log)
    maintainer.round_or_raise()
    (name,) = lists(store)
    damage(store, name)
    clock.sleep_ms(DAY_MS // 2)
    append_small(log, 1)
    before = store.list(DATA)
    with caplog.at_level(logging.WARNING, "spark_log"):
        assert collect_garbage(log) == [] == find_garbage(log)
        maintainer.round_or_raise()
    assert set(before) <= set(store.list(DATA)) and "no objects are deleted until the fence" in caplog.text
    assert [(problem.what, "no data is lost" in problem.message) for problem in verify(log)] == [(name, True)]
    for _ in range(3):
        pass_the_age(log, clock)
        maintainer.round_or_raise()
    state = log.journal.refresh()
    assert set(store.list(DATA)) == {*state.objects, *state.dropped}
    assert log.read("t").num_rows == 42 and verify(log, deep=True) == []


class Interrupted(Wrapper):
    """Calls `then` once, after the put of a list."""

    def __init__(self, inner: ObjectStore, then: Callable[[], object]) -> None:
        super().__init__(inner)
        self._then: Callable[[], object] | None = then

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        super().put(key, chunks)
        then, self._then = self._then, None if key.endswith(".dropped") else self._then
        if then is not None and self._then is None:
            then()


def test_of_two_processes_that_list_the_same_names_one_is_in_the_log(
    log: Log, store: ObjectStore, clock: ManualClock
) -> None:
    """The other one's list is garbage below the next fence."""
    Maintainer(open_without_lists(store, clock)).round_or_raise()
    assert len(log.journal.refresh().dropped) == 5
    first = open_log(Interrupted(store, lambda: maintenance(log.journal, list_dropped, FEW)), clock)
    maintenance(first.journal, list_dropped, FEW)
    state = log.journal.refresh()
    assert len(state.dropped_lists) == 1 and len(lists(store)) == 2 and not state.dropped
    pass_the_age(log, clock)
    assert len(collect_garbage(log)) == 7
    assert not lists(store) and verify(log, deep=True) == []


def open_without_lists(store: ObjectStore, clock: ManualClock) -> Log:
    return Log(Journal.open(store, create=False, clock=clock))


KILLED = """
import os, signal, sys
from dataclasses import replace
from spark_log import Log
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import LIMITS
from spark_log.maintenance.maintain import maintain_once
from spark_log.store.local import LocalStore
from simulation.harness.stores import Wrapper

class Killed(Wrapper):
    def put(self, key, chunks):
        super().put(key, chunks)
        if key.endswith(".dropped"):
            os.kill(os.getpid(), signal.SIGKILL)

store = Killed(LocalStore(sys.argv[1], "os"))
maintain_once(Log(Journal.open(store, create=False, limits=replace(LIMITS, dropped_inline=3))))
"""


def test_a_process_killed_between_the_list_and_its_record_leaves_garbage_only(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.journal.propose(lambda state, now: decide_set_configs(state, None, {"gc.fence.age.ms": "1000000"}))
    append_small(log, 5)
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    store, state = log.journal.objects, log.journal.refresh()
    assert len(lists(store)) == 1 and len(state.dropped) == 5 and not state.dropped_lists
    maintenance(log.journal, list_dropped, FEW)
    state = log.journal.refresh()
    assert len(lists(store)) == 2 and len(state.dropped_lists) == 1 and not state.dropped
    log.journal.propose(lambda state, now: decide_set_configs(state, None, {"gc.fence.age.ms": "1"}))
    pass_the_fence(log)
    state = log.journal.refresh()
    assert set(store.list(DATA)) == {*state.objects, *state.dropped}
    assert log.read("t").num_rows == 15 and verify(log, deep=True) == []


def test_after_an_accepted_loss_all_objects_are_named_again(log: Log, store: ObjectStore) -> None:
    """Their versions are others, so the lists are garbage like what is in them."""
    maintain_once(log)
    state, stored = log.journal.refresh(), store.list(DATA)
    renewed = renew(state, 1_000_000_000, {"t": "other"}, stored)
    assert not renewed.dropped_lists
    assert {*renewed.dropped, *renewed.objects} == set(stored)
