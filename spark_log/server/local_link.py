"""The link of duties of a coordinator to the coordinator itself, in the same process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spark_log.journal.store_operations import Answered, Changes, Snapshot
from spark_log.metadata.projection import Delta, Holdings, object_rows
from spark_log.metadata.state import Leadership as Holder
from spark_log.server.service import Service


class LocalLink:
    """The link of maintenance to the coordinator in the same process."""

    def __init__(self, coordinator: Service) -> None:
        self._coordinator = coordinator

    def ask(
        self,
        holder: Holder,
        commands: Sequence[Any],
        since: int,
        limit_ms: float = math.inf,
        head: bytes = b"",
        held: Holdings | None = None,
    ) -> Answered:
        answered = self._coordinator.submit(commands).result()
        return answered._replace(state=self._coordinator.state)

    def changes(
        self,
        holder: Holder,
        since: int,
        wait_ms: int,
        group: str = "",
        topics: Sequence[str] | None = None,
        head: bytes = b"",
        *,
        confirmed: bool = False,
    ) -> Changes:
        if confirmed:
            self._coordinator.submit([]).result()
        state = self._coordinator.state
        return Changes(state.version, state=state)

    def topics(self, holder: Holder, held: Holdings, **_: Any) -> Delta:
        return self._coordinator.delta(held)

    def objects(self, holder: Holder, names: Sequence[str]) -> Mapping[str, tuple[int, int, int]]:
        return object_rows(self._coordinator.state, names)

    def snapshot(self, holder: Holder, version: int | None = None, at_least: int = 0) -> Snapshot | None:
        if version is None:
            state, head = self._coordinator.published_with_head()
            return Snapshot(state, head.encode())
        found = self._coordinator.ask_log(lambda log: log.state_at(version))
        return None if found is None else Snapshot(found)

    def claim(self, holder: Holder, name: str, value: bytes | None, wait_ms: int = 0) -> bytes | None:
        if value is None:
            return self._coordinator.ask_log(lambda log: log.claimed(name))
        return self._coordinator.ask_log(lambda log: log.claim(name, value))

    def status(self, holder: Holder) -> int:
        return self._coordinator.ask_log(lambda log: log.status()).checkpoint

    def close(self) -> None:
        """There are no connections to close."""
