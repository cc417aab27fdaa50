"""The deadlines of many groups, in a heap, so that a request or timer need not scan all groups."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

SPARE = 100


class Deadlines:
    """One deadline for each name.  Replaced deadlines stay in the heap until they are at its top or it is rebuilt."""

    def __init__(self) -> None:
        self._of_names: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def set(self, name: str, at_ms: int | None) -> None:
        """Set or replace the deadline of a name; None removes it."""
        if self._of_names.get(name) == at_ms:
            return
        if at_ms is None:
            del self._of_names[name]
            return
        self._of_names[name] = at_ms
        heappush(self._heap, (at_ms, name))
        if len(self._heap) > 2 * len(self._of_names) + SPARE:
            self._heap = [(due, known) for known, due in self._of_names.items()]
            heapify(self._heap)

    @property
    def first_ms(self) -> int | None:
        """The earliest deadline; None if there is none."""
        while self._heap:
            at_ms, name = self._heap[0]
            if self._of_names.get(name) == at_ms:
                return at_ms
            heappop(self._heap)
        return None

    def pop_due(self, now_ms: int, most: int) -> list[str]:
        """Remove up to `most` deadlines at or before `now_ms`, and return their names, the earliest first."""
        found: list[str] = []
        while len(found) < most and (first := self.first_ms) is not None and first <= now_ms:
            _, name = heappop(self._heap)
            del self._of_names[name]
            found.append(name)
        return found
