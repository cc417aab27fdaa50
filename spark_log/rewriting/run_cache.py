"""Runs of small objects that several packs of a rewrite need: each object is read once.

An object of a job that writes many topics has a short run of each of their partitions, and these partitions are
rewritten in several packs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_log.errors import StorageUnavailable
from spark_log.journal.store_operations import Steps
from spark_log.model import Slice
from spark_log.rewriting.slice_reads import WHOLE_BYTES_MAX, Blobs, read_runs

HELD_BYTES = 64 << 20
"""Memory for runs that are read before their packs are written."""


class HeldRuns:
    """The runs of one rewrite."""

    def __init__(self, packs: Iterable[Sequence[Slice]]) -> None:
        """
        packs:  the slices of each pack.
        """
        self._unread = _shared_objects(packs)
        self._held: Blobs = {}

    def fetch(self, slices: Iterable[Slice]) -> Steps[None]:
        """Read what all packs need of the objects of these slices, unless it was read before."""
        names = dict.fromkeys(piece.object for piece in slices)
        wanted = [piece for name in names for piece in self._unread.pop(name, ())]
        try:
            found = yield from read_runs(wanted)
        except StorageUnavailable:
            raise
        except Exception:  # noqa: BLE001  each pack reads its slices, and reports those that cannot be read
            return
        self._held |= found

    def read(self, slices: Sequence[Slice]) -> Steps[Blobs]:
        """The runs of a pack, as from `read_runs`.  They are not held any more."""
        keys = [(piece.object, piece.position) for piece in slices]
        found = {key: self._held.pop(key) for key in keys if key in self._held}
        others = [piece for key, piece in zip(keys, slices, strict=True) if key not in found]
        return found | (yield from read_runs(others))


def _shared_objects(packs: Iterable[Sequence[Slice]]) -> dict[str, list[Slice]]:
    """The slices of small objects that several packs need, of as many objects as may be held."""
    slices: dict[str, list[Slice]] = {}
    packs_of: dict[str, set[int]] = {}
    for number, pack in enumerate(packs):
        for piece in pack:
            slices.setdefault(piece.object, []).append(piece)
            packs_of.setdefault(piece.object, set()).add(number)
    left = HELD_BYTES
    found: dict[str, list[Slice]] = {}
    for name, pieces in slices.items():
        size = sum(piece.length for piece in pieces)
        span = max(piece.position + piece.length for piece in pieces) - min(piece.position for piece in pieces)
        if len(packs_of[name]) > 1 and span <= WHOLE_BYTES_MAX and size <= left:
            found[name] = pieces
            left -= size
    return found
