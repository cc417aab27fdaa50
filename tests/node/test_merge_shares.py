"""A merge in shares has the result of one merge of the whole log."""

from __future__ import annotations

from pathlib import Path

from spark_log import Log, TopicPartition, connect
from spark_log.journal.proposal import Context
from spark_log.journal.sealing import prune
from spark_log.journal.store_operations import Steps
from spark_log.metadata.state import State, TopicKey
from spark_log.node.failure_isolation import Failures
from spark_log.node.maintain import maintain_once, merge, merge_share, plan_merge_shares
from spark_log.node.merge_shares import SLICE_WORK, MergeShare, plan_shares
from spark_log.node.verify import verify
from tests.node.logs import append_small, new_log, slices, upkeep

PARTITIONS = 6


def planned(log: Log, *, share_work: int) -> list[MergeShare]:
    """Small shares."""

    def duty(state: State, context: Context) -> Steps[list[MergeShare]]:
        return plan_shares(state, share_work=share_work)

    return upkeep(log.journal, duty)


def merge_each(log: Log, shares: list[MergeShare]) -> int:
    """Merge each share with another handle.  Returns the number of replaced slices."""
    failures = Failures(log.url)
    replaced = sum(merge_share(connect(log.url, durability="os"), share, failures).slices for share in shares)
    assert failures.problems == []
    return replaced


def keys_of(shares: list[MergeShare]) -> list[TopicKey]:
    return sorted(key for share in shares for key in share.keys)


def test_shares_merge_what_one_merge_does(tmp_path: Path) -> None:
    """Each partition is in one share, and has the same slices and records afterwards as after one merge of all."""
    logs = [new_log(tmp_path / name, partitions=PARTITIONS) for name in ("shares", "whole")]
    for log in logs:
        append_small(log, 12, partitions=PARTITIONS)
    shares = planned(logs[0], share_work=30 * SLICE_WORK)
    assert len(shares) == 3
    assert keys_of(shares) == sorted(logs[0].journal.state.partitions)
    before = logs[0].read("t")
    assert merge_each(logs[0], shares) == merge(logs[1]).slices == 12 * PARTITIONS
    ranges = [[[(one.start, one.end) for one in slices(log, p)] for p in range(PARTITIONS)] for log in logs]
    assert ranges[0] == ranges[1]
    assert logs[0].read("t").equals(before)
    assert verify(logs[0], deep=True) == []


def test_a_share_that_was_merged_before_has_nothing_to_do(tmp_path: Path) -> None:
    """Two tasks may get the same share, as with speculation; a topic may have been deleted since the plan."""
    log = new_log(tmp_path, partitions=PARTITIONS)
    append_small(log, 12, partitions=PARTITIONS)
    shares = plan_merge_shares(log, Failures(log.url))
    assert [len(share.keys) for share in shares] == [PARTITIONS]
    assert merge_each(log, shares) == 12 * PARTITIONS
    assert merge_each(log, shares) == 0
    log.admin.delete_topics(["t"])
    maintain_once(log)
    assert merge_each(log, shares) == 0


def test_objects_that_are_mostly_dead_are_freed_by_several_shares(tmp_path: Path) -> None:
    """An object of six partitions, of which four are trimmed: two shares rewrite the rest, although neither has enough
    partitions to find out that the object is mostly dead.
    """
    log = new_log(tmp_path, partitions=PARTITIONS)
    append_small(log, 12, partitions=PARTITIONS)
    merge(log)
    (shared,) = log.journal.refresh().objects
    log.admin.delete_records({TopicPartition("t", number): 36 for number in range(1, PARTITIONS - 1)})
    shares = planned(log, share_work=1)
    assert [share.thin for share in shares] == [frozenset([shared])] * 2
    assert merge_each(log, shares[:1]) == 1
    assert shared in log.journal.refresh().objects
    assert merge_each(log, shares[1:]) == 1
    upkeep(log.journal, prune)
    assert shared not in log.journal.refresh().objects
    assert log.read("t").num_rows == 2 * 36


def test_a_damaged_partition_leaves_the_others(tmp_path: Path) -> None:
    """It is named, and the others of its share are merged."""
    log = new_log(tmp_path, partitions=2)
    append_small(log, 12, partitions=2)
    first = log.journal.refresh().partitions[log.journal.state.names["t"], 0].entries[0]
    path = tmp_path / first.object
    data = bytearray(path.read_bytes())
    data[first.position + first.length // 2] ^= 255
    path.write_bytes(data)
    failures = Failures(log.url)
    (share,) = plan_merge_shares(log, failures)
    tally = merge_share(log, share, failures)
    assert len(failures.problems) == 1 and "t-0" in failures.problems[0]
    assert tally.slices == 12
    assert [len(slices(log, number)) for number in range(2)] == [12, 1]
