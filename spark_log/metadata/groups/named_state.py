"""Positions of a flow with state by key: their metadata names the topic that has the state.  Pure."""

from __future__ import annotations

import re

from spark_log.metadata.state import GroupState, State, TopicKey

POSITION = re.compile(r"state (\S+) ([0-9]+)")
"""The topic's id, and its partitions."""


def position_text(topic_id: str, partitions: int) -> str:
    """The metadata of a position that is committed with a state."""
    return f"state {topic_id} {partitions}"


def named_state(text: str) -> tuple[str, int]:
    """The topic id and the number of partitions in the metadata of a position; ("", 0): it names no state."""
    found = POSITION.fullmatch(text)
    return ("", 0) if found is None else (found[1], int(found[2]))


def kept_text(state: State, group: str, key: TopicKey, offset: int) -> str:
    """The text of a group's position that is set to an offset.

    That of a flow with state stays unless the position is moved back or the state was deleted: the state then still has
    each record once.  Any other text is removed, as by Kafka's tool.
    """
    at = state.groups.get(group, GroupState()).offsets.get(key)
    if at is None or offset < at.offset or state.live_topic(named_state(at.metadata)[0]) is None:
        return ""
    return at.metadata
