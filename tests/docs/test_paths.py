"""Pages, decisions and docstrings name files of the tree that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.docs.test_prose import CODE, docstrings_of, name
from tests.unit.test_pages import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
FOLDERS = ("benchmarks", "conf", "datasource", "deploy", "docs", "examples", "jobs", "simulation", "spark_log", "tests")
PATH = re.compile(rf"(?<![\w./:-])(?:(?:{'|'.join(FOLDERS)})/[\w./-]*\w|(?:[\w-]+/)+[\w-]+\.py\b)")
"""Paths that begin with a folder of the tree, and files of Python in any folder, such as
`journal/storage/opening.py`.
"""
OTHERS = {
    "docs/decisions/NNNN-title.md": "a form",
    "pyspark/daemon.py": "a file of Spark",
}
"""Paths that are not of the tree."""


@cache
def tails() -> frozenset[str]:
    """All paths of the tree, also without the folders that they begin with."""
    found = set[str]()
    for folder in FOLDERS:
        for path in [ROOT / folder, *(ROOT / folder).rglob("*")]:
            parts = path.relative_to(ROOT).parts
            if "__pycache__" not in parts:
                found.update("/".join(parts[first:]) for first in range(len(parts)))
    return frozenset(found)


def unknown_paths(text: str) -> list[str]:
    """The paths in a text that no file and no folder has.  A decision may be named by its number."""
    named = [match[0] for match in PATH.finditer(text) if match[0] not in OTHERS]
    return [path for path in named if path not in tails() and not list(ROOT.glob(f"{path}-*.md"))]


def unknown_in(file: Path) -> Iterator[str]:
    """The unknown paths in a page, or in the docstrings of a file of Python."""
    if file.suffix == ".md":
        lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    else:
        lines = ((docstring.lineno, str(docstring.value)) for docstring in docstrings_of(file))  # type: ignore[assignment]
    for number, text in lines:
        yield from (f"{name(file)}, line {number}: there is no {path}" for path in unknown_paths(text))


def test_paths_that_are_named_exist() -> None:
    """A file that is moved takes its name in pages, decisions and docstrings with it."""
    found = [text for file in (*PAGES, *CODE) for text in unknown_in(file)]
    assert not found, "\n".join(found)


def test_the_check_sees_paths() -> None:
    """In a sentence, in backquotes and in a link; a URL and a route of HTTP are not paths."""
    text = "see `node/nothing.py`, [it](docs/nothing.md), spark_log/nothing and jobs/maintain.py, http://a/b.py, GET /v1/log"
    assert unknown_paths(text) == ["node/nothing.py", "docs/nothing.md", "spark_log/nothing"]
    assert not unknown_paths("`journal/storage/opening.py` and docs/decisions/0003, `spark_log/journal`")
