"""Embedded writers, readers and maintainers that are stopped with SIGSTOP, or whose disk hangs, while others go on.

Meanwhile the garbage-collection fence passes what they had begun, and objects that they were reading are merged and
deleted. A writer says of each batch whether it was acknowledged or refused, and the log must agree.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import spark_log
from spark_log import errors
from spark_log.model import TopicPartition
from spark_log.node.maintain import maintain_round
from spark_log.node.verify import verify
from tests.processes import ROOT

ROUNDS = 3
DEADLINE_S = 120
"""For what is known to come: only a failure waits so long."""
REFUSALS = (errors.UploadFenced, errors.UnknownProducerId, errors.ProducerFenced, errors.CommitUnknown)
"""What a writer may be told that was stopped, or whose storage did not answer, for longer than the log waits for it."""

OPEN = """
import sys, traceback
from pathlib import Path
import spark_log
from spark_log.client.log import Log
from spark_log.journal.journal import Journal
from spark_log.store.open import open_store
from spark_log.testing.stores import ControlledStore
url, control, name = sys.argv[1:]
log = Log(Journal.open(ControlledStore(open_store(url, None, "os"), Path(control)), create=False))
"""

# Each batch is 2 records in each of two partitions, in one commit.  A refused one is not written again.
WRITER = (
    OPEN
    + """
mode = name.partition("-")[0]
producer = log.producer(linger_ms=1) if mode == "producer" else None
print("ready", flush=True)
for n in range(10**9):
    value = f"{name}/{n}"
    rows = [{"value": value, "partition": partition} for partition in (0, 0, 1, 1)]
    try:
        if mode == "append":
            log.append("t", rows)
        elif mode == "version":
            log.append("t", rows, txn_app_id=name, txn_version=n)
        elif mode == "transaction":
            with log.transaction(name) as txn:
                txn.append("t", rows)
        else:
            futures = [producer.send("t", row["value"].encode(), partition=row["partition"]) for row in rows]
            [future.result() for future in futures]
    except Exception as error:
        maybe = getattr(error, "maybe_applied", True)
        print(f"refused {value} {type(error).__name__} {maybe} {str(error)!r}", flush=True)
        if mode == "producer":
            producer = log.producer(linger_ms=1)
    else:
        print(f"acknowledged {value}", flush=True)
"""
)
READER = (
    OPEN
    + """
consumer = log.consumer("t", auto_offset_reset="earliest")
print("ready", flush=True)
while True:
    for tp, records in consumer.poll(timeout_ms=200, max_records=40).items():
        for record in records:
            print(f"{tp.partition} {record.offset} {record.value.decode()}", flush=True)
"""
)
MAINTAINER = (
    OPEN
    + """
from spark_log.node.maintain import maintain_round
print("ready", flush=True)
while True:
    problems = maintain_round(log).problems
    print(f"round {problems}", flush=True)
