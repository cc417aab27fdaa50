"""Work in daemon threads, which a hung root may keep for ever: nobody has to wait for it, the end of the process
neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from spark_log.runtime.threads import SYSTEM_THREADS, Threads

Result = TypeVar("Result")


class Task(Generic[Result]):
    """A function that runs in a separate thread."""

    def __init__(
        self,
        function: Callable[[], Result],
        name: str,
        threads: Threads = SYSTEM_THREADS,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """on_end:  called in the thread at the end, also when the function raised."""
        self._function, self._on_end = function, on_end
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self._ended = threads.event()
        threads.start(self._run, name)

    def _run(self) -> None:
        try:
            self._result.append(self._function())
        except BaseException as error:  # noqa: BLE001  raised by `result`
            self._error = error
        self._ended.set()
        if self._on_end is not None:
            self._on_end()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def error(self) -> BaseException | None:
        """The error that the function has raised; None before it has ended, too."""
        return self._error

    def wait(self, seconds: float) -> bool:
        """Wait until it ends, at most so long; whether it has ended."""
        return self._ended.wait(max(0.0, seconds))

    def result(self) -> Result:
        """The result of a task that has ended.  Raises its error."""
        if self._error is not None:
            raise self._error
        return self._result[0]
