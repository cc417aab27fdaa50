"""The socket between Spark and a Python worker, without the waits of 40 ms that TCP has for small messages.

Unless `spark.python.unix.domain.socket.enabled` is set, Spark hands a worker its task over TCP, often in two small packets.
Its kernel keeps the second until the first is acknowledged, and the worker's kernel takes 40 ms for that: since the worker
answered the task before, it waits for an answer that could carry the acknowledgement.  Spark's end is Spark's, but this one
can acknowledge at once.
"""

from __future__ import annotations

import gc
import socket
from contextlib import suppress
from functools import cache

_DESCRIPTORS = range(3, 16)
"""Spark's socket is among the first that a worker opens.  With others of this process it does no harm."""


@cache
def be_prompt() -> None:
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
