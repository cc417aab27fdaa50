"""Processes that compact are killed with SIGKILL, or stopped with SIGSTOP while the fence passes what they had begun.

Others append and compact meanwhile.  A model has each record that was appended.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pyarrow as pa
import pytest

import spark_log
from spark_log.errors import UnknownProducerId, UploadFenced
from spark_log.maintenance.maintain import maintain_round
from spark_log.recovery.verify import verify
from tests.processes import started

ROUNDS = 4
KEYS = 12
HOUR_MS = 3_600_000
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.ms": str(HOUR_MS),
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
}

# In small steps, so that a moment is often between two of them.
COMPACTOR = """
import io, sys
from pathlib import Path
from spark_log import Log
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.rewriting.compaction_rounds import compact
from spark_log.maintenance.maintain import maintain_round
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from spark_log.store.open import open_store
from simulation.harness.stores import ControlledStore
from tests.maintenance.logs import maintenance
url, control, name = sys.argv[1:]
log, memory = Log(Journal.open(ControlledStore(open_store(url, None, "os"), Path(control)), create=False)), MaintenanceMemory()
limits = StepLimits(clean_bytes=1, swap_bytes=1, clean_keys=8)
def duty(state, context):
    return (yield from compact(state, context, io.BytesIO, memory=memory, ends_passes=False))
print("ready", flush=True)
while True:
    for _ in range(4):
        print(f"() {maintenance(log.journal, duty, limits).records}", flush=True)
    report = maintain_round(log)
    print(f"{report.problems} {report.removed_records}", flush=True)
"""
Model = list[tuple[bytes, bytes | None]]


class Changelog:
    """A compacted topic, and the key and value of each offset."""

    def __init__(self, folder: Path) -> None:
        self.log = spark_log.connect(folder / "log", durability="os")
        self.log.admin.create_topics([spark_log.NewTopic("t", 1, CONFIGS)])
        self.log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
        self.model: Model = []
        self._rng = random.Random(5)

    def append(self, count: int | None = None) -> None:
        """A commit of some updates, which are old enough to be compacted."""
        rows: Model = []
        for _ in range(count or self._rng.randint(1, 6)):
            value = None if self._rng.random() < 0.3 else b"%d" % (len(self.model) + len(rows))
            rows.append((b"k%d" % self._rng.randrange(KEYS), value))
        old = int(time.time() * 1000) - 2 * HOUR_MS
        table = pa.table(
            {
                "key": [key for key, _ in rows],
                "value": pa.array([value for _, value in rows], pa.binary()),
                "timestamp": [old] * len(rows),
            }
        )
        while True:
            try:
                self.log.append("t", table)
                break
            except (UploadFenced, UnknownProducerId):  # the fence passes the upload and its producer together
                continue
        self.model += rows

    def pass_by(self) -> None:
        """Append and maintain until the fence is past all that others have begun."""
        begun = self.log.journal.refresh().version
        while self.log.journal.refresh().fence <= begun:
            self.append()
            assert maintain_round(self.log).problems == ()

    def check(self) -> None:
        """Each record that is read was appended at its offset, and no older record of a key has come back."""
        found: dict[int, tuple[bytes, bytes | None]] = {}
        for row in self.log.read("t", columns=["offset", "key", "value"]).to_pylist():
            found[row["offset"]] = (row["key"], row["value"])
        assert all(self.model[offset] == pair for offset, pair in found.items())
        newest = {key: offset for offset, (key, _) in enumerate(self.model)}
        left = {key: offset for offset, (key, _) in sorted(found.items())}
        for key, offset in newest.items():
            is_tombstone = self.model[offset][1] is None
            assert left.get(key, offset if is_tombstone else None) == offset, f"the newest record of {key!r} is missing"
        assert verify(self.log, deep=True) == []


@pytest.mark.parametrize("trouble", ["stopped", "hang"])
def test_a_pass_that_the_fence_passes_removes_nothing_wrong(tmp_path: Path, trouble: str) -> None:
    """It continues after another process has compacted and deleted what it was about to replace."""
    changelog, rng = Changelog(tmp_path), random.Random(trouble)
    with started(COMPACTOR, tmp_path, "compactor") as compactor:
        for _ in range(ROUNDS):
            for _ in range(rng.randint(2, 6)):
                changelog.append()
            time.sleep(rng.random() * 0.05)
            with compactor.in_trouble(trouble):
                changelog.pass_by()
            changelog.check()
            before = len(compactor.lines())
            for _ in range(3):  # more records than there are keys: some go
                changelog.append(KEYS)
            compactor.wait_until(lambda before=before: any(line != "() 0" for line in compactor.lines()[before:]))  # type: ignore[misc]
            changelog.check()
        assert all(line.startswith("() ") for line in compactor.lines()), "problems"


def test_a_pass_that_is_killed_removes_nothing_wrong(tmp_path: Path) -> None:
    """At random moments; at the end, one more round leaves the newest record of each key alone."""
    changelog, rng = Changelog(tmp_path), random.Random(3)
    for number in range(ROUNDS):
        with started(COMPACTOR, tmp_path, f"compactor-{number}") as compactor:
            for _ in range(rng.randint(2, 6)):
                changelog.append()
            compactor.wait_for(rng.randint(0, 4))
            time.sleep(rng.random() * 0.05)
            compactor.kill()
        changelog.check()
        changelog.append()
    assert maintain_round(changelog.log).problems == ()
    changelog.check()
    keys = changelog.log.read("t", columns=["key"]).column("key").to_pylist()
    assert len(keys) == len(set(keys)) <= KEYS
