"""One case of a test vector: what was expected, and what the product returned."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """One case of a file and its result."""

    name: str
    expected: object
    found: object

    @property
    def passed(self) -> bool:
        return self.expected == self.found
