"""`spark_log.journal.rounds`: a failure that may pass is logged and tried again; others end the rounds."""

from __future__ import annotations

import pytest

from simulation.harness.clocks import ManualClock
from spark_log.errors import (
    AuthenticationFailed,
    ClockSkewed,
    CommitUnknown,
    CoordinatorNotAvailable,
    CorruptObject,
    InvalidRequest,
    LogMoved,
    NoSpace,
    SparkLogError,
    StorageUnavailable,
)
from spark_log.journal.rounds import BACKOFF_MS, BACKOFF_MS_MAX, may_pass, rounds


class Work:
    """Fails with the errors of its list, and notes when it is called."""

    def __init__(self, clock: ManualClock, errors: list[Exception | None]) -> None:
        self._clock, self._errors = clock, errors
        self.starts: list[int] = []

    def __call__(self) -> int:
        self.starts.append(self._clock.monotonic_ms())
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        return len(self.starts)


def test_rounds_start_every_interval(caplog: pytest.LogCaptureFixture) -> None:
    """A month of them, of which some fail; a failure delays only rounds that are closer than its pause."""
    clock, minute = ManualClock(), 60_000
    work = Work(clock, [None, StorageUnavailable("throttled"), None, CoordinatorNotAvailable("away")])
    found = rounds(clock, minute, work, "the job failed")
    results = [next(found) for _ in range(30 * 24 * 60)]
    assert results[:3] == [1, 3, 5]
    began = work.starts[0]
    assert [start - began for start in work.starts] == [minute * n for n in range(len(results) + 2)]
    assert [record.getMessage() for record in caplog.records] == [
        "the job failed: throttled",
        "the job failed: away",
    ]


# Promise: tasks/mirror-topics.md#failures-of-a-job-that-repeats
def test_failures_in_a_row_wait_longer_and_longer() -> None:
    """Up to a minute; a round that succeeds ends that."""
    clock = ManualClock()
    work = Work(clock, [None, *[StorageUnavailable("down")] * 13, None, NoSpace("full")])
    found = rounds(clock, 1, work, "failed")
    for _ in range(3):
        next(found)
    pauses = [after - before for before, after in zip(work.starts, work.starts[1:], strict=False)]
    doubled = [min(BACKOFF_MS * 2**n, BACKOFF_MS_MAX) for n in range(13)]
    assert pauses == [1, *doubled, 1, BACKOFF_MS]
    assert doubled[-1] == BACKOFF_MS_MAX


# Promise: tasks/mirror-topics.md#failures-of-a-job-that-repeats
@pytest.mark.parametrize(
    "error", [InvalidRequest("--topic"), AuthenticationFailed("token"), LogMoved("moved", url="x"), KeyError("a bug")]
)
def test_an_error_of_the_input_ends_the_rounds(error: Exception) -> None:
    """A bug, too.  So does any error of the first round."""
    clock = ManualClock()
    found = rounds(clock, 1, Work(clock, [None, error]), "failed")
    next(found)
    with pytest.raises(type(error)):
        next(found)
    with pytest.raises(StorageUnavailable):
        next(rounds(clock, 1, Work(clock, [StorageUnavailable("down")]), "failed"))


def test_what_may_pass() -> None:
    """Errors that can be retried, those of a storage, damage that others repair, and a clock that is not set yet."""
    passing = (StorageUnavailable("x"), NoSpace("x"), CorruptObject("x"), CommitUnknown("x"), ClockSkewed("x"))
    assert all(map(may_pass, passing))
    assert not any(map(may_pass, (SparkLogError("x"), InvalidRequest("x"), OSError("x"))))
