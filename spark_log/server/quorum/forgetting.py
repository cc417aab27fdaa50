"""Entries, snapshots and copies of a quorum's metadata have statistics of erased records: when they are replaced.

Each node sees in its state that there was an erasure, replaces what its directory has of before by a snapshot, and says
so with its messages.  The leader's maintenance records that the metadata has nothing any more
(docs/decisions/0108-erasures-in-the-state.md).
"""

from __future__ import annotations

from collections.abc import Callable

from spark_log.journal.store_operations import List, Steps
from spark_log.metadata.erasures import statistics_upto
from spark_log.metadata.state import State
from spark_log.quorum.node.node_status import NodeStatus
from spark_log.store.object_names import CHECKPOINTS, LOG, SNAPSHOTS, snapshot_version


class Forgetting:
    """The forgetting of one node.  `look` belongs to its event loop."""

    def __init__(self, status: Callable[[], NodeStatus | None], forget: Callable[[int], None]) -> None:
        """
        status, forget:  of the node (`Node`).
        """
        self._status, self._forget = status, forget
        self._forgotten = 0
        """The version before which no directory of a node has anything; 0: this node does not lead."""
        self.former = ""
        """Why the log's former metadata on the storage keeps erasures open; empty: it does not."""

    def look(self, state: State) -> None:
        """To be called now and then, with the newest final state."""
        status = self._status()
        if status is None:
            return
        if status.forgotten < statistics_upto(state):
            self._forget(state.version)
        others = [*(one.forgotten for one in status.replication), *status.others_forgotten.values()]
        self._forgotten = min([status.forgotten, *others]) if status.role == "leader" else 0

    def is_gone(self, upto: int) -> Steps[bool]:
        """Whether nothing of the versions before is left: in the directories of the voters, and of the other nodes that
        fetch from this leader, are its peers or have connected to it, and beside the records."""
        copies, records, checkpoints = yield [List(SNAPSHOTS), List(LOG), List(CHECKPOINTS)]
        former = LOG if records else CHECKPOINTS if checkpoints else ""
        self.former = (
            f"{former} beside the records, which the log has not used since it moved into the quorum, may have statistics of "
            f"columns: when no process has the log open at its former place, delete {LOG} and {CHECKPOINTS} there"
            if former
            else ""
        )
        return not former and self._forgotten >= upto and all(snapshot_version(name) >= upto for name in copies)
