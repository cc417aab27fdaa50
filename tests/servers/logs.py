"""Checks of logs on each storage that has its own server: writers in processes, and a whole life."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import spark_log
from spark_log import Log
from spark_log.maintenance.maintain import maintain_once
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.verify import verify
from spark_log.store.base import ObjectStore
from tests.processes import eventually

ROOT = Path(__file__).parents[2]

WRITER = """
import json, sys
import spark_log
url, options, writer, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
log = spark_log.connect(url, options)
print("ready", flush=True)
with log.producer() as producer:
    for number in range(count):
        producer.send("t", b"%d %d" % (writer, number), partition=writer % 4).result(120)
        print(number, flush=True)
"""
"""A process that appends one record at a time, and names each that is acknowledged."""


@contextmanager
def writer(url: str, options: dict[str, str], number: int, count: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITER, url, json.dumps(options), str(number), str(count)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def acknowledged(process: subprocess.Popen[str]) -> int:
    """How many records it was told of until it ended."""
    assert process.stdout is not None
    return sum(line.endswith("\n") for line in process.stdout)


def of_each_writer(log: Log) -> dict[int, list[int]]:
    """The numbers of its records, in their order."""
    found: dict[int, list[int]] = {}
    for value in log.read("t", columns=["value"]).column("value").to_pylist():
        number, record = value.split()
        found.setdefault(int(number), []).append(int(record))
    return found


def _has_come_to(log: Log, count: int) -> bool:
    """Whether each of two writers has so many records."""
    found = of_each_writer(log)
    return len(found) == 2 and min(map(len, found.values())) > count


def new_log(url: str, options: dict[str, str]) -> Log:
    log = spark_log.connect(f"{url}/log", options)
    log.admin.create_topics([spark_log.NewTopic("t", 4)])
    return log


def check_killed_writer(url: str, options: dict[str, str]) -> None:
    """Of four writers one is killed.  Each acknowledged record is there once, in its writer's order; the others end."""
    log, count = new_log(url, options), 60
    with ExitStack() as stack:
        writers = [stack.enter_context(writer(log.url, options, number, count)) for number in range(4)]
        eventually(lambda: len(of_each_writer(log).get(3, ())) > 10)
        writers[3].kill()
        told = [acknowledged(process) for process in writers]
    found = of_each_writer(log)
    assert told[:3] == [count] * 3 and 10 < told[3] < count
    assert all(found[number] == list(range(count)) for number in range(3))
    assert found[3] == list(range(len(found[3]))) and told[3] <= len(found[3]) <= told[3] + 1


def check_writers_beside(url: str, options: dict[str, str], *faults: Callable[[], None], count: int = 80) -> None:
    """Two writers continue through faults: no record is lost, and none is there twice."""
    log, steps = new_log(url, options), count // (len(faults) + 1)
    with ExitStack() as stack:
        writers = [stack.enter_context(writer(log.url, options, number, count)) for number in range(2)]
        for number, fault in enumerate(faults):
            eventually(partial(_has_come_to, log, max(1, number * steps)))
            fault()
        assert [acknowledged(process) for process in writers] == [count, count]
    assert of_each_writer(log) == {0: list(range(count)), 1: list(range(count))}
    assert verify(log, deep=True) == []


def check_a_life(log: Log, place: ObjectStore, options: dict[str, str]) -> None:
    """Compaction, merges and garbage collection; then a mirror takes the place of the lost log."""
    log.admin.create_topics([spark_log.NewTopic("latest", 2, {"cleanup.policy": "compact", "segment.ms": "1"})])
    for number in range(30):
        log.append("latest", [{"key": b"%d" % (number % 3), "value": b"%d" % number}])
    maintain_once(log)
    before = log.read("latest", columns=["key", "value"]).to_pylist()
    assert {row["value"] for row in before} >= {b"27", b"28", b"29"}
    begin_mirror(log, place)
    Mirror(log, place).round()
    own = log.journal.roots[0]
    own.delete([*own.list("data/"), *own.list("meta/")])
    recover(place, options)
    again = spark_log.connect(place.url, options)
    assert again.read("latest", columns=["key", "value"]).to_pylist() == before
    assert verify(again, deep=True) == []
