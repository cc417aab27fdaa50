"""A flow in the tasks of one Spark job, which stay until the flow is stopped.

Each Spark task runs the loop of `spark_log/flows/task.py`.  It keeps a connection to the driver, which asks for its
counts there and stops it.  If the driver dies, the connection ends, and so does the task.  An error that ends the flow
is reported.  Spark starts a task again only if its process died.

Without a coordinator, the driver joins the group for each task, and the attempts of a task only take the place of that
member and of earlier attempts.  So neither a task that is started again, nor one that Spark has given up and that is
running still, takes the flow back from a newer application.  After a restore of the log, the first attempt that finds
it asks the driver, which joins again, once for all tasks.
"""

from __future__ import annotations

import pickle
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from queue import SimpleQueue
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from pyspark_pylog.jobs.job_support import in_tasks, sentence
from pyspark_pylog.sessions import check_session, is_connect
from spark_log.client.log import Log
from spark_log.client.open_journal import open_journal
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.flows.flow import Flow, start_flow
from spark_log.flows.flow_options import FlowOptions
from spark_log.flows.task import FlowTask, Incarnation, TaskCounts, pause_s
from spark_log.journal.journal import Journal
from spark_log.metadata.groups.group_commands import LeaveGroup
from spark_log.metadata.state import GroupState

REPORT, STOP, REPLACED = "report", "stop", "replaced"
REPORT_S = 1.0
"""How long the driver waits for the counts of a task."""
LOOK_S = 0.1
ENDS_S = 30.0
"""How long the flow waits for Spark to end the job of tasks that have ended: a job that is cancelled, or whose
application stops, before Spark has taken in the ends of its tasks, fills the log with errors.
"""
NOT_STARTED = "Spark has not started task {}: does the application have a free core for it?"


Opening = Callable[[], Journal]


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The counts of a task, and how it has ended."""

    counts: TaskCounts
    batch_ms: tuple[float, ...]
    ended: bool = False
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """A task has found that the log was restored since the driver has joined for it."""

    member: str
    """The id of the driver's member."""


def start_spark_flow(
    spark: SparkSession,
    url: Any,
    *,
    token: str | None,
    storage_options: Mapping[str, Any] | None,
    **given: Any,
) -> Flow:
    """Start a flow in tasks of Spark; `spark_log.flow` has the arguments."""
    check_session(spark, "flow", "…, spark=spark")
    if is_connect(spark):
        raise InvalidRequest(
            "spark_log.flow: the tasks of a flow report to the driver, which a session of Spark Connect is not: start "
            "the flow in a program that spark-submit runs, or leave out spark"
        )
    if spark.sparkContext.getConf().get("spark.speculation") == "true":
        raise InvalidRequest(
            "spark_log.flow: spark.speculation starts a second copy of tasks that take long, and those of a flow never "
            "end: set it to false for this application"
        )
    opening = partial(open_journal, url, storage_options, token, create=False, partial=True)
    return start_flow(
        url, token=token, storage_options=storage_options, tasks_in=partial(tasks_of_spark, spark, opening), **given
    )


def tasks_of_spark(
    spark: SparkSession, opening: Opening, journal: Journal, options: FlowOptions, stopping: threading.Event
) -> Sequence[SparkTask]:
    """The tasks of a flow; the first one that runs starts the Spark job for all."""
    return _FlowJob(spark, opening, journal, options, stopping).tasks


