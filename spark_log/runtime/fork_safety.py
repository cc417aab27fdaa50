"""Forked processes: objects that must not be inherited from the parent are renewed in the child.

A lock that another thread held at the fork stays locked forever in the child.  If both processes kept one identity, the
commits of one would look like retries of the other's.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """An object with locks, threads or an identity."""

    def after_fork(self) -> None:
        """Runs in the child before other code."""


_alive: WeakSet[Forkable] = WeakSet()


def renew_after_fork(thing: Forkable) -> None:
    """Call `thing.after_fork()` in forked children."""
    _alive.add(thing)


def _renew() -> None:
    for thing in tuple(_alive):
        thing.after_fork()


os.register_at_fork(after_in_child=_renew)
