"""Positions of a flow with state by key: their metadata names the topic that has the state.  Pure."""

from __future__ import annotations

import re

POSITION = re.compile(r"state (\S+) ([0-9]+)")
"""The topic's id, and its partitions."""


def position_text(topic_id: str, partitions: int) -> str:
    """The metadata of a position that is committed with a state."""
    return f"state {topic_id} {partitions}"


def named_state(text: str) -> tuple[str, int]:
    """The topic id and the number of partitions in the metadata of a position; ("", 0): it names no state."""
    found = POSITION.fullmatch(text)
    return ("", 0) if found is None else (found[1], int(found[2]))
