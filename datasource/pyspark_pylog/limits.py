"""How far a micro-batch goes: `maxOffsetsPerTrigger` and `maxBytesPerTrigger`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_log.client.plan import SliceRead
from spark_log.model import TopicPartition


def share(limit: int, sizes: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """`limit` records shared out in proportion to backlogs, exactly: largest remainder.

    No partition gets more than it has, and the sum is the smaller of `limit` and the backlog.  What is cut off by rounding
    goes to the largest remainders, ties to the larger backlog; a partition that gets nothing gains on the others until it does.
    """
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    shares = {tp: limit * size // total for tp, size in sizes.items()}
    left = limit - sum(shares.values())
    by_remainder = sorted(sizes, key=lambda tp: (-(limit * sizes[tp] % total), -sizes[tp], tp))
    for tp in by_remainder[:left]:
        shares[tp] += 1
    return shares


def within_bytes(limit: int, reads: Sequence[SliceRead]) -> dict[TopicPartition, int]:
    """The end of each partition such that the reads up to there come to about `limit` bytes, shared by backlog in bytes.

    Every partition with a backlog moves by one record at least.
    """
    totals: dict[TopicPartition, int] = {}
    for read in reads:
        tp = TopicPartition(read.topic, read.partition)
        totals[tp] = totals.get(tp, 0) + read.bytes
    whole = sum(totals.values())
    budgets = {tp: size if whole <= limit else limit * size // whole for tp, size in totals.items()}
    ends: dict[TopicPartition, int] = {}
    for read in reads:
        tp = TopicPartition(read.topic, read.partition)
        if tp in ends and budgets[tp] <= 0:
            continue
        rows = read.end - read.start
        taken = rows if read.bytes <= budgets[tp] else rows * max(budgets[tp], 0) // read.bytes
        ends[tp] = read.start + (max(taken, 1) if tp not in ends else taken)
        budgets[tp] -= read.bytes
    return ends
