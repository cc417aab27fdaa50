"""Coordinators in this process, for tests: real servers on loopback, each for a separate log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from spark_log.groups.group import GroupConfig
from spark_log.serve.serve import MakePages, Running, start
from spark_log.serve.serve_config import ServeConfig
from spark_log.store.base import ObjectStore

QUICK = GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=100)
"""Groups do not wait for more members than there are."""


class Services:
    """Starts coordinators, and stops them at the end."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._running: dict[Path, Running] = {}

    def run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(steps, self._loop).result(30)

    def start(
        self, folder: Path, store: ObjectStore | None = None, pages: MakePages | None = None, **settings: Any
    ) -> Running:
        """A coordinator of the log in a folder, or at another `url` or in a store, on a port that is free."""
        config = ServeConfig(
            **{
                "url": str(folder),
                "listen": "127.0.0.1:0",
                "maintain_ms": None,
                "durability": "os",
                "groups": QUICK,
                **settings,
            },
        )
        running: Running = self.run(start(config, store, pages))
        self._running[folder] = running
        return running

    def url(self, folder: Path) -> str:
        """The address of the log in a folder, whose coordinator is started if there is none."""
        running = self._running.get(folder) or self.start(folder)
        return f"pylog://{running.coordinator.address}"

    def stop(self, running: Running) -> None:
        self.run(running.stop())
        self._running = {folder: one for folder, one in self._running.items() if one is not running}

    def stop_all(self) -> None:
        for running in tuple(self._running.values()):
            self.stop(running)

    def close(self) -> None:
        self.stop_all()
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    """Cancel what still runs, as `asyncio.run` does: aiohttp reads on from a lost connection for ten seconds."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
