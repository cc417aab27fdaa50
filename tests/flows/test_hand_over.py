"""A rolling upgrade hands partitions over without waiting for a timeout."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_log
from spark_log import NewTopic
from spark_log.cli.commands.flow import signalled
from spark_log.client.log import Log
from spark_log.client.open_journal import open_journal
from spark_log.flows.flow import Flow
from spark_log.flows.flow_options import FlowOptions, flow_options
from tests.processes import ROOT, eventually

WAIT_S = 60.0
SESSION_MS = 1_800_000
"""Half an hour: a hand-over that waits for the end of a session does not end within this test."""
PARTITIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientOptions(FlowOptions):
    """Options of tasks whose session ends late."""

    def consumer_settings(self, *, local: bool) -> dict[str, Any]:
        return {**FlowOptions.consumer_settings(self, local=local), "session_timeout_ms": SESSION_MS}


def count(words: pa.Table, counts: pa.Table) -> tuple[pa.Table, pa.Table]:
    new = words.group_by("key").aggregate([([], "count_all")]).rename_columns(["key", "n"])
    total = pa.concat_tables([new, counts]).group_by("key").aggregate([("n", "sum")]).rename_columns(["key", "n"])
    return words, total


def run(url: str) -> None:
    """A process of the flow, until SIGTERM.  A task may begin again, if a rebalance has met its commit."""
    known = flow_options(
        name="f", source="in", target="out", function=count, lookup=(), tasks=2, task_numbers=None, start="earliest",
        state=spark_log.keyed("counts", pa.schema([("n", pa.int64())])), bad_records="fail", batch_bytes=1 << 20,
        linger_ms=0, value_format=None,
    )  # fmt: skip
    journal = open_journal(url, None, None, create=False, partial=True)
    options = PatientOptions(**{field.name: getattr(known, field.name) for field in fields(known)})
    with signalled() as stop:
        flow = Flow(journal, options, Log(journal).close)
        flow.start()
        while not stop.wait(0.5):  # a signal that another thread receives does not end a wait without a time
            pass
        flow.stop()


def started(url: str) -> subprocess.Popen[bytes]:
    program = "import sys; from tests.flows.test_hand_over import run; run(sys.argv[1])"
    return subprocess.Popen([sys.executable, "-c", program, url], cwd=ROOT)


# Promise: tasks/flow.md#stop-a-flow
@pytest.mark.parametrize("url", ["service"], indirect=True)
def test_a_stopped_process_hands_its_partitions_over_before_its_session_ends(url: str, tmp_path: Path) -> None:
    """One process after the other is replaced while records arrive: each is processed once, also the state."""
    log = spark_log.connect(url)
    log.admin.create_topics([NewTopic("in", PARTITIONS), NewTopic("out", 1)])
    written = Counter[bytes]()

    def processed() -> bool:
        return Counter(log.read("out")["key"].to_pylist()) == written

    def write() -> None:
        keys = [f"{number}" for number in range(40)]
        log.append("in", [{"key": key, "value": ""} for key in keys])
        written.update(key.encode() for key in keys)

    def members() -> int:
        found = log.admin.describe_consumer_groups(["f"]).get("f")
        return 0 if found is None or found.state != "Stable" else len(found.members)

    running = [started(url), started(url)]
    try:
        eventually(lambda: members() == 4, WAIT_S)
        for _ in range(2):
            write()
            eventually(processed, WAIT_S)
            running.append(started(url))
            eventually(lambda: members() == 6, WAIT_S)
            old = running.pop(0)
            write()
            old.send_signal(signal.SIGTERM)
            write()
            assert old.wait(WAIT_S) == 0
            eventually(processed, WAIT_S)
            eventually(lambda: members() == 4, WAIT_S)
    finally:
        for process in running:
            process.kill()
            process.wait()
    counts = log.table("counts")
    assert dict(zip(counts["key"].to_pylist(), counts["n"].to_pylist(), strict=True)) == written
