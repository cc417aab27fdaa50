"""The command among the members of a group that share it through a coordinator, and what it shows of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_log import connect
from spark_log.groups.group import GroupConfig
from tests.cli.commands import Pylog
from tests.services import Services

ROOT = Path(__file__).parents[2]


@pytest.fixture
def served(services: Services, tmp_path: Path) -> Iterator[Pylog]:
    """Topic "orders" with four partitions and two records in each."""
    yield filled(services.url(tmp_path / "log"))
    services.stop_all()


def filled(url: str) -> Pylog:
    pylog = Pylog(url)
    pylog.ok("topic", "create", "orders", "-p", "4")
    for number in range(4):
        pylog.ok("produce", "orders", "-p", str(number), stdin="a\nb\n")
    return pylog


@contextmanager
def following(pylog: Pylog, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A process that consumes and waits for more."""
    command = [
        sys.executable,
        "-m",
        "spark_log.cli",
        "consume",
        "orders",
        "-g",
        "g",
        "--follow",
        "-f",
        "%p:%o\\n",
        *args,
    ]
    env = {**os.environ, "PYLOG_URL": pylog.url}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Promise: cli.md#pylog-consume
def test_two_that_follow_share_the_partitions_and_commit_what_they_printed(served: Pylog) -> None:
    """Each record is printed by one of them; Ctrl-C and SIGTERM end them in order, and the group stands at the end."""

    def shared() -> bool:
        found = served.json("group", "describe", "g") if served.json("group", "list") else {"members": []}
        parts = [len((member["partitions"] or {}).get("orders", ())) for member in found["members"]]
        return parts == [2, 2] and found["state"] == "Stable"

    with following(served) as one, following(served) as other:
        eventually(shared)
        for number in range(4):
            served.ok("produce", "orders", "-p", str(number), stdin="c\n")
        eventually(lambda: [row["lag"] for row in served.json("group", "lag", "g")] == [0] * 4)
        found = served.json("group", "describe", "g")
        for command in (("delete", "g"), ("seek", "g", "--to", "latest")):  # a dry run says what would be refused
            assert "is shared by 2 members" in served.refused("group", *command, "--dry-run")
        one.send_signal(signal.SIGINT)
        other.send_signal(signal.SIGTERM)
        printed = [process.communicate(timeout=60)[0].split() for process in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0)
    assert sorted(printed[0] + printed[1]) == sorted(f"{number}:{n}" for number in range(4) for n in range(3))
    assert {row["member"] for row in found["offsets"]} == {member["member"] for member in found["members"]}
    assert found["strategy"] == "cooperative-sticky" and found["members"][0]["owner"] == "pylog-consume on 127.0.0.1"
    after = served.json("group", "describe", "g")
    assert (after["state"], after["members"]) == ("Empty", [])
    assert [row["offset"] for row in after["offsets"]] == [3, 3, 3, 3]


def test_a_second_signal_does_not_keep_it_from_leaving(served: Pylog) -> None:
    """As `timeout` sends them: one to its child, one to the child's process group."""
    with following(served) as process:
        eventually(
            lambda: bool(served.json("group", "list")) and served.json("group", "describe", "g")["members"] != []
        )
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
    assert served.json("group", "describe", "g")["members"] == []


# Promise: cli.md#pylog-consume
def test_what_nobody_could_read_is_not_committed(served: Pylog) -> None:
    """The other side of the pipe was closed before the first record."""
    with following(served) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 0
    assert served.json("group", "describe", "g")["offsets"] == []


def test_a_partition_that_is_named_is_read_without_a_place_in_the_group(served: Pylog) -> None:
    """Its position is still the group's."""
    assert served.ok("consume", "orders", "-g", "g", "-p", "2", "-n", "1") == "a\n"
    assert served.ok("consume", "orders", "-g", "g", "-p", "2") == "b\n"
    found = served.json("group", "describe", "g")
    assert [(row["partition"], row["offset"]) for row in found["offsets"]] == [(2, 2)]


def test_a_position_is_where_each_partition_starts(served: Pylog) -> None:
    """Once; then the group continues after it."""
    assert served.ok("consume", "orders", "-g", "g", "-o", "1") == "b\n" * 4
    assert served.ok("consume", "orders", "-g", "g") == ""
    assert "it has 0 to 2" in served.refused("consume", "orders", "-g", "g", "-o", "7")


# Promise: cli.md#pylog-group-lag
def test_lag_is_shown_again_and_again_until_it_is_interrupted(served: Pylog) -> None:
    """With what came meanwhile; Ctrl-C ends it in order."""
    served.ok("consume", "orders", "-g", "g", "-p", "2")
    command = [sys.executable, "-m", "spark_log.cli", "group", "lag", "g", "--watch"]
    env = {**os.environ, "PYLOG_URL": served.url}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        totals = (line.split() for line in process.stdout if line.startswith("total"))
        first = next(totals)
        served.ok("produce", "orders", "-p", "2", stdin="c\n")
        second = next(totals)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert [columns[4] for columns in (first, second)] == ["0", "1"]


# Promise: cli.md#pylog-group-describe
def test_a_group_that_waits_for_its_members_is_shown_as_such(services: Services, tmp_path: Path) -> None:
    """Before the log knows of it; and groups can be listed by what they are doing."""
    slow = GroupConfig(initial_rebalance_delay_ms=60_000)
    pylog = filled(f"pylog://{services.start(tmp_path / 'log', groups=slow).coordinator.address}")
    pylog.ok("consume", "orders", "-g", "other", "-p", "0")
    with connect(pylog.url) as log:
        consumer = log.consumer("orders", group_id="g", client_id="billing-7")
        consumer.poll(0)
        eventually(lambda: bool(pylog.json("group", "list", "--state", "preparingrebalance")))
        found = pylog.json("group", "describe", "g")
        (member,) = found["members"]
        assert (found["state"], found["offsets"], member["partitions"]) == ("PreparingRebalance", [], {})
        assert member["owner"] == "billing-7 on 127.0.0.1"
        assert (member["client_id"], member["host"], member["process"]) == ("billing-7", "127.0.0.1", None)
        assert "PreparingRebalance" in pylog.ok("group", "describe", "g")
        assert [row["group"] for row in pylog.json("group", "list")] == ["g", "other"]
        assert [row["group"] for row in pylog.json("group", "list", "--state", "Empty,Stable")] == ["other"]
        consumer.close()
    assert "expected Empty" in pylog.wrong("group", "list", "--state", "asleep")
    services.stop_all()
