"""Maintenance goes round a slice index that cannot be read, and one command gives up exactly its offsets."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from simulation.harness.clocks import ManualClock
from spark_log import Log, NewTopic, TopicPartition, connect
from spark_log.errors import CorruptObject, ObjectNotFound
from spark_log.journal.sealing import seal
from spark_log.maintenance.maintain import Maintainer, maintain_once, plan_round
from spark_log.metadata.records import Piece
from spark_log.model import Slice
from spark_log.recovery.verify import verify
from spark_log.recovery.verify_repair import Verified, verify_and_repair
from spark_log.store.memory import MemoryStore
from tests.client.replicated import commit_copies, with_copies
from tests.maintenance.logs import HOUR_MS, append_small, maintenance, new_log, pass_the_fence
from tests.maintenance.test_set_aside import Harm, append, latest, opened

COMPACT = {"cleanup.policy": "compact", "segment.ms": str(HOUR_MS), "min.cleanable.dirty.ratio": "0"}
HOW = ["damaged", "missing"]


def entries(log: Log, topic: str = "t", partition: int = 0) -> list[Slice | Piece]:
    state = log.journal.refresh()
    return list(state.partitions[state.names[topic], partition].entries)


def sealed(log: Log) -> Piece:
    """Seal all slices of "t"; the last index."""
    maintenance(log.journal, seal)
    return next(entry for entry in reversed(entries(log)) if isinstance(entry, Piece))


def values(log: Log, *, start: int | str = "earliest") -> list[bytes]:
    return [row["value"] for row in log.read("t", start=start, columns=["value"]).to_pylist()]


@pytest.fixture(params=HOW)
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Three commits before the index, four in it, five after it."""
    return new_log(tmp_path / "log")


def with_harm(log: Log, how: str) -> tuple[Harm, Piece]:
    append_small(log, 40)
    sealed(log)
    append_small(log, 4, first=40)
    piece = sealed(log)
    append_small(log, 5, first=44)
    assert len([entry for entry in entries(log) if isinstance(entry, Piece)]) == 2
    harm = Harm(log.journal.objects, how)
    harm.do(piece.object)
    return harm, piece


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_what_is_on_both_sides_is_merged_and_sealed(log: Log, how: str) -> None:
    """The failure is named once; the entry stays as it is; and all is read again when it is restored."""
    harm, piece = with_harm(log, how)
    assert plan_round(log).merged_slices > 0
    maintainer = Maintainer(log)
    (problem,) = maintainer.round().problems
    assert problem.startswith("reading the slice index of t-0 failed: ") and piece.object in problem
    assert f"offsets {piece.start} to {piece.end - 1} of topic 't'" in problem and "--lose-data" in problem
    before, kept, after = entries(log)
    assert isinstance(before, Slice) and kept == piece and isinstance(after, Slice)
    append_small(log, 3, first=49)
    report = maintainer.round()
    assert (report.problems, report.set_aside) == ((), (piece.object,))
    maintenance(log.journal, seal)
    assert piece in entries(log) and isinstance(entries(log)[-1], Piece)
    assert values(log, start=piece.end)[0] == b"%d" % piece.end
    harm.heal()
    assert [value.decode() for value in values(log)] == [str(number) for number in range(156)]
    assert verify(log, deep=True) == []
    assert Maintainer(log).round().set_aside == ()
    assert piece not in entries(log)
    assert verify(log, deep=True) == []


def test_the_next_process_does_not_name_it_again(log: Log, how: str) -> None:
    _, piece = with_harm(log, how)
    with pytest.raises((CorruptObject, ObjectNotFound), match="reading|slice index|missing"):
        maintain_once(log)
    for number in range(3):
        append_small(log, 2, first=49 + 2 * number)
        assert maintain_once(log).set_aside == (piece.object,)


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_retention_goes_past_it_when_its_records_have_expired(log: Log, how: str) -> None:
    _, piece = with_harm(log, how)
    log.admin.incremental_alter_configs({"t": {"retention.bytes": "1"}})
    assert all("retention" not in problem for problem in Maintainer(log).round().problems)
    state = log.journal.refresh()
    assert state.partitions[state.names["t"], 0].start >= piece.end
    assert verify(log, deep=True) == []


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_compaction_leaves_it_out(how: str) -> None:
    """Records on both sides are compacted; no key loses its latest record, and all is compacted when it is restored."""
    clock = ManualClock()
    log = opened(MemoryStore(uuid.uuid4().hex), clock)
    log.create_topic(NewTopic("t", 1, COMPACT))
    for number in range(8):
        append(log, [("a", f"{number}"), ("b", f"{number}")])
    sealed(log)
    append(log, [("a", "in"), ("c", "in")])
    piece = sealed(log)
    for number in range(4):
        append(log, [("b", f"new{number}")])
    harm = Harm(log.journal.objects, how)
    harm.do(piece.object)
    maintainer = Maintainer(log)
    report = maintainer.round()
    assert (report.uncleanable, report.set_aside, len(report.problems)) == (("t-0",), (piece.object,), 1)
    assert report.removed_records == 7 + 8 + 3, "all but the newest a and b that can be read"
    append(log, [("b", "newest")])
    clock.sleep_ms(2 * HOUR_MS)
    report = maintainer.round()
    assert report.problems == () and report.removed_records >= 1
    harm.heal()
    for _ in range(3):
        clock.sleep_ms(2 * HOUR_MS)
        report = maintainer.round()
    assert (report.uncleanable, report.set_aside) == ((), ())
    assert latest(log) == {b"a": b"in", b"c": b"in", b"b": b"newest"}
    assert log.read("t").num_rows == 3
    assert verify(log, deep=True) == []


