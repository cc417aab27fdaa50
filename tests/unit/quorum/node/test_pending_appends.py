"""Appends that wait for their entries, when the lead is lost and comes back."""

from __future__ import annotations

import asyncio

import pytest

from spark_log.errors import NotLeaderOrFollower
from spark_log.quorum.node.pending_appends import PendingAppends


def test_an_append_of_a_later_epoch_is_not_given_up_with_an_earlier_one() -> None:
    """Entry 7 of epoch 1 was removed, and this replica leads again and has appended another entry 7."""

    async def scenario() -> None:
        loop, pending = asyncio.get_running_loop(), PendingAppends()
        first, removed, second = (loop.create_future() for _ in range(3))
        pending.add(6, 1, first)
        pending.add(7, 1, removed)
        lost = pending.waiting()
        pending.truncated(7)
        pending.add(7, 3, second)
        pending.give_up(lost, "this node does not lead any more")
        with pytest.raises(NotLeaderOrFollower) as unknown:
            first.result()
        with pytest.raises(NotLeaderOrFollower) as out:
            removed.result()
        assert unknown.value.maybe_applied and not out.value.maybe_applied
        assert not second.done()

    asyncio.run(scenario())
