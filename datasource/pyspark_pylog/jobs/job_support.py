"""Shared by the programs in `jobs/`: arguments, work split among tasks, progress, and how a job ends.

A job prints its progress and errors on standard error, and one line of JSON, its summary, as the last line of standard
output.  spark-submit passes on both streams as its standard output.  Exit status: 0 done, 1 refused or failed, 2 wrong
usage.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_pylog.log.open_log import journal_of
from pyspark_pylog.options.parse import Location
from pyspark_pylog.plain_errors import plain_errors
from spark_log import errors
from spark_log.cli.common.base import parse_duration
from spark_log.client.log import Log
from spark_log.client.open_journal import TOKEN_VARIABLE
from spark_log.configs.config_types import UNITS_BYTES
from spark_log.configs.topic_names import check_topic_name
from spark_log.display.units import parse_rate
from spark_log.errors import InvalidRequest, InvalidTopic, SparkLogError
from spark_log.http.address import is_coordinator
from spark_log.journal.rounds import kind_may_pass, may_pass, rounds
from spark_log.runtime.closed_pipe import EXIT_CLOSED_PIPE, discard_output
from spark_log.runtime.debug import shows_tracebacks
from spark_log.text import is_name, printable_lines

Share = TypeVar("Share")
Result = TypeVar("Result")

EXIT_FAILED = 1
SHARES_PER_SLOT = 4
"""Tasks of one Spark job for each one that runs at a time: after it, the progress is shown."""
PROGRESS_S = 10.0
"""How often the progress of long work is shown."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable_lines(message))


def job_parser(description: str | None, *, url_required: bool = True) -> argparse.ArgumentParser:
    """A parser with the arguments that name the log."""
    parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=url_required, help="the log: file:///…, s3://… or pylog://…")
    add_key_values(parser, "--storage-option", "for the log's storage, as in connect(storage_options=…)")
    return parser


def add_key_values(parser: argparse.ArgumentParser, name: str, text: str, metavar: str = "KEY=VALUE") -> None:
    """Add an argument KEY=VALUE that may be repeated.

    text:  what its help says.
    """
    parser.add_argument(
        name, action="append", default=[], type=_key_value, metavar=metavar, help=f"{text}; may be repeated"
    )


def add_storage_option(parser: argparse.ArgumentParser, name: str, whose: str) -> None:
    """Add an argument for options of another storage than the log's, which `storage_beside` reads."""
    add_key_values(parser, name, f"{whose} (default: those of --storage-option, if both URLs are of one kind)")


def parse_rounds(
    parser: argparse.ArgumentParser, dry_run: str, args: Sequence[str] | None = None
) -> argparse.Namespace:
    """Parse the arguments of a job that runs once or in rounds: those of the parser, `--every` and `--dry-run`.

    dry_run:  the help for `--dry-run`.
    """
    parser.add_argument("--every", type=duration_ms, metavar="DURATION", help="repeat this often, for ever")
    parser.add_argument("--dry-run", action="store_true", help=dry_run)
    found = parser.parse_args(args)
    if found.dry_run and found.every is not None:
        parser.error("--dry-run runs once: leave out --every")
    return found


def _key_value(text: str) -> tuple[str, str]:
    """The type of an argument KEY=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return name, value


def topic_name(text: str) -> str:
    """The type of an argument that names a topic."""
    try:
        check_topic_name(text)
    except InvalidTopic as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def names(text: str) -> tuple[str, ...]:
    """The type of an argument with names that are separated by commas."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise argparse.ArgumentTypeError("no names given")
    if odd := next((name for name in found if not is_name(name)), None):
        raise argparse.ArgumentTypeError(f"{odd!r} has characters that cannot be printed")
    return found


def topic_names(text: str) -> tuple[str, ...]:
    """The type of an argument with topics that are separated by commas."""
    return tuple(map(topic_name, names(text)))


