"""One grammar of positions, wherever the command takes one."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from tests.cli.commands import Pylog
from tests.positions import T, each_mistake, each_position, fill


def filled(folder: Path) -> Pylog:
    pylog = Pylog(folder / "log")
    with spark_log.connect(pylog.url, durability="os") as log:
        fill(log)
    return pylog


@pytest.fixture
def pylog(tmp_path: Path) -> Pylog:
    return filled(tmp_path)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Pylog:
    """The same, for all that change nothing."""
    return filled(tmp_path_factory.mktemp("positions"))


@each_position
def test_consume_starts_at_a_position(kept: Pylog, position: str, offset: int) -> None:
    """pylog consume -o."""
    lines = kept.ok("consume", "t", "-o", position, "-f", "%o").splitlines()
    assert [int(line) for line in lines] == list(range(offset, 10))


# Promise: cli.md#pylog-topic-offsets
@each_position
def test_topic_offsets_shows_where_a_position_lies(kept: Pylog, position: str, offset: int) -> None:
    """pylog topic offsets --at."""
    (row,) = kept.json("topic", "offsets", "t", "--at", position)
    assert row["offset"] == offset


# Promise: cli.md#pylog-topic-trim
@each_position
def test_topic_trim_keeps_what_is_from_a_position_on(pylog: Pylog, position: str, offset: int) -> None:
    """pylog topic trim --to."""
    pylog.ok("topic", "trim", "t", "--to", position, "--yes")
    with spark_log.connect(pylog.url) as log:
        assert log.admin.list_offsets({T: spark_log.EARLIEST}) == {T: offset}


@each_position
def test_group_seek_moves_to_a_position(pylog: Pylog, position: str, offset: int) -> None:
    """pylog group seek --to."""
    pylog.ok("group", "seek", "moved", "--to", position, "--topic", "t", "--yes")
    with spark_log.connect(pylog.url) as log:
        assert log.admin.list_consumer_group_offsets("moved")[T].offset == offset


@each_position
def test_plan_starts_at_a_position(kept: Pylog, position: str, offset: int) -> None:
    """pylog plan --start."""
    assert kept.json("plan", "t", "--start", position)["total"]["records"] == 10 - offset


@each_position
def test_plan_ends_before_a_position(kept: Pylog, position: str, offset: int) -> None:
    """pylog plan --end."""
    assert kept.json("plan", "t", "--end", position)["total"]["records"] == offset


@each_mistake
def test_what_is_no_position_is_wrong_usage_everywhere(kept: Pylog, position: str) -> None:
    """With the option, the value and what is possible."""
    for place in (
        ("consume", "t", "-o"),
        ("topic", "offsets", "t", "--at"),
        ("topic", "trim", "t", "--yes", "--to"),
        ("group", "seek", "moved", "--yes", "--topic", "t", "--to"),
        ("plan", "t", "--start"),
        ("plan", "t", "--end"),
    ):
        result = kept.run(*place, position)
        assert result.exit_code == 2
        shown = " ".join(result.output.replace("│", " ").split())
        assert place[-1] in shown and "is not a position; expected earliest, latest, an offset" in shown
