"""One grammar of positions, wherever Python takes one."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from spark_log.errors import InvalidRequest, OffsetOutOfRange
from tests.client.logs import log_url
from tests.positions import T, each_mistake, each_position, fill


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    log = spark_log.connect(log_url(tmp_path), durability="os")
    fill(log)
    return log


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the same is, for all that change nothing."""
    folder = tmp_path_factory.mktemp("log")
    fill(spark_log.connect(str(folder / "log"), durability="os"))
    return folder


@pytest.fixture
def kept(filled: Path) -> spark_log.Log:
    return spark_log.connect(log_url(filled), durability="os")


# Promise: spark-read.md#options-of-a-read
@each_position
def test_a_scan_starts_at_a_position(kept: spark_log.Log, position: str, offset: int) -> None:
    """log.scan(start=…)."""
    assert kept.scan("t", start=position).read_all()["offset"].to_pylist() == list(range(offset, 10))


@each_position
def test_a_scan_ends_before_a_position(kept: spark_log.Log, position: str, offset: int) -> None:
    """log.scan(end=…)."""
    assert kept.scan("t", end=position).read_all()["offset"].to_pylist() == list(range(offset))


@each_position
def test_a_read_starts_at_a_position(kept: spark_log.Log, position: str, offset: int) -> None:
    """log.read(start=…)."""
    assert kept.read("t", partition=0, start=position)["offset"].to_pylist() == list(range(offset, 10))


@each_position
def test_a_read_ends_before_a_position(kept: spark_log.Log, position: str, offset: int) -> None:
    """log.read(end=…)."""
    assert kept.read("t", partition=0, end=position)["offset"].to_pylist() == list(range(offset))


@each_position
def test_offsets_are_listed_by_position(kept: spark_log.Log, position: str, offset: int) -> None:
    """admin.list_offsets."""
    assert kept.admin.list_offsets({T: position}) == {T: offset}


# Promise: clients.md#admin
@each_position
def test_records_are_deleted_before_a_position(log: spark_log.Log, position: str, offset: int) -> None:
    """admin.delete_records."""
    assert log.admin.delete_records({T: position}) == {T: offset}


# Promise: clients.md#admin
@each_position
def test_a_group_is_moved_to_a_position(log: spark_log.Log, position: str, offset: int) -> None:
    """admin.alter_consumer_group_offsets."""
    log.admin.alter_consumer_group_offsets("moved", {T: position})
    assert log.admin.list_consumer_group_offsets("moved")[T].offset == offset


@each_mistake
def test_what_is_no_position_is_refused_everywhere(kept: spark_log.Log, position: str) -> None:
    """With the value and what is possible."""
    places = (
        lambda: kept.scan("t", start=position),
        lambda: kept.scan("t", end=position),
        lambda: kept.read("t", partition=0, start=position),
        lambda: kept.read("t", partition=0, end=position),
        lambda: kept.admin.list_offsets({T: position}),
        lambda: kept.admin.delete_records({T: position}),
        lambda: kept.admin.alter_consumer_group_offsets("moved", {T: position}),
    )
    for place in places:
        with pytest.raises(InvalidRequest, match="is not a position; expected earliest, latest, an offset"):
            place()


def test_a_read_from_a_group_does_not_pass_over_what_was_trimmed(log: spark_log.Log) -> None:
    """The error names the trimmed records that the group has not read, and the existing ones."""
    log.admin.delete_records({T: 8})
    with pytest.raises(OffsetOutOfRange, match="group 'g' is at offset 6 of t-0, .* it has 8 to 10") as caught:
        log.read("t", start="group:g")
    assert (caught.value.start, caught.value.end) == (8, 10)
    assert log.read("t", end="group:g").num_rows == 0
