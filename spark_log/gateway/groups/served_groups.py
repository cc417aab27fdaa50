"""Which groups a gateway serves, and which of them it may change.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_log.gateway.topics import ServedTopics
from spark_log.groups.subscription import CONSUMER, subscribed_topics
from spark_log.metadata.state import GroupState, State
from spark_log.rpc.messages import GroupView


@dataclass(frozen=True, slots=True)
class ServedGroups:
    """A prefix limits groups by the topics in which they have positions, and to which their members subscribe."""

    topics: ServedTopics
    read_only: bool = False

    def serves(self, state: State, group_id: str, view: GroupView | None = None) -> bool:
        """Whether all topics of a group are served; of other groups than consumers, those of the positions.

        view:  the group as its machine has it, which may be newer than that of the log.
        """
        if not self.topics.prefixes:
            return True
        group = state.groups.get(group_id, GroupState())
        rosters = [group.roster, None if view is None else view.roster]
        members = [one for roster in rosters if roster and roster.protocol_type == CONSUMER for one in roster.members]
        return self.serves_topics(
            {state.topics[topic_id].name for topic_id, _ in group.offsets if topic_id in state.topics}
        ) and self.serves_topics(subscribed_topics(one.subscription for one in members if one.subscription))

    def may_change(self, state: State, group_id: str) -> bool:
        return not self.read_only and self.serves(state, group_id)

    def serves_topics(self, names: Iterable[str] | None) -> bool:
        """names:  None: they are not known."""
        return not self.topics.prefixes or (names is not None and all(self.topics.serves(name) for name in names))
