"""An erasure that is killed at any of its writes loses nothing, and the next one does the rest."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import spark_log
from spark_log.maintenance.maintain import maintain_once
from spark_log.recovery.verify import verify

KILLED = """
import os, signal, sys
from dataclasses import replace
from spark_log import Log
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import LIMITS
from spark_log.store.local import LocalStore
from simulation.harness.stores import Wrapper

left = int(sys.argv[2])

class Killed(Wrapper):
    def put(self, key, chunks):
        self.count(lambda: self.inner.put(key, chunks))

    def put_new(self, key, data):
        return self.count(lambda: self.inner.put_new(key, data))

    def count(self, write):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        done = write()
        if left == 0 and sys.argv[3] == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return done

store = Killed(LocalStore(sys.argv[1], "os"))
log = Log(Journal.open(store, create=False, limits=replace(LIMITS, changes_max=1)))
print(log.admin.erase_records("t", [b"erase-me"]).records, flush=True)
"""
ERASED = b"erase-me"
PARTITIONS = 3


# Promise: tasks/erase.md#interrupted
def test_an_erasure_that_is_killed_is_completed_by_the_next(tmp_path: Path) -> None:
    """Before and after each of its first writes: its beginning, segments, and one swap after another.  It is listed
    until then.
    """
    log = spark_log.connect(str(tmp_path), durability="os")
    arguments = [(number, when) for number in range(1, 7) for when in ("before", "after")]
    for number, when in arguments:
        log.create_topic(spark_log.NewTopic("t", PARTITIONS, {"compression.type": "none"}))
        for partition in range(PARTITIONS):
            keys = [ERASED if n % 3 == 0 else b"%d" % n for n in range(6)]
            log.append("t", [{"key": key, "value": bytes(3000), "partition": partition} for key in keys])
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(number), when]
        done = subprocess.run(command, check=False, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        some = log.read("t").column("key").to_pylist()
        assert sorted(key for key in some if key != ERASED) == sorted([b"1", b"2", b"4", b"5"] * PARTITIONS)
        (listed,) = [one for one in log.admin.list_erasures() if one.topic_id == log.journal.state.names["t"]]
        assert listed.running and "run the erasure again" in next(listed.problems(0))
        assert log.admin.erase_records("t", [ERASED]).records == some.count(ERASED)
        assert not any(one.running or one.incomplete for one in log.admin.list_erasures())
        assert ERASED not in log.read("t").column("key").to_pylist()
        assert verify(log, deep=True) == []
        log.admin.delete_topics(["t"])
    log.create_topic(spark_log.NewTopic("t", 1))
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for _ in range(3):
        log.append("t", [{"value": b"later"}])
        maintain_once(log)
    assert not [file for file in (tmp_path / "data").rglob("*") if file.is_file() and ERASED in file.read_bytes()]
