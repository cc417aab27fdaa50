"""Processes of a flow are killed, or stopped until others have replaced them; a checker reads the output."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from tests.processes import Process, Started, eventually, free_port
from tests.services import Services

ROUNDS = 5
TROUBLES = int(os.environ.get("FLOW_TROUBLES", "6"))
"""Processes that a storm kills or stops."""
WAIT_S = 120.0
PARTITIONS = 4
OUT = spark_log.TopicPartition("out", 0)

# The output of a record is its place, so a record that was lost, doubled or reordered shows. The state counts records
# by key. Some batches are large.
FLOW = """
import sys
import pyarrow as pa, pyarrow.compute as pc
import spark_log

url, _, name = sys.argv[1:]

def place(table, counts):
    texts = [table[column].cast(pa.string()) for column in ("partition", "offset")]
    new = table.group_by("key").aggregate([([], "count_all")]).rename_columns(["key", "n"])
    total = pa.concat_tables([new, counts]).group_by("key").aggregate([("n", "sum")]).rename_columns(["key", "n"])
    return pa.table({"value": pc.binary_join_element_wise(*texts, "-")}), total

print("ready", flush=True)
state = spark_log.keyed("counts", pa.schema([("n", pa.int64())]))
settings = {"target": "out", "state": state, "tasks": 2, "batch_bytes": 2000}
flow = spark_log.flow(url, name="chaos", source="in", function=place, **settings)
flow.await_termination()
"""


# Appends until it is killed, also while the coordinator is away.
WRITER = """
import random, sys, time
import spark_log

url, _, name = sys.argv[1:]
log, rng = spark_log.connect(url), random.Random(name)
while True:
    try:
        size = rng.choice([1, 1, 5, 100])
        log.append("in", [{"key": f"{rng.randrange(40)}", "value": b"x" * rng.randrange(100)} for _ in range(size)])
    except spark_log.errors.SparkLogError as error:
        print(error, flush=True)
    time.sleep(rng.random() * 0.1)
"""


class Checker:
    """Knows what was written, and holds the output against it."""

    def __init__(self, url: str) -> None:
        self.log = spark_log.connect(url)
        self.log.admin.create_topics([spark_log.NewTopic("in", PARTITIONS), spark_log.NewTopic("out", 1)])
        self.ends = [0] * PARTITIONS

    def write(self, rng: random.Random) -> None:
        rows = [
            {"key": f"{rng.randrange(40)}", "value": b"x" * rng.randrange(100)} for _ in range(rng.choice([1, 5, 200]))
        ]
        for tp, offsets in self.log.append("in", rows).items():
            self.ends[tp.partition] = offsets.stop

    def write_until_read(self, rng: random.Random) -> None:
        """Write until the output has grown, so that the flow is in the middle of more."""
        before, until_s = self.count(), time.monotonic() + WAIT_S
        while self.count() == before:
            assert time.monotonic() < until_s
            self.write(rng)
            time.sleep(0.02)  # the flow needs the processor, too

    def places(self) -> list[tuple[int, int]]:
        values = self.log.read("out")["value"].to_pylist()
        return [(int(partition), int(offset)) for partition, offset in (value.split(b"-") for value in values)]

    def count(self) -> int:
        return self.log.admin.list_offsets({OUT: "latest"})[OUT]

    def see_written(self) -> None:
        """Take over from the log how much was written: a writer may have been killed before it knew."""
        parts = [spark_log.TopicPartition("in", number) for number in range(PARTITIONS)]
        found = self.log.admin.list_offsets(dict.fromkeys(parts, "latest"))
        self.ends = [found[part] for part in parts]

    def check(self) -> None:
        """Each record has its output once, those of a partition are in order, and each record is counted once."""
        eventually(lambda: self.count() >= sum(self.ends), WAIT_S)
        places = self.places()
        for partition, end in enumerate(self.ends):
            assert [offset for one, offset in places if one == partition] == list(range(end)), f"partition {partition}"
        counts = self.log.table("counts")
        known = dict(zip(counts["key"].to_pylist(), counts["n"].to_pylist(), strict=True))
        assert known == Counter(self.log.read("in")["key"].to_pylist())


def ride(url: str, folder: Path, trouble: Callable[[Started, Started, random.Random], None], processes: int) -> None:
    """Trouble one process of the flow after the other, and start another in its place, while a writer writes."""
    checker, rng = Checker(url), random.Random(1)
    running = [Started(FLOW, folder, f"first{n}", url) for n in range(processes)]
    try:
        for number in range(ROUNDS):
            checker.write_until_read(rng)
            time.sleep(rng.random() * 0.2)
            old, new = running.pop(0), Started(FLOW, folder, f"later{number}", url)
            running.append(new)
            trouble(old, new, rng)
        checker.write(rng)
        checker.check()
    finally:
        for process in running:
            process.kill()


def killed(old: Started, new: Started, rng: random.Random) -> None:
    old.kill()


def stopped(old: Started, new: Started, rng: random.Random) -> None:
    """The new process takes over; the old one continues later, in the middle of what it did, and is fenced."""
    with old.in_trouble("stopped"):
        new.wait_until_ready()
        time.sleep(0.5 + rng.random())
    time.sleep(0.5)
    old.kill()


# Promise: tasks/flow.md#exactly-once
@pytest.mark.parametrize("trouble", [killed, stopped])
def test_a_flow_on_storage_loses_and_doubles_nothing(
    tmp_path: Path, trouble: Callable[[Started, Started, random.Random], None]
) -> None:
    """Without a coordinator, a new process takes the place of an old one."""
    ride(str(tmp_path / "log"), tmp_path, trouble, 1)


# Promise: tasks/flow.md#exactly-once
def test_a_flow_of_several_processes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Through a coordinator, the others take the partitions of a process that was killed."""
    services = Services()
    try:
        ride(services.url(tmp_path / "log"), tmp_path, killed, 2)
    finally:
        services.close()


