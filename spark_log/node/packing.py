"""Which slices merging rewrites together.  Pure.

A slice of half the target or more stays as it is, so that no record is rewritten for ever.  Of smaller neighbours whose
timestamps are of the same kind one segment is made, or several.

The tail of a topic that is written all the time grows by tiers: a slice above 16 MiB is rewritten only when the slices after
it have gathered a quarter of its size.  A record is so rewritten a few times on its way to a full segment, not at every
`maintain`, and behind the last full segment there are a few slices, not one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from spark_log.metadata.state import ObjectRow
from spark_log.model import CREATE_TIME, Slice

SEGMENT_BYTES = 128 << 20
"""How large merging makes a segment, where `segment.bytes` allows it."""
ALWAYS_BYTES = 16 << 20
"""A slice up to this size is rewritten with any that follow."""
TIER = 4


def find_stretches(slices: Iterable[Slice], target: int, thin: Collection[str]) -> list[list[Slice]]:
    """Neighbouring slices of one partition to be rewritten together, each list into one segment or more.

    slices:  in offset order.
    target:  bytes of a segment.
    thin:    objects of which little is alive: their slices are rewritten whatever their size.
    """
    found: list[list[Slice]] = [[]]
    for piece in slices:
        if 2 * piece.length >= target and piece.object not in thin:
            found.append([])
            continue
        if found[-1] and _is_created(piece) != _is_created(found[-1][-1]):
            found.append([])
        found[-1].append(piece)
    light = [_without_heavy_head(stretch, thin) for stretch in found if stretch]
    return [stretch for stretch in light if is_worth(stretch, thin)]


def is_worth(stretch: Sequence[Slice], thin: Collection[str]) -> bool:
    """One slice alone is rewritten only to get rid of its object."""
    return len(stretch) > 1 or (len(stretch) == 1 and stretch[0].object in thin)


def _is_created(piece: Slice) -> bool:
    return piece.time_kind == CREATE_TIME


def _without_heavy_head(stretch: Sequence[Slice], thin: Collection[str]) -> list[Slice]:
    rest = sum(piece.length for piece in stretch)
    for number, piece in enumerate(stretch):
        rest -= piece.length
        if piece.length <= ALWAYS_BYTES or TIER * rest >= piece.length or piece.object in thin:
            return list(stretch[number:])
    return []


def thin_objects(objects: Mapping[str, ObjectRow], live: Mapping[str, int]) -> frozenset[str]:
    """Objects of which less than half is alive; live: bytes of the live slices of each."""
    return frozenset(
        name for name, size in live.items() if size > 0 and name in objects and 2 * size < objects[name].index_position
    )


def live_bytes(groups: Iterable[Iterable[Slice]]) -> Counter[str]:
    """Bytes of the slices of each object."""
    live: Counter[str] = Counter()
    for slices in groups:
        for piece in slices:
            live[piece.object] += piece.length
    return live
