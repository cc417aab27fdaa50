"""The storage beside the records that the nodes share: it has the claims."""

from __future__ import annotations

from simulation.coordinator_sim.world import QuorumWorld
from spark_log.errors import StorageUnavailable
from spark_log.store.memory import MemoryStore

LOST = 0.1
"""How often an answer is lost."""


class SimulatedStorage(MemoryStore):
    """The storage of one run."""

    def __init__(self, world: QuorumWorld) -> None:
        super().__init__("coordinator_sim")
        self._folders = {}
        self._world = world

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._maybe_lose(key)
        return super().get(key, start, end)

    def put_new(self, key: str, data: bytes) -> bool:
        if self._world.happens(0.5):
            self._maybe_lose(key)
        found = super().put_new(key, data)
        self._maybe_lose(key)
        return found

    def _maybe_lose(self, key: str) -> None:
        if self._world.happens(LOST):
            raise StorageUnavailable(f"{key}: the simulated storage does not answer")
