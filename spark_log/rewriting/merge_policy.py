"""Which slices of one partition merging rewrites together.  Pure.

Retention removes whole slices from the front, so a slice stays until the newest record at or before its end has
expired. Merging must not delay that much.  Therefore time is divided into windows, a slice belongs to the window of
the newest record at or before its end, and only slices of one window are merged: a record stays at most one window
longer than without merging.  Windows never decrease along a partition, whatever the order of the timestamps.  So late
records do not stop merging, and a record with a future timestamp delays only the records after it.

Within a window, adjacent slices with the same kind of timestamps are merged, except slices of at least half the target,
and slices that cannot be read:

* In a group that no further slices can join, all slices are merged: they are written once more, for the last time.
* The group at the end of the partition still grows.  A slice there is rewritten once the slices after it together have
  reached its size.  So each waiting slice is larger than all slices after it together, and each rewrite of data at
  least doubles the size of its slice.  With n as the ratio of the largest slice to the smallest, at most 1 + log2 n
  slices wait, and merging writes at most 2 * (3 + log2 n) bytes for each byte that was appended (decision record 23).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby

from spark_log.configs.settings import has_cleanup_policy, topic_config
from spark_log.metadata.state import ObjectRow
from spark_log.model import CREATE_TIME, Slice

SEGMENT_BYTES = 128 << 20
"""Target size of merged segments, limited by `segment.bytes`."""
RETENTION_PARTS = 8
"""A window is at most this fraction of `retention.ms`, so merging delays retention by an eighth at most."""
WINDOWS_MAX = 1024
"""If the slices of a partition span more windows, the length of its windows is doubled until they do not."""


def window_ms(configs: Mapping[str, str]) -> int:
    """The time span of a merged segment in a topic with these configs."""
    length, age = int(topic_config(configs, "segment.ms")), int(topic_config(configs, "retention.ms"))
    if age >= 0 and has_cleanup_policy(configs, "delete"):
        length = min(length, age // RETENTION_PARTS)
    if has_cleanup_policy(configs, "compact"):
        length = min(length, int(topic_config(configs, "max.compaction.lag.ms")))
    return max(1, length)


def segment_target(configs: Mapping[str, str]) -> int:
    """The bytes of a merged segment in a topic with these configs."""
    return min(SEGMENT_BYTES, int(topic_config(configs, "segment.bytes")))


def active_segment(slices: Sequence[Slice], target: int, window_us: int) -> tuple[int, int]:
    """Find the slices at the end of a partition that later records may still join.

    They are the slices of the newest window, after the last full slice.  Returns how many slices come before them, and
    the end of the window in microseconds.  Arguments are as for `find_stretches`.
    """
    numbers, length = windows(slices, window_us)
    count = len(slices)
    while count and numbers[count - 1] == numbers[-1] and not _is_full(slices[count - 1], target):
        count -= 1
    return count, (numbers[-1] + 1) * length if numbers else 0


def find_stretches(
    slices: Sequence[Slice], target: int, window_us: int, thin: Collection[str], aside: Collection[int] = ()
) -> list[list[Slice]]:
    """Groups of adjacent slices of one partition that are worth rewriting; each group becomes one segment or more.

    slices:     all live slices, in offset order.
    target:     the size of a segment, in bytes.
    window_us:  the length of a time window, in microseconds.
    thin:       objects that are mostly dead: their slices are rewritten, whatever their size.
    aside:      the starts of slices that stay as they are.
    """
    found: list[list[Slice]] = []
    for group in _groups(slices, target, window_us, thin, aside):
        found += _outgrown(group, thin) if group[-1] is slices[-1] else [group]
    return [stretch for stretch in found if is_worth(stretch, thin)]


def is_worth(stretch: Sequence[Slice], thin: Collection[str]) -> bool:
    """Rewriting a single slice is only useful to remove its object."""
    return len(stretch) > 1 or (len(stretch) == 1 and stretch[0].object in thin)


def _groups(
    slices: Sequence[Slice], target: int, window_us: int, thin: Collection[str], aside: Collection[int]
) -> list[list[Slice]]:
    """Adjacent slices that may be merged: of one window and one kind of timestamps, none of them full or set aside."""

    def kind(placed: tuple[Slice, int]) -> tuple[bool, int, bool]:
        piece, window = placed
        stays = piece.start in aside or (_is_full(piece, target) and piece.object not in thin)
        return stays, window, piece.time_kind == CREATE_TIME

    groups = groupby(zip(slices, windows(slices, window_us)[0], strict=True), kind)
    return [[piece for piece, _ in group] for (stays, _, _), group in groups if not stays]


def _is_full(piece: Slice, target: int) -> bool:
    return 2 * piece.length >= target


def windows(slices: Sequence[Slice], length: int) -> tuple[list[int], int]:
    """The window of each slice, that of the newest record at or before its end; and the length of the windows."""
    newest = list(accumulate((piece.max_us for piece in slices), max))
    while len({at // length for at in newest}) > WINDOWS_MAX:
        length *= 2
    return [at // length for at in newest], length


def _outgrown(group: list[Slice], thin: Collection[str]) -> Iterator[list[Slice]]:
    """In a group that may still grow: slices of thin objects, and the end that has outgrown the slices before it."""
    start, rest = 0, sum(piece.length for piece in group)
    for piece in group:
        rest -= piece.length
        if rest >= piece.length:
            break
        start += 1
    for is_thin, some in groupby(group[:start], lambda piece: piece.object in thin):
        if is_thin:
            yield list(some)
    yield group[start:]


def thin_objects(objects: Mapping[str, ObjectRow], live: Mapping[str, int]) -> frozenset[str]:
    """Objects of which less than half is live; live: bytes of the live slices of each."""
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