class SparkTask:
    """The driver's side of a task: of its newest attempt."""

    def __init__(self, job: _FlowJob, number: int) -> None:
        self.number = number
        self.batch_ms: tuple[float, ...] = ()
        self._job = job
        self._changed = threading.Condition()
        """For all that follows."""
        self._before = TaskCounts()
        """The last counts of the attempts before."""
        self._last = TaskCounts(error=NOT_STARTED.format(number))
        self._reports = 0
        self._attempt = -1
        self._connection: Connection[Any, Any] | None = None
        self._asked = self._stopped = False
        """Sent to this attempt, and not answered."""
        self._ended = False
        self._error: BaseException | None = None

    @property
    def counts(self) -> TaskCounts:
        """The counts of the task now, or those that it has reported last."""
        with self._changed:
            expected = self._reports + 1
            if self._asked or self._tell(REPORT):
                self._asked = True
                self._changed.wait_for(lambda: self._reports >= expected or self._connection is None, REPORT_S)
            return self._before.plus(self._last).plus(TaskCounts(restarts=max(self._attempt, 0)))

    def settle(self) -> None:
        """The task settles its counts before it reports them."""

    def run(self) -> None:
        """Wait until the task has ended, and with it the Spark job.  Raises its error, or that of the job."""
        self._job.begin()
        with self._changed:
            self._changed.wait_for(lambda: self._ended)
        if self._error is not None:
            raise self._error
        self._job.ended.wait(ENDS_S)

    @property
    def has_ended(self) -> bool:
        return self._ended

    def end(self, error: BaseException | None) -> None:
        """The Spark job has ended, and with it the task."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()

    def stop(self) -> bool:
        """Tell the task to stop.  Returns whether it is running."""
        with self._changed:
            if self._connection is None or self._ended:
                return False
            self._stopped = self._stopped or self._tell(STOP)
            return True

    def attend(self, connection: Connection[Any, Any], attempt: int, stopping: threading.Event) -> None:
        """Take reports of an attempt until it has ended.  An older one that is running still has to stop."""
        with self._changed:
            is_newest = attempt > self._attempt
            if is_newest:
                self._tell(REPLACED)
                if self._attempt >= 0:
                    self._before = self._before.plus(self._last)
                self._attempt, self._connection, self._last = attempt, connection, TaskCounts()
                self._asked = self._stopped = False
            connection.send(self._job.members[self.number] if is_newest and not stopping.is_set() else STOP)
        with suppress(EOFError, OSError):
            while True:
                said = connection.recv()
                if isinstance(said, TaskReport):
                    self._note(said, attempt)
                else:
                    self._renew(connection, attempt, said)
        with self._changed:
            if connection is self._connection:
                self._connection = None
                self._changed.notify_all()

    def _renew(self, connection: Connection[Any, Any], attempt: int, asked: Renew) -> None:
        try:
            answer: Incarnation | Exception = self._job.renewed(self.number, asked.member)
        except SparkLogError as error:
            answer = _sendable(error)
        with self._changed:
            connection.send(answer if attempt == self._attempt else STOP)

    def _note(self, report: TaskReport, attempt: int) -> None:
        with self._changed:
            if attempt == self._attempt:
                self._last, self.batch_ms, self._reports = report.counts, report.batch_ms, self._reports + 1
                self._ended, self._error, self._asked = report.ended, report.error, False
                self._changed.notify_all()

    def _tell(self, what: str) -> bool:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.send(what)
                return True
        return False


class _FlowJob:
    """The Spark job, and the port that its tasks connect to."""

    def __init__(
        self, spark: SparkSession, opening: Opening, journal: Journal, options: FlowOptions, stopping: threading.Event
    ) -> None:
        self.tasks = [SparkTask(self, number) for number in options.numbers]
        self._spark, self._opening, self._journal, self._options = spark, opening, journal, options
        self._stopping = stopping
        self.members: Mapping[int, Incarnation] = {}
        """By the number of a task: the member that its attempts take the place of."""
        self._joining = threading.Lock()
        self.key = secrets.token_bytes(32)
        self._begun, self.ended = threading.Lock(), threading.Event()

    def begin(self) -> None:
        """Start the job, once."""
        if self._begun.acquire(blocking=False):
            self._in_thread(self._run)

    def _in_thread(self, target: Callable[..., None], *args: object) -> None:
        name = f"pylog-flow-{self._options.name}-spark"
        threading.Thread(target=target, args=args, name=name, daemon=True).start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._run_job()
        except Exception as found:  # noqa: BLE001 - of Spark or pylog: it ends the flow
            if not self._stopping.is_set() and not self._application_has_ended():
                error = (
                    found
                    if isinstance(found, SparkLogError)
                    else SparkLogError(f"flow {self._options.name!r}: the Spark job failed: {sentence(found)}")
                )
        self.ended.set()
        self._leave()
        for task in self.tasks:
            task.end(error)

    def _leave(self) -> None:
        """Leave the group for tasks that Spark has not started, or has stopped."""
        name = self._options.name
        with suppress(SparkLogError):  # their sessions end, too
            shares = self._journal.refresh().groups.get(name, GroupState()).shares
            joined = {member.id for member in self.members.values()}
            for left in [one.member for one in shares if joined & {one.member, one.member.rpartition(".")[0]}]:
                self._journal.propose(LeaveGroup(group=name, member=left))

    def _application_has_ended(self) -> bool:
        try:
            return self._spark.sparkContext._jsc is None or bool(self._spark.sparkContext._jsc.sc().isStopped())
        except Exception:  # noqa: BLE001 - its JVM has gone
            return True

    def _run_job(self) -> None:
        context, options = self._spark.sparkContext, self._options
        host = context.getConf().get("spark.driver.host") or "localhost"
        with self.listen(context.getConf().get("spark.driver.bindAddress") or host) as listener:
            tag = f"pylog-flow-{secrets.token_hex(8)}"
            context.addJobTag(tag)  # of this thread
            context.setJobDescription(f"pylog flow {options.name}")
            self._in_thread(self._stop, tag)
            place = (host, listener.address[1])
            in_tasks(self._spark, options.numbers, partial(run_in_task, self._opening, options, place, self.key))

    def listen(self, host: str) -> Listener:
        """Join the group for all tasks, and take their connections."""
        self.members = self._joined()
        listener = Listener((host, 0), backlog=128)
        self._in_thread(self._accept, listener)
        return listener

    def _joined(self) -> Mapping[int, Incarnation]:
        tasks = [FlowTask(self._journal, self._options, task.number, self._stopping) for task in self.tasks]
        return {task.number: joining.join() for task, joining in zip(self.tasks, tasks, strict=True)}

    def renewed(self, number: int, former: str) -> Incarnation:
        """The member of a task, after a restore.  All tasks join again, together, unless they have done so since."""
        with self._joining:
            if self.members[number].id == former:
                self.members = self._joined()
            return self.members[number]

    def _accept(self, listener: Listener) -> None:
        """Until the listener is closed."""
        with suppress(OSError):
            while True:
                self._in_thread(self._attend, listener.accept())

    def _attend(self, connection: Connection[Any, Any]) -> None:
        """The other end has to know the key."""
        with connection, suppress(EOFError, OSError):
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            number, attempt = connection.recv()
            next(task for task in self.tasks if task.number == number).attend(connection, attempt, self._stopping)

    def _stop(self, tag: str) -> None:
        """When the flow is stopped, let running tasks finish, and end the job, which may wait to start others."""
        self._stopping.wait()
        while not self.ended.wait(LOOK_S):
            if not [task for task in self.tasks if task.stop()]:
                if all(task.has_ended for task in self.tasks) and self.ended.wait(ENDS_S):
                    return
                with suppress(Exception):  # the application ends
                    self._spark.sparkContext.cancelJobsWithTag(tag)


def run_in_task(
    opening: Opening,
    options: FlowOptions,
    place: tuple[str, int],
    key: bytes,
    number: int,
    attempt: int | None = None,
) -> None:
    """Run one task of the flow in this process of Spark until the driver stops it, or has gone.

    attempt:  None: that of Spark.
    """
    with Client(place, authkey=key) as connection:
        driver = _Driver(connection, _attempt() if attempt is None else attempt)
        driver.send((number, driver.attempt))
        opened = _opened(opening, driver)
        if opened is None:
            return
        journal, member = opened
        task = FlowTask(journal, options, number, driver.stopping, driver.attempted(member), driver.renew)
        threading.Thread(target=driver.obey, args=(task,), daemon=True).start()
        error: BaseException | None = None
        try:
            task.run()
        except Exception as found:  # noqa: BLE001 - the driver raises it
            error = _sendable(found)
        with suppress(SparkLogError):
            Log(journal).close()
        with suppress(OSError):  # the driver has gone
            driver.send(TaskReport(task.counts, tuple(task.batch_ms), True, error))


class _Driver:
    """The side of an attempt of a task of the connection to the driver."""

    def __init__(self, connection: Connection[Any, Any], attempt: int) -> None:
        self.attempt = attempt
        self.stopping = threading.Event()
        self.connection = connection
        self._sending = threading.Lock()
        self._answers = SimpleQueue[Incarnation | Exception | None]()
        """None: there are no more."""
        self._member = Incarnation("")
        """The driver's."""

    def send(self, what: object) -> None:
        with self._sending:
            self.connection.send(what)

    def attempted(self, member: Incarnation) -> Incarnation:
        """The place of this attempt, which the driver's member or an earlier attempt has."""
        self._member = member
        ids = [member.id, *(f"{member.id}.{one}" for one in range(self.attempt + 1))]
        return member._replace(id=ids[-1], former=tuple(ids[:-1]))

    def renew(self) -> Incarnation:
        """The driver's answer: the place of this attempt in the restored log.  Raises the error of the driver."""
        with suppress(OSError):  # the driver has gone
            self.send(Renew(self._member.id))
        answer = self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        return self.attempted(self._member if answer is None else answer)

    def obey(self, task: FlowTask) -> None:
        """Until the driver says to stop, or has gone."""
        with suppress(EOFError, OSError, TypeError):  # the last one if this process closes the connection meanwhile
            while (said := self.connection.recv()) not in (STOP, REPLACED):
                if said == REPORT:
                    task.settle()
                    self.send(TaskReport(task.counts, tuple(task.batch_ms)))
                else:
                    self._answers.put(said)
            task.is_replaced = said == REPLACED
        self.stopping.set()
        self._answers.put(None)


def _opened(opening: Opening, driver: _Driver) -> tuple[Journal, Incarnation] | None:
    """The log, as soon as it answers, and the member that the driver has; None if the driver says to stop.

    Spark would give up a task that fails some times, and the flow with it.
    """
    failures, journal, member = 0, None, None
    while journal is None or member is None:
        error = ""
        try:
            journal = journal or opening()
        except SparkLogError as failed:
            if not failed.retriable:
                raise
            error, failures = str(failed), failures + 1
        if driver.connection.poll(pause_s(failures) if error else None):
            said = driver.connection.recv()
            if said in (STOP, REPLACED):
                return None
            if said == REPORT:
                driver.send(TaskReport(TaskCounts(error=error), ()))
            else:
                member = said
    return journal, member


def _attempt() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def _sendable(error: Exception) -> Exception:
    """The error, in a form that can be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - its class may need anything
        return SparkLogError(f"{type(error).__name__}: {error}")
    return error
