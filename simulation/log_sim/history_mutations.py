"""The rules about logs and topics that take the place of others, each removed in turn: the simulation has to notice."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_pylog.export.planning import Planner
from pyspark_pylog.progress.offset_format import Offset
from pyspark_pylog.source.restored import RestoredLog

from simulation.mutation import Mutation, Patch
from spark_log.client.consumer.assignment import Assignment
from spark_log.client.consumer.consumer import Consumer
from spark_log.journal.journal import Journal
from spark_log.journal.storage import beyond_the_end, checkpointing, log_format
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import List, Steps
from spark_log.metadata import replay as replay_module
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.groups import group_commands
from spark_log.metadata.records import Batch
from spark_log.metadata.replay import replay
from spark_log.metadata.state import ObjectRow, State, TopicKey
from spark_log.model import TopicPartition
from spark_log.recovery import mirror
from spark_log.store.object_names import CHECKPOINTS


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


def _continues(self: RestoredLog, at: Offset, journal: Journal) -> Offset:
    """An offset is taken for one of the log as it is now, whatever history it was reached in."""
    return at


def _nothing(*_: object) -> None:
    """The reader does not compare the log's history with the one that it has read."""


def _all(batches: Mapping[str, Batch | None]) -> set[str]:
    """Each record is taken for one that another one follows."""
    return {*batches}


def _no_former(state: State, history: str) -> bool:
    return False


def _unchecked(view: View) -> Steps[list[str]]:
    """The checkpoints may be those of any log."""
    names: list[str] = yield List(CHECKPOINTS)
    return names


HISTORY_MUTATIONS = {
    "query_skips": Mutation(
        "a streaming query does not continue beyond the copy from which the log was restored",
        (Patch(RestoredLog, "in_it", _continues),),
    ),
    "export_skips": Mutation(
        "an export does not continue beyond the copy from which the log was restored",
        (Patch(Planner, "_check_history", _nothing),),
    ),
    "consumer_skips": Mutation(
        "a running consumer continues at the end of the copy",
        (Patch(Consumer, "_follow_restore", _nothing),),
    ),
    "lost_positions_committed": Mutation(
        "positions beyond the copy are left out, if the sender has not noticed the restore",
        (Patch(group_commands, "has_read", lambda *_: True),),
    ),
    "lost_records_count": Mutation(
        "a record that was decided on the lost log is void",
        (Patch(replay_module, "is_in_line", lambda *_: True),),
    ),
    "lost_records_are_holes": Mutation(
        "a record of the lost log, beyond the end of the restored one, does not mean that there is a hole",
        (Patch(beyond_the_end, "is_former", _no_former), Patch(beyond_the_end, "_linked", _all)),
    ),
    "left_records_are_holes": Mutation(
        "a record that a client has left behind the end of a log that was set back does not mean that there is a hole",
        (Patch(beyond_the_end, "_linked", _all),),
    ),
    "lost_checkpoints_put": Mutation(
        "maintenance puts no checkpoint of a lost log into the restored one",
        (Patch(checkpointing, "check_same_log", _unchecked),),
    ),
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
