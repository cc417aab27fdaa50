"""An asyncio event loop in simulated time: when nothing is ready, the clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopClock:
    """The clock of a simulated event loop."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    monotonic_ms = now_ms

    def sleep_ms(self, milliseconds: float) -> None:
        self.seconds += milliseconds / 1000


class _Selector(selectors.DefaultSelector):
    """Does not wait for a timer, but moves the clock."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(timeout if timeout is None else 0)
        if not found and timeout is not None:
            self._clock.seconds += max(timeout, 0)
        return found


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop on a `LoopClock`."""

    def __init__(self, clock: LoopClock) -> None:
        self._simulated = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._simulated.seconds


def run_simulated(main: Coroutine[Any, Any, Result], clock: LoopClock) -> Result:
    """Run a coroutine on a new simulated event loop."""
    loop = SimulatedLoop(clock)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()
