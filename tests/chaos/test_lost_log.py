"""The root of a log, which is broker 0, is lost under load: its mirror has whole commits, up to the last copy."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import spark_log
from simulation.harness.broker_roots import register_broker
from spark_log.maintenance.maintain import maintain_once
from spark_log.recovery.mirror import Mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.verify import verify
from spark_log.store.local import LocalStore
from tests.cli.commands import Pylog
from tests.processes import eventually

WRITER = """
import sys
import spark_log

log = spark_log.connect(sys.argv[1], durability="os")
for number in range(1_000_000):
    with log.transaction("writer") as both:
        for topic in ("t", "u"):
            both.append(topic, [{"value": b"%d" % number, "partition": number % 2}])
    print(number, flush=True)
"""


# Promise: cli.md#pylog-mirror-run, copies.md#keep-a-mirror
def test_a_log_that_is_deleted_under_load_is_recovered_from_its_mirror(tmp_path: Path) -> None:
    """The process that copies is killed and started again meanwhile; another one copies beside it.

    One topic has a copy in the log's root, and the other one copies on two brokers.
    """
    log = spark_log.connect(str(tmp_path / "log"), durability="os")
    for broker in (1, 2):
        register_broker(log, broker, str(tmp_path / f"disk{broker}"))
    log.create_topic(spark_log.NewTopic("t", 2))
    log.create_topic(spark_log.NewTopic("u", 2, replica_assignment={0: (1, 2), 1: (2, 1)}))
    log.admin.incremental_alter_configs({None: {"metadata.checkpoint.interval": "20"}})
    pylog, mirror = Pylog(tmp_path / "log"), str(tmp_path / "mirror")
    pylog.ok("mirror", "set", mirror)
    acked = tmp_path / "acked"
    with acked.open("wb") as out:
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "log")], stdout=out, stderr=out)
    command = [sys.executable, "-m", "spark_log.cli", "-u", pylog.url, "mirror", "run", mirror, "--every", "50ms"]
    copier = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: copied(mirror) > 20)
        copier.send_signal(signal.SIGKILL)
        copier.wait()
        copier = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        maintain_once(log)
        eventually(lambda: count(acked) > 100)
        before = count(acked)
        Mirror(log, LocalStore(mirror)).round()
        shutil.move(tmp_path / "log", tmp_path / "lost")
    finally:
        for process in (writer, copier):
            process.kill()
            process.wait()
    recover(LocalStore(mirror))
    recovered = spark_log.connect(mirror)
    found = {topic: numbers(recovered, topic) for topic in ("t", "u")}
    assert found["t"] == found["u"] == list(range(len(found["t"])))
    assert before <= len(found["t"]) <= count(acked) + 1
    assert verify(recovered, deep=True) == []
    recovered.append("t", [{"value": b"goes on"}])
    maintain_once(recovered)


def numbers(log: spark_log.Log, topic: str) -> list[int]:
    return sorted(int(value) for value in log.read(topic, columns=["value"]).column("value").to_pylist())


def count(acked: Path) -> int:
    """Commits that were acknowledged."""
    return sum(line.isdigit() for line in acked.read_bytes().splitlines())


def copied(mirror: str) -> int:
    """Commits in the mirror."""
    try:
        return len(numbers(spark_log.connect(mirror), "t"))
    except spark_log.errors.SparkLogError:
        return 0
