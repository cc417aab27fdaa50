"""`pylog flow`: a flow as a process."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from spark_log.cli.common.base import LONG, PATTERN, POSITION, Verb, pass_session
from spark_log.cli.common.completion import complete_topics
from spark_log.cli.common.metrics_port import metrics_port
from spark_log.cli.common.output import echo
from spark_log.cli.common.session import CommandSession
from spark_log.errors import InvalidRequest
from spark_log.positions import Earliest, Position, format_position
from spark_log.text import counted, shown

if TYPE_CHECKING:
    from types import FrameType

LOOK_S = 0.2


@click.command(cls=Verb)
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option("--name", required=True, metavar="NAME", help="The name of the flow, and of its group.")
@click.option(
    "--source", "sources", multiple=True, metavar="TOPIC", shell_complete=complete_topics, help="A topic; repeatable."
)
@click.option("--include", type=PATTERN, metavar="REGEX", help="Read all topics whose whole name matches, instead.")
@click.option(
    "--target", metavar="TOPIC", shell_complete=complete_topics, help="The topic of frames that the function returns."
)
@click.option(
    "--lookup",
    "lookups",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="A compacted topic whose latest records the function gets, too; repeatable.",
)
@click.option(
    "--state",
    "keyed",
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="A compacted topic for state by key, which the function gets and returns; it is created if needed.",
)
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Tasks in this process; without a coordinator, tasks of the flow.",
)
@click.option(
    "--task",
    "numbers",
    type=LONG,
    multiple=True,
    metavar="N",
    help="Without a coordinator: run only the task of this number, from 0; repeatable.",
)
@click.option("--start", type=POSITION, help="Where the first start begins. [default: earliest]")
@click.option(
    "--bad-records",
    default="fail",
    show_default=True,
    metavar="RULE",
    help="What happens to records at which the function fails: fail, skip or topic:NAME.",
)
@click.option(
    "--metrics",
    "listen",
    metavar="[HOST:]PORT",
    help="Answer GET /metrics on this address of this machine, for Prometheus.",
)
@pass_session
def flow(
    session: CommandSession,
    function: str,
    name: str,
    sources: tuple[str, ...],
    include: re.Pattern[str] | None,
    target: str | None,
    lookups: tuple[str, ...],
    keyed: str | None,
    tasks: int,
    numbers: tuple[int, ...],
    start: Position | None,
    bad_records: str,
    listen: str | None,
) -> None:
    """Run a Python function on records as they arrive.

    The function gets a pyarrow Table and returns another one, or a dict of tables by topic.  Each record has its effect
    exactly once.  The flow runs until SIGTERM or Ctrl-C: each task then finishes its batch and leaves the group.  A
    second signal ends the process.  The function's module is looked up in the current folder first.

    \b
    Example:
      pylog flow app:enrich --name enrich --source orders --target enriched --tasks 4
    """
    if bool(sources) == (include is not None):
        raise click.UsageError("give either --source TOPIC or --include REGEX")
    from spark_log.client.log import Log
    from spark_log.flows.flow import BATCH_BYTES, Flow
    from spark_log.flows.flow_options import flow_options
    from spark_log.flows.keyed_state import Keyed

    options = flow_options(
        name=name,
        source=include or sources,
        function=loaded(function),
        target=target,
        lookup=lookups,
        state=None if keyed is None else Keyed(keyed),
        tasks=tasks,
        task_numbers=numbers or None,
        start=format_position(start or Earliest()),
        bad_records=bad_records,
        batch_bytes=BATCH_BYTES,
        linger_ms=0,
        value_format=None,
    )
    journal = session.journal()
    running = Flow(journal, options, Log(journal).close)
    with signalled() as stop, metrics_port(running.metrics, listen):
        running.start()
        echo(f"flow {name} is running: {counted(len(options.numbers), 'task')} in this process", err=True)
        while not stop.is_set() and not running.await_termination(LOOK_S):
            pass
        running.stop()
    running.await_termination()
    echo(f"flow {name} was stopped: {counted(running.progress.records_in, 'record')} processed", err=True)


@contextmanager
def signalled() -> Iterator[threading.Event]:
    """Set by the first SIGTERM or Ctrl-C; a second one has its usual effect."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        for known, handler in before.items():
            signal.signal(known, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def loaded(name: str) -> Callable[..., Any]:
    """A function by its name.  Raises InvalidRequest."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise InvalidRequest(f"invalid name {shown(name)} for a function: expected module:function, as in app:enrich")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module may raise anything
        raise InvalidRequest(f"function {shown(name)} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise InvalidRequest(f"{shown(name)} is not a function: {shown(found)}")
    return found
