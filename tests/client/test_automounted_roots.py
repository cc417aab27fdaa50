"""Roots of brokers that an automounter mounts when they are used, and unmounts when they are idle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_log import connect

SETUP = """
import shutil, subprocess, warnings
import spark_log
warnings.simplefilter("ignore")
log = spark_log.connect("{0}/log", durability="os")
log.admin.add_broker(1, "{0}/auto/disk/root")
assert log.journal.refresh().brokers[1].mount_point == "{0}/auto/disk"
subprocess.run(["umount", "{0}/auto/disk"], check=True)
"""
REPLACED = """
shutil.rmtree("{0}/disks/disk/root")
log.admin.replace_broker(1)
assert "{0}/auto/disk" in open("/proc/self/mountinfo").read()
assert log.journal.refresh().brokers[1].url == "file://{0}/auto/disk/root"
"""
ABSENT = """
shutil.rmtree("{0}/disks/disk")
log.admin.replace_broker(1)
"""


def test_a_broker_on_an_idle_automount_is_replaced_there(tmp_path: Path) -> None:
    """Nothing is mounted there until somebody looks into the folder."""
    assert automounted(tmp_path, SETUP + REPLACED) == ""


def test_a_broker_is_not_replaced_if_the_automounter_has_no_disk(tmp_path: Path) -> None:
    assert f"nothing is mounted at {tmp_path}/auto/disk on " in automounted(tmp_path, SETUP + ABSENT)


def automounted(folder: Path, program: str) -> str:
    """The errors of a program, with `{0}/auto` mounted by autofs."""
    if os.geteuid() != 0 or "\tautofs\n" not in Path("/proc/filesystems").read_text():
        pytest.skip("mounting needs root, and a kernel with autofs")
    for name in ("auto", "disks", "disks/disk"):
        (folder / name).mkdir()
    connect(str(folder / "log"))
    automount = [sys.executable, str(Path(__file__).parents[1] / "automount.py"), f"{folder}/auto", f"{folder}/disks"]
    command = ["unshare", "-m", *automount, sys.executable, "-c", program.format(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if "unshare" in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"this machine does not let tests mount: {done.stderr.strip()}")
    return done.stderr
