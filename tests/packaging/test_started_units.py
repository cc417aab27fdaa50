"""The units of systemd in conf/, started by systemd: as the first process of other namespaces, over a copy of the root.

It needs root, and a kernel with overlayfs and namespaces.  Nothing of this machine is changed: what systemd and the
units write is in memory, but for the folder of the test.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import spark_log
from spark_log import NewTopic
from tests.packaging.test_units import PROGRAM, UNITS
from tests.processes import ROOT, free_port
from tests.spark.builders import wait_until

SYSTEMD = "/lib/systemd/systemd"
UID = 10001
HOME = "/srv/pylog"
"""The folder of the test, for systemd."""

BOOT = f"""
set -e
folder=$1 new=$1/new
mount --make-rprivate /
mkdir -p "$new" "$folder/layers"
mount -t tmpfs tmpfs "$folder/layers"
mkdir "$folder/layers/upper" "$folder/layers/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/layers/upper,workdir=$folder/layers/work" "$new"
mount -t proc proc "$new/proc"
for one in run tmp dev; do mount -t tmpfs tmpfs "$new/$one"; done
for one in null zero urandom random; do touch "$new/dev/$one"; mount --bind "/dev/$one" "$new/dev/$one"; done
mkdir "$new/dev/shm"
mount -t sysfs -o ro sysfs "$new/sys"
mount -t tmpfs tmpfs "$new/sys/fs/cgroup"
mkdir "$new/sys/fs/cgroup/systemd"
mount -t cgroup -o none,name=systemd cgroup "$new/sys/fs/cgroup/systemd"
mkdir -p "$new{HOME}" "$new/run/systemd/system" "$new/etc/pylog" "$new{Path(PROGRAM).parent}"
mount --bind "$folder/home" "$new{HOME}"
cp "$folder"/units/* "$new/run/systemd/system/"
cp "$folder/environment" "$folder/coordinator.ini" "$new/etc/pylog/"
cp "$folder/pylog" "$new{PROGRAM}"
echo "pylog:x:{UID}:{UID}::{HOME}:/bin/sh" >> "$new/etc/passwd"
echo "pylog:x:{UID}:" >> "$new/etc/group"
shift
for one in "$@"; do chmod a+rx "$new$one"; done
exec env -i PATH="$PATH" container=test chroot "$new" {SYSTEMD} --system --unit=none.target --log-target=null
"""


class Machine:
    """A systemd with the units, which has the network of this machine."""

    def __init__(self, folder: Path) -> None:
        self.home, self.port, units = folder / "home", free_port(), folder / "units"
        for made in (self.home, units):
            made.mkdir()
        os.chown(self.home, UID, UID)
        # Without it, a service waits for the start of a whole machine.
        alone = "[Unit]\nDefaultDependencies=no\n"
        (units / "none.target").write_text(alone)
        for unit in UNITS:
            text = unit.read_text(encoding="utf-8").replace("127.0.0.1:9550", f"127.0.0.1:{self.port}")
            (units / unit.name).write_text(
                text.replace("[Unit]\n", alone).replace("network-online.target", "none.target")
            )
        (folder / "environment").write_text(f"PYLOG_URL=file://{HOME}/log\nPYLOG_MIRROR=file://{HOME}/mirror\n")
        (folder / "coordinator.ini").write_text(
            f"[coordinator]\nurl = file://{HOME}/log\nlisten = 127.0.0.1:{self.port}\n"
        )
        program = (
            f'#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH={ROOT} exec {sys.executable} -m spark_log.cli "$@"\n'
        )
        (folder / "pylog").write_text(program)
        (folder / "pylog").chmod(0o755)
        read = {str(one) for path in (sys.prefix, sys.base_prefix, ROOT) for one in (Path(path), *Path(path).parents)}
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "sh", "-c", BOOT, "sh"]
        self._process = subprocess.Popen([*command, str(folder), *sorted(read)], stderr=subprocess.PIPE, text=True)

    @property
    def _first(self) -> str:
        """The number of systemd, seen from here."""
        return Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()[0]

    def run(self, *command: str) -> str:
        """Run a command in the machine; its output.  Raises CalledProcessError."""
        there = ["nsenter", "--target", self._first, "--all", "--root", "--wd", *command]
        return subprocess.run(there, capture_output=True, text=True, timeout=120, check=True).stdout.strip()

    def systemctl(self, *arguments: str) -> str:
        return self.run("systemctl", *arguments)

    def configure(self, settings: str) -> None:
        """Write the settings of the coordinator."""
        Path(f"/proc/{self._first}/root/etc/pylog/coordinator.ini").write_text(settings)

    def has_started(self) -> bool:
        if self._process.poll() is not None:
            pytest.skip(f"namespaces for systemd cannot be made here: {self._process.communicate()[1]}")
        try:
            return self.systemctl("is-active", "none.target") == "active"
        except (subprocess.CalledProcessError, IndexError):
            return False

    def property(self, unit: str, name: str) -> str:
        return self.systemctl("show", "--value", "--property", name, unit)

    def has_another(self, unit: str, former: str) -> bool:
        """Whether another process than the former one answers."""
        return self.property(unit, "MainPID") not in ("0", former) and self.answers()

    def answers(self) -> bool:
        url = f"http://127.0.0.1:{self.port}/alive"
        return (
            subprocess.run(["curl", "-fsS", "--max-time", "5", url], capture_output=True, check=False).returncode == 0
        )

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    missing = [name for name in ("unshare", "nsenter", "curl") if shutil.which(name) is None]
    if missing or os.geteuid() != 0 or not Path(SYSTEMD).exists():
        pytest.skip(f"it needs root and systemd, and {', '.join(missing) or 'nothing else'}")
    found = Machine(tmp_path)
    try:
        assert wait_until(found.has_started)
        yield found
    finally:
        found.kill()


# Promise: deployment.md#deploy, monitoring.md#probes
@pytest.mark.slow
def test_systemd_starts_the_units(machine: Machine) -> None:
    """A coordinator that ends or hangs is started again, without a limit; one that is stopped releases the log.  Then
    maintenance and a mirror do without it.
    """
    unit = "pylog-coordinator.service"
    machine.systemctl("start", unit)
    assert wait_until(machine.answers)
    first = machine.property(unit, "MainPID")
    machine.systemctl("reload", unit)
    machine.systemctl("start", "pylog-alive.service")
    assert machine.answers() and machine.property(unit, "MainPID") == first
    for signal in ("KILL", "STOP"):
        before = machine.property(unit, "MainPID")
        machine.systemctl("kill", "-s", signal, unit)
        if signal == "STOP":
            machine.systemctl("start", "pylog-alive.service")
        assert wait_until(partial(machine.has_another, unit, before))
    limits = [machine.property(one, "StartLimitIntervalUSec") for one in (unit, "pylog-mirror.service")]
    assert limits == ["0", "0"]
    machine.systemctl("stop", unit)
    assert machine.property(unit, "Result") == "success"

    with spark_log.connect(str(machine.home / "log"), durability="os") as log:
        log.admin.create_topics([NewTopic("orders", 1)])
        log.append("orders", [{"value": b"1"}])
    machine.run(PROGRAM, "-u", f"file://{HOME}/log", "mirror", "set", f"file://{HOME}/mirror")
    machine.run("chown", "-R", "pylog:pylog", HOME)
    machine.systemctl("start", "pylog-maintain.service", "pylog-maintain.timer", "pylog-alive.timer", "pylog-mirror")
    assert machine.property("pylog-maintain.service", "Result") == "success"
    assert wait_until(lambda: any(machine.home.glob("mirror/data/*/*.seg")))
    assert machine.systemctl("is-active", "pylog-maintain.timer", "pylog-alive.timer") == "active\nactive"


# Promise: monitoring.md#probes
@pytest.mark.slow
def test_the_check_does_not_end_a_coordinator_that_is_opening_its_log(machine: Machine) -> None:
    """It does not listen yet: if it were ended, a log that takes long to open would never be opened."""
    unit, bucket = "pylog-coordinator.service", socket.create_server(("127.0.0.1", 0))  # which does not answer
    with bucket:
        storage = f"[storage]\nendpoint_url = http://127.0.0.1:{bucket.getsockname()[1]}\nkey = a\nsecret = b\n"
        machine.configure(f"[coordinator]\nurl = s3://bucket/log\nlisten = 127.0.0.1:{machine.port}\n{storage}")
        machine.systemctl("start", unit)
        before = machine.property(unit, "MainPID")
        machine.systemctl("start", "pylog-alive.service")
        assert machine.property(unit, "MainPID") == before != "0"
