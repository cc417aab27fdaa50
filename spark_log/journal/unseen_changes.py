"""The changes of a log for a reader that comes by less often than changes are kept (`State.recent`)."""

from __future__ import annotations

import threading
from typing import NamedTuple

from spark_log.metadata.changes import ChangedNames, add_changes, no_changes
from spark_log.metadata.state import State

UNSEEN_MAX = 100_000
"""Maximum number of names kept for a reader; above it, the reader compares everything."""


class Visit(NamedTuple):
    """Two states that a reader compares."""

    old: State
    """The state at the visit before; an empty state if the changes are not known."""
    new: State
    changes: ChangedNames | None
    """The names of everything that may differ; None: they are not known."""


class UnseenChanges:
    """Collects the changes between the visits of one reader.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._visited = self._noted = State()
        self._changes: ChangedNames | None = None

    def note(self, state: State) -> None:
        """There is a new state.  Takes time by what it changed."""
        with self._lock:
            self._note(state)

    def visit(self, state: State) -> Visit:
        """The changes between the last visit and this state, or a newer one that was noted before."""
        with self._lock:
            self._note(state)
            visit = Visit(self._visited, self._noted, self._changes)
            self._visited, self._changes = self._noted, no_changes(self._noted.version)
            return visit

    def _note(self, state: State) -> None:
        if state is self._noted or state.version < self._noted.version:
            return
        if self._changes is not None:
            new = state.changes_since(self._noted)
            self._changes = None if new is None else add_changes(self._changes, new)
            if self._changes is not None and self._changes.names > UNSEEN_MAX:
                self._changes = None
            if self._changes is None:
                self._visited = State()  # a reader that does not come again must not hold an old state
        self._noted = state
