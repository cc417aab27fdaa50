"""Pure functions of the log, computed once for the same arguments.

Twenty actors read the same records of the same log.  A replay is total and deterministic, and its state never changes:
so one replay on one state stands for all of them.  States that were made in another way, from a checkpoint, are still
replayed on.
"""

from __future__ import annotations

from simulation.mutation import Patch
from simulation.verdict import Violation
from spark_log.journal.storage import commit_protocol, opening
from spark_log.journal.storage.opening import state_in
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import folded
from spark_log.metadata.formats.state_digest import state_digest
from spark_log.metadata.records import Batch
from spark_log.metadata.replay import end_version, replay
from spark_log.metadata.state import ObjectRow, State
from spark_log.store.object_names import log_key


class MemoizedFunctions:
    """The results in one run: a mutation of the next one may change what these functions return."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[State, dict[str, ObjectRow]]] = {}
        self._batches: dict[bytes, Batch] = {}
        self._states: dict[tuple[bytes | None, str], State] = {}
        self._replays: dict[tuple[int, int], tuple[State, Batch, State]] = {}
        """By the identities of a state and a batch, both of which are kept so that no other object gets these."""
        self._folded: dict[int, tuple[State, State]] = {}
        self._digests: dict[int, tuple[State, str]] = {}

    def patches(self) -> tuple[Patch, ...]:
        """For all that read the log, and for writers, which have replayed their records before."""
        return (
            Patch(opening, "state_in", self.state_in),
            Patch(opening, "decode_batch", self.decode_batch),
            Patch(opening, "replay", self.replay),
            Patch(commit_protocol, "end_version", self.end_version),
        )

    def decode_batch(self, data: bytes, key: str) -> Batch:
        """The key is for errors only."""
        known = self._batches.get(data)
        if known is None:
            known = self._batches[data] = decode_batch(data, key)
        return known

    def state_in(self, data: bytes | None, name: str) -> State:
        known = self._states.get((data, name))
        if known is None:
            known = self._states[data, name] = state_in(data, name)
        return known

    def replay(self, state: State, batch: Batch) -> State:
        if not state.version and state == (empty := self.state_in(None, "")):
            state = empty
        known = self._replays.get((id(state), id(batch)))
        if known is None:
            known = self._replays[id(state), id(batch)] = (state, batch, replay(state, batch))
        return known[2]

    def folded(self, state: State) -> State:
        known = self._folded.get(id(state))
        if known is None:
            known = self._folded[id(state)] = (state, folded(state))
        return known[1]

    def digest(self, state: State) -> str:
        known = self._digests.get(id(state))
        if known is None:
            known = self._digests[id(state)] = (state, state_digest(state))
        return known[1]

    def objects(self, state: State) -> dict[str, ObjectRow]:
        """The rows of a state's objects, which are in columns."""
        known = self._rows.get(id(state))
        if known is None:
            known = self._rows[id(state)] = (state, dict(state.objects.items()))
        return known[1]

    def end_version(self, state: State, batch: Batch, new: State) -> State:
        """The state of a writer must be that of a reader."""
        read = self.replay(state, self.decode_batch(encode_batch(batch), log_key(state.version + 1)))
        if end_version(state, batch, new) != read:
            raise Violation(f"state: the writer of version {read.version} has another one than its readers")
        return read
