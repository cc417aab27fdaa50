"""What the server needs of that which it serves: a coordinator, and the groups that members share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Protocol

from spark_log.errors import NotCoordinator, SparkLogError
from spark_log.groups.messages import Request, Response
from spark_log.journal.store_operations import Answered
from spark_log.metadata.commands import AnyCommand
from spark_log.metadata.state import State
from spark_log.net.connection_limits import Connections
from spark_log.net.messages import GroupView, Health
from spark_log.net.quotas import Usage


class Noted(Protocol):
    """What is news to whom."""

    def there_is(self, topics: Sequence[str] | None, since: int) -> bool: ...

    def untold(self) -> Collection[str] | None: ...


class Service(Protocol):
    """What is served: a coordinator."""

    on_change: Callable[[], None]

    @property
    def news(self) -> Noted: ...

    @property
    def state(self) -> State: ...

    @property
    def leading(self) -> bool: ...

    @property
    def confirmed_s(self) -> float:
        """On the monotonic clock: when it began to look at the log and found that it leads."""

    def health(self) -> Health: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def storage(self) -> str:
        """URL of the storage."""

    def submit(self, commands: Sequence[AnyCommand]) -> Future[Answered]: ...

    def after(self, since: int, upto: int, limit: int) -> Sequence[bytes]:
        """Objects of the log, versions (since, upto]; none if they are more than `limit` bytes."""

    def not_leading(self) -> NotCoordinator: ...

    def metrics_text(self, *, polls: int, connections: Connections, usage: Sequence[Usage]) -> str: ...


class GroupService(Protocol):
    """The groups that members share."""

    def notice(self) -> None:
        """Another one leads, or there is a new version."""

    def stirred(self, group_id: str) -> asyncio.Future[None] | None:
        """Is done when members begin to share a group out anew; None if nobody shares it."""

    async def ask(self, request: Request, wait_ms: int, client_host: str) -> Response: ...

    def refusal(self, command: AnyCommand) -> SparkLogError | None:
        """Why a command that commits positions of a member is refused."""

    def views(self) -> tuple[GroupView, ...]: ...

    def metrics_text(self) -> str: ...