def duration_ms(text: str) -> int:
    """The type of an argument such as 10m, in milliseconds."""
    try:
        return parse_duration(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def size_bytes(text: str) -> int:
    """The type of an argument such as 64m, in bytes."""
    found = re.fullmatch(r"(\d+)([a-z]*)", text.strip().lower())
    if not found or found[2] not in UNITS_BYTES or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; give bytes, or a number with k, m or g, as in 64m")
    return int(found[1]) * UNITS_BYTES[found[2]]


def rate_bytes(text: str) -> int:
    """The type of an argument such as 50MB, in bytes per second."""
    try:
        return parse_rate(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def storage_beside(given: Sequence[tuple[str, str]], url: str, args: argparse.Namespace) -> dict[str, str]:
    """Options of another storage than the log's: by default those of the log's, if both URLs are of one kind."""
    same = url.partition("://")[0] == (args.url or "").partition("://")[0]
    return dict(given or (args.storage_option if same else ()))


def location_of(args: argparse.Namespace) -> Location:
    """The log that the arguments name; the token of a coordinator comes from the environment."""
    token = os.environ.get(TOKEN_VARIABLE) if is_coordinator(args.url) else None
    return Location(url=args.url, storage=dict(args.storage_option), token=token)


def in_tasks(spark: SparkSession, shares: Sequence[Share], work: Callable[[Share], Result]) -> list[Result]:
    """The results of `work` for each share, in a task for each one.  Spark starts them in the order of the shares."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with plain_errors():
                results = [pickle.dumps(work(shares[number])) for number in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], ["result"])

    if not shares:
        return []
    numbers = spark.range(0, len(shares), 1, len(shares))
    return [pickle.loads(row.result) for row in numbers.mapInArrow(run, "result binary").collect()]


def waves(spark: SparkSession, shares: Iterable[Share]) -> Iterator[list[Share]]:
    """The shares of one Spark job after another: with dynamic allocation, later ones have more executors."""
    rest = iter(shares)
    while some := list(islice(rest, spark.sparkContext.defaultParallelism * SHARES_PER_SLOT)):
        yield some


def progress(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"{printable_lines(text)}\n")
    sys.stderr.flush()


class TimedProgress:
    """How far some work is, each `PROGRESS_S` and at its end."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        """By the name of the work."""
        self._shown_s = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        self.totals[what] = total
        now_s = time.monotonic()
        if done >= total or now_s >= self._shown_s + PROGRESS_S:
            self._shown_s = now_s
            progress(f"{what}: {done:,} of {total:,}")


# ----------------------------------------------------------------------------------------------------------- repeating

OF_PYLOG = re.compile(r"\bspark_log\.errors\.(\w+): ")
"""The class of an error of pylog, in the report of a task or a query."""
OF_NETWORK = re.compile(
    r"\bjava\.net\.\w+Exception|\bExecutorLostFailure\b|\bPython worker (?:exited|failed)|CANNOT_OPEN_SOCKET"
    r"|\b(?:\w*Timeout|Disconnect|Network|ClosedChannel|LeaderNotAvailable|NotLeaderOrFollower|CoordinatorNotAvailable"
    r"|CoordinatorLoadInProgress|NotCoordinator)Exception\b"
)
"""In the report of a task or a query that may succeed later: exceptions of Spark, Java and Kafka."""


class PassingFailure(SparkLogError):
    """A run of a job failed, and the next one may succeed."""

    retriable = True


def repeat(spark: SparkSession, log: Log, every_ms: int | None, work: Callable[[], Result], what: str) -> Result:
    """The result of the work.  If `every_ms` is given, it is done in `rounds`, until one raises an error."""
    if every_ms is None:
        return work()
    failed = f"{what} failed, retrying in its next run"
    results = rounds(log.journal.context.clock, every_ms, partial(_attempt, spark, work), failed)
    while True:
        next(results)


def _attempt(spark: SparkSession, work: Callable[[], Result]) -> Result:
    """Raises PassingFailure for errors of tasks and queries that may pass, unless the Spark application has ended."""
    try:
        return work()
    except (SparkLogError, PySparkException, Py4JJavaError) as error:
        has_ended = spark.sparkContext._jsc is None or spark.sparkContext._jsc.sc().isStopped()
        if not has_ended and is_passing(error):
            raise PassingFailure(sentence(error)) from error
        raise


def is_passing(error: Exception) -> bool:
    """Whether `may_pass` is true, also for errors of tasks and queries."""
    if isinstance(error, SparkLogError):
        return may_pass(error)
    text = _text(error)
    if names := OF_PYLOG.findall(text):
        return kind_may_pass(getattr(errors, names[-1], SparkLogError))
    return of_network(text)


def of_network(text: str) -> bool:
    """Whether an exception of Spark, Java or Kafka says that a process or the network failed."""
    return bool(OF_NETWORK.search(text))


# ------------------------------------------------------------------------------------------------------------- running

Outcome = tuple[Mapping[str, Any], int]
"""The summary and the exit status of a job."""

PYTHON_LATE = (
    "\nSpark waits some seconds for a Python process, and the machine was too busy: run this again, with less beside"
)

NO_JAVA = "\nSpark needs Java 17 or newer: put `java` into PATH, or set JAVA_HOME"


def check_log(args: argparse.Namespace) -> None:
    """Raises the error of opening the log of the job."""
    Log(journal_of(location_of(args))).close()


def run_job(name: str, work: Callable[[SparkSession], Outcome], check: Callable[[], None]) -> None:
    """`run_alone`, with a session.

    check:  raises for arguments that are known to be wrong before Spark starts, which takes seconds.
    """

    def with_session() -> Outcome:
        check()
        spark = SparkSession.builder.appName(f"pylog {name}").getOrCreate()
        try:
            return work(spark)
        finally:
            spark.stop()

    run_alone(name, with_session)


def run_alone(name: str, work: Callable[[], Outcome]) -> None:
    """Run `work`, print its summary, and end the process with its exit status.

    An error of pylog or Spark is one sentence and status 1; PYLOG_DEBUG=1 shows the traceback.  If nobody reads the
    output any more, the job ends as by SIGPIPE.
    """
    try:
        sys.exit(_run(name, work))
    except BrokenPipeError:
        discard_output()
        sys.exit(EXIT_CLOSED_PIPE)


def _run(name: str, work: Callable[[], Outcome]) -> int:
    try:
        summary, status = work()
    except (SparkLogError, PySparkException, Py4JJavaError) as error:
        if shows_tracebacks():
            raise
        progress(f"{name}: {sentence(error)}")
        return EXIT_FAILED
    sys.stdout.write(f"{json.dumps(summary)}\n")
    sys.stdout.flush()
    return status


def sentence(error: Exception) -> str:
    """The message, without the state of a query; of an error in a task, the last line of its report."""
    text = _text(error)
    found = re.findall(r"^spark_log(?:\.\w+)+: (.+)$", text, re.MULTILINE)
    if found:
        return str(found[-1])
    advice = PYTHON_LATE if re.search("CANNOT_OPEN_SOCKET|Python worker failed to connect back", text) else ""
    if "JAVA_GATEWAY_EXITED" in text:
        advice = NO_JAVA
    return text.partition("\n=== Streaming Query ===")[0] + advice


def _text(error: Exception) -> str:
    """The message; of an error that PySpark does not know, without the calls in Java."""
    return str(error.java_exception.toString()) if isinstance(error, Py4JJavaError) else str(error)
