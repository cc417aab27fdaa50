"""The rules about logs and topics that take the place of others, each removed in turn: the simulation has to notice."""

from __future__ import annotations

from spark_log.client.consuming.assignment import Assignment
from spark_log.journal import log_format
from spark_log.journal.store_operations import Steps
from spark_log.metadata.batch_format import decode_batch
from spark_log.metadata.replay import replay
from spark_log.metadata.state import ObjectRow, State, TopicKey
from spark_log.model import TopicPartition
from spark_log.node import mirror
from spark_log.testing.mutation import Mutation, Patch


def _no_remains() -> Steps[list[str]]:
    yield from ()
    return []


def _read_by_name(self: Assignment, tp: TopicPartition, offset: int) -> TopicKey | None:
    """Nothing: positions are those of the topic that has the name now."""
    return None


def _late_records_believed(version: int, fence: int) -> Steps[bool]:
    yield from ()
    return True


def _nothing_wanted(state: State, data: bytes, key: str, wanted: dict[str, ObjectRow | None]) -> State:
    """The objects of a commit are not copied before its record."""
    return replay(state, decode_batch(data, key))


HISTORY_MUTATIONS = {
    "late_records_mirrored": Mutation(
        "a record that comes when the log has deleted the one of its name is not the log's",
        (Patch(mirror, "is_kept", _late_records_believed),),
    ),
    "records_before_objects": Mutation(
        "a mirror has the objects of a record before it has the record",
        (Patch(mirror, "_replayed", _nothing_wanted),),
    ),
    "begins_on_remains": Mutation(
        "no log begins where objects of another one are",
        (Patch(log_format, "find_remains", _no_remains),),
    ),
    "positions_by_name": Mutation(
        "a consumer's positions are those of the topic that it has read",
        (Patch(Assignment, "_read", _read_by_name),),
    ),
}
