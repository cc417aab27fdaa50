"""How a node of a quorum that was elected begins to lead.

It appends a batch that takes the log over under the epoch in which it was elected, and decides when that batch is
final: so is everything before it then, what an earlier leader has left included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from spark_log.errors import CorruptObject, LogMoved, NotLeaderOrFollower, SparkLogError
from spark_log.http.address import this_host
from spark_log.log_lines import logger
from spark_log.metadata.formats.batch_format import encode_batch
from spark_log.metadata.maintenance.decide_maintenance import bootstrap_records
from spark_log.metadata.records import Batch, TakeOverRecord
from spark_log.metadata.restores import history_of
from spark_log.server.quorum.leader import KnownLeader, QuorumLeader

RETRY_S = 1.0
CATCH_UP_S = 0.01


class TakeOver:
    """Takes the log over for one coordinator, in all epochs."""

    def __init__(self, coordinator: QuorumLeader, prepare: Callable[[], Awaitable[None]]) -> None:
        """
        prepare:  called before this node leads.  If it raises an error, the node does not lead.
        """
        self._coordinator = coordinator
        self._prepare = prepare
        self.obstacle = ""
        """Why this node could not lead when it was elected."""
        self.replaced_at = ""
        """URL of the folder with the records, if another quorum has it now."""
        self._has_led = False

    async def run(self, leader: KnownLeader) -> bool:
        """Take the log over under the epoch of `leader`, which is this node.  While it cannot, it asks another node to
        lead.

        Returns whether it leads now; False if there was another election meanwhile.
        """
        node = self._coordinator.node
        while self._is_current(leader):
            try:
                await self._until_caught_up(leader)
                if node.digests.is_wrong:
                    raise CorruptObject(node.digests.problem)
                await self._prepare()
                _, future = node.begin_append(self._batch(leader.epoch), leader.epoch)
                await future
            except NotLeaderOrFollower as error:
                logger.info("this node does not lead: %s", error)
                return False
            except Exception as error:  # noqa: BLE001  it is logged, and tried again
                self.note_obstacle(error)
                await node.hand_over()
                await asyncio.sleep(RETRY_S)
            else:
                return self._ended(leader)
        return False

    def _is_current(self, leader: KnownLeader) -> bool:
        return self._coordinator.leader == leader and not self._coordinator.is_stopping

    def note_obstacle(self, error: Exception) -> None:
        """It is tried again and again, and logged once."""
        before, self.obstacle = self.obstacle, str(error) or type(error).__name__
        self.replaced_at = error.url if isinstance(error, LogMoved) else ""
        if self.obstacle != before:
            logger.error("this node cannot lead: %s", error, exc_info=not isinstance(error, SparkLogError))

    async def _until_caught_up(self, leader: KnownLeader) -> None:
        """Wait for the entries of earlier leaders, before this node leads for the first time: before they are applied,
        an old log looks like one that begins, and before a majority has them, the end of an adoption is too early.
        """
        while not self._has_led and self._coordinator.leader == leader:
            with suppress(NotLeaderOrFollower):  # until its own entry is committed
                await self._coordinator.node.confirm()
                return
            await asyncio.sleep(CATCH_UP_S)

    def _batch(self, epoch: int) -> bytes:
        """In the first batch of the log, all records count; in another one, only the take-over."""
        leader = self._coordinator
        take = TakeOverRecord(epoch=epoch, address=leader.address, host=this_host(), cluster_id=leader.cluster_id)
        records = (*bootstrap_records(leader.state), take)
        batch = Batch(
            id=leader.unique(),
            time=leader.clock.now_ms(),
            epoch=epoch if leader.state.version else 0,
            history=history_of(leader.state),
            records=records,
        )
        return encode_batch(batch)

    def _ended(self, leader: KnownLeader) -> bool:
        """The take-over is final."""
        self.obstacle = self.replaced_at = ""
        is_current = self._is_current(leader)
        self._has_led = self._has_led or is_current
        return is_current
