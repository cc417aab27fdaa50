"""`jobs/replicate.py`: tasks copy to brokers, and the driver records it.  Jobs may be killed, and run twice."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.jobs.replicate import CopyShare, copy_in_task, parse_args, plan_shares, replicate, share_bytes
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.options.parse import Location

from spark_log import Log
from spark_log.metadata.state import ObjectRow
from spark_log.model import ACKS_LEADER
from spark_log.replication.copy_to_broker import WantedCopy
from spark_log.replication.missing_copies import copies_wanted
from tests.replication.replicated_logs import brokers_of, folder_of, group_of, put, replicated_log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return replicated_log(tmp_path, replica_lag_time_max_ms="1")


# Promise: replicas.md#what-keeps-replicas-in-sync
def test_tasks_copy_what_brokers_lack(classic: SparkSession, log: Log, tmp_path: Path) -> None:
    """One copy is damaged; a job was killed before it recorded its copies; then two jobs run at a time.

    Readers do not see some of the records yet, which were written with acks=1.
    """
    names = [put(log, [0, 1]) for _ in range(6)] + [put(log, [0]) for _ in range(6)]
    names += [put(log, [0], acks=ACKS_LEADER) for _ in range(2)]
    damaged = tmp_path / "log" / names[0]
    good = damaged.read_bytes()
    damaged.write_bytes(good[:-1] + b"x")
    args = parse_args(["--url", str(tmp_path / "log")])
    state = log.journal.refresh()
    planned_copies, status = replicate(classic, parse_args(["--url", args.url, "--broker", "2", "--dry-run"]))
    assert (status, planned_copies["lag"][2]["objects"]) == (0, len(list(copies_wanted(state, 2))))
    # A killed job leaves copies that no record names.
    location = Location(url=str(tmp_path / "log"), storage={})
    planned = planned_log(location, journal_of(location))
    result = copy_in_task(planned, None, CopyShare(2, list(copies_wanted(state, 2))[3:6]))
    assert (len(result.done), result.problems) == (3, [])
    assert 2 not in brokers_of(log.journal.refresh(), result.done[0][0])

    done: list[int] = []
    jobs = [Thread(target=lambda: done.append(replicate(classic, args)[1])) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert 0 in done  # the job that has recorded the damage has also repaired it
    summary, status = replicate(classic, args)
    assert (status, summary["objects"], summary["lag"][2]["objects"]) == (0, 0, 0)
    state = log.journal.refresh()
    assert {brokers_of(state, name) for name in names} == {(0, 1, 2)}
    assert group_of(state).isr == (0, 1, 2) and not state.pending, "records with acks=1 are copied, too"
    for name in names:
        assert (folder_of(log, tmp_path, 2) / name).read_bytes() == (tmp_path / "log" / name).read_bytes()
    assert damaged.read_bytes() == good


def wanted(number: int, size: int) -> WantedCopy:
    return WantedCopy(f"data/{number}", ObjectRow(size, 0, 1, 1), 1, ((0, 0),))


def test_brokers_share_the_tasks() -> None:
    """In turn; each task has about its size, and what is left over stays for the next round."""
    left = {1: iter([wanted(number, 10) for number in range(5)]), 2: iter([wanted(number, 50) for number in range(2)])}
    shares = plan_shares(left, 20, 4)
    assert [(share.broker, len(share.wanted)) for share in shares] == [(1, 2), (2, 1), (1, 2), (2, 1)]
    assert [len(list(rest)) for rest in left.values()] == [1, 0]
    assert plan_shares({1: iter(())}, 20, 4) == []


def test_the_size_of_a_task() -> None:
    """No slot is without work, and a throttled task takes about ten seconds."""
    assert share_bytes(800, 8, None) == 100
    assert share_bytes(0, 8, None) == 1
    assert share_bytes(1 << 40, 8, None) == 256 << 20
    assert share_bytes(1 << 40, 8, 8_000_000) == 10_000_000


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--throttle", "fast"], "bytes per second"),
        (["--every", "often"], "is not a duration"),
        (["--every", "1s", "--dry-run"], "leave out --every"),
        (["--broker", "b"], "invalid int"),
    ],
)
def test_wrong_arguments(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and a sentence."""
    with pytest.raises(SystemExit) as ended:
        parse_args(["--url", "file:///x", *more])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
