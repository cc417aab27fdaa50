"""Work in daemon threads, which a hung root may keep for ever: nobody has to wait for it, the end of the process
neither."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Task(Generic[Result]):
    """A function that runs in a thread of its own."""

    def __init__(self, function: Callable[[], Result], name: str, ended: threading.Event | None = None) -> None:
        """ended:  set at the end, also when the function raises."""
        self._function = function
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._also = ended
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._result.append(self._function())
        except BaseException as error:  # noqa: BLE001  raised by `result`
            self._error = error
        self._ended.set()
        if self._also is not None:
            self._also.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until it ends, at most so long; whether it has ended."""
        return self._ended.wait(max(0.0, seconds))

    def result(self) -> Result:
        """Of a task that has ended.  Raises its error."""
        if self._error is not None:
            raise self._error
        return self._result[0]
