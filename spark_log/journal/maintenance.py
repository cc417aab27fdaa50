"""Maintenance keeps a log small: sealing, pruning, lists of dropped objects, checkpoints, truncation, garbage
collection.

A process that commits 100 versions after the newest checkpoint runs `seal_and_expire`, and writes a checkpoint;
`pylog maintain` runs the other duties too.  Several processes may run a duty at the same time, and stop at any point:
only unique names are written, swaps re-check the entries that they replace, and deleting is idempotent.
"""

from __future__ import annotations

from spark_log.errors import CorruptObject
from spark_log.journal.context import Context, Proposal, is_led_elsewhere
from spark_log.journal.dropped_lists import list_dropped
from spark_log.journal.other_lines import is_suspect, note_other_lines
from spark_log.journal.sealing import prune, seal
from spark_log.journal.store_operations import Decide, Steps
from spark_log.log_lines import logger
from spark_log.metadata.commands import Expire, Fence
from spark_log.metadata.maintenance import decide_maintenance as decide
from spark_log.metadata.records import DeleteOffsetsRecord, ExpireProducersRecord
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State


def seal_and_expire(state: State, context: Context) -> Steps[State]:
    """Seal, prune, advance the fence, expire, list dropped objects.

    A search for what has expired takes 0.3 s for a million positions, and a busy log gets here each second.  So it is
    made when the fence advances: every 11 minutes with the default age, as Kafka's every 10.
    """
    state = yield from seal(state, context)
    state = yield from prune(state, context)
    if decide.decide_fence(state, context.clock.now_ms()).records:
        try:
            state = yield from fence_and_expire(state, context)
        except CorruptObject as error:
            logger.warning("%s", error)
    return (yield from list_dropped(state, context))


def fence_and_expire(state: State, context: Context, *, looks: bool | None = None) -> Steps[State]:
    """Advance the fence as far as its age allows, and expire producers and positions.

    Commits wait for a decision, and there may be a million positions.  So it checks only those that are found here to
    have expired.  A coordinator decides by its own clock, and its own maintenance finds what a client's clock is too
    late for.

    looks:  whether to look for records that are not of this log; None: if the fence advances, and the state shows that
            there may be some.
    Raises CorruptObject if there are some: behind the fence, they would be deleted, and the objects that they name.
    """
    now = context.clock.now_ms()
    fence = decide.decide_fence(state, now).records
    may_look = looks or (looks is None and fence and is_suspect(state))
    if may_look and (others := (yield from note_other_lines(state, now))):
        raise others
    expired = decide.decide_expire(replay_records(next_version(state, now), fence), now).records
    if fence or expired or is_led_elsewhere(state, context):
        idle = next(
            (record for record in expired if isinstance(record, ExpireProducersRecord)), ExpireProducersRecord()
        )
        groups = [record.group for record in expired if isinstance(record, DeleteOffsetsRecord)]
        expire = Expire(only_producers=idle.producers, only_groups=tuple(groups), only_kafka=idle.kafka)
        state = yield Decide([Proposal(Fence()), Proposal(expire)])
    return state
