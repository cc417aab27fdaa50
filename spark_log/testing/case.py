"""What a test vector asks for, and what the product gave."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """One case of a file and what came of it."""

    name: str
    expected: object
    found: object

    @property
    def passed(self) -> bool:
        return self.expected == self.found
