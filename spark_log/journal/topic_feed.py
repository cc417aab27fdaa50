"""A served log of which a process holds some topics: their state comes from a coordinator, not from the log.

Docs: docs/decisions/0057-feed-by-topic.md.  `projection.py` has the state of these topics and its changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spark_log.errors import CoordinatorNotAvailable, NotCoordinator, SparkLogError
from spark_log.journal.context import Proposal
from spark_log.journal.metadata_log import MetadataLog
from spark_log.journal.storage.commit_protocol import hand_over
from spark_log.journal.storage.log_identity import restored_error
from spark_log.journal.store_operations import Answered, AskTopics, Sleep, Steps
from spark_log.log_lines import logger
from spark_log.metadata.projection import Delta, Holdings, apply, asking_for, held_of, nothing_held
from spark_log.metadata.restores import record_id
from spark_log.metadata.set_backs import following, replaced
from spark_log.metadata.state import State

UNANSWERED_MS = 10_000
"""How long no coordinator may answer before the process reads the log itself: a standby takes over in that time, and
thousands of processes would read the whole log."""
AGAIN_MS = 100
"""Pause between requests while no coordinator answers."""


def unanswered_ms(log: MetadataLog[Any]) -> int:
    """`UNANSWERED_MS`; as long as a change waits if there is nothing else to read."""
    return log.context.coordinator_wait_ms if log.is_served else UNANSWERED_MS


class FeedView(NamedTuple):
    """A projected state, and what identifies its history."""

    state: State
    head: bytes
    held: Holdings

    @property
    def newest(self) -> State:
        return self.state


def view_of(state: State, head: str = "") -> FeedView:
    return FeedView(state, head.encode(), held_of(state, head))


class TopicFeed:
    """Reads the topics of its views from a coordinator."""

    def __init__(self, log: MetadataLog[Any]) -> None:
        self._log = log
        self._silent_since_ms: int | None = None
        """When the first of the last requests was sent that were not answered."""
        self._found_leader_ms = -UNANSWERED_MS
        """When the log was last read for the address of its leader."""

    def open(self) -> Steps[FeedView]:
        """A view without topics."""
        return (yield from self._confirmed(view_of(nothing_held())))

    def refresh(self, view: FeedView) -> Steps[FeedView]:
        return (yield from self._confirmed(view))

    def peek(self, view: FeedView) -> Steps[FeedView]:
        return (yield from self._confirmed(view))

    def look(self, view: FeedView) -> Steps[FeedView]:
        """The newest view, or the known one if no coordinator answers."""
        found = yield from self._ask(view, confirmed=False)
        return view if found is None else found

    def require(self, view: FeedView, topics: Sequence[str], groups: Sequence[str]) -> Steps[FeedView]:
        """The newest view, with these topics and groups too."""
        return (yield from self._confirmed(view_of(asking_for(view.state, topics, groups), view.head.decode())))

    def newer(self, one: FeedView, other: FeedView) -> FeedView:
        return max(one, other, key=lambda view: view.state.version)

    def propose(self, view: FeedView, commands: Sequence[Proposal]) -> Steps[FeedView]:
        return (yield from hand_over(view, commands, self._log.context, self._find_leader, self._follow))

    def _find_leader(self, view: FeedView) -> Steps[FeedView]:
        """The newest view, for a change that no leader has answered; each UNANSWERED_MS, the view with the leader that
        the log names: its address may not be known to this process.

        No error is raised here: it would say nothing about the change.
        """
        try:
            found: Delta = yield AskTopics(view.state.coordinator, view.held)
            return self.applied(view, found)
        except SparkLogError:
            now = self._log.context.clock.monotonic_ms()
            if self._log.is_served or not self._is_silent() or now - self._found_leader_ms < UNANSWERED_MS:
                return view
            self._found_leader_ms = now
        try:
            whole = yield from self._log.open()
        except SparkLogError:
            return view
        return view._replace(state=replace(view.state, coordinator=whole.state.coordinator))

    def _follow(self, view: FeedView, answered: Answered) -> Steps[FeedView]:
        if answered.delta is None:
            return view
        if answered.delta.version < view.state.version:
            return (yield from self._confirmed(view))
        return self.applied(view, answered.delta)

    def applied(self, view: FeedView, changes: Delta) -> FeedView:
        """The view with changes that were computed for it; the same view if they are older: see `refresh`."""
        self._silent_since_ms = None
        if changes.version < view.state.version:
            return view
        if changes.restored:
            logger.warning("version %d has changed: an older copy of the log was restored", view.state.version)
        state = apply(view.state, changes)
        if state is view.state:
            return view
        if changes.restored:
            return view_of(replaced(state, view.state, record_id(view.head)), changes.head)
        return view_of(following(state, view.state), changes.head)

    def _is_silent(self) -> bool:
        """Whether no coordinator has answered for `unanswered_ms`; called after each request without an answer."""
        now = self._log.context.clock.monotonic_ms()
        if self._silent_since_ms is None:
            self._silent_since_ms = now
        return now - self._silent_since_ms >= unanswered_ms(self._log)

    def _confirmed(self, view: FeedView) -> Steps[FeedView]:
        while True:
            found = yield from self._ask(view, confirmed=True)
            if found is not None:
                return found
            yield Sleep(AGAIN_MS)

    def _ask(self, view: FeedView, *, confirmed: bool) -> Steps[FeedView | None]:
        """None if no coordinator answers.  Raises CoordinatorNotAvailable after `unanswered_ms`."""
        try:
            found: Delta = yield AskTopics(view.state.coordinator, view.held, confirmed)
        except (CoordinatorNotAvailable, NotCoordinator) as error:
            if self._is_silent():
                raise CoordinatorNotAvailable(str(error)) from error
            return None
        if found.version >= view.state.version:
            return self.applied(view, found)
        if confirmed:
            raise restored_error(f"version {view.state.version}")
        return (yield from self._ask(view, confirmed=True))  # a standby that is behind, or a restored log
