"""Pure functions of the log, computed once for the same arguments.

Twenty actors read the same records of the same log.  A replay is total and deterministic, and its state never changes:
so one replay on one state stands for all of them.  States that were made in another way, from a checkpoint, are still
replayed on.
"""

from __future__ import annotations

from spark_log.journal import commit_protocol, opening
from spark_log.journal.object_names import log_key
from spark_log.journal.opening import state_in
from spark_log.metadata.batch_format import decode_batch, encode_batch
from spark_log.metadata.records import Batch
from spark_log.metadata.replay import end_version, replay
from spark_log.metadata.state import ObjectRow, State
from spark_log.testing.mutation import Patch
from spark_log.testing.verdict import Violation


class Once:
    """The results in one run: a mutation of the next one may change what these functions return."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[State, dict[str, ObjectRow]]] = {}
        self._batches: dict[tuple[bytes, str], Batch] = {}
        self._states: dict[tuple[bytes | None, str], State] = {}
        self._replays: dict[tuple[int, int], tuple[State, Batch, State]] = {}
        """By the identities of a state and a batch, both of which are kept so that no other object gets these."""

    def patches(self) -> tuple[Patch, ...]:
        """For all that read the log, and for writers, which have replayed their records before."""
        return (
            Patch(opening, "state_in", self.state_in),
            Patch(opening, "decode_batch", self.decode_batch),
            Patch(opening, "replay", self.replay),
            Patch(commit_protocol, "end_version", self.end_version),
        )

    def decode_batch(self, data: bytes, key: str) -> Batch:
        known = self._batches.get((data, key))
        if known is None:
            known = self._batches[data, key] = decode_batch(data, key)
        return known

    def state_in(self, data: bytes | None, name: str) -> State:
        known = self._states.get((data, name))
        if known is None:
            known = self._states[data, name] = state_in(data, name)
        return known

    def replay(self, state: State, batch: Batch) -> State:
        known = self._replays.get((id(state), id(batch)))
        if known is None:
            known = self._replays[id(state), id(batch)] = (state, batch, replay(state, batch))
        return known[2]

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
