"""Decisions of maintenance: fences, expired producers, swaps."""

from __future__ import annotations

from spark_log.metadata import records as r
from spark_log.metadata.maintenance.decide_maintenance import decide_expire, decide_fence, decide_swap
from spark_log.model import DataObject, Slice
from tests.unit.metadata.history import History


def test_a_swap_does_not_bring_in_objects_that_are_in_the_log(log: History) -> None:
    """The same for what merging writes: it does not fit."""
    topic = log.create()
    log.commit((topic, 0, 3))
    log.commit((topic, 0, 4))
    one, two = log.slices((topic, 0))
    merged = Slice(0, 7, two.object, 0, 100, 7, 1, 10, 20)
    assert not log.swap((topic, 0), 0, 2, new=(merged,), objects=(DataObject(two.object, 1000, 900),))
    assert log.slices((topic, 0)) == [one, two]


def test_the_fence_stops_before_the_newest_version_that_is_old_enough(log: History) -> None:
    """And never goes back or repeats itself."""
    for name in ("a", "b", "c"):
        log.create(name)
        log.now += 1_000_000
    log.now += 86_400_000 - 2_000_000
    log.create("d")
    assert log.do(decide_fence) == 1
    version = log.state.version
    assert log.do(decide_fence) == 1 and log.state.version == version


def test_the_fence_waits_for_the_copy_of_the_metadata(log: History) -> None:
    """The log may be restored from it, and it names objects that were dropped later."""
    for name in ("a", "b", "c"):
        log.create(name)
    log.now += 100_000_000
    log.create("d")
    log.now += 100_000_000
    assert [decide_fence(log.state, log.now, copied).reply for copied in (0, 2, None)] == [0, 2, log.state.version - 1]


def test_an_idle_log_writes_one_fence_and_no_more(log: History) -> None:
    """A fence does not cause the next one."""
    log.create()
    log.pass_fence()
    version = log.state.version
    for _ in range(3):
        log.now += 100_000_000
        log.do(decide_fence)
    assert log.state.version <= version + 1


# Promise: clients.md#transactions, spark-streams.md#exactly-once
def test_a_producer_expires_only_below_the_fence_and_after_its_time(log: History) -> None:
    """Before that a retry of its last commit may be under way."""
    topic = log.create()
    log.commit((topic, 0, 1), producer="plain")
    log.commit((topic, 0, 1), producer="stream", birth=-1, dense=False)
    log.now += 100_000_000
    assert log.do(decide_expire) == 0
    log.pass_fence()
    assert log.do(decide_expire) == 1
    assert set(log.state.producers) == {"stream"}


def test_a_swap_that_does_not_fit_any_more_is_not_written(log: History) -> None:
    """Two that were prepared on the same partition exclude each other."""
    topic = log.create()
    for _ in range(4):
        log.commit((topic, 0, 1))
    edition = log.state.partitions[topic, 0].edition
    assert log.seal((topic, 0))
    late = r.SwapRecord(upload_epoch=log.state.version, changes=(r.Change(topic, 0, edition, 0, 4),))
    version = log.state.version
    assert log.do(lambda state, now: decide_swap(state, late)) is False
    assert log.state.version == version


def test_a_swap_from_beyond_the_log_is_not_written(log: History) -> None:
    """It was prepared in a log that has since been set back to an older copy."""
    topic = log.create()
    log.commit((topic, 0, 1))
    edition, version = log.state.partitions[topic, 0].edition, log.state.version
    change = r.Change(topic, 0, edition, 0, 1)
    for began, is_written in ((version + 1, False), (version, True)):
        swap = r.SwapRecord(upload_epoch=began, changes=(change,))
        assert log.do(lambda state, now, swap=swap: decide_swap(state, swap)) is is_written
