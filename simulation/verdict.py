"""The result of a run of a simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from spark_log.errors import SparkLogError


class Violation(Exception):
    """A promise was broken."""


class Result(NamedTuple):
    """The result of one seed."""

    seed: int
    violation: str
    """Empty: all promises were kept."""
    counts: Counter[str]
    transcript: str
    """Empty if none was asked for."""


def violation_of(run: Callable[[], None]) -> str:
    """Carry out a run.  Returns the promise that it has broken, or the error with which it ended."""
    try:
        run()
    except Violation as broken:
        return str(broken)
    except (SparkLogError, KeyError, IndexError, AssertionError) as error:
        return f"error: {type(error).__name__}: {error}"
    return ""
