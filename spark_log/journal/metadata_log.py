"""The interface of the metadata log, for journals, maintenance and tools.

`StorageLog` (`storage_log.py`) is the implementation on shared storage, `ServedLog` (`served_log.py`) that of clients
which have no access to it.  All methods that read or write are steps:
their caller runs them on the log's stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from spark_log.journal.context import Context, Proposal
from spark_log.journal.store_operations import Answered, Changes, Decide, Refresh, Steps
from spark_log.metadata.projection import Holdings
from spark_log.metadata.state import State

Result = TypeVar("Result")


class LogView(Protocol):
    """A state of the log, with private data of the implementation."""

    @property
    def state(self) -> State:
        """The state; all of its records are final."""

    @property
    def newest(self) -> State:
        """The state on which `propose` decides first; the records that `peek` has added may not be final."""

    @property
    def head(self) -> bytes:
        """First line of the record of the state's version: another one in a restored copy.  Empty if not known."""

    @property
    def held(self) -> Holdings | None:
        """The contents of a state of some topics; None for the whole state."""


AnyView = TypeVar("AnyView", bound=LogView)


class LogStatus(NamedTuple):
    """The condition of the log."""

    checkpoint: int
    """Version of the newest checkpoint; 0: there is none."""


class MetadataReader(Protocol[AnyView]):
    """Reads one metadata log, and proposes changes to it.  It keeps no view: the caller passes one in."""

    def open(self) -> Steps[AnyView]:
        """The view at the end of the log."""

    def refresh(self, view: AnyView) -> Steps[AnyView]:
        """The view at the end of the log: it includes every change that was acknowledged before."""

    def peek(self, view: AnyView) -> Steps[AnyView]:
        """The view, with `newest` as in `refresh`, in fewer rounds of requests where the log can do that."""

    def look(self, view: AnyView) -> Steps[AnyView]:
        """Like `refresh`, for a waiting reader: cheap if nothing changed.  The result may be behind the end of the log,
        but never behind `view`."""

    def newer(self, one: AnyView, other: AnyView) -> AnyView:
        """The newer of two views, with what either has found, such as damaged checkpoints."""

    def propose(self, view: AnyView, commands: Sequence[Proposal]) -> Steps[AnyView]:
        """Decide commands at the end of the log, and write their records in one batch.

        Sets the reply or the error of each.  Returns the view afterwards.
        Raises if the outcome is unknown; the error is `maybe_applied` if the records may have been written.
        """


class MetadataLog(MetadataReader[AnyView], Protocol[AnyView]):
    """One metadata log, for all threads of a process, with its maintenance."""

    context: Context
    """The environment of this process; on a coordinator, with its epoch."""
    is_served: bool
    """A coordinator has it: while none answers, nothing else can be read instead."""
    reads_newest: bool
    """Whether `refresh` reads the newest state.  Otherwise, what is beyond it may be of a newer one."""

    @property
    def cluster_id(self) -> str:
        """The log's id, a random value from its creation."""

    def follow(self, view: AnyView, told: Answered | Changes) -> Steps[AnyView]:
        """The view with the changes that a coordinator reported."""

    def rebased(self, view: AnyView, before: AnyView, kept: AnyView) -> AnyView:
        """`view`, which follows from `before`, with the columns of `kept`, which is `before` after its checkpoint."""

    def state_at(self, version: int) -> Steps[State | None]:
        """The state at a recent version; None if it cannot be rebuilt any more."""

    def claim(self, name: str, value: bytes) -> Steps[bytes]:
        """Claim `value` under a name; returns the value that was claimed first, this one or another.

        The value is JSON with the field `version`.  The claim may be removed when the fence has passed that version.
        """

    def claimed(self, name: str) -> Steps[bytes | None]:
        """The value that was claimed under a name; None if none was.

        A caller that gets None makes the claim: others may wait for it.
        """

    def expire_claims(self, state: State) -> Steps[int]:
        """Remove claims below the fence; returns their number."""

    def check_clock(self, state: State) -> Steps[None]:
        """Raises ClockSkewed if this process's clock is far from the log's time and from the storage's."""

    def is_due(self, view: AnyView) -> bool:
        """Whether maintenance and a checkpoint are due."""

    def look_again(self, view: AnyView) -> Steps[AnyView]:
        """The view, updated with the checkpoints that other processes have written."""

    def checkpoint(self, view: AnyView) -> Steps[AnyView]:
        """Write a checkpoint of the view, unless a readable checkpoint of the same or a later version exists."""

    def checkpoint_from(self, view: AnyView, version: int) -> Steps[AnyView]:
        """Write checkpoints of the view, until all that are kept are of this version or later: if the newest is
        damaged, the log is opened from the other one."""

    def truncate(self, view: AnyView) -> Steps[int]:
        """Delete old checkpoints, and some of the records up to the fence that newer checkpoints make unnecessary.

        Returns the number of deletes.
        """

    def forget(self, view: AnyView, upto: int) -> Steps[tuple[AnyView, bool]]:
        """Delete the checkpoints of versions before `upto`, and the records up to it.  Returns the view, and whether
        none of them is left.  A client of a served log deletes nothing.

        upto:  a version that the fence has passed.
        """

    def checkpoint_and_truncate(self, view: AnyView, fence_before: int) -> Steps[AnyView]:
        """Write a checkpoint after a commit, and delete what it replaces.

        fence_before:  the fence before the commit, from which the deletion continues.
        """

    def status(self) -> Steps[LogStatus]:
        """The newest checkpoint."""

    def is_still_there(self) -> Steps[bool]:
        """Whether the log still exists: it was not deleted or replaced."""


def decided(
    log: MetadataLog[AnyView], view: AnyView, steps: Steps[Result], follow: Callable[[AnyView], None] | None = None
) -> Steps[tuple[AnyView, Result]]:
    """Run `steps`, which began with the state of `view`, and propose each decision that they request.

    Returns the view afterwards, and their result.

    follow:  called with each new view: the stores of long steps have to know brokers that are added meanwhile.
    """
    answer: Any = None
    failed: Exception | None = None
    while True:
        try:
            request = steps.throw(failed) if failed is not None else steps.send(answer)
        except StopIteration as stop:
            return view, stop.value
        answer = failed = None
        try:
            if isinstance(request, Decide):
                view = yield from log.propose(view, request.commands)
                answer = view.state
                _follow(follow, view)
                failed = next((command.error for command in request.commands if command.error is not None), None)
            elif isinstance(request, Refresh):
                view = yield from log.refresh(view)
                answer = view.state
                _follow(follow, view)
            else:
                answer = yield request
        except Exception as raised:  # noqa: BLE001  thrown into the steps, which raise it
            failed = raised


def _follow(follow: Callable[[AnyView], None] | None, view: AnyView) -> None:
    if follow is not None:
        follow(view)