"""
)


class Started:
    """A process that prints lines, which go to a file; what it logs goes to another."""

    def __init__(self, program: str, folder: Path, name: str) -> None:
        self.control, self._out, self._err = (folder / f"{name}.{kind}" for kind in ("control", "out", "err"))
        command = [sys.executable, "-c", program, str(folder / "log"), str(self.control), name]
        with self._out.open("w") as out, self._err.open("w") as err:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err)

    def lines(self) -> list[str]:
        """Whole lines after the first, which says that it is ready."""
        return [line.strip() for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")][1:]

    def wait_until_ready(self) -> None:
        self._wait(lambda: self._out.read_text().startswith("ready\n"))

    def wait_for(self, more: int) -> None:
        """Until it has printed so many more lines."""
        expected = len(self.lines()) + more
        self._wait(lambda: len(self.lines()) >= expected)

    def _wait(self, true: Callable[[], bool]) -> None:
        eventually(lambda: true() or self._process.poll() is not None)
        assert self._process.poll() is None, self._err.read_text()[-3000:]

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def storage(self, says: str) -> None:
        """See `ControlledStore`."""
        new = self.control.with_suffix(".new")
        new.write_text(says)
        new.rename(self.control)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def started(program: str, folder: Path, name: str) -> Iterator[Started]:
    process = Started(program, folder, name)
    try:
        process.wait_until_ready()
        yield process
    finally:
        process.kill()


def eventually(true: Callable[..., bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    """Its fence passes what is a few milliseconds old, and upkeep merges a few slices."""
    made = spark_log.connect(tmp_path / "log", durability="os")
    made.admin.create_topics([spark_log.NewTopic("t", 2)])
    made.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    return made


def pass_by(log: spark_log.Log) -> None:
    """Append and maintain until the fence is past all that was begun before, and what was replaced is deleted."""
    begun = log.journal.refresh().version
    while log.journal.refresh().fence <= begun:
        log.append("t", [{"value": "other", "partition": number} for number in (0, 1)])
        maintain_round(log)
    maintain_round(log)


def check_writers(log: spark_log.Log, lines: list[str]) -> None:
    """What was acknowledged is there once, whole; of what was refused nothing, or all of it if the error says so."""
    values = [
        [value.decode() for value in log.read("t", partition=number).column("value").to_pylist()] for number in (0, 1)
    ]
    found = [Counter(value for value in part if value != "other") for part in values]
    told: set[str] = set()
    for line in lines:
        outcome, value, *why = line.split(" ", 3)
        told.add(value)
        counts = {part[value] for part in found}
        if outcome == "acknowledged":
            assert counts == {2}, f"{value} was acknowledged and is there {counts} times"
            continue
        assert outcome == "refused", line
        assert why[0] in {kind.__name__ for kind in REFUSALS}, line
        assert counts == {0} or (why[1] == "True" and counts == {2}), f"{line}, and it is there {counts} times"
    under_way = {value for part in found for value in part} - told
    assert all(part[value] == 2 for part in found for value in under_way), "a batch that was under way is there in part"
    names = Counter(value.partition("/")[0] for value in under_way)
    assert all(count == 1 for count in names.values()), f"more is there than was under way: {names}"
    for part in values:
        order: dict[str, int] = {}
        for value in part:
            name, _, number = value.partition("/")
            assert value == "other" or order.get(name, -1) <= int(number), "the order of a writer's batches"
            order[name] = int(number or 0)
    assert verify(log, deep=True) == []


@pytest.mark.parametrize("mode", ["append", "producer", "version", "transaction"])
@pytest.mark.parametrize("trouble", ["stopped", "hang"])
def test_a_writer_that_the_fence_passes_lands_once_or_is_refused(
    log: spark_log.Log, tmp_path: Path, mode: str, trouble: str
) -> None:
    """It is stopped, or its disk hangs, at a random moment; afterwards it goes on."""
    rng = random.Random(f"{mode} {trouble}")
    with started(WRITER, tmp_path, f"{mode}-0") as writer:
        for _ in range(ROUNDS):
            writer.wait_for(3)
            time.sleep(rng.random() * 0.05)
            if trouble == "stopped":
                writer.signal(signal.SIGSTOP)
            else:
                writer.storage("hang")
            pass_by(log)
            writer.storage("")
            writer.signal(signal.SIGCONT)
        writer.wait_for(3)
        writer.kill()
        check_writers(log, writer.lines())


def test_many_writers_are_stopped_and_have_slow_failing_and_hanging_disks(log: spark_log.Log, tmp_path: Path) -> None:
    """At random, beside a maintainer of their own, and a reader that sees each offset once."""
    rng = random.Random(7)
    names = ("append-0", "producer-0", "version-0", "transaction-0")
    programs = [(WRITER, name) for name in names] + [(READER, "reader"), (MAINTAINER, "maintainer")]
    processes = [Started(program, tmp_path, name) for program, name in programs]
    try:
        for process in processes:
            process.wait_until_ready()
        for _ in range(ROUNDS * 3):
            process = rng.choice(processes)
            for says in (rng.choice(("hang", "slow 0.02", "slow 0.2", "stop")), ""):
                if says == "stop":
                    process.signal(signal.SIGSTOP)
                else:
                    process.storage(says)
                    process.signal(signal.SIGCONT)
                others = [other for other in processes[: len(names)] if other is not process]
                rng.choice(others).wait_for(2)
        for process in processes:
            process.wait_for(1)
        for process in processes[: len(names)]:
            process.kill()
        end = end_of(log)
        eventually(lambda: len(processes[-2].lines()) >= end)
    finally:
        for process in processes:
            process.kill()
    assert set(processes[-1].lines()) == {"round ()"}
    check_reader(log, processes[-2].lines())
    check_writers(log, [line for process in processes[: len(names)] for line in process.lines()])


def end_of(log: spark_log.Log) -> int:
    return sum(log.admin.list_offsets({TopicPartition("t", number): spark_log.LATEST for number in (0, 1)}).values())


def check_reader(log: spark_log.Log, lines: list[str]) -> None:
    """All records, in order, each once."""
    for number in (0, 1):
        seen = [(int(offset), value) for part, offset, value in map(str.split, lines) if int(part) == number]
        values = [value.decode() for value in log.read("t", partition=number).column("value").to_pylist()]
        assert seen == list(enumerate(values))
