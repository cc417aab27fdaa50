"""`pylog cluster health`."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from simulation.harness.clocks import SkewedClock
from simulation.harness.stores import ClockedStore
from simulation.levels import TOMORROW, supporting
from spark_log import NewTopic, connect
from spark_log.http.address import this_host
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import Maintainer
from spark_log.metadata.commands import CreateTopic
from spark_log.metadata.features import METADATA_VERSION, SUPPORTED
from spark_log.runtime.clock import SystemClock
from spark_log.store.local import LocalStore
from spark_log.store.object_names import log_key
from tests.cli.commands import Pylog
from tests.services import Services

YEAR_MS = 365 * 86_400_000
MINUTE_MS = 60_000


def test_a_log_that_is_embedded_is_healthy(pylog: Pylog) -> None:
    """It says so, with what it looked at."""
    found = pylog.json("cluster", "health")
    assert found["healthy"] and [one["check"] for one in found["checks"]] == [
        "log",
        "coordinator",
        "storage",
        "checkpoint",
        "clock",
    ]
    assert "none: clients write to the storage themselves" in pylog.ok("cluster", "health")


def damaged_object(folder: Path) -> Path:
    """The second of three objects of a topic `t` that is made, with other bytes."""
    with connect(str(folder)) as log:
        log.create_topic(NewTopic("t", 1))
        for number in range(3):
            log.append("t", [{"value": b"%d" % number}])
        found = folder / [one.slice.object for one in log.plan("t")][1]
    found.write_bytes(found.read_bytes()[::-1])
    return found


def test_an_object_that_maintenance_sets_aside_is_not_healthy(tmp_path: Path) -> None:
    """It is named until it can be read again."""
    found = damaged_object(tmp_path / "log")
    good = found.read_bytes()[::-1]
    pylog = Pylog(str(tmp_path / "log"))
    assert pylog.run("maintain").exit_code == 1
    failed = pylog.run("cluster", "health")
    assert failed.exit_code == 1 and "not healthy: set aside" in failed.stderr
    assert found.name in failed.stdout and "pylog verify --deep" in failed.stdout
    found.write_bytes(good)
    pylog.ok("maintain")
    assert pylog.json("cluster", "health")["healthy"]


def test_the_objects_that_a_coordinator_has_set_aside_are_not_healthy(tmp_path: Path) -> None:
    """Its maintenance keeps them in memory, and /health counts them."""
    damaged_object(tmp_path / "log")
    services = Services()
    running = services.start(tmp_path / "log")
    coordinator = running.coordinator
    with connect(f"pylog://{coordinator.address}") as log:
        coordinator.metrics.compaction.note(Maintainer(log).round())
    for url in (f"pylog://{coordinator.address}", str(tmp_path / "log")):
        failed = Pylog(url).run("cluster", "health")
        assert failed.exit_code == 1 and "maintenance could not read 1 object" in failed.stdout
    services.close()


def test_a_full_disk_is_not_healthy(mount: Callable[[str], Path]) -> None:
    """Until there is space again."""
    disk = mount("size=1m")
    pylog = Pylog(str(disk / "log"))
    pylog.ok("topic", "create", "t")
    rest = disk / "rest"
    with suppress(OSError), rest.open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    failed = pylog.run("cluster", "health")
    assert failed.exit_code == 1 and "not healthy: storage" in failed.stderr
    assert "free some space" in failed.stdout
    rest.unlink()
    assert pylog.json("cluster", "health")["healthy"]


# Promise: replicas.md#when-a-disk-fails
def test_a_broker_whose_storage_is_away_is_not_healthy(services: Services, tmp_path: Path) -> None:
    """Nobody has fenced it yet.  A coordinator checks the roots itself, so its clients get a warning: they may have no
    access to a root."""
    pylog = Pylog(str(tmp_path / "log"))
    pylog.ok("topic", "create", "t")
    pylog.ok("broker", "add", "1", "--root", str(tmp_path / "disk1"))
    assert "has all objects of its partitions" in pylog.ok("cluster", "health")
    (tmp_path / "disk1").rename(tmp_path / "away")
    failed = pylog.run("cluster", "health")
    assert failed.exit_code == 1 and "not healthy: broker 1" in failed.stderr
    assert "its root does not answer on this machine; by the metadata, it has all objects" in failed.stdout
    running = services.start(tmp_path / "log")
    said = Pylog(f"pylog://{running.coordinator.address}").run("cluster", "health").stdout
    assert "warning: its root does not answer on this machine" in said
    (tmp_path / "away").rename(tmp_path / "disk1")
    assert "warning" not in pylog.ok("cluster", "health")
    services.stop_all()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_log_that_this_user_cannot_write_is_not_healthy() -> None:
    """A user who is only to read gives --read-only."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        pylog = Pylog(f"{folder}/log")
        pylog.ok("topic", "create", "t")
        assert pylog.json("cluster", "health")["healthy"]
        os.seteuid(65534)
        try:
            failed = pylog.run("cluster", "health")
            found = pylog.json("cluster", "health", "--read-only")
        finally:
            os.seteuid(0)
    assert failed.exit_code == 1 and "not healthy: storage" in failed.stderr
    assert "Permission denied" in failed.stdout and "give --read-only if this user is only to read" in failed.stdout
    assert found["healthy"] and "storage" not in [one["check"] for one in found["checks"]]
    assert not failed.stdout.count("accepts writes")


