"""The state machine of a node of a quorum: its entries are batches of the metadata log.

A node applies the entries that are final.  The version of a state is the number of batches that it has applied; the
entries of the quorum itself, such as those of elections, are not among them.

A snapshot has the first line of the last batch, and a checkpoint of the state after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from spark_log.metadata.checkpoint_format import checkpoint_parts, decode_checkpoint, folded, rebased
from spark_log.metadata.records import decode_batch
from spark_log.metadata.replay import replay
from spark_log.metadata.state import State
from spark_log.node.pending_commands import PendingCommands
from spark_log.node.quorum_pipeline import Offer, Pipeline
from spark_log.node.recent_records import RecentRecords

AnyOffer = Offer[PendingCommands]


class QuorumState:
    """Implements `StateMachine`.  Belongs to the event loop of the node."""

    def __init__(
        self,
        applied: Callable[[AnyOffer | None], None],
        restored: Callable[[], None],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        """
        applied:   called when there is a new state, with the offer that made it; None: another node made it.
        restored:  called in another thread, when a snapshot replaced the state.
        later:     runs a function on the event loop; called in other threads.
        """
        self.pipeline: Pipeline[PendingCommands] = Pipeline(State())
        self.records = RecentRecords()
        self._applied, self._restored, self._later = applied, restored, later

    @property
    def final(self) -> State:
        return self.pipeline.state

    def apply(self, index: int, data: bytes) -> None:
        offer = self.pipeline.final(index, data)
        if offer is None:
            self.pipeline.state = replay(self.final, decode_batch(data, f"entry {index} of the quorum's log"))
        self.records.remember(self.final.version, data)
        self._applied(offer)

    def snapshot(self) -> Iterable[bytes]:
        state = self.final
        return self._pieces(state, self.records.head(state.version))

    def _pieces(self, state: State, head: bytes) -> Iterator[bytes]:
        """Runs in the thread of snapshots.  Afterwards the node keeps large maps in the columns of the snapshot."""
        compact = folded(state)
        yield from map(bytes, chain([head, b"\n"], checkpoint_parts(compact)))
        if compact is not state:
            self._later(lambda: self._rebase(state, compact))

    def _rebase(self, before: State, compact: State) -> None:
        self.pipeline.rebase(lambda state: rebased(state, before, compact))

    def restore(self, pieces: Iterator[bytes]) -> None:
        head, _, data = b"".join(pieces).partition(b"\n")
        state = decode_checkpoint(data, "a snapshot of the quorum")
        self.records.forget()
        self.records.note_head(state.version, head)
        self.pipeline.state = state
        self._restored()
