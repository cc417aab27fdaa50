"""Size and time of a micro-batch: `maxOffsetsPerTrigger`, `maxBytesPerTrigger`, `minOffsetsPerTrigger`.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_log.client.reader.plan import Chunk
from spark_log.model import TopicPartition


def is_due(pending: int, least: int | None, *, now_ms: int, fired_ms: int | None, delay_ms: int) -> bool:
    """Whether `pending` records make a batch: at least `least`, or any if the last batch began `delay_ms` ago.

    The first batch of a query does not wait, nor does the first batch after the clock was set back.  If `least` is
    None, no batch waits.
    """
    if least is None or pending >= least or pending == 0:
        return True
    return fired_ms is None or not 0 <= now_ms - fired_ms < delay_ms


def share(limit: int, sizes: Mapping[TopicPartition, int], turn: int) -> dict[TopicPartition, int]:
    """Divide `limit` records among partitions in proportion to their backlogs.

    The sum is exact: `limit`, or the whole backlog if that is smaller.  Every partition with a backlog gets at least
    one record, as with Kafka's connector.  The rest is divided by largest remainder; of equal remainders, the larger
    backlog takes precedence.

    sizes:  the backlog of each partition, in records.
    turn:   a number that grows with the records returned, such as the sum of all offsets.  If more partitions have a
            backlog than `limit`, it decides which of them get a record.
    """
    waiting = {tp: size for tp, size in sizes.items() if size > 0}
    none = dict.fromkeys(sizes, 0)
    if sum(waiting.values()) <= limit:
        return none | waiting
    if len(waiting) > limit:
        order = sorted(sizes)
        at = turn % len(order)
        return none | dict.fromkeys([tp for tp in order[at:] + order[:at] if tp in waiting][:limit], 1)
    return none | _in_proportion(limit, waiting)


def _in_proportion(limit: int, sizes: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    rest, left = dict(sizes), limit
    while True:  # shares below one become one, which leaves less for the others
        total = sum(rest.values())
        small = [tp for tp, size in rest.items() if left * size < total]
        if not small:
            break
        left -= len(small)
        for tp in small:
            del rest[tp]
    shares = dict.fromkeys(sizes, 1) | {tp: left * size // total for tp, size in rest.items()}
    by_remainder = sorted(rest, key=lambda tp: (-(left * rest[tp] % total), -rest[tp], tp))
    for tp in by_remainder[: limit - sum(shares.values())]:
        shares[tp] += 1
    return shares


def byte_budgets(limit: int, sizes: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """`limit` bytes divided in proportion to backlogs."""
    total = sum(sizes.values())
    return dict(sizes) if total <= limit else {tp: max(1, limit * size // total) for tp, size in sizes.items()}


def end_within(budget: int, parts: Iterable[Chunk], *, cut: bool) -> int:
    """End of the first chunks that reach `budget` bytes, with at least one record; `cut` allows to cut the last one."""
    end = None
    for chunk in parts:
        if end is not None and budget <= 0:
            break
        rows = chunk.end - chunk.start
        taken = rows if not cut or chunk.bytes <= budget else rows * budget // chunk.bytes
        end = chunk.start + (max(taken, 1) if end is None else taken)
        budget -= chunk.bytes
    assert end is not None, "a partition without a backlog has no budget"
    return end
