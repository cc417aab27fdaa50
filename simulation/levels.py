"""A pylog with other levels of features than this one, such as that of tomorrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spark_log.metadata.features import METADATA_VERSION, SUPPORTED

TODAY = SUPPORTED[METADATA_VERSION]
TOMORROW = TODAY + 1
"""The level that the next pylog with a new kind of record brings."""


def support_level(level: int) -> None:
    """From here on this process supports `metadata.version` up to this level, and begins its logs there."""
    known: Any = SUPPORTED
    known[METADATA_VERSION] = level


@contextmanager
def supporting(level: int) -> Iterator[None]:
    """Support another level for a while."""
    support_level(level)
    try:
        yield
    finally:
        support_level(TODAY)
