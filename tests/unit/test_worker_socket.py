"""The socket of a Python worker does not hold small messages back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WORKER = """
import gc, json, socket

ours, sparks = socket.socketpair() if {unix} else (None, None)
if ours is None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sparks = socket.create_connection(server.getsockname())
        ours = server.accept()[0]

def prompt():
    return bool(ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))

def answer():
    for _ in range(100):  # the kernel does not mind an answer that was late
        sparks.sendall(b"task"), ours.recv(4), ours.sendall(b"done"), sparks.recv(4)
        if {unix} or not prompt():
            break

from pyspark_pylog.worker_process import acknowledge_promptly

hooks = len(gc.callbacks)
answer()
acknowledge_promptly()
found = {{"hooks": len(gc.callbacks) - hooks}}
if not {unix}:
    answer()
    found["after an answer"] = prompt()
    gc.collect(1)
    found["after some garbage"] = prompt()
    gc.collect()
    found["after all garbage"] = prompt()
sparks.close()
gc.collect()
ours.close()
gc.collect()
print(json.dumps(found))
"""
"""A process that has a socket among its first descriptors, as a worker of Spark's has."""


def run(*, unix: bool) -> dict[str, object]:

    command = [sys.executable, "-W", "error::ResourceWarning", "-c", WORKER.format(unix=unix)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, object] = json.loads(done.stdout)
    return found


# Promise: measurements-kafka.md#where-a-triggers-time-goes
@pytest.mark.skipif(sys.platform != "linux", reason="acknowledging at once is an option of Linux's")
def test_a_worker_that_has_answered_acknowledges_its_next_task_at_once() -> None:
    """The kernel stops doing so with every answer; Spark's worker collects all garbage after it, which switches it on
    again.
    """
    assert run(unix=False) == {
        "hooks": 1,
        "after an answer": False,
        "after some garbage": False,
        "after all garbage": True,
    }


def test_over_unix_sockets_there_is_nothing_to_do() -> None:
    """They have no such waits."""
    assert run(unix=True) == {"hooks": 0}
