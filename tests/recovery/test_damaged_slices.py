"""Records that are lost in the log's own root are given up: exactly their offsets, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import spark_log
from spark_log import Log
from spark_log.errors import WrongRoot
from spark_log.journal.sealing import seal
from spark_log.maintenance.maintain import maintain_once
from spark_log.recovery.lost_records import GivenUp, give_up_lost, plan_give_up
from spark_log.recovery.verify import verify
from tests.maintenance.logs import append_small, maintenance, new_log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Six slices of three records in partition 0, and two in partition 1."""
    log = new_log(tmp_path / "log", partitions=2)
    for number in range(6):
        log.append("t", [{"value": f"{number}-{row}", "partition": 0} for row in range(3)])
    for number in range(2):
        log.append("t", [{"value": f"other {number}", "partition": 1}])
    return log


def files(log: Log, partition: int = 0) -> list[Path]:
    """The objects of a partition, by their offsets."""
    reads = [read for read in log.plan("t") if read.partition == partition]
    return [Path(log.url.removeprefix("file://"), read.slice.object) for read in reads]


def offsets(log: Log, partition: int = 0) -> list[int]:
    found = log.read("t").to_pylist()
    return [row["offset"] for row in found if row["partition"] == partition]


def flip(file: Path, at: int = 100) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_missing_objects_are_given_up(log: Log) -> None:
    """Adjacent ones together.  All other records stay, and the plan said so."""
    for file in (files(log)[1], files(log)[2], files(log)[4], files(log, 1)[0]):
        file.unlink()
    wanted = [GivenUp("t", 0, 3, 9), GivenUp("t", 0, 12, 15), GivenUp("t", 1, 0, 1)]
    version = log.journal.refresh().version
    assert plan_give_up(log) == wanted and log.journal.refresh().version == version
    assert give_up_lost(log) == wanted
    assert offsets(log) == [0, 1, 2, 9, 10, 11, 15, 16, 17] and offsets(log, 1) == [1]
    assert verify(log, deep=True) == [] and give_up_lost(log) == [] == plan_give_up(log)
    lost = [(one.start, one.end) for some in log.journal.state.lost.values() for one in some]
    assert sorted(lost) == [(0, 1), (3, 9), (12, 15)]


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_a_damaged_object_is_given_up_by_a_deep_check_only(log: Log) -> None:
    flip(files(log)[2])
    assert give_up_lost(log) == [] == plan_give_up(log)
    assert give_up_lost(log, deep=True) == [GivenUp("t", 0, 6, 9)]
    assert offsets(log) == [*range(6), *range(9, 18)] and verify(log, deep=True) == []


def test_a_small_object_whose_index_is_damaged_loses_nothing(log: Log) -> None:
    """Its records can be read, and are written again."""
    for number, cut in enumerate((False, True)):
        file = files(log)[number]
        piece = next(read.slice for read in log.plan("t") if str(file).endswith(read.slice.object))
        if cut:
            file.write_bytes(file.read_bytes()[: piece.position + piece.length])
        else:
            flip(file, piece.position + piece.length + 10)
    assert len(verify(log, deep=True)) >= 2
    assert plan_give_up(log, deep=True) == [] == give_up_lost(log, deep=True)
    assert len(offsets(log)) == 18 and verify(log, deep=True) == []


def test_a_cut_object_is_given_up_without_reading_all(log: Log) -> None:
    file = files(log)[0]
    file.write_bytes(file.read_bytes()[:100])
    assert give_up_lost(log) == [GivenUp("t", 0, 0, 3)]
    assert offsets(log) == list(range(3, 18)) and verify(log, deep=True) == []


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_of_a_large_object_only_damaged_batches_are_given_up(tmp_path: Path, kind: str) -> None:
    """The other records keep their offsets, their bytes and their times."""
    with spark_log.connect(tmp_path / "log", durability="os") as log:
        log.admin.create_topics([spark_log.NewTopic("t", 1, {"message.timestamp.type": kind})])
        log.append("t", [{"key": b"%d" % row, "value": os.urandom(100)} for row in range(60_000)])
        log.append("t", [{"value": b"last"}])
        before = log.read("t").to_pylist()
        piece = log.plan("t")[0].slice
        assert piece.batches > 3
        file = tmp_path / "log" / piece.object
        data = bytearray(file.read_bytes())
        for quarter in (1, 2):
            data[piece.position + quarter * piece.length // 4] ^= 1
        file.write_bytes(data)
        plan = plan_give_up(log, deep=True)
        assert give_up_lost(log, deep=True) == plan
        gone = {offset for one in plan for offset in range(one.start, one.end)}
        assert 0 < len(gone) < 50_000
        assert log.read("t").to_pylist() == [row for row in before if row["offset"] not in gone]
        assert verify(log, deep=True) == []
        assert not maintain_once(log).set_aside


def test_records_in_a_slice_index_are_given_up(tmp_path: Path) -> None:
    """The index stays readable for the other slices."""
    log = new_log(tmp_path / "log")
    append_small(log, 30)
    maintenance(log.journal, seal)
    victim = files(log)[1]
    held = [read for read in log.plan("t") if read.slice.object == str(victim.relative_to(tmp_path / "log"))]
    victim.unlink()
    given_up = give_up_lost(log)
    assert [(one.start, one.end) for one in given_up] == [(held[0].start, held[-1].end)]
    gone = {offset for one in given_up for offset in range(one.start, one.end)}
    assert not gone.intersection(offsets(log)) and verify(log, deep=True) == []


def test_a_root_that_is_not_mounted_has_not_lost_its_records(log: Log, tmp_path: Path) -> None:
    """It may come back."""
    (tmp_path / "log").rename(tmp_path / "away")
    (tmp_path / "log").mkdir()
    for look in (give_up_lost, plan_give_up):
        with pytest.raises(WrongRoot):
            look(log)
    (tmp_path / "log").rmdir()
    (tmp_path / "away").rename(tmp_path / "log")
    assert give_up_lost(log) == [] and len(offsets(log)) == 18


def test_records_that_were_merged_meanwhile_are_not_given_up(log: Log) -> None:
    """Their former objects are not needed any more."""
    old = files(log)
    maintain_once(log)
    for file in old:
        file.unlink(missing_ok=True)
    assert give_up_lost(log) == [] and len(offsets(log)) == 18
