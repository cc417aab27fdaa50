"""One task of a flow in Spark, without Spark: a driver by hand."""

from __future__ import annotations

import threading
from functools import partial
from multiprocessing.connection import Listener, answer_challenge, deliver_challenge
from pathlib import Path

from pyspark_pylog.spark_flow import REPORT, STOP, run_in_task

import spark_log
from spark_log import NewTopic
from spark_log.client.open_journal import open_journal
from spark_log.errors import StorageUnavailable
from spark_log.flows.flow_options import flow_options
from spark_log.flows.task import FlowTask
from spark_log.journal.journal import Journal

KEY = b"k" * 32
WAIT_S = 60.0


class LateDisk:
    """Opens a log, but not before its disk is there."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.is_there = threading.Event()

    def __call__(self) -> Journal:
        if not self.is_there.is_set():
            raise StorageUnavailable("the disk is not there")
        return open_journal(self._url, create=False, partial=True)


# Promise: tasks/flow.md#in-tasks-of-spark
def test_a_task_waits_for_a_log_that_does_not_answer(tmp_path: Path) -> None:
    """It reports why, and begins when the log is there: Spark would give up a task that fails."""
    url = str(tmp_path / "log")
    log = spark_log.connect(url)
    log.admin.create_topics([NewTopic("in", 1), NewTopic("out", 1)])
    log.append("in", [{"value": "a"}])
    options = flow_options(
        name="f",
        source="in",
        function=lambda table: table,
        lookup=(),
        state=None,
        target="out",
        tasks=1,
        task_numbers=None,
        start="earliest",
        bad_records="fail",
        batch_bytes=1 << 20,
        linger_ms=0,
        value_format=None,
    )
    member, disk = FlowTask(log.journal, options, 0, threading.Event()).join(), LateDisk(url)
    with Listener(("127.0.0.1", 0)) as listener:
        work = partial(run_in_task, disk, options, listener.address, KEY, 0, 0)
        task = threading.Thread(target=work, daemon=True)
        task.start()
        with listener.accept() as connection:
            deliver_challenge(connection, KEY)
            answer_challenge(connection, KEY)
            assert connection.recv() == (0, 0)
            connection.send(member)
            connection.send(REPORT)
            assert connection.recv().counts.error == "the disk is not there"
            disk.is_there.set()
            while not log.read("out").num_rows:
                connection.send(REPORT)
                assert not connection.recv().ended
            connection.send(STOP)
            while not (report := connection.recv()).ended:
                pass
            assert report.error is None and report.counts.records_out == 1
        task.join(WAIT_S)
        assert not task.is_alive()
