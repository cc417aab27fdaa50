"""The commands of clients on the leader of a quorum: queued, decided in batches, and answered.

Commands that arrive together share a batch.  The next batch is decided on the state after the batches that are not
final yet (`pipeline.py`).  Belongs to the event loop of the node.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from spark_log.errors import CoordinatorNotAvailable, InvalidRequest, NoSpace, NotLeaderOrFollower, SparkLogError
from spark_log.journal.batch_decision import decide_batch
from spark_log.journal.context import DecisionRule, Proposal
from spark_log.log_lines import logger
from spark_log.metadata.command_base import Command
from spark_log.metadata.commands import UpdateFeature
from spark_log.metadata.features import METADATA_VERSION, SUPPORTED
from spark_log.metadata.formats.batch_format import encode_batch
from spark_log.metadata.records import Batch
from spark_log.metadata.replay import end_version
from spark_log.metadata.restores import history_of
from spark_log.quorum.node.node import ENTRY_BYTES_MAX
from spark_log.quorum.node.node_status import NodeStatus
from spark_log.server.pending_commands import PendingCommands, commands_of
from spark_log.server.quorum.leader import QuorumLeader
from spark_log.server.quorum.pipeline import Offer
from spark_log.server.quorum.state import QuorumState

QUEUE_MAX = 20_000
BATCH_MAX = 500
"""Maximum number of commands in one batch."""
OFFERS_MAX = 16
"""Batches that are not final.  With more, the commands that arrive meanwhile share the next one."""


class QuorumCommands:
    """The commands of one coordinator."""

    def __init__(self, coordinator: QuorumLeader, log: QuorumState) -> None:
        self._coordinator = coordinator
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[PendingCommands] = deque()
        """To be decided."""
        self._done: list[PendingCommands] = []
        """To be completed as soon as the state is published."""

    def enqueue(self, asked: PendingCommands) -> None:
        """Decide the commands, and answer when their outcome is final."""
        coordinator = self._coordinator
        if not coordinator.epoch or coordinator.is_stopping:
            asked.give_up(coordinator.not_leading())
        elif not asked.commands:
            coordinator.spawn(self._confirm([asked]))
        elif len(self._waiting) >= QUEUE_MAX:
            asked.give_up(CoordinatorNotAvailable(f"the queue is full: {QUEUE_MAX} requests"))
        else:
            self._refuse_levels(asked)
            if not self._waiting:
                self._loop.call_soon(self._decide_waiting)
            self._waiting.append(asked)

    def _refuse_levels(self, asked: PendingCommands) -> None:
        level = self._log.pipeline.newest.levels[METADATA_VERSION]
        refuse_levels(asked.commands, level, self._coordinator.node.status)

    def give_up_waiting(self) -> None:
        """The node does not lead any more."""
        waiting, self._waiting = self._waiting, deque()
        self._give_up(waiting, self._coordinator.not_leading)

    def final(self, asked: Iterable[PendingCommands]) -> None:
        """Their batch is final: `complete` answers them."""
        self._done.extend(asked)

    def complete(self) -> None:
        """Answer the commands that are done, and decide those that waited meanwhile.  The state has been published."""
        done, self._done = self._done, []
        for one in done:
            one.complete()
        self._decide_waiting()

    async def _confirm(self, asked: list[PendingCommands]) -> None:
        """Complete requests that wrote nothing: the state on which they were decided has everything that was
        acknowledged before, if this node still leads.
        """
        try:
            await self._coordinator.node.confirm()
        except NotLeaderOrFollower:
            self._give_up(asked, self._coordinator.not_leading)
        else:
            self._done.extend(asked)
            self._coordinator.publish_soon()

    def _decide_waiting(self) -> None:
        while self._waiting and self._coordinator.epoch and len(self._log.pipeline) < OFFERS_MAX:
            asked, count = [], 0
            while self._waiting and count < BATCH_MAX:
                asked.append(self._waiting.popleft())
                count += len(asked[-1].commands)
            self._decide(asked)

    def _decide(self, asked: list[PendingCommands]) -> None:
        """Decide commands on the newest state, and append their records."""
        try:
            self._offer(asked)
        except NotLeaderOrFollower:
            self._give_up(asked, self._coordinator.not_leading)
        except NoSpace as error:
            text = str(error)
            self._give_up(asked, lambda: CoordinatorNotAvailable(text))
        except Exception:
            logger.exception("commands failed")
            self._give_up(
                asked, lambda: CoordinatorNotAvailable("an error in the coordinator; its log has the details")
            )

    def _offer(self, asked: list[PendingCommands]) -> None:
        coordinator, pipeline, commands = self._coordinator, self._log.pipeline, commands_of(asked)
        now_ms = coordinator.clock.now_ms()
        attempt, records, refused = decide_batch(pipeline.newest, commands, now_ms, again=False)
        epoch, history = coordinator.epoch, history_of(pipeline.newest)
        batch = Batch(id=coordinator.unique(), time=now_ms, epoch=epoch, history=history, records=tuple(records))
        data = encode_batch(batch) if records else b""
        if len(data) > ENTRY_BYTES_MAX:
            self._offer_less(asked, len(data))
            return
        for command, error in refused:
            command.error, command.done = error, True
        attempt.set_replies()
        coordinator.metrics.commands += len(commands)
        if not records:
            if not pipeline.attach(asked):
                coordinator.spawn(self._confirm(asked))
            return
        state = end_version(pipeline.newest, batch, attempt.state())
        index, future = coordinator.node.begin_append(data, coordinator.epoch)
        pipeline.offer(Offer(index, data, state, asked))
        begun_s = time.perf_counter()
        future.add_done_callback(partial(self._ended, index, begun_s))

    def _offer_less(self, asked: list[PendingCommands], size: int) -> None:
        """A batch is too large: decide its requests one by one."""
        for one in asked:
            one.reset()
            self._refuse_levels(one)
            if len(asked) > 1:
                self._decide([one])
            else:
                text = f"the change takes {size:,} bytes of metadata: expected {ENTRY_BYTES_MAX:,} at most; make it in parts"
                one.give_up(InvalidRequest(text))

    def _ended(self, index: int, begun_s: float, future: asyncio.Future[int]) -> None:
        """The fate of a batch is known, or it is known that it will not be known here."""
        error = None if future.cancelled() else future.exception()
        if error is None:
            self._coordinator.metrics.commits.note(time.perf_counter() - begun_s)
        elif isinstance(error, SparkLogError) and error.maybe_applied:
            unknown = CoordinatorNotAvailable(f"the node stopped leading while a change was in progress: {error}")
            unknown.maybe_applied = True
            self._give_up(self._log.pipeline.unknown(index), lambda: unknown)
        else:
            self._give_up(self._log.pipeline.truncated(index), self._coordinator.not_leading)

    @staticmethod
    def _give_up(asked: Iterable[PendingCommands], error: Callable[[], SparkLogError]) -> None:
        for one in asked:
            one.give_up(error())


def check_nodes_understand(level: int, status: NodeStatus) -> None:
    """Raise InvalidRequest if a voter, or another connected node, could not read a record of this level.

    status:  the leader's status.
    """
    levels, voters = status.levels, {voter.id for voter in status.voters}
    older = [f"node {node} supports level {levels[node]}" for node in sorted(levels) if levels[node] < level]
    away = [f"node {node} is not connected" for node in sorted(voters - set(levels))]
    if older or away:
        raise InvalidRequest(
            f"the log cannot be raised to level {level} of {METADATA_VERSION}: {', '.join([*older, *away])}; update pylog "
            "on all nodes, start them, and try again, or remove voters that are gone"
        )


def refuse_levels(commands: Iterable[Proposal], known: int, status_of: Callable[[], NodeStatus | None]) -> None:
    """Reject commands that raise the level above a level that the quorum's nodes support.

    Other commands of the same request continue: they may come from other threads of the client.  A level that does not
    raise the log, or that this pylog does not support, is left to the decision, which says so in every log.

    known:      the level of the log.
    status_of:  the leader's status.
    """
    for command in commands:
        for level in _new_levels(command.decide):
            if not known < level <= SUPPORTED[METADATA_VERSION]:
                continue
            status = status_of()
            assert status is not None, "a node that leads takes part"
            try:
                check_nodes_understand(level, status)
            except InvalidRequest as error:
                command.error, command.done = error, True


def _new_levels(decide: DecisionRule) -> list[int]:
    """The levels to which a command raises the log; `log.admin` sends such a command in an atomic set."""
    parts = decide.parts() if isinstance(decide, Command) else ()
    return [part.level for part in parts if isinstance(part, UpdateFeature) and part.name == METADATA_VERSION]
