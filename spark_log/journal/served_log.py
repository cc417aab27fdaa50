"""The metadata log as a coordinator serves it: implements `MetadataLog` without any access to `meta/` on storage.

The state comes as a snapshot, and follows from there by the records that the coordinator sends.  So a client needs no
rights on the metadata, and the coordinator may keep it anywhere.  Docs: docs/decisions/0076-served-log.md.

Answers come from any coordinator, and a view never goes back: each request names the version and the first line of its
record, which has a checksum of its batch.  A coordinator that is behind lets the client wait.  One that has another
record there has another history, of a restored copy: the client gets a new snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from spark_log.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    NotCoordinator,
    SparkLogError,
    ThrottlingQuotaExceeded,
)
from spark_log.journal.context import Context, Proposal
from spark_log.journal.metadata_log import LogStatus
from spark_log.journal.storage import clock_check
from spark_log.journal.storage.commit_protocol import hand_over
from spark_log.journal.storage.log_identity import restored_error
from spark_log.journal.store_operations import (
    Answered,
    AskChanges,
    AskClaim,
    AskSnapshot,
    AskStatus,
    Changes,
    LinkOp,
    Sleep,
    Snapshot,
    Steps,
)
from spark_log.log_lines import logger
from spark_log.metadata.decide_coordinators import moving_to
from spark_log.metadata.formats.batch_format import decode_batch, first_line
from spark_log.metadata.replay import is_of_other_log, replay
from spark_log.metadata.restores import record_id
from spark_log.metadata.set_backs import following, replaced
from spark_log.metadata.state import Leadership, State
from spark_log.store.base import Bytes, Swept
from spark_log.store.object_names import log_key

AGAIN_MS = 100
"""Pause between requests while no coordinator answers."""
MAKER_WAIT_MS = 15_000
"""How long a process that looks for a claim waits for another one that is making it."""


class ServedView(NamedTuple):
    """A state that a coordinator has sent."""

    state: State
    head: bytes = b""
    """First line of the record of its version; empty if not known."""

    @property
    def newest(self) -> State:
        return self.state

    @property
    def held(self) -> None:
        """The state is the whole one."""
        return None


class ServedLog:
    """The metadata log of a coordinator, for one process.  Checkpoints and expiry are the coordinator's work."""

    is_served = True
    reads_newest = True

    def __init__(self, context: Context, cluster_id: str) -> None:
        self.context = context
        self._cluster_id = cluster_id
        self._silent_since_ms: int | None = None
        """When the first of the last reads was made that were not answered."""

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    # ------------------------------------------------------------------------------------------------------------- reading

    def open(self) -> Steps[ServedView]:
        opened: Snapshot = yield from self._answer(AskSnapshot(Leadership()))
        return (yield from self.refresh(ServedView(opened.state, opened.head)))

    def refresh(self, view: ServedView) -> Steps[ServedView]:
        changes: Changes = yield from self._answer(_changes_of(view, confirmed=True))
        return (yield from self._advanced(view, changes))

    def peek(self, view: ServedView) -> Steps[ServedView]:
        return (yield from self.refresh(view))

    def look(self, view: ServedView) -> Steps[ServedView]:
        """The view that is known, while no coordinator answers.  Raises CoordinatorNotAvailable when that takes too
        long.
        """
        try:
            changes: Changes = yield _changes_of(view)
        except (CoordinatorNotAvailable, NotCoordinator) as error:
            if self._is_silent():
                raise CoordinatorNotAvailable(str(error)) from error
            return view
        self._silent_since_ms = None
        return (yield from self.follow(view, changes))

    def follow(self, view: ServedView, told: Answered | Changes) -> Steps[ServedView]:
        if isinstance(told, Changes) and not told.lacks_head and told.version <= view.state.version:
            return view  # a standby may be behind
        return self._followed(view, told) or (yield from self.refresh(view))

    def newer(self, one: ServedView, other: ServedView) -> ServedView:
        return max(one, other, key=lambda view: view.state.version)

    def rebased(self, view: ServedView, before: ServedView, kept: ServedView) -> ServedView:
        return view

    def state_at(self, version: int) -> Steps[State | None]:
        found: Snapshot | None = yield from self._answer(AskSnapshot(Leadership(), version))
        return None if found is None else found.state

    def _advanced(self, view: ServedView, changes: Changes) -> Steps[ServedView]:
        """The view at the end of the log, by an answer that has every change that was acknowledged before.

        Raises LogRestored if the log is shorter than the view by now, CoordinatorNotAvailable if the coordinators'
        answers do not fit together for as long as a change would wait.
        """
        version = view.state.version
        if (followed := self._at_end(view, changes)) is not None:
            return followed
        opened = yield from self._opened(view, changes)
        if opened.state.version < version:
            raise restored_error(f"version {version}")
        if not changes.lacks_head:
            return opened._replace(state=following(opened.state, view.state))
        logger.warning("version %d has changed: an older copy of the log was restored", version)
        return opened._replace(state=replaced(opened.state, view.state, record_id(view.head)))

    def _opened(self, view: ServedView, changes: Changes) -> Steps[ServedView]:
        """A new view at the end of the log.

        Its snapshot is as new as the answer that lacks records: another node may have an older one, and the node that
        answers for the end of the log may not have the records between them.
        """
        clock = self.context.clock
        deadline = clock.monotonic_ms() + self.context.coordinator_wait_ms
        holder = _holder(view)
        while True:
            found: Snapshot = yield from self._answer(AskSnapshot(holder, at_least=changes.version))
            opened = ServedView(found.state, found.head)
            changes = yield from self._answer(_changes_of(opened, confirmed=True))
            if (followed := self._at_end(opened, changes)) is not None:
                return followed
            if clock.monotonic_ms() >= deadline:
                raise CoordinatorNotAvailable(
                    f"a coordinator is at version {changes.version}, and the newest snapshot that could be read, of "
                    f"version {opened.state.version}, does not lead there: try again, and see `pylog cluster health`"
                )
            yield Sleep(AGAIN_MS)

    def _at_end(self, view: ServedView, changes: Changes) -> ServedView | None:
        """The view at the end of the log; None if the answer lacks records that lead there."""
        if changes.version == view.state.version and not changes.lacks_head:
            return view
        return self._followed(view, changes) if changes.version > view.state.version else None

    def _followed(self, view: ServedView, told: Answered | Changes) -> ServedView | None:
        """The view after the records of an answer; None without records, or if they may be of another history."""
        if told.state is not None:
            return ServedView(following(told.state, view.state))
        state = view.state
        for data in told.batches:
            batch = decode_batch(data, log_key(state.version + 1))
            if not view.head and is_of_other_log(state, batch):
                return None
            state = replay(state, batch)
        return ServedView(state, first_line(told.batches[-1])) if told.batches else None

    def _answer(self, asked: LinkOp) -> Steps[Any]:
        """The answer of a coordinator.  Waits for one, as long as a change would.

        Raises CoordinatorNotAvailable.
        """
        clock = self.context.clock
        deadline = clock.monotonic_ms() + self.context.coordinator_wait_ms
        while True:
            try:
                found = yield asked
            except (CoordinatorNotAvailable, NotCoordinator) as error:
                pause_ms = AGAIN_MS
                if clock.monotonic_ms() + pause_ms >= deadline:
                    raise CoordinatorNotAvailable(str(error)) from error
            except ThrottlingQuotaExceeded as error:
                pause_ms = error.retry_after_ms
                if clock.monotonic_ms() + pause_ms >= deadline:
                    raise
            else:
                self._silent_since_ms = None
                return found
            yield Sleep(pause_ms)

    def _is_silent(self) -> bool:
        """Whether no coordinator has answered for too long; called after each look without an answer."""
        now = self.context.clock.monotonic_ms()
        if self._silent_since_ms is None:
            self._silent_since_ms = now
        return now - self._silent_since_ms >= self.context.coordinator_wait_ms

    # ------------------------------------------------------------------------------------------------------------- writing

    def propose(self, view: ServedView, commands: Sequence[Proposal]) -> Steps[ServedView]:
        if moving_to(view.state.coordinator):
            view = yield from self._find_leader(view)  # the move may have been cancelled
        return (yield from hand_over(view, commands, self.context, self._find_leader, self._follow_change))

    def _find_leader(self, view: ServedView) -> Steps[ServedView]:
        """The newest view that any coordinator has, for a change that no leader has answered.

        No error is raised here: it would say nothing about the change.
        """
        try:
            changes: Changes = yield _changes_of(view)
            return self._followed(view, changes) or view
        except SparkLogError:
            return view

    def _follow_change(self, view: ServedView, answered: Answered) -> Steps[ServedView]:
        """The view after a change.  If the coordinator is lost meanwhile, later reads see the change."""
        if (followed := self._followed(view, answered)) is not None:
            return followed
        try:
            changes: Changes = yield _changes_of(view, confirmed=True)
        except (CoordinatorNotAvailable, NotCoordinator):
            return view
        return (yield from self._advanced(view, changes))

    def claim(self, name: str, value: bytes) -> Steps[bytes]:
        found: bytes = yield from self._answer(AskClaim(Leadership(), name, value))
        return found

    def claimed(self, name: str) -> Steps[bytes | None]:
        found: bytes | None = yield from self._answer(AskClaim(Leadership(), name, None, MAKER_WAIT_MS))
        return found

    # -------------------------------------------------------------------------------------------- the coordinator's work

    def check_clock(self, state: State) -> Steps[None]:
        """For retention, which deletes by this clock: commits have the coordinator's time."""
        context, clock = self.context, self.context.clock
        stamp = clock_check.stamp_of(clock)
        yield from clock_check.check_clock(state, stamp, clock, context.watch, context.unique, in_data=True)

    def expire_claims(self, state: State) -> Steps[int]:
        yield from ()
        return 0

    def is_due(self, view: ServedView) -> bool:
        return False

    def look_again(self, view: ServedView) -> Steps[ServedView]:
        yield from ()
        return view

    def checkpoint(self, view: ServedView) -> Steps[ServedView]:
        yield from ()
        return view

    def checkpoint_from(self, view: ServedView, version: int) -> Steps[ServedView]:
        yield from ()
        return view

    def truncate(self, view: ServedView) -> Steps[int]:
        yield from ()
        return 0

    def forget(self, view: ServedView, upto: int) -> Steps[tuple[ServedView, bool]]:
        yield from ()
        return view, False

    def checkpoint_and_truncate(self, view: ServedView, fence_before: int) -> Steps[ServedView]:
        yield from ()
        return view

    def status(self) -> Steps[LogStatus]:
        return LogStatus((yield from self._answer(AskStatus(Leadership()))))

    def is_still_there(self) -> Steps[bool]:
        """Each request names the log, and a coordinator of another one refuses it."""
        yield from ()
        return True


