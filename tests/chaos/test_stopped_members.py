"""Members of a group and holders of a transactional id that are stopped with SIGSTOP for longer than others wait for
them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spark_log
from spark_log.client.log import Log
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.records import Batch, CommitOffsetsRecord
from spark_log.model import TopicPartition
from spark_log.recovery.verify import verify
from spark_log.store.object_names import LOG
from tests.processes import Process, Started, eventually, free_port, started

PARTITIONS = 4
SESSION_MS = 1500
GROUPS = f"[groups]\nmin.session.timeout = {SESSION_MS}ms\ninitial.rebalance.delay = 100ms\n"

# Prints the spans of offsets that it has read, and once more when they are committed.
MEMBER = f"""
import sys
import spark_log
url, _, name = sys.argv[1:]

class Listener:
    def on_partitions_assigned(self, partitions):
        print("assigned", flush=True)
    def on_partitions_lost(self, partitions):
        print("lost", flush=True)

consumer = spark_log.connect(url).consumer(
    group_id="g", auto_offset_reset="earliest", enable_auto_commit=False, heartbeat_interval_ms=300,
    session_timeout_ms={SESSION_MS}, partition_assignment_strategy=name.rpartition("-")[0],
)
consumer.subscribe(["t"], listener=Listener())
print("ready", flush=True)
while True:
    found = consumer.poll(timeout_ms=200, max_records=20)
    spans = " ".join(f"{{tp.partition}}:{{records[0].offset}}:{{records[-1].offset + 1}}" for tp, records in found.items())
    if not spans:
        continue
    print("read", spans, flush=True)
    try:
        consumer.commit()
    except spark_log.errors.SparkLogError as error:
        print("refused", type(error).__name__, error, flush=True)
    else:
        print("committed", spans, flush=True)
"""

# Each transaction waits in its block as long as there is a file.
TRANSACTOR = """
import sys, time
from pathlib import Path
import spark_log
url, control, name = sys.argv[1:]
held = Path(control).with_suffix(".held")
log = spark_log.connect(url)
print("ready", flush=True)
for n in range(10**9):
    try:
        with log.transaction("job", transaction_timeout_ms=1000) as txn:
            txn.append("t", [{"value": str(n)}])
            if held.exists():
                print("held", n, flush=True)
            while held.exists():
                time.sleep(0.01)
    except spark_log.errors.SparkLogError as error:
        print("refused", n, type(error).__name__, error.maybe_applied, error, flush=True)
    else:
        print("acknowledged", n, flush=True)
