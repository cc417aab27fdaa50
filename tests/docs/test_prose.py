"""Prose: lines of at most 120 columns, and none of the phrases that made the pages hard to read.

They hold for the pages, for docstrings and comments of all Python files, and for comments of the other files.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_pages import ROOT

COLUMNS = 120
GENERATED = {"docs/cli.md", "docs/options.md", "docs/topic-configs.md", "docs/api.md"}
"""Their text is the code's: it is checked where the code is."""
PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
    if str(page.relative_to(ROOT)) not in GENERATED
]
FOLDERS = ("benchmarks", "conf", "datasource", "docs", "examples", "jobs", "spark_log", "tests")
CODE = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
SCRIPTS = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "setup.cfg", *sorted((ROOT / "conf").iterdir())]

PHRASES = {
    r"(?:^|[.:;] )(?:Who|Whoever|What|Where that|So long|So often)\b(?![^.]*\?)": "say who does what: subject, verb, object",
    r"(?:^|[.:;] )There is no\b": "X does not exist, no X does Y",
    r"\b[Ww]hoever\b": "the client, the reader, everybody who",
    r"(?<!there )\bis no (?!longer\b)": "is not a",
    r"\bof (?:its|their) own\b": "its own X, a separate X",
    r"\ball the same\b": "still",
    r"\bby (?:itself|themselves)\b": "alone, automatically",
    r"\bat once\b": "immediately, at the same time",
    r"\bgo(?:es)? before\b": "takes precedence over",
    r"\b(?:is|are) told\b": "gets an error, is notified",
    r"\bknown again\b": "recognised",
    r"\bgo(?:es)? on\b": "continues",
    r"\banew\b": "again",
    r"\bunless told\b": "by default",
    r"\bin silence\b": "without notice",
}
"""Worn phrase -> what to write instead."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def plain(text: str) -> str:
    return " ".join(re.sub(r"`[^`]*`", "`…`", text).split())


def lines_of_prose(page: Path) -> Iterator[tuple[int, str]]:
    """Without blocks of code; rows of tables, which cannot be broken, count for phrases alone."""
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside and not line.lstrip().startswith(("#", "<!--")):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_of_a_page_have_120_columns(page: Path) -> None:
    """But for rows of tables and pictures."""
    lines = [number for number, line in lines_of_prose(page) if len(line) > COLUMNS and line.lstrip()[0] not in "|!"]
    assert lines == [], f"{name(page)}: break the lines {lines}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_has_no_worn_phrase(page: Path) -> None:
    text = "\n".join(line for _, line in lines_of_prose(page))
    paragraphs = [plain(part) for part in re.split(r"\n\n|\n(?=\s*[*|-])", text)]
    found = [
        f"{match[0]!r} in “…{paragraph[max(0, match.start() - 40) : match.end() + 40]}…”: write {instead!r}"
        for paragraph in paragraphs
        for phrase, instead in PHRASES.items()
        for match in re.finditer(phrase, paragraph.lstrip("*|- "))
    ]
    assert found == [], "\n".join([name(page), *found])


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings and comments, by their first line; code in backquotes is left out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, plain(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], plain(token.string.lstrip("# "))


@pytest.mark.parametrize("file", CODE, ids=name)
def test_docstrings_and_comments_have_no_worn_phrase(file: Path) -> None:
    found = [
        f"line {number}: {match[0]!r} in “…{text[max(0, match.start() - 40) : match.end() + 40]}…”: write {instead!r}"
        for number, text in prose_of(file.read_text(encoding="utf-8"))
        for phrase, instead in PHRASES.items()
        for match in re.finditer(phrase, text)
    ]
    assert found == [], "\n".join([name(file), *found])


def comments_of(script: Path) -> str:
    """Comments of a file that is not Python, each block in one line."""
    lines = script.read_text(encoding="utf-8").splitlines()
    return "\n".join(line.lstrip("#; ") if line.startswith("#") and line.lstrip("# ") else "" for line in lines)


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_comments_of_a_script_have_no_worn_phrase(script: Path) -> None:
    paragraphs = [plain(part) for part in comments_of(script).split("\n\n")]
    found = [
        f"{match[0]!r} in “{paragraph}”: write {instead!r}"
        for paragraph in paragraphs
        for phrase, instead in PHRASES.items()
        for match in re.finditer(phrase, paragraph)
    ]
    assert found == [], "\n".join([name(script), *found])


@pytest.mark.parametrize("file", CODE, ids=name)
def test_docstrings_and_comments_have_120_columns(file: Path) -> None:
    """ruff's formatter breaks code, and leaves prose as it is; directives to the tools are not prose."""
    source = file.read_text(encoding="utf-8")
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type: ", "# noqa"))
    }
    texts = {
        number
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    long = {
        number for number, line in enumerate(source.splitlines(), 1) if len(line) > COLUMNS and "# ----" not in line
    }
    assert sorted(long & (comments | texts)) == [], f"{name(file)}: break these lines"
