"""Commands that were planned before the log was restored from a copy.

The restored log gives the same offsets, versions, epochs of brokers and epochs of transactions to other things.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import copy
from pathlib import Path

import pytest

from spark_log.metadata import commands
from spark_log.metadata import records as r
from spark_log.metadata.command_base import Command
from spark_log.metadata.commands import TRANSACTIONAL, AbortTransaction, InitProducer, Report, Start, Trim
from spark_log.metadata.groups import group_commands
from spark_log.metadata.replicas import replica_commands
from spark_log.metadata.replicas.replica_commands import (
    AddPendingCopies,
    DropCopies,
    ReturnBroker,
)
from spark_log.metadata.restores import history_of
from tests.unit.metadata.replica_history import ReplicaHistory
from tests.unit.metadata.test_reassignments import moved

ROOT = Path(__file__).parents[3]


def restored(log: ReplicaHistory) -> ReplicaHistory:
    """Another log, which continues where this one is now."""
    other = copy(log)
    other.states, other.batches = list(log.states), list(log.batches)
    other.write(r.RestoreRecord(history="restored", version=log.state.version))
    return other


def step(log: ReplicaHistory, other: ReplicaHistory) -> None:
    """The next change of both logs has the same version."""
    while log.state.version < other.state.version:
        log.command(commands.SetConfigs(name=None, changes={"gc.fence.age.ms": str(10**8 + log.state.version)}))


def pair() -> tuple[ReplicaHistory, ReplicaHistory, str]:
    """A log with an object on brokers 0 and 1, and its copy; and the object."""
    log = ReplicaHistory(1, 2)
    log.topic((0, 1))
    (name,) = log.put()
    other = restored(log)
    step(log, other)
    return log, other, name


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_copy_on_a_disk_of_the_lost_log_is_none_of_the_restored_one() -> None:
    """The broker has another directory there, with the same epoch."""
    log, other, name = pair()
    for one in (log, other):
        one.fence(1)
        one.renew(1)
    epoch = log.state.brokers[1].epoch
    assert other.state.brokers[1].epoch == epoch and other.brokers_of(name) == (0,)
    made = Report.of(log.state, r.HeldRecord(copies=(r.Copy(name, 1, epoch),)))
    assert other.command(made) is False and other.brokers_of(name) == (0,)
    assert log.command(made) and log.brokers_of(name) == (0, 1)


def test_a_copy_that_the_lost_log_lacks_is_not_missing_in_the_restored_one() -> None:
    log, other, name = pair()
    epoch = log.state.brokers[1].epoch
    assert other.command(Report.of(log.state, r.MissingRecord(copies=(r.Copy(name, 1, epoch),)))) is False
    assert other.brokers_of(name) == (0, 1)


def test_a_broker_does_not_return_by_what_the_lost_log_has_named() -> None:
    """The lost log has dropped the object, so nobody has looked for it on the root of the broker."""
    log, other, _ = pair()
    for one in (log, other):
        one.fence(1)
    back = ReturnBroker(broker=1, epoch=log.state.brokers[1].epoch, history=history_of(log.state))
    assert other.command(back) is False and other.state.brokers[1].fenced
    assert log.command(back) and not log.state.brokers[1].fenced


def test_a_pending_commit_of_the_copy_does_not_become_visible_by_copies_of_the_lost_log() -> None:
    log = ReplicaHistory(1, 2)
    log.topic((0, 1), min_insync_replicas="1")
    (name,) = log.put((0,), acks=1)
    other = restored(log)
    epoch, history = log.state.brokers[1].epoch, history_of(log.state)
    assert [one.objects for one in other.state.pending] == [(name,)]
    for report in (
        AddPendingCopies(copies=(r.Copy(name, 1, epoch),), history=history),
        AddPendingCopies(copies=(), late=((name, 1),), history=history),
    ):
        assert other.command(report) is False
    assert [one.objects for one in other.state.pending] == [(name,)] and other.isr() == (0, 1)


def test_old_copies_are_not_dropped_because_of_roots_that_answered_in_the_lost_log() -> None:
    log = ReplicaHistory()
    log.add(1, is_async=True, keep_ms=3_600_000)
    log.topic((0, 1))
    log.put()
    log.now += 24 * 3_600_000
    log.put()
    other = restored(log)
    drop = DropCopies(broker=1, answering=(0,), history=history_of(log.state))
    assert other.command(drop) is False
    assert log.command(drop) is True


def test_a_move_does_not_end_by_what_the_lost_log_had_in_place() -> None:
    log, other, _ = pair()
    for one in (log, other):
        moved(one, 0, 2)
    row = log.state.reassignments["t", 0]
    assert row.version == other.state.reassignments["t", 0].version
    end = r.Moved("t", 0, row.version, log.state.version)
    assert other.command(Report.of(log.state, r.MovedRecord(partitions=(end,)))) is False


def test_records_are_not_removed_by_offsets_of_the_lost_log() -> None:
    log, other, _ = pair()
    for one in (log, other):
        one.put()
    trim = Trim(starts=(Start("t", 0, 2),), history=history_of(log.state))
    assert other.command(trim) == {} and other.state.partitions["t", 0].start == 0
    assert log.command(trim) == {("t", 0): 2}


def test_a_transaction_of_the_lost_log_aborts_none_of_the_restored_one() -> None:
    log, other, _ = pair()
    producer = TRANSACTIONAL + "x"
    epochs = [one.command(InitProducer(producer=producer, timeout_ms=60_000)) for one in (log, other)]
    assert epochs == [0, 0]
    abort = AbortTransaction(producer=producer, epoch=0, history=history_of(log.state))
    assert other.command(abort) is False and not other.state.producers[producer].aborted
    log.command(abort)
    assert log.state.producers[producer].aborted


# ------------------------------------------------------------------------------------------------------ all that are made


def of_a_history() -> set[str]:
    """Names of the commands that know their history."""
    kinds = [one for module in (commands, group_commands, replica_commands) for one in vars(module).values()]
    return {
        one.__name__
        for one in kinds
        if isinstance(one, type) and issubclass(one, Command) and "history" in one.__struct_fields__
    }


def made_in(path: Path, names: set[str]) -> Iterator[tuple[str, bool]]:
    """Where such commands are made, and whether a history is given."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            is_given = any(argument.arg in ("history", None) for argument in node.keywords)
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.func.id}", is_given


@pytest.mark.parametrize("folder", ["spark_log", "datasource", "jobs"])
def test_whoever_makes_such_a_command_gives_the_history(folder: str) -> None:
    """Without it, the command does nothing in any restored log.  No simulation has one."""
    names = of_a_history()
    assert {"Append", "CommitOffsets", "Report", "Swap", "Trim"} <= names
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if "testing" not in path.parts]
    made = dict(one for path in paths for one in made_in(path, names))
    assert [where for where, is_given in made.items() if not is_given] == []
    assert made or folder != "spark_log"
