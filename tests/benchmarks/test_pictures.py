"""Fits, pictures and tables come from the figures that were measured, and from nothing else."""

from __future__ import annotations

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