def test_slices_on_both_sides_of_an_object_that_cannot_be_read_are_compacted() -> None:
    """Both lose records, and they do not become one segment."""
    log = opened(MemoryStore(uuid.uuid4().hex), ManualClock())
    log.create_topic(NewTopic("t", 1, COMPACT))
    append(log, [("a", "1"), ("b", "1")])
    append(log, [("x", "1")])
    append(log, [("a", "2"), ("b", "2")])
    append(log, [("a", "3"), ("b", "3")])
    harm = Harm(log.journal.objects)
    bad = harm.do(entries(log)[1].object)
    report = Maintainer(log).round()
    assert (len(report.problems), report.set_aside) == (1, (bad,)), report.problems
    assert report.removed_records == 4
    harm.heal()
    assert latest(log) == {b"a": b"3", b"b": b"3", b"x": b"1"}
    assert verify(log, deep=True) == []


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_an_erasure_erases_what_it_can_read_and_names_it(log: Log, how: str) -> None:
    harm, piece = with_harm(log, how)
    report = log.admin.erase_records("t", [b"k1"])
    assert f"offsets {piece.start} to {piece.end - 1}" in str(report.problems)
    assert not any(row["key"] == b"k1" for row in log.read("t", start=piece.end).to_pylist())
    harm.heal()
    assert log.admin.erase_records("t", [b"k1"]).problems == ()
    assert not any(row["key"] == b"k1" for row in log.read("t").to_pylist())
    assert verify(log, deep=True) == []


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_verify_names_the_offsets_and_a_command_gives_them_up(log: Log, how: str, tmp_path: Path) -> None:
    """Exactly these; the objects that only it named are deleted."""
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    _, piece = with_harm(log, how)
    where = f"offsets {piece.start} to {piece.end - 1} of topic 't', partition 0"
    (named,) = [problem.message for problem in verify(log) if problem.what == piece.object and where in problem.message]
    assert "`pylog verify --repair --lose-data`" in named
    found = verify_and_repair(log, deep=True, repair=True, lose_data=True)
    assert found.problems == ()
    assert [tuple(one) for one in found.given_up] == [("t", 0, piece.start, piece.end)]
    kept = [*range(piece.start), *range(piece.end, 147)]
    assert [int(value) for value in values(log)] == kept
    assert log.admin.describe_topics(["t"])["t"].partitions[0].lost == ((piece.start, piece.end),)
    pass_the_fence(log)
    assert verify(log, deep=True) == []
    state = log.journal.refresh()
    assert set(log.journal.objects.list("data/")) == {*state.objects, *state.dropped}
    assert [int(value) for value in values(log)] == kept
    assert verify_and_repair(log, repair=True, lose_data=True).given_up == ()


def test_several_indexes_are_given_up_together(tmp_path: Path, how: str) -> None:
    """Two partitions share an index, and another one is lost; objects that only they named go with the last."""
    log = new_log(tmp_path / "log", partitions=2)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    append_small(log, 40, partitions=2)
    sealed(log)
    append_small(log, 4, first=40, partitions=2)
    sealed(log)
    harm = Harm(log.journal.objects, how)
    for entry in (*entries(log), *entries(log, partition=1)):
        harm.do(entry.object)
    append_small(log, 2, first=44, partitions=2)
    maintainer = Maintainer(log)
    assert len(maintainer.round().problems) == len(set(maintainer.round().set_aside)) == 2
    found = verify_and_repair(log, deep=True, repair=True, lose_data=True)
    assert len(found.given_up) == 2 and found.problems == ()
    pass_the_fence(log)
    assert verify(log, deep=True) == []
    assert set(log.journal.objects.list("data/")) == {
        *log.journal.refresh().objects,
        *log.journal.refresh().dropped,
    }
    for partition in (0, 1):
        assert log.read("t", partition=partition).num_rows == 6


