"""Embedded writers, readers and maintainers that are stopped with SIGSTOP, or whose disk hangs, while others continue.

Meanwhile the garbage-collection fence passes the operations that they had begun, and objects that they were reading are
merged and deleted.  A writer prints for each batch whether it was acknowledged or refused, and the log must agree.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_log
from spark_log import errors
from spark_log.maintenance.maintain import maintain_round
from spark_log.model import TopicPartition
from spark_log.recovery.verify import verify
from tests.processes import Started, started

ROUNDS = 3
CATCH_UP_S = 20
"""It takes 0.1 s.  Readers that are stopped once took a minute."""
REFUSALS = (errors.UploadFenced, errors.UnknownProducerId, errors.ProducerFenced, errors.CommitUnknown)
"""Errors that a writer may get after it was stopped, or after its storage did not answer, for too long."""

OPEN = """
import sys, traceback
from pathlib import Path
import spark_log
from spark_log.client.log import Log
from spark_log.journal.journal import Journal
from spark_log.store.open import open_store
from simulation.harness.stores import ControlledStore
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
from spark_log.maintenance.maintain import maintain_round
print("ready", flush=True)
while True:
    problems = maintain_round(log).problems
    print(f"round {problems}", flush=True)
"""
)


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    """Its fence passes what is a few milliseconds old, and maintenance merges a few slices."""
    made = spark_log.connect(tmp_path / "log", durability="os")
    made.admin.create_topics([spark_log.NewTopic("t", 2)])
    made.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    return made


def append(log: spark_log.Log) -> None:
    """Once; again where another maintainer's fence was faster."""
    while True:
        try:
            log.append("t", [{"value": "other", "partition": number} for number in (0, 1)])
            return
        except (errors.UploadFenced, errors.UnknownProducerId):  # the fence passes the upload and its producer together
            continue


def pass_by(log: spark_log.Log) -> None:
    """Append and maintain until the fence is past all that was begun before, and what was replaced is deleted."""
    begun = log.journal.refresh().version
    while log.journal.refresh().fence <= begun:
        append(log)
        maintain_round(log)
    maintain_round(log)


def check_writers(log: spark_log.Log, lines: list[str]) -> None:
    """An acknowledged batch is in the log once and complete.  A refused one is absent, or complete if the error says
    so.
    """
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
    """It is stopped, or its disk hangs, at a random moment; afterwards it continues."""
    rng = random.Random(f"{mode} {trouble}")
    with started(WRITER, tmp_path, f"{mode}-0") as writer:
        for _ in range(ROUNDS):
            writer.wait_for(3)
            time.sleep(rng.random() * 0.05)
            with writer.in_trouble(trouble):
                pass_by(log)
        writer.wait_for(3)
        writer.kill()
        check_writers(log, writer.lines())


def rounds(log: spark_log.Log, process: Started, trouble: str) -> Iterator[None]:
    """In each round there are appends, and then the fence passes a process that is in trouble."""
    rng = random.Random(trouble)
    for _ in range(ROUNDS * 2):
        for _ in range(rng.randint(1, 5)):
            append(log)
        time.sleep(rng.random() * 0.05)
        with process.in_trouble(trouble):
            for _ in range(rng.randint(1, 10)):
                pass_by(log)
        yield


# Promise: storage.md#how-long-a-write-or-a-read-may-take
@pytest.mark.parametrize("trouble", ["stopped", "hang"])
def test_a_reader_that_the_fence_passes_catches_up(log: spark_log.Log, tmp_path: Path, trouble: str) -> None:
    """The slices it was about to read were merged and deleted, and so were the metadata records that it was waiting
    for.
    """
    with started(READER, tmp_path, "reader") as reader:
        for _ in rounds(log, reader, trouble):
            reader.wait_until(lambda: len(reader.lines()) >= end_of(log), CATCH_UP_S)
        check_reader(log, reader.lines())


# Promise: cli.md#pylog-maintain
@pytest.mark.parametrize("trouble", ["stopped", "hang"])
def test_a_maintainer_that_the_fence_passes_does_no_harm(log: spark_log.Log, tmp_path: Path, trouble: str) -> None:
    """Another process merged, sealed or deleted the entries that it was about to change; its next round succeeds."""
    with started(MAINTAINER, tmp_path, "maintainer") as maintainer:
        for _ in rounds(log, maintainer, trouble):
            maintainer.wait_for(2)
            assert verify(log, deep=True) == []
        assert set(maintainer.lines()) == {"round ()"}
    for number in (0, 1):
        offsets = log.read("t", partition=number, columns=["offset"]).column("offset").to_pylist()
        assert offsets == list(range(end_of(log) // 2))


def test_many_writers_are_stopped_and_have_slow_failing_and_hanging_disks(log: spark_log.Log, tmp_path: Path) -> None:
    """At random, with a separate maintainer, and a reader that sees each offset once."""
    rng = random.Random(7)
    names = ("append-0", "producer-0", "version-0", "transaction-0")
    programs = [(WRITER, name) for name in names] + [(READER, "reader"), (MAINTAINER, "maintainer")]
    processes = [Started(program, tmp_path, name) for program, name in programs]
    try:
        for process in processes:
            process.wait_until_ready()
        for _ in range(ROUNDS * 3):
            process = rng.choice(processes)
            others = [other for other in processes[: len(names)] if other is not process]
            with process.in_trouble(rng.choice(("hang", "slow 0.02", "slow 0.2", "stopped"))):
                rng.choice(others).wait_for(2)
            rng.choice(others).wait_for(2)
        for process in processes:
            process.wait_for(1)
        for process in processes[: len(names)]:
            process.kill()
        end = end_of(log)
        processes[-2].wait_until(lambda: len(processes[-2].lines()) >= end)
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
