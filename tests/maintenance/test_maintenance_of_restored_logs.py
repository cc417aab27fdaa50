"""Maintenance that began before the log was restored from an older copy: its objects went with the lost folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simulation.harness.clocks import ManualClock
from spark_log import Log, NewTopic, TopicPartition, connect
from spark_log.errors import ConcurrentChange
from spark_log.journal.context import Context
from spark_log.journal.dropped_lists import list_dropped
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.sealing import seal
from spark_log.journal.store_operations import Decide, Steps
from spark_log.maintenance.maintain import Maintainer, maintain_once
from spark_log.maintenance.retention import expire_records
from spark_log.metadata.state import State
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.verify import verify
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from spark_log.rewriting.merge import merge
from spark_log.rewriting.rewrite import open_spool
from spark_log.store.local import LocalStore
from tests.maintenance.logs import HOUR_MS, SEAL_ALL, append_small, maintenance, new_log
from tests.restored import copy_of, restored
from tests.rewriting.test_compaction import STEPS, append, compacted, latest, records, run_clean

Duty = Callable[[State, Context], Steps[Any]]


def merge_small(state: State, context: Context) -> Steps[Any]:
    return merge(state, context, open_spool)


DUTIES: dict[str, tuple[Duty, StepLimits]] = {
    "merge": (merge_small, SEAL_ALL),
    "seal": (seal, SEAL_ALL),
    "list dropped": (list_dropped, StepLimits(dropped_inline=0)),
}


def held(steps: Steps[Any], meanwhile: Callable[[], object]) -> Iterator[Any]:
    """Carry out steps, and something else before their first change of the log."""
    is_first, operation = True, next(steps)
    while True:
        if isinstance(operation, Decide) and is_first:
            is_first = False
            meanwhile()
        try:
            operation = steps.send((yield operation))
        except StopIteration as end:
            return end.value


def values(log: Log) -> list[int]:
    return [int(value) for value in log.read("t")["value"].to_pylist()]


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("duty", DUTIES)
def test_what_was_prepared_before_a_restore_is_not_recorded(tmp_path: Path, duty: str) -> None:
    """The restored log has passed the version at which the duty began, and has all that it has planned with."""
    log = new_log(tmp_path / "log")
    append_small(log, 20)
    if duty == "list dropped":
        maintenance(log.journal, merge_small)
    copy = copy_of(log, tmp_path / "copy")
    append_small(log, 3, first=20)
    before = log.journal.refresh().version

    def restore() -> None:
        with restored(str(tmp_path / "log"), copy) as other:
            append_small(other, 8, first=100)

    steps, limits = DUTIES[duty]
    maintenance(log.journal, lambda state, context: held(steps(state, context), restore), limits)
    with connect(str(tmp_path / "log")) as found:
        assert found.journal.state.version > before and found.journal.state.restores
        assert not verify(found)
        wanted = [*range(60), *range(300, 324)]
        assert values(found) == wanted
        maintenance(log.journal, steps, limits)
        maintain_once(log)
        assert values(found) == wanted and not verify(found)


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_compaction_that_began_before_a_restore_removes_nothing_for_lost_records(tmp_path: Path) -> None:
    """Its map has the newest offset of each key, and the restored log has other records there."""
    log, memory = compacted(tmp_path / "log"), MaintenanceMemory()
    append(log, [(key, "kept") for key in "abc"])
    copy = copy_of(log, tmp_path / "copy")
    append(log, [(key, "lost") for key in "abc"])
    while memory.compaction_pass is None or memory.compaction_pass.end is None:
        assert run_clean(log, STEPS, memory, ends_passes=False).left
    with restored(str(tmp_path / "log"), copy) as found:
        for number in range(6):
            append(found, [("d", str(number)), ("e", str(number))])
        while run_clean(log, STEPS, memory, ends_passes=False).left:
            pass
        assert latest(records(found)) == {b"a": b"kept", b"b": b"kept", b"c": b"kept", b"d": b"5", b"e": b"5"}
        assert not verify(found, deep=True)


def test_an_erasure_that_began_before_a_restore_erases_no_new_records(tmp_path: Path) -> None:
    """It looked up the end of the topic in the lost log; the restored one has other records before that offset."""
    url = str(tmp_path / "log")
    log = new_log(tmp_path / "log")
    log.append("t", [{"key": b"a", "value": b"%d" % n} for n in range(3)])
    copy = copy_of(log, tmp_path / "copy")
    log.append("t", [{"key": b"a", "value": b"lost"} for _ in range(5)])
    begun: list[str] = []

    def restore(name: str, at: int, total: int) -> None:
        if not begun:
            begun.append(name)
            with restored(url, copy) as other:
                for n in range(6):
                    other.append("t", [{"key": b"a", "value": b"%d" % (10 + n)}])

    with pytest.raises(
        ConcurrentChange, match="erasing from t: the log was restored from a copy meanwhile.*run it again"
    ):
        log.admin.erase_records("t", [b"a"], progress=restore)
    with connect(url) as found:
        assert [value for value in values(found) if value >= 10] == [10, 11, 12, 13, 14, 15]
        assert found.admin.erase_records("t", [b"a"]).problems == ()
        assert values(found) == []


# Promise: copies.md#restore-a-log-from-a-copy
def test_retention_that_began_before_a_restore_removes_no_new_records(tmp_path: Path) -> None:
    """Its offset is that of an old record in the lost log, and of a new one in the restored log."""
    log = new_log(tmp_path / "log", retention_ms="3600000")
    append_small(log, 2)
    copy = copy_of(log, tmp_path / "copy")
    append_small(log, 3, first=100, age_ms=2 * HOUR_MS)
    log.admin.delete_records({TopicPartition("t", 0): 6})
    removed: list[Any] = []

    def restore() -> None:
        with restored(str(tmp_path / "log"), copy) as other:
            append_small(other, 4, first=2)

    def expire(state: State, context: Context) -> Steps[Any]:
        removed.append((yield from held(expire_records(state, context), restore))[1])

    maintenance(log.journal, expire)
    with connect(str(tmp_path / "log")) as found:
        assert removed == [{}] and values(found) == [*range(18)]


# Promise: copies.md#restore-a-log-from-a-copy
def test_an_erasure_that_ends_after_a_restore_says_that_records_are_back(tmp_path: Path) -> None:
    """The restore comes while it searches for the last time."""
    log = new_log(tmp_path / "log")
    log.append("t", [{"key": b"a", "value": b"%d" % n} for n in range(3)])
    copy, searched = copy_of(log, tmp_path / "copy"), list[int]()

    def restore(name: str, at: int, total: int) -> None:
        if name == "search":
            searched.append(at)
            if len(searched) == 2:
                restored(str(tmp_path / "log"), copy).close()

    with pytest.raises(ConcurrentChange, match="erasing from t: the log was restored.*run it again"):
        log.admin.erase_records("t", [b"a"], progress=restore)
    with connect(str(tmp_path / "log")) as found:
        assert values(found) == [0, 1, 2]


def test_an_erasure_is_not_done_by_what_was_deleted_before_a_restore(tmp_path: Path) -> None:
    """The copy still has the file of the erased record, which maintenance had deleted in the lost log."""
    url, clock = str(tmp_path / "log"), ManualClock(int(time.time() * 1000))

    def opened(create: bool = False) -> Log:
        return Log(Journal.open(LocalStore(url, "os"), create=create, clock=clock))

    def have_secret() -> bool:
        return any(b"secret" in path.read_bytes() for path in (tmp_path / "log" / "data").rglob("*.seg"))

    with opened(create=True) as log:
        log.create_topic(NewTopic("t", 1, {"compression.type": "none"}))
        log.admin.incremental_alter_configs({None: {"log.clock.skew.max.ms": str(1000 * HOUR_MS)}})
        log.append("t", [{"key": b"a", "value": b"secret"}])
        begin_mirror(log, LocalStore(tmp_path / "copy"))
        mirror = Mirror(log, LocalStore(tmp_path / "copy"))
        mirror.round()
        assert log.admin.erase_records("t", [b"a"]).records == 1
        for _ in range(3):
            clock.sleep_ms(HOUR_MS)
            log.append("t", [{"key": b"b", "value": b"x"}])
        mirror.round()
        clock.sleep_ms(25 * HOUR_MS)
        maintainer = Maintainer(log)
        for _ in range(3):
            log.append("t", [{"key": b"b", "value": b"x"}])
            maintainer.round()
        assert not have_secret() and log.admin.list_erasures() == []
        restored(url, tmp_path / "copy").close()
        assert have_secret()
        with opened() as other:
            while other.journal.refresh().version < log.journal.state.version:
                other.append("t", [{"key": b"b", "value": b"x"}])
            for directory in other.journal.state.former_roots:  # the folder of the lost log
                other.admin.forget_root(directory)
            maintainer.round()
            assert not have_secret()
            maintainer.round()
            assert other.admin.list_erasures() == []
