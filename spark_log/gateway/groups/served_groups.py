"""Which groups a gateway serves, and which of them it may change.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_log.gateway.topics import ServedTopics
from spark_log.metadata.state import GroupState, State


@dataclass(frozen=True, slots=True)
class ServedGroups:
    """A prefix limits groups by the topics in which they have positions."""

    topics: ServedTopics
    read_only: bool = False

    def serves(self, state: State, group_id: str) -> bool:
        """Whether all positions of a group are in served topics."""
        offsets = state.groups.get(group_id, GroupState()).offsets
        return not self.topics.prefixes or self.serves_topics(
            {state.topics[topic_id].name for topic_id, _ in offsets if topic_id in state.topics}
        )

    def may_change(self, state: State, group_id: str) -> bool:
        return not self.read_only and self.serves(state, group_id)

    def serves_topics(self, names: Iterable[str] | None) -> bool:
        """names:  None: they are not known."""
        return not self.topics.prefixes or (names is not None and all(self.topics.serves(name) for name in names))
