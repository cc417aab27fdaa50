"""Whether a quorum has a leader, as one of its nodes knows it, and since when."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress

from spark_log.errors import LogMoved, NotCoordinator
from spark_log.metadata.state import State
from spark_log.quorum.node.node import Node
from spark_log.quorum.node.node_host import NodeHost
from spark_log.server.quorum.leader import KnownLeader
from spark_log.server.quorum.root import replaced_error

PARK_S = 1.0
"""How long a request for the leader waits for the end of an election."""
LEADERLESS_S = 10.0
"""A node that has known no leader for this long is not healthy."""


class LeaderWatch:
    """Watches the leaders of all epochs for one node.  It belongs to the event loop of the node."""

    def __init__(self, node: Node, host: NodeHost, state: Callable[[], State]) -> None:
        """
        state:  the newest final one.
        """
        self.leader = KnownLeader(0, None)
        self._node, self._host, self._state = node, host, state
        self._leaderless_s = host.monotonic_s()
        """Since when no leader is known."""
        self._followed_s = -math.inf
        self._unsettled_s = host.monotonic_s()
        """Since when nobody has led the log, unless `_is_settled`."""
        self._is_settled = asyncio.Event()
        """Somebody leads, and requests for the leader can be answered."""

    def note(self, leader: KnownLeader) -> None:
        """There is a new epoch, or its leader is known."""
        if self.leader.key is not None and leader.key is None:
            self._leaderless_s = self._host.monotonic_s()
        self.leader = leader

    def note_settled(self, *, leads: bool) -> None:
        """The state has changed, or this node begins or ends to lead.

        leads:  whether this node leads.
        """
        if leads or self._follows:
            self._is_settled.set()
            return
        if self._is_settled.is_set():
            self._unsettled_s = self._host.monotonic_s()
        self._is_settled.clear()

    async def settled(self) -> None:
        """Wait for the end of an election, for `PARK_S` at most."""
        if not self._is_settled.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_settled.wait(), PARK_S)

    @property
    def _is_other(self) -> bool:
        return self.leader.key not in (None, self._node.key)

    @property
    def _follows(self) -> bool:
        """Whether another node leads, and has said where clients reach it."""
        return self._is_other and self._state().coordinator.epoch == self.leader.epoch

    @property
    def followed_s(self) -> float:
        """When, on the monotonic clock, another node was last known to lead.

        A node that follows hears from the leader at least once in a fetch timeout, or stops to follow.
        """
        if self._is_other:
            self._followed_s = self._host.monotonic_s()
        return self._followed_s

    def not_leading(self, obstacle: str, replaced_at: str) -> NotCoordinator | LogMoved:
        """The error for requests to a node that does not lead.

        obstacle:     why it could not lead when it was elected; empty: nothing is known.
        replaced_at:  the folder with the records, if another quorum has it now.
        """
        held, leader = self._state().coordinator, self.leader
        if not self._follows and replaced_at:
            return replaced_error(replaced_at)
        if not self._follows:
            why = f" ({obstacle})" if obstacle else self._away()
            return NotCoordinator(f"no node of the quorum leads at the moment{why}", address="", epoch=leader.epoch)
        return NotCoordinator(
            f"this node of the quorum follows, {held.address} leads", address=held.address, epoch=held.epoch
        )

    def problem(self) -> str:
        """Why the node is not healthy; empty if it is."""
        for_s = self._host.monotonic_s() - self._leaderless_s
        if self.leader.key is None and for_s > LEADERLESS_S:
            needs = "a majority has to run, and to be connected"
            return f"no node of the quorum has led for {for_s:.0f} s: {needs}{self._away()}"
        for_s = self._host.monotonic_s() - self._unsettled_s
        if self.leader.key is not None and not self._is_settled.is_set() and for_s > LEADERLESS_S:
            who = f"node {self.leader.key.id}"
            return f"no node has led the log for {for_s:.0f} s: {who} was elected, and has not taken the log over"
        return ""

    def _away(self) -> str:
        """Why this node has no connection to others, such as those of a quorum that has replaced this one."""
        known = [f"node {node}: {problem}" for node, problem in self._node.problems().items() if problem]
        return f" ({'; '.join(known)})" if known else ""
