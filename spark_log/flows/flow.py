"""A running flow: its tasks in threads of this process, its progress, and its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from spark_log.client.arguments import refuses_odd_arguments
from spark_log.client.log import Log
from spark_log.client.open_journal import open_journal
from spark_log.errors import InvalidRequest, RequestTimedOut, SparkLogError
from spark_log.flows.flow_options import FlowOptions, flow_options
from spark_log.flows.flow_progress import FlowProgress, flow_metrics
from spark_log.flows.keyed_state import KeyedState
from spark_log.flows.source_positions import has_processed, newest_state, set_starts, unprocessed
from spark_log.flows.task import FlowTask, TaskCounts
from spark_log.journal.journal import Journal
from spark_log.text import counted

LOOK_S = 0.02
"""Interval of `process_all_available`."""
BATCH_BYTES = 8 << 20

logger = logging.getLogger("spark_log")


class RunningTask(Protocol):
    """A task in this process or in another one."""

    @property
    def counts(self) -> TaskCounts: ...

    @property
    def batch_ms(self) -> Iterable[float]: ...

    def run(self) -> None:
        """Run, or wait for it, until the flow is stopped.  Raises the error that ends the flow."""

    def settle(self) -> None:
        """Wait until commits that were applied are counted."""


def in_threads(journal: Journal, options: FlowOptions, stopping: threading.Event) -> Sequence[RunningTask]:
    """Tasks of this process."""
    return [FlowTask(journal, options, number, stopping) for number in options.numbers]


@refuses_odd_arguments()
class Flow:
    """A running flow, as `spark_log.flow` returns it.  Thread-safe; a context manager that stops the flow."""

    def __init__(
        self,
        journal: Journal,
        options: FlowOptions,
        close: Callable[[], None],
        tasks: Callable[[Journal, FlowOptions, threading.Event], Sequence[RunningTask]] = in_threads,
    ) -> None:
        """
        close:  called when the last task has ended.
        tasks:  makes the tasks, which end when the event is set.
        """
        self._journal = journal
        self._options = options
        self._close = close
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._tasks = tasks(journal, options, self._stopping)
        self._running = len(self._tasks)

    def __repr__(self) -> str:
        return f"Flow({self._options.name!r}, {self._state()})"

    @property
    def name(self) -> str:
        """The name of the flow, and of its group."""
        return self._options.name

    def start(self) -> None:
        """Set where the flow begins, if this is its first start, and start the tasks."""
        text = ""
        if self._options.state is not None:
            state = KeyedState(self._journal, self.name, self._options.topics[0], self._options.state)
            state.begin()
            text = state.position_text
        set_starts(self._journal, self._options, text)
        for number, task in zip(self._options.numbers, self._tasks, strict=True):
            name = f"pylog-flow-{self._options.name}-{number}"
            threading.Thread(target=self._run, args=(task,), name=name, daemon=True).start()

    def _run(self, task: RunningTask) -> None:
        try:
            task.run()
        except BaseException as error:  # noqa: BLE001 - `await_termination` raises it
            with self._lock:
                self._error = self._error or error
            self._stopping.set()
            logger.error("flow %s has failed: %s", self._options.name, error)
        with self._lock:
            self._running -= 1
            is_last = not self._running
        if is_last:
            try:
                self._close()
            except Exception as error:  # noqa: BLE001 - the flow has ended nevertheless
                logger.warning("flow %s: %s", self._options.name, error)
            self._ended.set()

    # --------------------------------------------------------------------------------------------------------- progress

    @property
    def is_active(self) -> bool:
        """Whether the flow is running."""
        return not self._ended.is_set()

    @property
    def exception(self) -> BaseException | None:
        """The error that ended the flow."""
        return self._error

    @property
    def progress(self) -> FlowProgress:
        """How far the flow is.  Looks at the end of the log for the lag."""
        counts = [task.counts for task in self._tasks]
        times = [ms for task in self._tasks for ms in tuple(task.batch_ms)]
        p50, p99 = np.percentile(times, [50, 99]).tolist() if times else (float("nan"),) * 2
        last = next((one.error for one in counts if one.error), "")
        lag, away = self._lag()
        return FlowProgress(
            state=self._state(),
            records_in=sum(one.records_in for one in counts),
            records_out=sum(one.records_out for one in counts),
            bad_records=sum(one.bad_records for one in counts),
            batches=sum(one.batches for one in counts),
            restarts=sum(one.restarts for one in counts),
            error=str(self._error) if self._error is not None else away or last,
            lag=lag,
            lookup_records=sum(one.lookup_records for one in counts),
            state_keys=sum(one.state_keys for one in counts),
            batch_ms_p50=p50,
            batch_ms_p99=p99,
        )

    def metrics(self) -> str:
        """The progress in Prometheus's text format, which its scrapes and textfile collectors read."""
        return flow_metrics(self.name, self.progress)

    def _lag(self) -> tuple[int, str]:
        """The lag, as far as it is known, and why the log cannot be read."""
        state, away = self._journal.state, ""
        try:
            state = newest_state(self._journal, self._options)
        except SparkLogError as error:
            away = str(error)
        return sum(unprocessed(state, self._options).values()), away

    def _state(self) -> str:
        return "running" if self.is_active else "stopped" if self._error is None else "failed"

    # ---------------------------------------------------------------------------------------------------------- the end

    def process_all_available(self, timeout: float | None = None) -> None:
        """Wait until every record that the sources have now is processed and committed, by any process of the flow.

        timeout:  in seconds; None: no limit.  Raises RequestTimedOut then, and the error of a flow that fails.
        """
        options, until_s = self._options, None if timeout is None else time.monotonic() + timeout
        state = newest_state(self._journal, options)
        ends = {key: state.partitions[key].readable_end for key in unprocessed(state, options)}
        while not has_processed(state, options, ends):
            if self._ended.wait(LOOK_S):
                self.await_termination()
                raise InvalidRequest(
                    f"flow {options.name!r} was stopped before it had processed the records: start it again"
                )
            if until_s is not None and time.monotonic() > until_s:
                left = sum(unprocessed(state, options).values())
                raise RequestTimedOut(
                    f"flow {options.name!r}: {counted(left, 'record')} are left after {timeout} s; flow.progress says what it does"
                )
            state = newest_state(self._journal, options)
        for task in self._tasks:
            task.settle()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the flow ends, and return whether it has.  Raises the error of a flow that has failed.

        timeout:  in seconds; None: no limit.
        """
        ended = self._ended.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self, timeout: float | None = None) -> None:
        """Let each task finish its batch and leave the group, and wait for that.

        timeout:  in seconds; None: no limit.  Raises RequestTimedOut if a task has not ended by then.
        """
        self._stopping.set()
        if not self._ended.wait(timeout):
            raise RequestTimedOut(
                f"flow {self._options.name!r}: a task has not ended within {timeout} s: its function, or the storage, "
                "does not return. What it has not committed has no effect"
            )

    def __enter__(self) -> Flow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop.  Without an exception in the block, the error of a flow that has failed is raised."""
        self.stop()
        if kind is None:
            self.await_termination()


def start_flow(
    url: str | PathLike[str],
    *,
    token: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    tasks_in: Callable[[Journal, FlowOptions, threading.Event], Sequence[RunningTask]] = in_threads,
    **given: Any,
) -> Flow:
    """Open the log at `url` and start a flow; `spark_log.flow` has the arguments.

    tasks_in:  as `tasks` of Flow.
    """
    options = flow_options(**given)
    journal = open_journal(url, storage_options, token, create=False, partial=True)
    log = Log(journal)
    flow = Flow(journal, options, log.close, tasks_in)
    try:
        flow.start()
    except BaseException:
        log.close()
        raise
    return flow