def test_a_log_whose_next_record_has_no_name_is_not_healthy(url: str, pylog: Pylog) -> None:
    """A directory has it, so every commit fails."""
    key = log_key(connect(url).journal.refresh().version + 1)
    (Path(url) / key).mkdir()
    failed = pylog.run("cluster", "health")
    assert failed.exit_code == 1 and f"{key}: this is not a file, so commits will fail" in failed.stdout
    (Path(url) / key).rmdir()
    assert pylog.json("cluster", "health")["healthy"]


def test_a_disk_that_became_read_only_is_not_healthy(mount: Callable[[str], Path]) -> None:
    """As a kernel makes it after an error of the device."""
    disk = mount("size=1m")
    pylog = Pylog(str(disk / "log"))
    pylog.ok("topic", "create", "t")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    failed = pylog.run("cluster", "health")
    assert failed.exit_code == 1 and "not healthy: storage" in failed.stderr
    assert "mount it for writing" in failed.stdout


def test_a_damaged_checkpoint_is_not_healthy(url: str, pylog: Pylog, tmp_path: Path) -> None:
    """Though the log opens from the one before it."""
    pylog.ok("checkpoint")
    newest = max(tmp_path.glob("log/meta/ckpt/*"))
    newest.write_bytes(b"")
    failed = pylog.run("cluster", "health")
    assert failed.exit_code == 1 and "not healthy: checkpoint" in failed.stderr
    assert newest.name in failed.stdout


@pytest.mark.parametrize("asked", ["coordinators", "storage"])
def test_coordinators_are_asked_how_they_are(services: Services, tmp_path: Path, asked: str) -> None:
    """All that the URL names, one of which may stand by; or the one that has the log."""
    first = services.start(tmp_path / "log")
    Pylog(f"pylog://{first.coordinator.address}").ok("topic", "create", "t")  # from then on it leads
    second = services.start(tmp_path / "log" / ".." / "log")
    addresses = [running.coordinator.address for running in (first, second)]
    url = f"pylog://{','.join(addresses)}" if asked == "coordinators" else str(tmp_path / "log")
    checks = {one["check"]: one["says"] for one in Pylog(url).json("cluster", "health")["checks"]}
    assert checks[f"coordinator {addresses[0]}"].startswith("leads, epoch 1")
    if asked == "coordinators":
        assert checks[f"coordinator {addresses[1]}"].startswith("stands by")
        services.stop(second)
        assert f"not healthy: coordinator {addresses[1]}" in Pylog(url).run("cluster", "health").stderr
    services.stop_all()


def test_a_served_log_is_checked_without_its_files(services: Services, tmp_path: Path) -> None:
    """A user without rights on `meta/` can do that; a command that works on the files says what it needs."""
    running = services.start(tmp_path / "log", metadata="served")
    pylog = Pylog(f"pylog://{running.coordinator.address}")
    pylog.ok("topic", "create", "t")
    (tmp_path / "log" / "meta" / "ckpt").mkdir(exist_ok=True)
    (tmp_path / "log" / "meta" / "ckpt" / f"{1:020}-damaged").write_bytes(b"no checkpoint")
    pylog.ok("cluster", "health")
    pylog.ok("cluster", "info")
    result = pylog.run("metadata", "dump")
    assert result.exit_code == 1 and "needs the URL of the storage" in result.stderr


# Promise: cli.md#pylog-cluster-health, monitoring.md#watch-a-coordinator
def test_a_coordinator_that_is_gone_is_told_with_status_1(pylog: Pylog) -> None:
    """It did not release the log, so nobody writes it."""
    Journal.open(LocalStore(pylog.url, "os"), create=True).take_over(0, "127.0.0.1:1", this_host())
    result = pylog.run("cluster", "health")
    assert result.exit_code == 1 and "not healthy: coordinator 127.0.0.1:1" in result.stderr
    assert "does not answer" in result.stdout


