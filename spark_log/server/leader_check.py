"""Whether a coordinator may answer: it leads, or follows the log closely enough, and was not suspended meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_log.errors import CoordinatorNotAvailable, InconsistentClusterId, LogMoved, NotCoordinator
from spark_log.server.service import Service

PAUSE_S = 2.5
"""An event loop that did not run for this long was suspended: normally it runs at least once a second."""
STALE_S = 10.0
"""A standby that has not read the log up to its end for this long does not answer for it."""


class LeaderCheck:
    """Checks before and after requests.  Runs on the event loop."""

    def __init__(self, service: Service, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._monotonic_s = monotonic_s
        self._awake_s = monotonic_s()
        """When the event loop last ran."""
        self._paused_s = 0.0
        """The end of the last suspension of at least PAUSE_S."""

    def leads(self) -> bool:
        """Whether this coordinator leads.

        A process that was suspended may have been replaced meanwhile, so it reads the log before it answers again.
        Raises CoordinatorNotAvailable during that time.
        """
        self.note_pause()
        if self._service.leading and self._service.confirmed_s < self._paused_s:
            raise CoordinatorNotAvailable("this coordinator was suspended, and is checking whether it still leads")
        return self._service.leading

    def note_pause(self) -> None:
        """To be called at least once in PAUSE_S: notice that the process was suspended."""
        now = self._monotonic_s()
        if now - self._awake_s > PAUSE_S:
            self._paused_s = now
        self._awake_s = now

    def may_answer(self, standby: bool) -> bool:
        """Whether this coordinator leads, or follows the log and the request accepts a standby's answer."""
        return self.leads() or (standby and self._monotonic_s() - self._service.followed_s < STALE_S)

    def check(self, cluster_id: str, *, standby: bool = False) -> None:
        """Like `check_leads`, and raises InconsistentClusterId for a request about another log."""
        if cluster_id != self._service.cluster_id:
            raise InconsistentClusterId(
                f"this coordinator has the log {self._service.cluster_id}, not {cluster_id or '(none given)'}"
            )
        self.check_leads(standby=standby)

    def check_leads(self, *, changed: bool = False, standby: bool = False) -> None:
        """Raises NotCoordinator, LogMoved or CoordinatorNotAvailable, so that no reply is based on an old state.

        changed:  a change may have been applied.
        standby:  a standby may reply.
        """
        try:
            if not self.may_answer(standby):
                raise self._service.not_leading()
        except (NotCoordinator, LogMoved, CoordinatorNotAvailable) as error:
            if not changed:
                raise
            unknown = CoordinatorNotAvailable(
                f"the coordinator stopped leading while a change was in progress: {error}"
            )
            unknown.maybe_applied = True
            raise unknown from error
