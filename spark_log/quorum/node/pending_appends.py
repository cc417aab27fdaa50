"""Appends that wait until their entries are final."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from spark_log.errors import NotLeaderOrFollower
from spark_log.quorum.messages import Entry, ReplicaKey


class PendingAppends:
    """By offset; each future gets the offset of its entry, or an error."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[int, asyncio.Future[int]]] = {}
        """Epoch and future by offset."""

    def add(self, offset: int, epoch: int, future: asyncio.Future[int]) -> None:
        self._waiting[offset] = epoch, future

    def final(self, entry: Entry) -> None:
        """An entry is committed, and was applied."""
        epoch, future = self._waiting.pop(entry.offset, (0, None))
        if future is None or future.done():
            return
        if epoch == entry.epoch:
            future.set_result(entry.offset)
        else:
            future.set_exception(_removed(entry.offset))

    def truncated(self, end: int) -> None:
        """Entries from an offset on were removed: they will never be committed."""
        for offset, future in self._take(offset for offset in self._waiting if offset >= end):
            future.set_exception(_removed(offset))

    def skipped(self, end: int) -> None:
        """A snapshot covers the entries before an offset: nobody knows which of them it has."""
        for offset, future in self._take(offset for offset in self._waiting if offset < end):
            future.set_exception(unknown(f"a snapshot covers entry {offset}"))

    def waiting(self) -> Mapping[int, int]:
        """The epochs of those that wait now, by offset."""
        return {offset: epoch for offset, (epoch, _) in self._waiting.items()}

    def give_up(self, those: Mapping[int, int], why: str) -> None:
        """Those of these that still wait.  Another entry may have the offset by now, if this replica leads again."""
        left = [offset for offset, epoch in those.items() if self._waiting.get(offset, (None,))[0] == epoch]
        for offset, future in self._take(left):
            future.set_exception(unknown(f"entry {offset} is not committed yet: {why}"))

    def _take(self, offsets: Iterable[int]) -> list[tuple[int, asyncio.Future[int]]]:
        found = [(offset, self._waiting.pop(offset)[1]) for offset in list(offsets)]
        return [(offset, future) for offset, future in found if not future.done()]


def not_leader(leader: ReplicaKey | None, epoch: int) -> NotLeaderOrFollower:
    """Nothing was appended."""
    return NotLeaderOrFollower(
        f"this node does not lead; {'no leader is known' if leader is None else f'node {leader.id} does'}",
        leader=None if leader is None else leader.id,
        epoch=epoch,
    )


def _removed(offset: int) -> NotLeaderOrFollower:
    return NotLeaderOrFollower(
        f"this node does not lead any more, and entry {offset} was removed", leader=None, epoch=0
    )


def unknown(why: str) -> NotLeaderOrFollower:
    error = NotLeaderOrFollower(f"{why}; append it again under the same id", leader=None, epoch=0)
    error.maybe_applied = True
    return error
