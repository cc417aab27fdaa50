"""The coordinator on a node of a quorum, as the parts of it see it that work while it leads, or is about to."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from spark_log.errors import LogMoved, NotCoordinator
from spark_log.metadata.state import State
from spark_log.monitoring.coordinator_metrics import Metrics
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.node import Node
from spark_log.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class KnownLeader:
    """The leader of an epoch of the quorum, as this node knows it."""

    epoch: int
    key: ReplicaKey | None
    """None: it is not known."""


class QuorumLeader(Protocol):
    """Implemented by `QuorumCoordinator`."""

    address: str
    """For clients."""
    epoch: int
    """The epoch under which it leads; 0: it does not lead."""
    node: Node
    clock: Clock
    metrics: Metrics

    @property
    def state(self) -> State:
        """The newest final state."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def leader(self) -> KnownLeader: ...

    @property
    def is_stopping(self) -> bool: ...

    def not_leading(self) -> NotCoordinator | LogMoved:
        """The error for requests to a node that does not lead."""

    def unique(self) -> str:
        """A name for a batch."""

    def spawn(self, work: Awaitable[None]) -> None:
        """Run on the event loop, until the coordinator stops."""

    def publish_soon(self) -> None:
        """Complete the commands that are done, after the state was published on which they depend."""
