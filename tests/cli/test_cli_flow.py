"""`pylog flow`, as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import spark_log
from spark_log import NewTopic
from tests.cli.commands import Pylog
from tests.processes import eventually

APP = """
import pyarrow as pa, pyarrow.compute as pc

def upper(table):
    return pa.table({"key": table["key"], "value": pc.ascii_upper(table["value"].cast(pa.string()))})

def with_names(table, state, names):
    return upper(table), pa.table({"key": [b"k"], "value": [b"seen"]})

def fails(table):
    raise ValueError("no")

number = 3
"""


@contextmanager
def flow(folder: Path, url: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "app.py").write_text(APP)
    command = [sys.executable, "-m", "spark_log.cli", "-u", url, "flow", *args]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def made(url: str) -> spark_log.Log:
    log = spark_log.connect(url)
    log.admin.create_topics([NewTopic("in", 2), NewTopic("out", 1)])
    log.append("in", [{"key": "k", "value": "a"}])
    return log


# Promise: tasks/flow.md#as-a-command, tasks/flow.md#stop-a-flow, cli.md#pylog-flow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_flow_and_it_leaves_the_group(tmp_path: Path, url: str, number: signal.Signals) -> None:
    """The status is 0, and the group is free."""
    log = made(url)
    with flow(
        tmp_path, url, "app:upper", "--name", "f", "--source", "in", "--target", "out", "--tasks", "2"
    ) as process:
        eventually(lambda: log.read("out").num_rows == 1 or process.poll() is not None)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "flow f is running: 2 tasks in this process\n" in said
    assert "flow f was stopped: 1 record processed\n" in said
    assert log.read("out")["value"].to_pylist() == [b"A"]
    assert log.admin.describe_consumer_groups(["f"])["f"].state == "Empty"


# Promise: tasks/flow.md#as-a-command
def test_a_flow_that_fails_ends_with_its_error(tmp_path: Path, url: str) -> None:
    """In one sentence, and status 1."""
    made(url)
    with flow(tmp_path, url, "app:fails", "--name", "f", "--include", "in.*") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "offset 0: ValueError: no; nothing of its batch was committed" in said and "Traceback" not in said


# Promise: monitoring.md#watch-a-flow
def test_a_flow_serves_its_metrics(tmp_path: Path, url: str) -> None:
    """They are those of its progress, also before the first batch, when there are no times."""
    log = made(url)
    log.admin.create_topics([NewTopic("names", 1, {"cleanup.policy": "compact"})])
    log.append("names", [{"key": "k", "value": "n"}])
    args = ["--name", "f", "--source", "in", "--target", "out", "--lookup", "names", "--state", "seen"]
    args += ["--metrics", "0"]
    with flow(tmp_path, url, "app:with_names", *args) as process:
        assert process.stderr is not None
        address = next(line for line in process.stderr if line.startswith("metrics: ")).split()[1]
        eventually(lambda: _scraped(address).get("pylog_flow_records_in_total") == 1)
        found = _scraped(address)
    assert 0 < found.pop("pylog_flow_batch_seconds") < 60
    assert {name.removeprefix("pylog_flow_"): value for name, value in found.items()} == {
        "running": 1,
        "records_in_total": 1,
        "records_out_total": 2,
        "bad_records_total": 0,
        "batches_total": 1,
        "restarts_total": 0,
        "lag_records": 0,
        "lookup_records": 1,
        "state_keys": 1,
    }


def _scraped(address: str) -> dict[str, float]:
    """The values by name: all are of one flow."""
    with urllib.request.urlopen(address, timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    assert all(family.documentation for family in families) and {one.labels["flow"] for one in samples} == {"f"}
    return {sample.name: sample.value for sample in samples}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["upper", "--source", "in"], "expected module:function"),
        (["nowhere:upper", "--source", "in"], "No module named 'nowhere'"),
        (["json:upper", "--source", "in"], "function 'json:upper' cannot be loaded"),
        (["json:__name__", "--source", "in"], "is not a function: 'json'"),
        (["json:dumps"], "give either --source TOPIC or --include REGEX"),
        (["json:dumps", "--source", "in", "--target", "in"], "topic 'in' is a source, too"),
    ],
)
def test_wrong_arguments_are_refused(url: str, args: list[str], said: str) -> None:
    """Before anything runs."""
    made(url)
    ran = Pylog(url).run("flow", *args, "--name", "f")
    assert ran.exit_code in (1, 2) and said in ran.stderr


# Promise: monitoring.md#watch-a-flow
def test_describe_names_the_state_of_a_flow(tmp_path: Path, url: str, pylog: Pylog) -> None:
    """Its tasks are members, and their positions name the topic, also if it was deleted since."""
    log = made(url)
    log.admin.create_topics([NewTopic("names", 1, {"cleanup.policy": "compact"})])
    args = ["--name", "f", "--source", "in", "--target", "out", "--lookup", "names", "--state", "seen"]
    with flow(tmp_path, url, "app:with_names", *args):
        eventually(lambda: log.read("out").num_rows == 1)
        found = pylog.json("group", "describe", "f")
        assert found["state_topic"] == "seen" and found["members"][0]["client_id"] == "flow"
    log.admin.delete_topics(["seen"])
    assert pylog.json("group", "describe", "f")["state_topic"].endswith(" (deleted)")
