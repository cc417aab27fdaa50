"""The rules about logs and topics that take the place of others, each removed in turn: the simulation has to notice."""

from __future__ import annotations

from spark_log.client.consuming.assignment import Assignment
from spark_log.journal import log_format
from spark_log.journal.store_operations import Steps
from spark_log.metadata.state import TopicKey
from spark_log.model import TopicPartition
from spark_log.testing.mutation import Mutation, Patch


def _no_remains() -> Steps[list[str]]:
    yield from ()
    return []


def _read_by_name(self: Assignment, tp: TopicPartition, offset: int) -> TopicKey | None:
    """Nothing: positions are those of the topic that has the name now."""
    return None


HISTORY_MUTATIONS = {
    "begins_on_remains": Mutation(
        "no log begins where objects of another one are",
        (Patch(log_format, "find_remains", _no_remains),),
    ),
    "positions_by_name": Mutation(
        "a consumer's positions are those of the topic that it has read",
        (Patch(Assignment, "_read", _read_by_name),),
    ),
}
