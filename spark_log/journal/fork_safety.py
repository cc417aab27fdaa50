"""Forked processes: what must not be carried over from the parent is renewed in the child.

A lock that another thread held at the fork is held for ever in the child, and an identity that both go on using would make
one's commits look like repeats of the other's.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """What has locks, threads or an identity."""

    def after_fork(self) -> None:
        """In the child, before anything else runs there."""


_alive: WeakSet[Forkable] = WeakSet()


def renew_after_fork(thing: Forkable) -> None:
    """Have `thing.after_fork()` called in forked children."""
    _alive.add(thing)


def _renew() -> None:
    for thing in tuple(_alive):
        thing.after_fork()


os.register_at_fork(after_in_child=_renew)
