"""The batches that a leader of a quorum has decided on, and that are not final yet.  Pure.

The next batch is decided on the state after all of them.  A reply is sent when the batch is final on which it depends,
also the reply of a command that wrote nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.replay import replay
from spark_log.metadata.state import State

Reply = TypeVar("Reply")


@dataclass(slots=True)
class Offer(Generic[Reply]):
    """A batch in the log of the quorum."""

    index: int
    data: bytes
    state: State
    """The state after it, if it becomes final."""
    replies: list[Reply] = field(default_factory=list)


class Pipeline(Generic[Reply]):
    """A final state, and the offers after it, in the order of the log."""

    def __init__(self, state: State) -> None:
        self.state = state
        """After all batches that are final."""
        self._offers: deque[Offer[Reply]] = deque()

    def __len__(self) -> int:
        return len(self._offers)

    @property
    def newest(self) -> State:
        """The state on which the next batch is decided."""
        return self._offers[-1].state if self._offers else self.state

    def offer(self, offer: Offer[Reply]) -> None:
        """Add a batch that was decided on `newest`."""
        if self._offers and offer.index <= self._offers[-1].index:
            raise AssertionError(
                f"batch {offer.index} is offered after {self._offers[-1].index}: a log grows at its end"
            )
        self._offers.append(offer)

    def attach(self, replies: Iterable[Reply]) -> bool:
        """Let replies wait for `newest` to be final; False if it is final."""
        if self._offers:
            self._offers[-1].replies.extend(replies)
        return bool(self._offers)

    def final(self, index: int, data: bytes) -> Offer[Reply] | None:
        """Take note that a batch is final.  Returns the offer of this batch, whose state is final now.

        Returns None if the batch was not offered here; the caller then sets `state`.  Offers that can never become
        final stay until `truncated`.
        """
        first = self._offers[0] if self._offers else None
        if first is None or first.index != index or first.data != data:
            return None
        self._offers.popleft()
        self.state = first.state
        return first

    def truncated(self, index: int) -> list[Reply]:
        """The replies of the offers from an index on, which will never be final."""
        removed: list[Reply] = []
        while self._offers and self._offers[-1].index >= index:
            removed = self._offers.pop().replies + removed
        return removed

    def unknown(self, index: int) -> list[Reply]:
        """The replies of an offer, and of those before it, whose fate will not be known here."""
        lost: list[Reply] = []
        while self._offers and self._offers[0].index <= index:
            lost += self._offers.popleft().replies
        return lost

    def rebase(self, state: State) -> None:
        """Replace the final state by an equal one, and those after it."""
        self.state = state
        for offer in self._offers:
            offer.state = state = replay(state, decode_batch(offer.data, "a batch that is not final"))