def poison(folder: Path, ahead_ms: int = YEAR_MS) -> None:
    """As a pylog that does not check clocks."""
    store, create = ClockedStore(LocalStore(str(folder), "os")), CreateTopic(name="t", partitions=1, topic_id="id")
    Journal.open(store, create=True, clock=SkewedClock(SystemClock(), ahead_ms)).propose(create)


def test_one_topic_is_not_called_topics(tmp_path: Path) -> None:
    """Nor one version versions."""
    poison(tmp_path / "log", 0)
    found = Pylog(tmp_path / "log").json("cluster", "health")
    says = {check["check"]: check["says"] for check in found["checks"]}
    assert says["log"].endswith("version 1, 1 topic") and says["checkpoint"] == "the newest one is 1 version old"


# Promise: storage.md#clocks
@pytest.mark.parametrize(
    ("ahead_ms", "says"),
    [
        (-180 * MINUTE_MS, r"^the last commit was 3 h ago$"),
        (4 * MINUTE_MS, r"^the log's time is [34] min.* ahead of this machine's clock$"),
        (
            8 * MINUTE_MS,
            r"^warning: the log's time is [78] min.* ahead of this machine's clock, .* 10 min .*synchronize",
        ),
    ],
    ids=["behind", "ahead", "warning"],
)
def test_health_shows_the_distance_of_the_clock_within_its_bound(tmp_path: Path, ahead_ms: int, says: str) -> None:
    """From half the bound on it warns, and the log is still healthy."""
    poison(tmp_path / "log", ahead_ms)
    found = Pylog(tmp_path / "log").json("cluster", "health")
    [clock] = [check["says"] for check in found["checks"] if check["check"] == "clock"]
    assert found["healthy"] and re.search(says, clock)


# Promise: cli.md#pylog-cluster-reset-clock
@pytest.mark.parametrize("by", ["embedded", "service"])
def test_the_time_of_a_log_is_put_right(services: Services, tmp_path: Path, by: str) -> None:
    """Only with --force; the process that writes the log does it."""
    poison(tmp_path / "log")
    pylog = Pylog(tmp_path / "log")
    assert "not healthy: clock" in pylog.run("cluster", "health").stderr
    if by == "service":
        pylog = Pylog(f"pylog://{services.start(tmp_path / 'log').coordinator.address}")
    assert "give --yes to do it" in pylog.run("cluster", "reset-clock").stderr
    told = pylog.run("cluster", "reset-clock", "--dry-run").stderr
    assert re.search(r"would put the log's time back from \d{4}-.* UTC to \d{4}-.* UTC", told)
    assert pylog.json("cluster", "reset-clock", "--yes")["ahead_ms"] > YEAR_MS - 600_000
    assert pylog.json("cluster", "reset-clock", "--yes")["ahead_ms"] == 0
    assert Pylog(tmp_path / "log").json("topic", "list")
    services.stop_all()


# Promise: cli.md#pylog-cluster-upgrade, format/metadata.md#levels, storage.md#update-pylog
def test_a_log_is_raised_to_the_newest_level(tmp_path: Path) -> None:
    """Once, and not without a confirmation: an older pylog cannot open it afterwards."""
    pylog = Pylog(tmp_path / "log")
    with connect(pylog.url) as log:
        log.create_topic(NewTopic("t", 1))
    with supporting(TOMORROW):
        assert "give --yes to do it" in pylog.run("cluster", "upgrade").stderr
        would = f"would raise metadata.version from 1 to {TOMORROW}"
        assert would in pylog.run("cluster", "upgrade", "--dry-run").stderr
        assert pylog.json("cluster", "info")["metadata_level"] == 1
        assert pylog.json("cluster", "upgrade", "--yes") == {"level": TOMORROW}
        assert pylog.json("cluster", "info")["metadata_level"] == TOMORROW
        assert "nothing to raise" in pylog.run("cluster", "upgrade").stdout
    assert f"the log is at level {TOMORROW} of metadata.version" in pylog.refused("topic", "list")


# Promise: cli.md#pylog-cluster-upgrade
def test_a_new_log_needs_no_upgrade(tmp_path: Path) -> None:
    """Before and after its first record."""
    pylog, newest = Pylog(tmp_path / "log"), SUPPORTED[METADATA_VERSION]
    with connect(pylog.url):
        assert pylog.json("cluster", "upgrade") == {"level": newest}
    pylog.run("topic", "create", "t")
    assert pylog.json("cluster", "upgrade") == {"level": newest}


# Promise: cli.md#pylog-cluster-health
def test_no_log_is_not_healthy(tmp_path: Path) -> None:
    """And what it is instead is said."""
    result = Pylog(tmp_path / "none").run("cluster", "health")
    assert result.exit_code == 1 and "there is no log" in result.stdout
