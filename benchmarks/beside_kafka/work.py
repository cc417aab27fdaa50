"""The kinds of work, the same for each side, and their rounds in turn."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from benchmarks.beside_kafka.figures import Part, Round
from benchmarks.beside_kafka.machine import measured, peak_memory
from benchmarks.beside_kafka.sides import Side

TOPIC = "events"
"""Work that writes the data which later work reads."""


class Bench(NamedTuple):
    """State that all rounds share."""

    spark: SparkSession
    frame: DataFrame
    """Keys and values, cached."""
    rows: int
    checkpoints: Path
    settings: str
    rounds: int
    warm: int


Ready = Callable[[Bench, Side], AbstractContextManager[Callable[[], None]]]
"""Prepare a round, yield the part to time, and clean up."""


class Work(NamedTuple):
    """A kind of work, and its target ratios."""

    name: str
    title: str
    ready: Ready
    target: float | None
    of_null: float | None


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def drained(writer: DataStreamWriter, checkpoint: Path) -> None:
    """Run a stream over everything that exists."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


@contextmanager
def write(bench: Bench, side: Side) -> Iterator[Callable[[], None]]:
    topic = _name()
    side.create(topic)
    yield lambda: side.write(bench.frame, topic)
    side.drop(topic)


@contextmanager
def read(bench: Bench, side: Side) -> Iterator[Callable[[], None]]:
    yield lambda: noop(side.read(TOPIC))


@contextmanager
def values(bench: Bench, side: Side) -> Iterator[Callable[[], None]]:
    yield lambda: noop(side.values(TOPIC))


@contextmanager
def drain(bench: Bench, side: Side) -> Iterator[Callable[[], None]]:
    with checkpoint(bench) as folder:
        yield lambda: drained(side.stream(TOPIC).writeStream.format("noop"), folder)


@contextmanager
def copy(bench: Bench, side: Side) -> Iterator[Callable[[], None]]:
    topic = _name()
    side.create(topic)
    with checkpoint(bench) as folder:
        yield lambda: drained(side.into(side.pairs(TOPIC), topic), folder)
    side.drop(topic)


@contextmanager
def checkpoint(bench: Bench) -> Iterator[Path]:
    """A new folder."""
    folder = bench.checkpoints / _name()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


WORK = (
    Work("write", "batch write", write, 3, 0.55),
    Work("read", "batch read, all columns", read, 2.5, 0.9),
    Work("value", "batch read, value only", values, 5, None),
    Work("drain", "stream drain", drain, 1.7, 0.9),
    Work("copy", "stream copy", copy, 1.8, None),
)


def measure(bench: Bench, work: Work, sides: Sequence[Side]) -> Part:
    """Rounds of all sides in turn.

    Memory is measured in the last warm-up round, so that measuring it costs no time in the others.
    """
    rounds: dict[str, list[Round]] = {side.name: [] for side in sides}
    memory: dict[str, dict[str, float]] = {}
    for number in range(bench.warm + bench.rounds):
        for side in sides:
            roots = (os.getpid(), *side.roots)
            with work.ready(bench, side) as run:
                if number == bench.warm - 1:
                    with peak_memory(roots) as memory[side.name]:
                        run()
                elif number < bench.warm:
                    run()
                else:
                    rounds[side.name].append(measured(run, roots))
    return Part(work.name, work.title, bench.settings, bench.rows, rounds, memory, work.target, work.of_null)