def _changes_of(view: ServedView, *, confirmed: bool = False) -> AskChanges:
    return AskChanges(_holder(view), view.state.version, view.head, confirmed)


def _holder(view: ServedView) -> Leadership:
    """The leader, to be asked first.  While the log is closed for a move, coordinators still answer reads."""
    held = view.state.coordinator
    return Leadership() if moving_to(held) else held


class ServedMetadata:
    """The store of the metadata for a process that never reads it: an ObjectStore of which only the URL is used."""

    def __init__(self, url: str, *, local: bool) -> None:
        """
        local:  whether the store of the objects is.
        """
        self.url, self.local = url, local

    def _refuse(self, key: str) -> NoReturn:
        raise InvalidRequest(
            f"{self.url}/{key}: the coordinator serves this log's metadata, and its clients do not use it on the "
            "storage; a tool that works on these files needs the URL of the storage. If the metadata is in a quorum, "
            "its leader runs the maintenance, `pylog metadata dump DIR` shows the directory of a node, and repair, mirror "
            "and move are not possible yet: see docs/quorum.md"
        )

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._refuse(key)

    def size(self, key: str) -> int | None:
        self._refuse(key)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._refuse(key)

    def put_new(self, key: str, data: bytes) -> bool:
        self._refuse(key)

    def list(self, prefix: str) -> list[str]:
        self._refuse(prefix)

    def sizes(self, prefix: str) -> dict[str, int]:
        self._refuse(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._refuse(next(iter(keys), ""))

    def written_ms(self, key: str) -> int | None:
        self._refuse(key)

    def sweep(self, prefix: str, before_ms: int) -> Swept:
        self._refuse(prefix)

    def fingerprint(self) -> str:
        return "served"
