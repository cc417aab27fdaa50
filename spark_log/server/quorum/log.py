"""The metadata log on a node of a quorum, for the node's duties and its server: implements `MetadataLog`.

State and changes come from the coordinator in the same process.  Checkpoints are the snapshots of the node, which need
no maintenance.  Claims are objects beside the records: their storage has put-if-absent, and the leader alone makes
them.
"""

from __future__ import annotations

from spark_log.configs.settings import cluster_config
from spark_log.journal.context import Context
from spark_log.journal.metadata_log import LogStatus
from spark_log.journal.served_log import ServedLog, ServedView
from spark_log.journal.storage import claims
from spark_log.journal.store_operations import Steps
from spark_log.metadata.state import State
from spark_log.server.quorum.forgetting import Forgetting
from spark_log.server.quorum.state import QuorumState


class QuorumLog(ServedLog):
    """A `ServedLog` whose coordinator keeps the rest here."""

    def __init__(self, context: Context, cluster_id: str, state: QuorumState, forgetting: Forgetting) -> None:
        super().__init__(context, cluster_id)
        self._state, self._forgetting = state, forgetting
        self._sealed_at: int | None = None
        """The version at which the log was last sealed; None: not by this process."""

    def state_at(self, version: int) -> Steps[State | None]:
        yield from ()
        return self._state.state_at(version)

    def claim(self, name: str, value: bytes) -> Steps[bytes]:
        found = yield from claims.claim(name, value)
        self._hold(found)
        return found

    def claimed(self, name: str) -> Steps[bytes | None]:
        found = yield from claims.claimed(name)
        if found is not None:
            self._hold(found)
        return found

    def _hold(self, value: bytes) -> None:
        """The version that a query reads: its tasks may begin later."""
        version = claims.version_of(value)
        if version is not None:
            self._state.hold(version, self.context.clock.monotonic_ms() / 1000)

    def expire_claims(self, state: State) -> Steps[int]:
        age_ms = cluster_config(state.configs, "gc.fence.age.ms")
        return (yield from claims.drop_claims(state.fence, self.context.clock.now_ms() - age_ms))

    def status(self) -> Steps[LogStatus]:
        """Every version is as durable as in a checkpoint."""
        yield from ()
        return LogStatus(self._state.final.version)

    # ---------------------------------------------------------------------------------------------------- maintenance

    def is_due(self, view: ServedView) -> bool:
        """Whether the log is to be sealed: as often as a log on storage is, which writes a checkpoint at that time."""
        interval = cluster_config(view.state.configs, "metadata.checkpoint.interval")
        return self._sealed_at is None or view.state.version - self._sealed_at >= interval

    def forget(self, view: ServedView, upto: int) -> Steps[tuple[ServedView, bool]]:
        """Each node deletes its own, without being asked."""
        return view, (yield from self._forgetting.is_gone(upto))

    def checkpoint_and_truncate(self, view: ServedView, fence_before: int) -> Steps[ServedView]:
        self._sealed_at = view.state.version
        yield from ()
        return view


class FinalLog(QuorumLog):
    """The newest final state that this node knows, for pages.

    A node that follows has no leader to ask.  A node that does not hear from a leader shows an old state.
    """

    reads_newest = False

    def open(self) -> Steps[ServedView]:
        yield from ()
        return ServedView(self._state.final)

    def refresh(self, view: ServedView) -> Steps[ServedView]:
        return (yield from self.open())

    def look(self, view: ServedView) -> Steps[ServedView]:
        return (yield from self.open())
