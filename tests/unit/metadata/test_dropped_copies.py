"""Brokers that keep only the newest objects: old copies are dropped by a record, and do not count again."""

from __future__ import annotations

import pytest

from spark_log.errors import InvalidRequest
from spark_log.metadata.maintenance.clock_reset import reset_clock
from spark_log.metadata.replicas.copy_retention import MARKS_PER_TIME
from spark_log.metadata.replicas.replica_commands import DropCopies
from spark_log.metadata.replicas.replicas import deficit, keeps, lacked_objects
from tests.unit.metadata.replica_history import ReplicaHistory

MINUTE = 60_000
STEP = MINUTE // MARKS_PER_TIME + 1


def log_with(*brokers: int) -> ReplicaHistory:
    """Broker 7 keeps the objects of a minute; a topic on it, broker 0 and others."""
    log = ReplicaHistory(*brokers)
    log.add(7, is_async=True, keep_ms=MINUTE)
    log.topic((0, *brokers, 7))
    return log


def later(log: ReplicaHistory, ms: int, answering: tuple[int, ...] = (0, 1)) -> None:
    """Time passes, and somebody drops old copies now and then."""
    for _ in range(0, ms, STEP):
        log.now += STEP
        log.command(DropCopies(broker=7, answering=answering))


def test_old_copies_are_dropped_and_need_not_be_made() -> None:
    log = log_with()
    (old,) = log.put()
    log.copied(7, old)
    later(log, MINUTE // 2)
    young = [*log.put(), *log.put()]
    log.copied(7, young[0])
    assert log.brokers_of(old) == log.brokers_of(young[0]) == (0, 7)
    later(log, MINUTE // 2 + 3 * STEP)
    assert log.brokers_of(old) == (0,)
    assert log.brokers_of(young[0]) == (0, 7)
    assert [name for name, _ in lacked_objects(log.state, 7)] == [young[1]]
    assert deficit(log.state, log.number(), 7) == (1, 100)
    assert not keeps(log.state, 7, old) and keeps(log.state, 7, young[1])
    assert not log.copied(7, old) and log.brokers_of(old) == (0,)  # by a replicator that was stopped
    later(log, 2 * MINUTE)
    assert deficit(log.state, log.number(), 7) == (0, 0)
    assert log.state.brokers[7].deletable == log.state.brokers[7].dropped


# Promise: replicas.md#change-brokers
def test_the_last_copy_is_not_dropped() -> None:
    """It is dropped when another broker that keeps it has one."""
    log = log_with()
    (name,) = log.put()
    log.copied(7, name)
    log.lost(0, name)
    later(log, 2 * MINUTE)
    assert log.brokers_of(name) == (7,)
    log.copied(0, name)
    later(log, 2 * STEP)
    assert log.brokers_of(name) == (0,)


# Promise: replicas.md#change-brokers
def test_a_copy_on_a_fenced_broker_may_be_lost() -> None:
    """So it is not a reason to drop the other one.  That is dropped when the broker is back."""
    log = log_with(1)
    first, second = log.put((1,)), log.put((0, 1))
    log.copied(7, *first, *second)
    log.fence(1)
    later(log, 2 * MINUTE)
    assert (log.brokers_of(first[0]), log.brokers_of(second[0])) == ((1, 7), (0, 1))
    log.back(1)
    later(log, 2 * STEP)
    assert log.brokers_of(first[0]) == (1,)


def test_a_copy_on_a_root_that_does_not_answer_may_be_lost() -> None:
    """Also if nobody has fenced its broker yet."""
    log = log_with(1)
    (name,) = log.put((1,))
    log.copied(7, name)
    later(log, 2 * MINUTE, answering=(0,))
    assert log.brokers_of(name) == (1, 7)
    log.put()
    later(log, 2 * STEP)
    assert log.brokers_of(name) == (1,)


def test_it_is_never_in_sync_and_counts_for_no_commit() -> None:
    """Its copies count by a record that names their objects only."""
    log = log_with(1)
    (name,) = log.put((0, 7))
    assert log.brokers_of(name) == (0,)
    assert not log.join(7) and log.isr() == (0,)
    assert log.is_void(log.upload_to((7,)))


def test_objects_from_before_its_registration() -> None:
    """It need not have those whose time the log has forgotten, or that are too old."""
    log = ReplicaHistory()
    log.now += MINUTE
    log.add(7, is_async=True, keep_ms=MINUTE)
    known = log.state.brokers[7]
    assert known.dropped == known.deletable < log.state.version
    assert known.dropped_at == (log.state.version, log.state.time)


def test_an_idle_log_gets_no_records() -> None:
    """After the last one that is needed."""
    log = log_with()
    log.put()
    later(log, 3 * MINUTE)
    version = log.state.version
    later(log, 2 * MINUTE)
    assert log.state.version == version
    assert not any(log.command(DropCopies(broker=other, answering=(0,))) for other in (0, 5))


def test_another_disk_begins_again() -> None:
    log = log_with()
    (old,) = log.put()
    later(log, 2 * MINUTE)
    assert not keeps(log.state, 7, old)
    log.renew(7, is_async=True)
    assert log.state.brokers[7].keep_ms == 0 and keeps(log.state, 7, old)


def test_it_has_to_be_asynchronous() -> None:
    log = ReplicaHistory()
    with pytest.raises(InvalidRequest, match="by --async"):
        log.add(7, keep_ms=MINUTE)
    with pytest.raises(InvalidRequest, match="expected 1 minute or more"):
        log.add(7, is_async=True, keep_ms=1000)


def test_a_clock_that_is_set_back_sets_the_marks_back() -> None:
    log = log_with()
    later(log, MINUTE // 2)
    state = reset_clock(log.state, log.state.time - 10)
    assert state is not None
    known = state.brokers[7]
    assert known.dropped_at[1] == state.time == max(state.time, *(time for _, time in known.marks))


def test_an_upload_to_an_idle_log_is_young() -> None:
    """Its name has the version of the log when it began, which may be old."""
    log = log_with()
    later(log, 5 * MINUTE)
    (name,) = log.put()
    assert log.copied(7, name)
    later(log, MINUTE // 2)
    assert log.brokers_of(name) == (0, 7)
