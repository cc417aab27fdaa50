"""Updates of the log's state for a consumer, from storage or a coordinator, within the time that a poll has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from spark_log.errors import LogRestored
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.state import State
from spark_log.store.bounded_waits import Slot, Waiter


class StateUpdates:
    """Updates of the journal's state.  A method raises Unfinished if its update takes longer than the poll may wait.

    The update then continues, and a later poll takes its result, which may be older than the journal's state.
    """

    def __init__(self, journal: Journal, waiter: Waiter) -> None:
        self._journal = journal
        self._waiter = waiter
        self._slot = Slot[State](direct=journal.metadata.local and journal.link is None)
        self.is_ahead = False
        """The log has fewer versions than this process knows, as after an older copy was restored."""

    def discard(self) -> None:
        """Ignore the answer of a call in progress: it began too early."""
        self._slot.discard()

    def refresh(self, topics: Iterable[str] | None, groups: Iterable[str]) -> None:
        """topics, groups:  those that the state must have, as for `Journal.require`."""
        self._update(partial(self._refreshed, topics, groups))

    def _refreshed(self, topics: Iterable[str] | None, groups: Iterable[str]) -> State:
        self._journal.require(topics, groups)
        return self._journal.refresh()

    def poll(self) -> None:
        self._update(self._journal.poll)

    def wait(self, refresh_ms: float, most_ms: float, *, group: str, topics: Sequence[str]) -> bool:
        """Wait for a change of these topics or this group.  False, after a pause, if the log lacks versions."""
        try:
            self._update(partial(self._journal.wait, refresh_ms, most_ms, group=group, topics=list(topics)))
        except LogRestored:
            self.wait_for_versions()
            self._journal.context.clock.sleep_ms(refresh_ms)
        return not self.is_ahead

    def wait_for_versions(self) -> None:
        """Say once what the consumer waits for."""
        if not self.is_ahead:
            logger.warning(
                "%s lacks version %d, which this consumer has read: an older copy was restored, or the last versions are "
                "lost.  It waits until the log has that version again, and then continues where the copy ended; to read "
                "on now, start this process again",
                self._journal.metadata.url,
                self._journal.state.version,
            )
        self.is_ahead = True

    def _update(self, call: Callable[[], State]) -> None:
        self._waiter.answer(self._slot, call)
        self.is_ahead = False
