"""A merge in shares has the result of one merge of the whole log."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulation.harness.stores import ControlledStore
from spark_log import Log, NewTopic, TopicPartition, connect
from spark_log.errors import InvalidRequest
from spark_log.journal.context import Context
from spark_log.journal.failure_isolation import Failures, ReportedFailures
from spark_log.journal.journal import Journal
from spark_log.journal.sealing import prune
from spark_log.journal.store_operations import Steps
from spark_log.maintenance.maintain import Maintainer, compact, maintain_once, maintain_round, merge, merge_share
from spark_log.maintenance.workers import CompactionShare
from spark_log.metadata.state import State, TopicKey
from spark_log.recovery.verify import verify
from spark_log.rewriting.compaction_rounds import CompactionTally
from spark_log.rewriting.merge import Tally
from spark_log.rewriting.merge_shares import SHARE_WORK, SLICE_WORK, MergeShare, plan_shares
from spark_log.store.open import open_store
from tests.maintenance.logs import HOUR_MS, append_small, maintenance, new_log, slices

PARTITIONS = 6


def planned(log: Log, *, share_work: int = SHARE_WORK) -> list[MergeShare]:

    def duty(state: State, context: Context) -> Steps[list[MergeShare]]:
        return plan_shares(state, share_work=share_work)

    return maintenance(log.journal, duty)


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
    shares = planned(log)
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
    maintenance(log.journal, prune)
    assert shared not in log.journal.refresh().objects
    assert log.read("t").num_rows == 2 * 36


def test_a_damaged_partition_leaves_the_others(tmp_path: Path) -> None:
    """Its damaged object is named, and left as it is; the others of the share are merged."""
    log = new_log(tmp_path, partitions=2)
    append_small(log, 12, partitions=2)
    first = log.journal.refresh().partitions[log.journal.state.names["t"], 0].entries[0]
    path = tmp_path / first.object
    data = bytearray(path.read_bytes())
    data[first.position + first.length // 2] ^= 255
    path.write_bytes(data)
    failures = Failures(log.url)
    (share,) = planned(log)
    tally = merge_share(log, share, failures)
    assert len(failures.problems) == 1 and "t-0" in failures.problems[0]
    assert tally.slices == 23
    assert share.aside.objects == (first.object,)
    assert [len(slices(log, number)) for number in range(2)] == [2, 1]


class OtherHandles:
    """Workers that work one after another, each with another handle of the log."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.merged, self.compacted = list[MergeShare](), list[CompactionShare]()

    def merge(self, shares: Sequence[MergeShare]) -> Iterator[tuple[Tally, ReportedFailures]]:
        for share in shares:
            self.merged.append(share)
            failures = Failures(self._url)
            share = pickle.loads(pickle.dumps(share))  # as tasks get it
            yield merge_share(self._open(), share, failures), failures.reported(share.aside)

    def compact(self, shares: Sequence[CompactionShare]) -> Iterator[tuple[CompactionTally, ReportedFailures]]:
        for share in shares:
            self.compacted.append(share)
            failures = Failures(self._url)
            share = pickle.loads(pickle.dumps(share))  # as tasks get it
            yield compact(self._open(), share, failures=failures), failures.reported(share.aside)

    def _open(self) -> Log:
        return connect(self._url, durability="os")


COMPACT = {"cleanup.policy": "compact", "segment.ms": str(HOUR_MS), "min.cleanable.dirty.ratio": "0"}


def append_keyed(log: Log, commits: int, *, partitions: int = 1) -> None:
    """Records of one key, old enough for compaction."""
    old = int(time.time() * 1000) - 2 * HOUR_MS
    for number in range(commits):
        row = {"key": b"k", "value": b"%d" % number, "timestamp": old}
        log.append("c", [{**row, "partition": p} for p in range(partitions)])


# Promise: performance.md#large-topics
def test_a_round_with_workers_does_what_one_without_does(tmp_path: Path) -> None:
    """The same report and records; the next rounds give the workers only what has changed, and nothing at the end."""
    logs = [new_log(tmp_path / name, partitions=2) for name in ("workers", "alone")]
    for log in logs:
        log.create_topic(NewTopic("c", 2, COMPACT))
        append_small(log, 12, partitions=2)
        append_keyed(log, 4, partitions=2)
    workers = OtherHandles(logs[0].url)
    maintainer = Maintainer(logs[0], workers=workers)
    reports = [maintainer.round(), maintain_round(logs[1])]
    merged, removed = ([(one.merged_slices, one.segments) for one in reports], [r.removed_records for r in reports])
    assert merged[0] == merged[1] and removed[0] == removed[1] == 2 * 3
    assert logs[0].read("c", columns=["value"]).equals(logs[1].read("c", columns=["value"]))
    assert verify(logs[0], deep=True) == []
    given = len(workers.merged), len(workers.compacted)
    assert given[0] and given[1]
    for _ in range(2):
        maintainer.round()
    assert (len(workers.merged), len(workers.compacted)) == given
    append_small(logs[0], 12, first=12)
    report = maintainer.round()
    assert keys_of(workers.merged[given[0] :]) == [(logs[0].journal.state.names["t"], 0)] and report.problems == ()


def test_a_full_disk_that_only_the_workers_meet_is_reported(tmp_path: Path) -> None:
    """As one of the round: so its next step says what to do."""
    log, control = new_log(tmp_path / "log", partitions=2), tmp_path / "control"
    log.create_topic(NewTopic("c", 1, COMPACT))
    append_small(log, 12, partitions=2)
    append_keyed(log, 2)
    control.write_text("full")

    class OnAFullDisk(OtherHandles):
        def _open(self) -> Log:
            return Log(Journal.open(ControlledStore(open_store(log.url, None, "os"), control), create=False))

    report = maintain_round(log, workers=OnAFullDisk(log.url))
    assert report.no_space and {text.partition(" ")[0] for text in report.problems} == {"merging", "compacting"}
    control.unlink()
    report = maintain_round(log, workers=OnAFullDisk(log.url))
    assert (report.no_space, report.problems, report.merged_slices > 0) == (False, (), True)


def test_problems_of_workers_are_those_of_the_round(tmp_path: Path) -> None:
    """A share that fails leaves the others, and so does a whole call: the other duties are done."""
    log = new_log(tmp_path, partitions=2)
    append_small(log, 12, partitions=2)

    class Failing(OtherHandles):
        def merge(self, shares: Sequence[MergeShare]) -> Iterator[tuple[Tally, ReportedFailures]]:
            yield Tally(slices=3), ReportedFailures(("merging t-0 failed: damaged",) * 2, no_space=True)

        def compact(self, shares: Sequence[CompactionShare]) -> Iterator[tuple[CompactionTally, ReportedFailures]]:
            raise InvalidRequest("the tasks failed")

    report = maintain_round(log, workers=Failing(log.url))
    assert (report.problems, report.merged_slices, report.no_space) == (("merging t-0 failed: damaged",), 3, True)
    log.create_topic(NewTopic("c", 1, COMPACT))
    append_keyed(log, 2)
    problems = maintain_round(log, workers=Failing(log.url)).problems
    assert "compaction failed: the tasks failed" in problems
