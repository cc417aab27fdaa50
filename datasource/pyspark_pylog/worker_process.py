"""Python processes of Spark: no waits for small messages, and little CPU between the tasks that they serve.

The same few processes serve all micro-batches of a query, its tasks and the driver's questions to the sink. Two things
cost more than the work of a small micro-batch, 2 to 4 ms:

* **Garbage.** After each task a process collects all garbage, which walks whatever was imported: 12 to 35 ms of CPU.
* **The socket.** Unless `spark.python.unix.domain.socket.enabled` is set, Spark hands a worker its task over TCP, often in
  two small packets. Its kernel keeps the second until the first is acknowledged, and the worker's kernel takes 40 ms for
  that: since the worker answered the task before, it waits for an answer that could carry the acknowledgement. This end can
  acknowledge immediately.
"""

from __future__ import annotations

import gc
import socket
import sys
from contextlib import suppress
from functools import cache

_DESCRIPTORS = range(3, 16)
"""Spark's socket is among the first that a worker opens.  For other sockets of this process it does no harm."""


def prepare_process() -> None:
    """Call at the beginning of whatever Spark asks for."""
    acknowledge_promptly()
    _freeze(len(sys.modules))


@cache
def _freeze(modules: int) -> None:
    """Take what is loaded out of the walks of later collections.  Once more when there are more modules: some come late."""
    gc.collect()
    gc.freeze()


@cache
def acknowledge_promptly() -> None:
    """Once a process, when it first runs something of ours."""
    if hasattr(socket, "TCP_QUICKACK") and _acknowledge():  # which only Linux has
        gc.callbacks.append(_after_collection)


def _after_collection(phase: str, info: dict[str, int]) -> None:
    """An answer undoes it; but when a worker of Spark's has answered, it collects all garbage."""
    if phase == "stop" and info["generation"] == 2:
        _acknowledge()


def _acknowledge() -> bool:
    """What has come, and what comes until something is sent.  False if this process has no TCP socket."""
    found = False
    for number in _DESCRIPTORS:
        with suppress(OSError):  # closed, or not TCP
            end = socket.socket(fileno=number)
            try:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
                found = True
            finally:
                end.detach()
    return found
