"""The interfaces between the server and its coordinator, and between the server and the shared groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias, TypeVar

from spark_log.errors import LogMoved, NotCoordinator, SparkLogError
from spark_log.groups.messages import Request, Response
from spark_log.http.connection_limits import Connections
from spark_log.journal.metadata_log import MetadataLog
from spark_log.journal.store_operations import Answered, Steps
from spark_log.metadata.commands import AnyCommand
from spark_log.metadata.projection import Delta, Holdings
from spark_log.metadata.state import State
from spark_log.monitoring.quota_usage import Usage
from spark_log.roots.broker_roots import Roots
from spark_log.rpc.messages import GroupView, Health
from spark_log.server.change_feed import ChangeFeed

Result = TypeVar("Result")
Rule: TypeAlias = Callable[[AnyCommand, State], None]


class Service(Protocol):
    """A coordinator, as seen by the server."""

    on_change: Callable[[], None]

    @property
    def change_feed(self) -> ChangeFeed: ...

    @property
    def state(self) -> State: ...

    @property
    def leading(self) -> bool: ...

    @property
    def confirmed_s(self) -> float:
        """When, on the monotonic clock, it last began a check that found it leading."""

    @property
    def followed_s(self) -> float:
        """When, on the monotonic clock, it last began to read the log up to its end, as a standby."""

    def has_followed_since(self, asked_s: float) -> bool:
        """Whether a standby has read the log up to its end, and began after this time.  Raises NotCoordinator if only
        the leader can say that.
        """

    async def leader_known(self) -> None:
        """Wait a moment for the end of an election, if there is one."""

    @property
    def answers_final(self) -> bool:
        """Whether its answers to commands are valid although it stopped to lead before they were sent."""

    def health(self) -> Health: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def storage(self) -> str:
        """URL of the storage."""

    @property
    def roots(self) -> Roots:
        """The roots of the log's brokers."""

    def submit(self, commands: Sequence[AnyCommand], allow: Rule | None = None) -> Future[Answered]:
        """
        allow:  raises the error of a command that the client may not write, with the state on which it was decided.
        """

    def after(self, since: int, upto: int, limit: int) -> Sequence[bytes]:
        """Objects of the log, versions (since, upto]; empty if they exceed `limit` bytes."""

    def head(self, version: int) -> str:
        """First line of the record of a version; empty if not known."""

    @property
    def published(self) -> State:
        """The newest state that `delta` compares with."""

    def published_with_head(self) -> tuple[State, str]:
        """The published state, and the first line of the record of its version; empty if not known."""

    def ask_log(self, steps: Callable[[MetadataLog[Any]], Steps[Result]]) -> Result:
        """Carry out steps on the metadata log, wherever it is kept.  They may take long: not on the event loop."""

    def delta(self, held: Holdings) -> Delta:
        """The published state, or a newer one, compared with what a client has."""

    def not_leading(self) -> NotCoordinator | LogMoved: ...

    def metrics_text(self, *, polls: int, connections: Connections, usage: Sequence[Usage]) -> str:
        """May be called from any thread."""


class GroupService(Protocol):
    """The shared groups, as seen by the server."""

    def notice(self) -> None:
        """There is a new leader or version."""

    def rebalance_begun(self, group_id: str) -> asyncio.Future[None] | None:
        """A future that is done when a rebalance of the group begins; None if the group is not shared."""

    async def ask(self, request: Request, wait_ms: int, client_host: str) -> Response: ...

    def refusal(self, command: AnyCommand) -> SparkLogError | None:
        """The error for a command that commits positions of a member, if it is rejected."""

    def views(self) -> tuple[GroupView, ...]: ...

    def metrics_text(self) -> str:
        """May be called from any thread."""