@pytest.mark.parametrize("is_known", [True, False])
def test_objects_of_a_pruned_index_go_when_the_other_one_is_restored(how: str, is_known: bool) -> None:
    """The process that had set the other one aside drops them, or the command: they may have erased records."""
    clock = ManualClock()
    log = opened(MemoryStore(uuid.uuid4().hex), clock)
    log.create_topic(NewTopic("t", 1, {"retention.ms": "-1"}))
    append_small(log, 40)
    first = sealed(log)
    append_small(log, 4, first=40)
    second = sealed(log)
    append_small(log, 2, first=44)
    Harm(log.journal.objects, how).do(first.object)
    harm = Harm(log.journal.objects, how)
    harm.do(second.object)
    log.admin.delete_records({TopicPartition("t", 0): first.end})
    maintainer = Maintainer(log)
    maintainer.round()
    harm.heal()
    clock.sleep_ms(2 * HOUR_MS)
    if is_known:
        maintainer.round()
    else:
        left = [problem for problem in verify(log) if "`pylog verify --repair --lose-data`" in problem.message]
        assert len(left) == 40
        assert verify_and_repair(log, repair=True, lose_data=True) == Verified(())
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for _ in range(3):
        clock.sleep_ms(HOUR_MS)
        maintain_once(log)
    assert verify(log, deep=True) == []
    assert set(log.journal.objects.list("data/")) == {*log.journal.refresh().objects}
    assert [int(value) for value in values(log)] == list(range(120, 138))


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_without_the_disk_nothing_is_given_up(log: Log, tmp_path: Path) -> None:
    """All indexes would be missing."""
    with_harm(log, "damaged")
    (tmp_path / "log" / "meta" / "format").rename(tmp_path / "format")
    version = log.journal.state.version
    with pytest.raises(Exception, match="mounted|meta/format|not the root|id"):
        verify_and_repair(log, repair=True, lose_data=True)
    (tmp_path / "format").rename(tmp_path / "log" / "meta" / "format")
    assert log.journal.refresh().version == version


def test_a_topic_with_a_damaged_index_is_described(log: Log, how: str) -> None:
    with_harm(log, how)
    (part,) = log.admin.describe_topics(["t"])["t"].partitions
    assert part.end == 147 and part.bytes > 0


def test_other_partitions_with_a_damaged_index_are_sealed(tmp_path: Path, how: str) -> None:
    log = new_log(tmp_path / "log", partitions=2)
    append_small(log, 4, partitions=1)
    piece = sealed(log)
    Harm(log.journal.objects, how).do(piece.object)
    append_small(log, 4, first=4, partitions=2)
    maintenance(log.journal, seal)
    assert all(isinstance(entry, Piece) for number in (0, 1) for entry in entries(log, partition=number))
    assert entries(log)[0] == piece


def test_a_trim_inside_it_and_one_past_it(log: Log, how: str) -> None:
    _, piece = with_harm(log, how)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    log.admin.delete_records({TopicPartition("t", 0): piece.start + 2})
    maintainer = Maintainer(log)
    maintainer.round()
    assert maintainer.round().problems == ()
    found = verify_and_repair(log, deep=True, repair=True, lose_data=True)
    assert [(one.start, one.end) for one in found.given_up] == [(piece.start, piece.end)]
    assert [int(value) for value in values(log)] == list(range(piece.end, 147))
    pass_the_fence(log)
    assert verify(log, deep=True) == []


def test_the_copies_of_a_log_with_brokers_are_given_up(tmp_path: Path, how: str) -> None:
    """Its segments are on other roots, which lose them; the runs without records are there."""
    log = connect(tmp_path / "log", create=True)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    with pytest.warns(UserWarning, match="on the same disk"):
        with_copies(log, [tmp_path / "disk1", tmp_path / "disk2"])
    for number in range(8):
        commit_copies(log, "t", [b"%d" % number])
    piece = sealed(log)
    commit_copies(log, "t", [b"8"])
    Harm(log.journal.roots.own, how).do(piece.object)
    found = verify_and_repair(log, deep=True, repair=True, lose_data=True)
    assert ([tuple(one) for one in found.given_up], found.problems) == ([("t", 0, 0, 8)], ())
    assert values(log) == [b"8"]
    pass_the_fence(log)
    assert verify(log, deep=True) == [] and values(log) == [b"8"]
