"""Prose: lines of at most 120 columns, and none of the phrases that made the pages hard to read.

The pages, and the code that has been gone over so far: `CODE` grows until it is all of it.
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
    if str(page.relative_to(ROOT)) not in GENERATED and page.name != "CHANGELOG.md"
]
FOLDERS = (
    *("docs", "examples", "jobs", "tests/docs"),
    *("spark_log/cli", "spark_log/client", "spark_log/net", "spark_log/node"),
)
CODE = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))

PHRASES = {
    r"(?:^|[.:;] )(?:Who|Whoever|What|Where that|So long|So often)\b(?![^.]*\?)": "say who does what: subject, verb, object",
    r"\bwhoever\b": "the client, the reader, everybody who",
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


def worn_phrases(paragraph: str) -> Iterator[str]:
    for phrase, instead in PHRASES.items():
        for match in re.finditer(phrase, paragraph):
            yield f"{match[0]!r} in “…{paragraph[max(0, match.start() - 40) : match.end() + 40]}…”: write {instead!r}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "decisions"], ids=name)
def test_a_page_has_no_worn_phrase(page: Path) -> None:
    """Decisions are records of their time, and stay."""
    text = "\n".join(line for _, line in lines_of_prose(page))
    paragraphs = [" ".join(re.sub(r"`[^`]*`", "`…`", part).split()) for part in re.split(r"\n\n|\n(?=\s*[*|-])", text)]
    found = [text for paragraph in paragraphs for text in worn_phrases(paragraph.lstrip("*|- "))]
    assert found == [], "\n".join([name(page), *found])


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Also the strings below attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def comments(source: str) -> Iterator[tokenize.TokenInfo]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token


@pytest.mark.parametrize("file", CODE, ids=name)
def test_code_has_no_worn_phrase(file: Path) -> None:
    """In docstrings, comments and command help."""
    source = file.read_text(encoding="utf-8")
    texts = [
        *(str(text.value) for text in docstrings(ast.parse(source))),
        *(comment.string.lstrip("# ") for comment in comments(source)),
    ]
    paragraphs = [" ".join(re.sub(r"`[^`]*`", "`…`", part).split()) for text in texts for part in text.split("\n\n")]
    found = [text for paragraph in paragraphs for text in worn_phrases(paragraph)]
    assert found == [], "\n".join([name(file), *found])


@pytest.mark.parametrize("file", CODE, ids=name)
def test_docstrings_and_comments_have_120_columns(file: Path) -> None:
    """ruff's formatter breaks code, and leaves prose as it is."""
    source = file.read_text(encoding="utf-8")
    prose = {comment.start[0] for comment in comments(source)}
    for text in docstrings(ast.parse(source)):
        prose.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    long = {
        number for number, line in enumerate(source.splitlines(), 1) if len(line) > COLUMNS and "# ----" not in line
    }
    assert sorted(long & prose) == [], f"{name(file)}: break these lines"
