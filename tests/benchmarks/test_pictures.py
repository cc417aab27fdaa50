"""Fits, pictures and tables come from the figures that were measured, and from nothing else."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _pictures

    return _pictures


@pytest.fixture
def growth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import growth

    return growth


# Promise: measurements.md#how-cost-grows, performance.md#how-cost-grows
def test_the_page_and_its_pictures_show_the_figures(pictures: ModuleType) -> None:
    """Nothing in them was written by hand: `python benchmarks/_pictures.py` changes nothing."""
    figures = json.loads(pictures.FIGURES.read_text())
    stale = [
        path.name
        for path, text in pictures.files(figures, pictures.PAGE.read_text()).items()
        if path.read_text() != text
    ]
    assert not stale, f"{stale} are not of {pictures.FIGURES.name}: run python benchmarks/_pictures.py"


def test_every_table_has_its_picture(pictures: ModuleType, growth: ModuleType) -> None:
    """And every picture a table."""
    assert set(pictures.TITLES) == set(growth.TABLES)


@pytest.mark.parametrize("name", ["busy_month", "million_commits"])
def test_every_table_over_time_has_its_picture(pictures: ModuleType, name: str) -> None:
    """And every picture a table; the page shows the first points and the last one."""
    assert set(pictures.OVER_TIME[name]) == set(importlib.import_module(name).TABLES)
    tables = {
        part: {"varied": "day", "x": list(range(1, 8)), "costs": {"ms": [7, 8, 9, 4, 5, 6, 3]}}
        for part in pictures.OVER_TIME[name]
    }
    figures = {name: {"tables": tables, "machine": json.loads(pictures.FIGURES.read_text())["machine"]}}
    text = pictures.over_time_markdown(name, figures)
    assert text.count("| day | 1 | 2 | 3 | 5 | 7 |") == text.count("| ms | 7 | 8 | 9 | 5 | 3 |") == len(tables)


# Promise: measurements.md#a-busy-month
def test_a_log_that_grows_is_found(pictures: ModuleType) -> None:
    """Sizes of later days are compared with the third day, times by the median of five or more; of a run, the
    quarters."""
    busy_month, million_commits = (importlib.import_module(name) for name in ("busy_month", "million_commits"))
    size = busy_month.Size(10, 20, 30, 40.0, 50, 60, 70.0)
    day, pace = busy_month.Day(size, 1.0, 2.0, 3, 4, 5, 6.0), busy_month.Pace(1.0, 2.0)
    first = day._replace(most=size._replace(objects=1))
    assert busy_month.growing([first, day, day, day], [pace] * 4) == []
    larger = day._replace(most=size._replace(waiting=33))
    assert busy_month.growing([day, day, day, larger], [pace] * 4) == ["waiting grew from 30.00 on day 3 to 33.00"]
    slow = [pace._replace(commit_ms=2.5)] * 3
    paces = [pace] * 3 + slow + [pace] * 2
    assert busy_month.growing([day] * 8, paces) == ["commit_ms grew from 1.00 on day 3 to 2.50"]
    assert busy_month.growing([day] * 7, paces[:7]) == []
    level, grown = [{"ms": 1.0}] * 20, [{"ms": 1.0}] * 15 + [{"ms": 2.0}] * 5
    assert million_commits.growing(level) == []
    assert million_commits.growing(grown) == ["ms grew to 2.0 times"]
    files, pace_ms = "files in data/", million_commits.OF_ALL
    faster = [{files: 10.0, pace_ms: 2.0}] * 15 + [{files: 20.0, pace_ms: 1.0}] * 5
    assert million_commits.growing(faster) == []


TABLE: dict[str, Any] = {
    "varied": "a & b",
    "x": [1, 10, 1000],
    "costs": {"ms <each>": [0.5, 5, 500.0], "kB": [3, 3, 3]},
}


def test_a_picture_is_a_line_for_each_cost_with_its_points(pictures: ModuleType) -> None:
    """Within the frame, and the same each time."""
    text = pictures.drawn("A title", TABLE)
    root = ElementTree.fromstring(text)
    tag = "{http://www.w3.org/2000/svg}"
    lines = [
        [tuple(map(float, at.split(","))) for at in line.attrib["points"].split()]
        for line in root.iter(f"{tag}polyline")
    ]
    assert [len(line) for line in lines] == [3, 3] and len(list(root.iter(f"{tag}circle"))) == 6
    assert all(0 < x < pictures.WIDTH and 0 < y < pictures.HEIGHT for line in lines for x, y in line)
    assert lines[0][0][1] > lines[0][1][1] > lines[0][2][1] and len({y for _, y in lines[1]}) == 1
    assert text == pictures.drawn("A title", TABLE)


def test_an_axis_reaches_around_what_is_on_it(pictures: ModuleType) -> None:
    """By powers of ten."""
    assert pictures.decades([1, 1000]) == (0, 3)
    assert pictures.decades([0.5, 5, 500]) == (-1, 3)
    assert pictures.decades([10, 10]) == (1, 2)


@pytest.mark.parametrize(
    ("power", "word"), [(-1, "falls"), (0, "constant"), (0.5, "less than linear"), (1, "linear"), (2, "worse")]
)
def test_growth_is_the_power_that_fits(growth: ModuleType, power: float, word: str) -> None:
    """Through points on a power law it is the power itself."""
    x = [1, 10, 100, 1000]
    slope = growth.exponent(x, [7 * v**power for v in x])
    assert slope == pytest.approx(power) and growth.called(slope) == word


def test_marks_keep_what_is_around_them(pictures: ModuleType) -> None:
    """A page without them is refused."""
    page = "a\n<!-- t: written by make pictures -->\nold\n<!-- end of t -->\nb"
    assert pictures.between_marks(page, "t", "new") == page.replace("old", "new")
    with pytest.raises(AssertionError, match="no marks for u"):
        pictures.between_marks(page, "u", "new")
