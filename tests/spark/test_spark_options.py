"""The table of options, and the page that is made of it."""

from __future__ import annotations

from pathlib import Path

from pyspark_pylog.option_table import ALL, reference_markdown

PAGE = Path(__file__).parents[2] / "docs" / "options.md"


def test_the_page_is_the_table() -> None:
    """`make docs` writes it anew."""
    assert PAGE.read_text() == reference_markdown()


def test_every_option_is_there_once() -> None:
    """In any case of letters."""
    names = [option.name.lower() for option in ALL]
    assert sorted(names) == sorted(set(names))
