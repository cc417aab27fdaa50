"""A pause of Python's garbage collector, for code that creates millions of objects which stay: collections would take
longer than that code, and free nothing."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_enabled_before: list[bool] = []
"""For each pause of this process that has not ended: whether the collector was enabled when it began."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses of several threads may overlap: the collector is enabled again at the end of the last one."""
    _enabled_before.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        if _enabled_before.pop():
            gc.enable()


def _end_pauses() -> None:
    """In a forked child, which does not have the threads that would end them."""
    if any(_enabled_before):
        gc.enable()
    _enabled_before.clear()


os.register_at_fork(after_in_child=_end_pauses)
