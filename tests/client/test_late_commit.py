"""A process that is stopped between the decision of its transaction's commit and the write of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.errors import ProducerFenced, SparkLogError, TransactionTimedOut
from spark_log.journal.journal import Journal
from spark_log.runtime.clock import SystemClock
from spark_log.store.local import LocalStore
from tests.client.logs import values

TIMEOUT_MS = 60_000


class Late(SystemClock):
    """Of a machine on which the transaction's time is over."""

    def now_ms(self) -> int:
        return super().now_ms() + 2 * TIMEOUT_MS


class Stopped(Wrapper):
    """A store whose next new object is written only after something else has happened."""

    meanwhile: Callable[[], None] | None = None

    def put_new(self, key: str, data: bytes) -> bool:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        return self.inner.put_new(key, data)


def commit_late(folder: Path, meanwhile: Callable[[spark_log.Log], None]) -> spark_log.Log:
    """Commit a transaction whose process stops before the write; returns the log of the process that acted then."""
    stopped = Stopped(LocalStore(str(folder), durability="os"))
    log = spark_log.Log(Journal.open(stopped, create=True))
    log.append("t", [{"value": "before"}])
    other = spark_log.Log(Journal.open(LocalStore(str(folder), durability="os"), create=False, clock=Late()))
    with log.transaction("job", transaction_timeout_ms=TIMEOUT_MS) as transaction:
        transaction.append("t", [{"value": "late"}])
        stopped.meanwhile = lambda: meanwhile(other)
    return other


def state_of(log: spark_log.Log) -> str:
    return log.admin.list_transactions()[0].state


def abort(log: spark_log.Log) -> None:
    log.admin.abort_transaction("job")
    assert state_of(log) == "CompleteAbort"


def commit_something(log: spark_log.Log) -> None:
    log.append("t", [{"value": "other"}])
    assert state_of(log) == "CompleteAbort"


# Promise: clients.md#transactions
@pytest.mark.parametrize(
    ("ends", "error", "found"),
    [(abort, ProducerFenced, [b"before"]), (commit_something, TransactionTimedOut, [b"before", b"other"])],
    ids=["aborted", "timed out"],
)
def test_a_late_commit_is_rejected_after_complete_abort_was_shown(
    tmp_path: Path, ends: Callable[[spark_log.Log], None], error: type[SparkLogError], found: list[bytes]
) -> None:
    """Its version is taken, so it is decided again: after the abort, or after a commit past the timeout."""
    with pytest.raises(error):
        commit_late(tmp_path / "log", ends)
    log = spark_log.connect(tmp_path / "log")
    assert state_of(log) == "CompleteAbort" and values(log, "t") == found


# Promise: clients.md#transactions
def test_a_transaction_that_may_still_commit_is_not_shown_as_aborted(tmp_path: Path) -> None:
    """Its time is over by the clock, but the log has no record after it."""
    seen = []
    log = commit_late(tmp_path / "log", lambda other: seen.append(state_of(other)))
    assert seen == ["PrepareAbort"]
    assert state_of(log) == "CompleteCommit" and values(log, "t") == [b"before", b"late"]
