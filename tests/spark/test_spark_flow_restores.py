"""Attempts of a Spark task of a flow, over a restore of the log.  Threads of this process stand for the attempts."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Listener
from pathlib import Path

import pytest
from pyspark_pylog.spark_flow import STOP, SparkTask, _FlowJob, run_in_task

import spark_log
from spark_log.client.open_journal import open_journal
from spark_log.errors import IllegalGeneration
from tests.flows.test_flow_faults import fill, made, options, out, start
from tests.processes import eventually
from tests.restored import copy_of, restored, set_back

WAIT_S = 20.0
HOST = "localhost"


class Application:
    """The driver of a flow with one task, whose attempts are started by hand."""

    def __init__(self, url: str) -> None:
        self.stopping = threading.Event()
        self._opening = partial(open_journal, url, None, None, create=False, partial=True)
        self._job = _FlowJob(None, self._opening, self._opening(), options(tasks=1), self.stopping)  # type: ignore[arg-type]
        self._listener: Listener = self._job.listen(HOST)

    @property
    def task(self) -> SparkTask:
        return self._job.tasks[0]

    def attempt(self, number: int) -> None:
        """Start an attempt.  The driver stops the one before."""
        place = (HOST, self._listener.address[1])
        run = partial(run_in_task, self._opening, options(tasks=1), place, self._job.key, 0, number)
        threading.Thread(target=run, daemon=True).start()

    def lose_attempt(self) -> None:
        """The newest attempt ends, as if its process was killed between two commits."""
        with self.task._changed:
            assert self.task._connection is not None
            self.task._connection.send(STOP)
        eventually(lambda: self.task._connection is None, WAIT_S)
        self.task._ended = False

    def works(self) -> bool:
        """Raises the error with which the task has ended."""
        with self.task._changed:
            if self.task._error is not None:
                raise self.task._error
        return True

    def error(self) -> BaseException | None:
        """The error with which the task has ended."""
        with self.task._changed:
            assert self.task._changed.wait_for(lambda: self.task._ended, WAIT_S)
            return self.task._error

    def close(self) -> None:
        self.stopping.set()
        eventually(lambda: not self.task.stop(), WAIT_S)
        self._listener.close()


@pytest.fixture
def application() -> Iterator[Callable[[str], Application]]:
    found: list[Application] = []

    def begin(url: str) -> Application:
        found.append(Application(url))
        return found[-1]

    yield begin
    for one in found:
        one.close()


def snapshot_of(log: spark_log.Log, folder: Path) -> Path:
    """A copy of the files of a log that nobody writes to."""
    shutil.copytree(log.url.removeprefix("file://"), folder)
    return folder


def written(log: spark_log.Log, until: int) -> None:
    """As many versions as processes know: they wait for these (docs/decisions/0134-set-back-under-a-reader.md)."""
    while log.journal.state.version <= until:
        log.admin.create_topics([spark_log.NewTopic(f"new-{log.journal.state.version}", 1)])


Copy = Callable[[spark_log.Log, Path], Path]
GoBack = Callable[[str, Path], spark_log.Log]
WAYS = pytest.mark.parametrize(("copied", "goes_back"), [(copy_of, restored), (snapshot_of, set_back)])


# Promise: tasks/flow.md#in-tasks-of-spark
@WAYS
def test_a_later_attempt_does_not_take_the_flow_back_after_a_restore(
    application: Callable[[str], Application], copied: Copy, goes_back: GoBack, tmp_path: Path
) -> None:
    """A newer application has taken it from an attempt that had continued in the restored log."""
    url = str(tmp_path / "log")
    log = made(url)
    fill(log, 1)
    copy = copied(log, tmp_path / "copy")
    older = application(url)
    older.attempt(0)
    eventually(lambda: out(log) == [1], WAIT_S)
    older.lose_attempt()
    version = log.journal.refresh().version
    log.close()
    with goes_back(url, copy) as after:
        written(after, version)
        fill(after, 2)
        older.attempt(1)
        eventually(lambda: older.works() and out(after) == [1, 2], WAIT_S)
        with start(url) as newer:
            fill(after, 3)
            eventually(lambda: out(after) == [1, 2, 3], WAIT_S)
            older.attempt(2)
            assert isinstance(older.error(), IllegalGeneration)
            fill(after, 4)
            newer.process_all_available(WAIT_S)
        assert out(after) == [1, 2, 3, 4]


# Promise: tasks/flow.md#in-tasks-of-spark
def test_a_running_attempt_continues_over_a_restore(application: Callable[[str], Application], tmp_path: Path) -> None:
    """The driver joins again for it, once; the next attempt takes its place."""
    url = str(tmp_path / "log")
    log = made(url)
    copy = copy_of(log, tmp_path / "copy")
    fill(log, 1)
    older = application(url)
    older.attempt(0)
    eventually(lambda: out(log) == [1], WAIT_S)
    before = older._job.members
    log.close()
    with restored(url, copy) as after:
        fill(after, 2)
        eventually(lambda: older.works() and out(after) == [2], WAIT_S)
        joined = older._job.members
        assert joined is not before
        older.attempt(1)
        fill(after, 3)
        eventually(lambda: older.works() and out(after) == [2, 3], WAIT_S)
        assert older._job.members is joined


def test_a_driver_that_knows_of_an_earlier_set_back_is_replaced_for_good(
    application: Callable[[str], Application], tmp_path: Path
) -> None:
    """Its tasks do not know of it, since they have opened the log later."""
    url = str(tmp_path / "log")
    log = made(url)
    copy = snapshot_of(log, tmp_path / "copy")
    fill(log, 1)
    older = application(url)
    version = log.journal.refresh().version
    log.close()
    with set_back(url, copy) as after:
        written(after, version)
        fill(after, 2)
        older.attempt(0)
        eventually(lambda: out(after) == [2], WAIT_S)
        with start(url):
            fill(after, 3)
            eventually(lambda: out(after) == [2, 3], WAIT_S)
            older.attempt(1)
            assert isinstance(older.error(), IllegalGeneration)
