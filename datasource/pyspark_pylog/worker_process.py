"""Python processes of Spark: no delay of small messages, and little CPU between tasks.

The same few processes run all micro-batches of a query, its tasks and the driver's calls of the sink.  Two things cost
more than the work of a small micro-batch, 2 to 4 ms:

* **Garbage.** After each task a process collects all garbage, which walks all imported modules: 12 to 35 ms of CPU.
* **The socket.** Unless `spark.python.unix.domain.socket.enabled` is set, Spark sends a worker its task over TCP, often
  in two small packets.  Its kernel holds the second until the first is acknowledged.  The worker's kernel delays that
  by 40 ms: since the worker answered the previous task, it expects an answer that could carry the acknowledgement.  The
  worker can request an immediate acknowledgement.
"""

from __future__ import annotations

import gc
import socket
import sys
from contextlib import suppress
from functools import cache

_DESCRIPTORS = range(3, 16)
"""Spark's socket is among the first descriptors of a worker.  The option is harmless for other sockets."""


def prepare_process() -> None:
    """Call this first in each entry point of Spark."""
    acknowledge_promptly()
    _freeze(len(sys.modules))


@cache
def _freeze(modules: int) -> None:
    """Exclude loaded objects from later collections.  Repeated when there are more modules: some are imported late."""
    gc.collect()
    gc.freeze()


@cache
def acknowledge_promptly() -> None:
    """Once per process, on its first call of pylog."""
    if hasattr(socket, "TCP_QUICKACK") and _acknowledge():  # only on Linux
        gc.callbacks.append(_after_collection)


def _after_collection(phase: str, info: dict[str, int]) -> None:
    """Sending an answer resets the option, but a worker collects all garbage after each answer."""
    if phase == "stop" and info["generation"] == 2:
        _acknowledge()


def _acknowledge() -> bool:
    """Acknowledge received data, and more until something is sent.  False if this process has no TCP socket."""
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
