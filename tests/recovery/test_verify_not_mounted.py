"""`verify` where the log's own root is not mounted: one error asks for the mount, and nothing counts as missing."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_log import Log
from spark_log.client.open_journal import open_journal
from spark_log.errors import WrongRoot
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import checkpoint
from spark_log.recovery.verify import verify
from spark_log.recovery.verify_objects import SliceAt, Spread, find_damage, find_sizes
from spark_log.recovery.verify_repair import verify_and_repair
from spark_log.roots.broker_roots import Roots
from tests.maintenance.logs import append_small, new_log
from tests.replication.replicated_logs import folder_of, move_away, put, replicated_log
from tests.replication.test_replicator import flip
from tests.services import Services

AWAY = rf"/log has no meta/format on {platform.node()}, .* is its disk mounted\?"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """With a slice index, and small segments; and a copy of it."""
    log = new_log(tmp_path / "log")
    append_small(log, 270)
    checkpoint(log)
    append_small(log, 3, first=270)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    return log


@pytest.fixture
def services() -> Iterator[Services]:
    running = Services()
    yield running
    running.close()


def copy_of(log: Log, tmp_path: Path) -> Journal:
    return open_journal(str(tmp_path / "copy"), create=False)


def away_for(log: Log, root: Path, works: Collection[object]) -> Spread:
    """A machine that does `works` has an empty folder in place of the root."""

    def spread(work: Callable[[Roots, Any], Any], shares: Iterable[Any]) -> Iterator[Any]:
        for share in shares:
            if work not in works:
                yield work(log.journal.roots, share)
                continue
            root.rename(root.with_name("away"))
            root.mkdir()
            try:
                result = work(log.journal.roots, share)
            finally:
                root.rmdir()
                root.with_name("away").rename(root)
            yield result

    return spread


# Promise: operations.md#jobs
@pytest.mark.parametrize("work", [find_sizes, find_damage])
def test_a_root_that_a_task_does_not_have(log: Log, tmp_path: Path, work: object) -> None:
    """Neither are its objects missing, nor are they good."""
    spread = away_for(log, tmp_path / "log", [work])
    with pytest.raises(WrongRoot, match=AWAY):
        verify(log, deep=True, spread=spread)
    assert verify(log, deep=True) == []


# Promise: operations.md#jobs
@pytest.mark.parametrize("work", [find_sizes, find_damage])
def test_no_object_is_replaced_because_a_task_does_not_have_the_root(log: Log, tmp_path: Path, work: object) -> None:
    """Although the driver could replace it."""
    damaged = tmp_path / "log" / min(log.journal.state.objects)
    flip(0.3)(damaged)
    before = damaged.read_bytes()
    spread = away_for(log, tmp_path / "log", [work])
    with pytest.raises(WrongRoot, match=AWAY):
        verify_and_repair(log, deep=True, copy=copy_of(log, tmp_path), spread=spread)
    assert damaged.read_bytes() == before
    assert verify_and_repair(log, deep=True, copy=copy_of(log, tmp_path)).repaired == (min(log.journal.state.objects),)


UNMOUNTED = """
import os, subprocess
from spark_log import connect
from spark_log.client.open_journal import open_journal
from spark_log.errors import WrongRoot
from spark_log.recovery.object_repair import repair_objects
from spark_log.recovery.verify import verify

def mount():
    subprocess.run(["mount", "-t", "tmpfs", "none", "{0}/log"], check=True)

def in_tasks(work, shares):
    for share in shares:
        subprocess.run(["umount", "{0}/log"], check=True)
        result = work(served.journal.roots, share)
        mount()
        yield result

served, copy = connect("{1}"), open_journal("{0}/copy", create=False)
mount()
for do in (lambda: verify(served), lambda: repair_objects(served, copy, deep=True, spread=in_tasks)):
    try:
        do()
    except WrongRoot as error:
        print(error)
print(os.listdir("{0}/log"))
"""


def test_a_driver_that_has_the_metadata_from_a_coordinator(log: Log, tmp_path: Path, services: Services) -> None:
    """It does not have the root: slice indexes do not count as missing, and no object is put where no disk is."""
    damaged = min(name for name in log.journal.state.objects if name.endswith(".seg"))
    flip(0.3)(tmp_path / "log" / damaged)
    log.close()
    running = services.start(tmp_path / "log", metadata="served")
    program = UNMOUNTED.format(tmp_path, f"pylog://{running.coordinator.address}")
    command = ["unshare", "-m", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if "unshare: " in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"this machine does not let tests mount: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    verified, repaired, there = done.stdout.splitlines()
    assert re.search(AWAY, verified) and re.search(AWAY, repaired)
    assert there == "[]"


def test_an_object_that_was_replaced_meanwhile(tmp_path: Path) -> None:
    """On a root that is there: it is not a problem, of the log's own root or of a broker's."""
    log = replicated_log(tmp_path)
    name = put(log, [0, 1, 2])
    (read,) = log.plan("t")
    for broker in (0, 1):
        (folder_of(log, tmp_path, broker) / name).unlink()
        assert find_damage(log.journal.roots, [SliceAt(broker, read)]).problems == []
    move_away(tmp_path, 1)
    with pytest.raises(WrongRoot, match=rf"broker-1 has no meta/broker.json on {platform.node()}, "):
        find_damage(log.journal.roots, [SliceAt(1, read)])
