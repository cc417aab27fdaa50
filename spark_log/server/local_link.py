"""The link of duties of a coordinator to the coordinator itself, in the same process."""

from __future__ import annotations

from collections.abc import Mapping

from spark_log.journal import store_operations as ops
from spark_log.metadata.projection import Delta, object_rows
from spark_log.server.service import Service


class LocalLink:
    """The link of maintenance to the coordinator in the same process."""

    def __init__(self, coordinator: Service) -> None:
        self._coordinator = coordinator

    def ask(self, asked: ops.Ask) -> ops.Answered:
        answered = self._coordinator.submit(asked.commands).result()
        return answered._replace(state=self._coordinator.state)

    def changes(self, asked: ops.AskChanges) -> ops.Changes:
        if asked.confirmed:
            self._coordinator.submit([]).result()
        state = self._coordinator.state
        return ops.Changes(state.version, state=state)

    def topics(self, asked: ops.AskTopics) -> Delta:
        return self._coordinator.delta(asked.held)

    def objects(self, asked: ops.AskObjects) -> Mapping[str, tuple[int, int, int]]:
        return object_rows(self._coordinator.state, asked.names)

    def snapshot(self, asked: ops.AskSnapshot) -> ops.Snapshot | None:
        if (version := asked.version) is None:
            state, head = self._coordinator.published_with_head()
            return ops.Snapshot(state, head.encode())
        found = self._coordinator.ask_log(lambda log: log.state_at(version))
        return None if found is None else ops.Snapshot(found)

    def claim(self, asked: ops.AskClaim) -> bytes | None:
        if (value := asked.value) is None:
            return self._coordinator.ask_log(lambda log: log.claimed(asked.name))
        return self._coordinator.ask_log(lambda log: log.claim(asked.name, value))

    def status(self, asked: ops.AskStatus) -> int:
        return self._coordinator.ask_log(lambda log: log.status()).checkpoint

    def close(self) -> None:
        """There are no connections to close."""