# Promise: tasks/flow.md#exactly-once
def test_a_flow_continues_when_its_coordinator_is_killed(tmp_path: Path) -> None:
    """In the middle of commits, whose answers are lost; the flow's own process stays the same."""
    folder, port = tmp_path / "log", free_port()
    coordinator, rng = Process(folder, port), random.Random(2)
    url = f"pylog://127.0.0.1:{port}"
    flow = Started(FLOW, tmp_path, "flow", url)
    try:
        checker = Checker(url)
        for _ in range(3):
            checker.write_until_read(rng)
            checker.write(rng)
            time.sleep(rng.random() * 0.05)
            coordinator.kill()
            coordinator = Process(folder, port)
        checker.write(rng)
        checker.check()
        flow.wait_until(lambda: True)  # it has not ended
    finally:
        flow.kill()
        coordinator.kill()


# Promise: tasks/flow.md#several-tasks-and-processes
def test_a_process_that_was_stopped_commits_nothing_that_others_have_done(tmp_path: Path) -> None:
    """Through a coordinator: it is stopped until another process has all partitions, and then continues."""
    services, rng = Services(), random.Random(3)
    url = services.url(tmp_path / "log")
    running: list[Started] = []
    try:
        checker = Checker(url)
        running += [Started(FLOW, tmp_path, name, url) for name in ("one", "other")]
        for process in running:
            checker.write_until_read(rng)
            with process.in_trouble("stopped"):
                for _ in range(10):
                    checker.write(rng)
                checker.check()
            for _ in range(10):
                checker.write(rng)
            checker.check()
            process.wait_until(lambda: True)  # it has not ended
    finally:
        for process in running:
            process.kill()
        services.close()


class Storm:
    """Kills and stops processes of a flow, its writers and its coordinator, if there is one, while they are at work."""

    def __init__(self, folder: Path, *, served: bool) -> None:
        self.rng, self._folder, self._started = random.Random(4), folder, 0
        self._port = free_port()
        self._coordinator = Process(folder / "log", self._port) if served else None
        self._url = f"pylog://127.0.0.1:{self._port}" if served else str(folder / "log")
        self.checker = Checker(self._url)
        self._flows = [self._start(FLOW) for _ in range(2 if served else 1)]
        self._writers = [self._start(WRITER) for _ in range(2)]

    def _start(self, program: str) -> Started:
        self._started += 1
        return Started(program, self._folder, f"process{self._started}", self._url)

    def kill_flow(self) -> None:
        self._flows.pop(0).kill()
        self._flows.append(self._start(FLOW))

    def stop_flow(self) -> None:
        """Without a coordinator, another one takes over meanwhile."""
        old = self._flows.pop(0)
        with old.in_trouble("stopped"):
            if self._coordinator is None:
                self._flows.append(self._start(FLOW))
                self._flows[0].wait_until_ready()
            time.sleep(self.rng.random() * 2)
        if self._coordinator is None:
            time.sleep(self.rng.random())
            old.kill()
        else:
            self._flows.append(old)

    def kill_writer(self) -> None:
        self._writers.pop(0).kill()
        self._writers.append(self._start(WRITER))

    def kill_coordinator(self) -> None:
        assert self._coordinator is not None, "the log has one"
        self._coordinator.kill()
        self._coordinator = Process(self._folder / "log", self._port)

    def stop_coordinator(self) -> None:
        assert self._coordinator is not None, "the log has one"
        self._coordinator.stop()
        time.sleep(self.rng.random())
        self._coordinator.go_on()

    def trouble(self) -> None:
        """One, after the flow has processed something since the last."""
        before = self.checker.count()
        eventually(lambda: self.checker.count() > before, WAIT_S)
        time.sleep(self.rng.random() * 0.2)
        kinds = [self.kill_flow, self.kill_flow, self.stop_flow, self.kill_writer]
        if self._coordinator is not None:
            kinds += [self.kill_coordinator, self.stop_coordinator]
        self.rng.choice(kinds)()

    def calm(self) -> None:
        """No more is written."""
        for writer in self._writers:
            writer.kill()
        self._writers = []
        self.checker.see_written()

    def end(self) -> None:
        for process in (*self._flows, *self._writers):
            process.kill()
        if self._coordinator is not None:
            self._coordinator.kill()


# Promise: tasks/flow.md#exactly-once
@pytest.mark.parametrize("served", [False, True], ids=["storage", "coordinator"])
def test_a_storm_loses_and_doubles_nothing(tmp_path: Path, served: bool) -> None:
    """Kills and stops at random moments, of everything that runs.  `FLOW_TROUBLES` says how many."""
    storm = Storm(tmp_path, served=served)
    try:
        for _ in range(TROUBLES):
            storm.trouble()
        storm.calm()
        assert sum(storm.checker.ends) > 0
        storm.checker.check()
    finally:
        storm.end()