"""


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Process]:
    conf = tmp_path / "conf"
    conf.write_text(GROUPS)
    process = Process(tmp_path / "log", free_port(), "--conf", str(conf))
    eventually(lambda: process.leads)
    yield process
    process.kill()


# Promise: service.md#groups
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_member_that_is_stopped_commits_nothing_over_its_successor(
    coordinator: Process, tmp_path: Path, strategy: str
) -> None:
    """Its partitions go to the other member.  When it continues, it learns that it has lost them, and joins again."""
    rng, url = random.Random(strategy), f"pylog://{coordinator.address}"
    with (
        spark_log.connect(url) as log,
        started(MEMBER, tmp_path, f"{strategy}-0", url) as first,
        started(MEMBER, tmp_path, f"{strategy}-1", url) as second,
    ):
        log.admin.create_topics([spark_log.NewTopic("t", PARTITIONS)])
        for stopped, other in ((first, second), (second, first)):
            time.sleep(rng.random() * 0.1)
            replace(log, stopped, other)
        eventually(lambda: is_at_end(log))
        check_spans(log, [*first.lines(), *second.lines()])
        check_positions(log)


def replace(log: Log, stopped: Started, other: Started) -> None:
    """Stop a member until the other one has all partitions and has read them to their ends, then let it continue."""
    for member in (stopped, other):
        append_until_it_commits(log, member)
    lost = count(stopped, "lost")
    with stopped.in_trouble("stopped"):
        append_until(log, lambda: is_alone(log))
        eventually(lambda: is_at_end(log))
        append_until_it_commits(log, other)
    stopped.wait_until(lambda: count(stopped, "lost") > lost)
    append_until(log, lambda: not is_alone(log))
    append_until_it_commits(log, stopped)


def count(member: Started, what: str) -> int:
    return sum(line.startswith(what) for line in member.lines())


def append_until(log: Log, true: Callable[[], bool]) -> None:
    def appended() -> bool:
        log.append("t", [{"value": b"v", "partition": number} for number in range(PARTITIONS)])
        return true()

    eventually(appended)


def append_until_it_commits(log: Log, member: Started) -> None:
    before = count(member, "committed")
    append_until(log, lambda: count(member, "committed") > before + 2)


def is_alone(log: Log) -> bool:
    group = log.admin.describe_consumer_groups(["g"])["g"]
    return group.state == "Stable" and len(group.members) == 1


def ends(log: Log) -> dict[TopicPartition, int]:
    return log.admin.list_offsets({TopicPartition("t", number): spark_log.LATEST for number in range(PARTITIONS)})


def is_at_end(log: Log) -> bool:
    committed = log.admin.list_consumer_group_offsets("g")
    return {tp: at.offset for tp, at in committed.items()} == ends(log)


def check_spans(log: Log, lines: list[str]) -> None:
    """Each record was read, and no two commits that succeeded were of the same one."""
    spans: dict[str, list[tuple[int, int, int]]] = {"read": [], "committed": []}
    for line in lines:
        what, *rest = line.split()
        if what in spans:
            spans[what] += [tuple(map(int, span.split(":"))) for span in rest]  # type: ignore[misc]
        elif what == "refused":
            assert rest[0] in ("IllegalGeneration", "RebalanceInProgress"), line
    read = {(number, at) for number, start, end in spans["read"] for at in range(start, end)}
    assert read == {(tp.partition, at) for tp, end in ends(log).items() for at in range(end)}
    committed = [(number, at) for number, start, end in spans["committed"] for at in range(start, end)]
    assert len(committed) == len(set(committed))


def check_positions(log: Log) -> None:
    """No commit in the log takes a position back, or is of an older generation than the one before it."""
    store, newest, generation = log.journal.metadata, dict[int, int](), 0
    for name in store.list(LOG):
        batch: Batch = decode_batch(store.get(name), name)
        for record in batch.records:
            for commit in record.commits if isinstance(record, CommitOffsetsRecord) else ():
                assert commit.generation >= generation
                generation = commit.generation
                for at in commit.offsets:
                    assert at.offset >= newest.get(at.partition, 0), f"{at} after {newest}"
                    newest[at.partition] = at.offset


# Promise: clients.md#transactions
@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("successor", [False, True])
def test_a_transaction_that_is_stopped_for_too_long_commits_nothing(
    coordinator: Process, tmp_path: Path, served: bool, successor: bool
) -> None:
    """Whether somebody else has taken its id meanwhile or not; the error says why.  The next one of the process is
    committed.
    """
    url = f"pylog://{coordinator.address}" if served else str(tmp_path / "embedded")
    with spark_log.connect(url) as log:
        log.admin.create_topics([spark_log.NewTopic("t", 1)])
        with started(TRANSACTOR, tmp_path, "transactor", url) as process:
            process.wait_for(2)
            (tmp_path / "transactor.held").touch()
            process.wait_until(lambda: process.lines()[-1].startswith("held"))
            value = process.lines()[-1].split()[1]
            with process.in_trouble("stopped"):
                eventually(lambda: state_of(log) in ("PrepareAbort", "CompleteAbort"))
                if successor:
                    with log.transaction("job") as txn:
                        txn.append("t", [{"value": "successor"}])
                (tmp_path / "transactor.held").unlink()
            process.wait_for(2)
            process.kill()
        lines = [line.split(" ", 4) for line in process.lines()]
        refused = {line[1]: line[2:] for line in lines if line[0] == "refused"}
        kind, maybe, message = refused.pop(value)
        assert (kind, maybe) == ("ProducerFenced" if successor else "TransactionTimedOut", "False")
        assert ("a newer one has taken over" if successor else "transaction_timeout_ms (1000)") in message
        assert {kind for kind, *_ in refused.values()} <= {"TransactionTimedOut"}, "the machine is busy, at most"
        acknowledged = [line[1] for line in lines if line[0] == "acknowledged"]
        found = [found.decode() for found in log.read("t").column("value").to_pylist()]
        others = [one for one in found if one != "successor"]
        assert others[: len(acknowledged)] == acknowledged and len(others) <= len(acknowledged) + 1
        assert found.count("successor") == successor
        assert verify(log, deep=True) == []


def state_of(log: Log) -> str:
    (listed,) = log.admin.list_transactions()
    return listed.state
