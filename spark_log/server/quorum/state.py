"""The state machine of a node of a quorum: its entries are batches of the metadata log.

A node applies the entries that are final.  The version of a state is the number of batches that it has applied; the
entries of the quorum itself, such as those of elections, are not among them.

A snapshot has the first line of the last batch, the id of a quorum that has taken the log over (`quorum_founding.py`),
and a checkpoint of the state after that batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.formats.checkpoint_format import checkpoint_parts, decode_checkpoint, folded
from spark_log.metadata.formats.state_digest import state_digest
from spark_log.metadata.replay import replay
from spark_log.metadata.state import State
from spark_log.quorum.node.node_config import DIGEST_MS
from spark_log.runtime.collector_pause import collector_paused
from spark_log.server.pending_commands import PendingCommands
from spark_log.server.quorum.pipeline import Offer, Pipeline
from spark_log.server.recent_records import RECORDS_BYTES, RecentRecords

STATES_MAX = 1_000
"""Versions whose states are kept, for tasks that have to read what others have read.  They share most rows."""
HELD_MAX = 64
"""Older versions whose states are kept as well, because queries read them: the last ones that were asked for."""
HELD_S = 3600.0
LEFT_FOR_THE_LOOP, TOGETHER = 20, 200
"""Batches that are applied again after a snapshot: on the event loop, which they delay, and in one step."""
OFTEN = 10
"""While nodes differ, states are compared so many times as often: one that was mended is known to be right soon."""
AnyOffer = Offer[PendingCommands]


class Content(NamedTuple):
    """The content of a snapshot."""

    state: State
    head: bytes = b""
    """First line of the record of its version; empty if not known."""
    founding: str = ""
    """The id of the quorum, if it has taken the log over; empty if it has begun the log."""

    def pieces(self) -> Iterator[bytes]:
        """Large maps of the state have to be in columns (`folded`)."""
        first = b"\t".join(filter(None, [self.head.rstrip(b"\n") or b" ", self.founding.encode()]))
        return map(bytes, chain([first, b"\n"], checkpoint_parts(self.state)))


def parse_snapshot(pieces: Iterable[bytes], name: str) -> Content:
    """Raises CorruptObject."""
    first, _, data = b"".join(pieces).partition(b"\n")
    head, _, founding = first.partition(b"\t")
    return Content(decode_checkpoint(data, name), head.strip(), founding.decode())


class QuorumState:
    """Implements `StateMachine`.  Belongs to the event loop of the node."""

    def __init__(
        self,
        applied: Callable[[AnyOffer | None], None],
        restored: Callable[[], None],
        later: Callable[[Callable[[], None]], None],
        to_compare: Callable[[State], None] = lambda state: None,
        digest_ms: int = DIGEST_MS,
    ) -> None:
        """
        applied:     called when there is a new state, with the offer that made it; None: another node made it.
        restored:    called in another thread, when a snapshot replaced the state.
        later:       runs a function on the event loop; called in other threads.
        to_compare:  called with a state that all nodes compare: the first one in each `digest_ms` of the log's time,
                     and one that is the newest for a tenth of that.
        """
        self.pipeline: Pipeline[PendingCommands] = Pipeline(State())
        self.records = RecentRecords()
        self.founding = ""
        """The id of the quorum, as in `Content`."""
        self._states: dict[int, State] = {}
        """The newest ones by version."""
        self._held: dict[int, tuple[State, float]] = {}
        """By version, with the time at which it is forgotten; the one that was asked for last is at the end."""
        self._holding = threading.Lock()
        self._applied, self._restored, self._later = applied, restored, later
        self._to_compare, self._digest_ms = to_compare, digest_ms
        self.is_compared_often = False
        """Nodes differ."""
        self._compared = 0
        """The last version that was compared; 0: none since the state was replaced."""
        self._looked_at, self._looked_at_s = 0, 0.0
        """The version that was last found to be the newest one, and when that was for the first time."""

    @property
    def final(self) -> State:
        return self.pipeline.state

    def apply(self, index: int, data: bytes) -> None:
        before, offer = self.final, self.pipeline.final(index, data)
        if offer is None:
            self.pipeline.state = replay(self.final, decode_batch(data, f"entry {index} of the quorum's log"))
        self.records.remember(self.final.version, data)
        self._states[self.final.version] = self.final
        self._states.pop(self.final.version - STATES_MAX, None)
        if any(self.final.time // interval_ms > before.time // interval_ms for interval_ms in self._intervals_ms):
            self._compare()
        self._applied(offer)

    @property
    def _intervals_ms(self) -> tuple[int, ...]:
        """Those of nodes that do not know of a difference are always among them."""
        return (self._digest_ms, self._short_ms) if self.is_compared_often else (self._digest_ms,)

    @property
    def _short_ms(self) -> int:
        return max(1, self._digest_ms // OFTEN)

    def compare_if_idle(self, now_s: float) -> None:
        """Compare a state that has been the newest one for some time.  To be called now and then.

        A node that was restarted on an idle log would not be compared for long.
        """
        version = self.final.version
        if version != self._looked_at:
            self._looked_at, self._looked_at_s = version, now_s
        elif version != self._compared and now_s >= self._looked_at_s + self._short_ms / 1000:
            self._compare()

    def _compare(self) -> None:
        self._compared = self.final.version
        self._to_compare(self.final)

    def state_at(self, version: int) -> State | None:
        """The state at a recent version; None if it is not kept.  May be called in any thread."""
        final, held = self.final, self._held.get(version)
        if final.version == version:
            return final
        return self._states.get(version) or (held[0] if held is not None else None)

    def hold(self, version: int, now_s: float) -> None:
        """Keep the state at a recent version for an hour, for a query whose tasks have agreed on it.

        May be called in any thread.
        """
        with self._holding:
            state = self.state_at(version)
            if state is not None:
                self._held.pop(version, None)
                self._held[version] = (state, now_s + HELD_S)
            self._forget_held(now_s)

    def forget_held(self, now_s: float) -> None:
        """Let go of those whose hour is over.  To be called now and then: a node may hear of no query any more."""
        with self._holding:
            self._forget_held(now_s)

    def _forget_held(self, now_s: float) -> None:
        newest = list(self._held.items())[-HELD_MAX:]
        self._held = {one: (kept, until_s) for one, (kept, until_s) in newest if until_s > now_s}

    def snapshot(self) -> Iterable[bytes]:
        state = self.final
        return self._pieces(state, self.records.head(state.version))

    def _pieces(self, state: State, head: bytes) -> Iterator[bytes]:
        """Runs in the thread of snapshots."""
        with collector_paused():
            compact = folded(state)
        yield from Content(compact, head, self.founding).pieces()
        self._keep(state, compact)

    def digest(self, state: State) -> str:
        """The digest of a state of `to_compare`.  To be called in a thread."""
        with collector_paused():
            compact = folded(state)
        found = state_digest(compact)
        self._keep(state, compact)
        return found

    def _keep(self, state: State, compact: State) -> None:
        """The node continues with the columns into which a recent state was put."""
        if compact is not state:
            compact = self._caught_up(compact, but=LEFT_FOR_THE_LOOP)
            self._later(lambda: self._rebase(compact))

    def _caught_up(self, state: State, but: int) -> State:
        """With the batches that were applied since, until there are no more than `but`, or they are not kept."""
        while (upto := self.final.version) - state.version > but:
            batches = self.records.after(state.version, min(upto, state.version + TOGETHER), RECORDS_BYTES)
            if not batches:
                break
            for data in batches:
                state = replay(state, decode_batch(data, f"version {state.version + 1} of the quorum's log"))
        return state

    def _rebase(self, compact: State) -> None:
        """On the event loop, so only some batches are left.  If it is too far behind, the next snapshot does this."""
        if self.final.version - compact.version <= TOGETHER:
            compact = self._caught_up(compact, but=0)
        if compact.version == self.final.version:
            self.pipeline.rebase(compact)

    def restore(self, pieces: Iterator[bytes]) -> None:
        state, head, self.founding = parse_snapshot(pieces, "a snapshot of the quorum")
        self.records.forget(state.version, head)
        self._states = {}
        self.pipeline.state = state
        self._compared = 0  # last: the event loop may compare the former state until then, at the same version
        self._restored()
