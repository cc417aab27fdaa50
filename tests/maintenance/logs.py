"""Small logs for the tests of maintenance."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from spark_log import Log, NewTopic, connect
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.metadata_log import decided
from spark_log.journal.store_operations import Steps
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.state import State
from spark_log.model import Slice
from tests.logged import records_of

Result = TypeVar("Result")

HOUR_MS = 3_600_000


def new_log(folder: Path, *, partitions: int = 1, **configs: str) -> Log:
    """A log with a topic "t"; configs by Kafka's names with underscores."""
    log = connect(str(folder), durability="os")
    log.create_topic(NewTopic("t", partitions, {name.replace("_", "."): text for name, text in configs.items()}))
    return log


def rows(first: int, count: int, *, partition: int = 0, age_ms: int = 0, width: int = 0) -> pa.Table:
    """Records with values first, first+1, … and timestamps that grow with them."""
    now = int(time.time() * 1000) - age_ms
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": [b"k%d" % (n % 7) for n in numbers],
            "value": [b"%d" % n + bytes(width) for n in numbers],
            "timestamp": [now + n for n in numbers],
            "partition": [partition] * count,
        }
    )


def append_small(log: Log, commits: int, *, partitions: int = 1, first: int = 0, age_ms: int = 0) -> None:
    """So many commits of three records to each partition."""
    for number in range(first, first + commits):
        tables = [rows(3 * number, 3, partition=p, age_ms=age_ms) for p in range(partitions)]
        log.append("t", pa.concat_tables(tables))


def slices(log: Log, partition: int = 0) -> list[Slice]:
    """The inline slices of a partition of "t"."""
    state = log.journal.refresh()
    return [e for e in state.partitions[state.names["t"], partition].entries if isinstance(e, Slice)]


SEAL_ALL = StepLimits(inline_slices=0, inline_per_partition=0)


def maintenance(
    journal: Journal, duty: Callable[[State, Context], Steps[Result]], limits: StepLimits = SEAL_ALL
) -> Result:
    """Carry out one duty of maintenance alone."""
    view, context = journal.run(journal.metadata_log.open()), replace(journal.context, limits=limits)
    return journal.run(decided(journal.metadata_log, view, duty(view.state, context)))[1]


def pass_the_fence(log: Log) -> None:
    """Make everything that was written until now old enough to be collected, and collect it."""
    for _ in range(3):
        time.sleep(0.005)
        maintain_once(log)


def tracebacks(caplog: pytest.LogCaptureFixture, url: str) -> list[str]:
    """Messages of a log's maintenance that were logged with a traceback.

    Not from `caplog.text`: Spark's loggers of errors turn its format into JSON, for every test after them.
    """
    return [record.getMessage() for record in records_of(caplog, f"maintenance of {url}") if record.exc_info]
