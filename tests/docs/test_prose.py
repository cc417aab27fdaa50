"""Prose: lines of at most 120 columns, and none of the phrases that made the pages hard to read.

They hold for the pages, for docstrings and comments of all Python files, and for comments of the other files.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from spark_log.configs.settings import CLUSTER_CONFIGS, TOPIC_CONFIGS
from tests.unit.test_pages import ROOT

COLUMNS = 120
GENERATED = {"docs/cli.md", "docs/options.md", "docs/topic-configs.md", "docs/api.md"}
"""Their text is the code's: it is checked where the code is."""
PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
    if str(page.relative_to(ROOT)) not in GENERATED
]
FOLDERS = ("benchmarks", "conf", "datasource", "docs", "examples", "jobs", "simulation", "spark_log", "tests")
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


def worn(text: str) -> Iterator[str]:
    """Each worn phrase, with what stands around it and what to write instead."""
    for phrase, instead in PHRASES.items():
        for match in re.finditer(phrase, text):
            yield f"{match[0]!r} in “…{text[max(0, match.start() - 40) : match.end() + 40]}…”: write {instead!r}"


def lines_of_prose(page: Path) -> Iterator[tuple[int, str]]:
    """Without blocks of code; rows of tables, which cannot be broken, count for phrases alone."""
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside and not line.lstrip().startswith(("#", "<!--")):
            yield number, line


def test_lines_of_a_page_have_120_columns() -> None:
    """But for rows of tables and pictures."""
    found = [
        f"{name(page)}, line {number}: break it"
        for page in PAGES
        for number, line in lines_of_prose(page)
        if len(line) > COLUMNS and line.lstrip()[0] not in "|!"
    ]
    assert not found, "\n".join(found)


def test_a_page_has_no_worn_phrase() -> None:
    """Nor does a row of a table, or a point of a list."""
    found = [
        f"{name(page)}: {said}"
        for page in PAGES
        for paragraph in re.split(r"\n\n|\n(?=\s*[*|-])", "\n".join(line for _, line in lines_of_prose(page)))
        for said in worn(plain(paragraph).lstrip("*|- "))
    ]
    assert not found, "\n".join(found)


@cache
def docstrings_of(file: Path) -> list[ast.Constant]:
    """Texts that are statements, wherever they stand."""
    return [
        node.value
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


@cache
def comments_in(file: Path) -> list[tuple[int, str]]:
    """Comments with their lines."""
    tokens = tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline)
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def prose_of(file: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and comments, by their first line; code in backquotes is left out."""
    for docstring in docstrings_of(file):
        yield docstring.lineno, plain(str(docstring.value))
    for number, comment in comments_in(file):
        yield number, plain(comment.lstrip("# "))


def test_docstrings_and_comments_have_no_worn_phrase() -> None:
    """In all Python files."""
    found = [
        f"{name(file)}, line {number}: {said}"
        for file in CODE
        for number, text in prose_of(file)
        for said in worn(text)
    ]
    assert not found, "\n".join(found)


def comments_of(script: Path) -> str:
    """Comments of a file that is not Python, each block in one line."""
    lines = script.read_text(encoding="utf-8").splitlines()
    return "\n".join(line.lstrip("#; ") if line.startswith("#") and line.lstrip("# ") else "" for line in lines)


def test_comments_of_a_script_have_no_worn_phrase() -> None:
    """Nor do those of files of settings."""
    found = [
        f"{name(script)}: {said}"
        for script in SCRIPTS
        for paragraph in comments_of(script).split("\n\n")
        for said in worn(plain(paragraph))
    ]
    assert not found, "\n".join(found)


FRAGMENT = re.compile(r"(?:Of|As|The same|Instead|And)\b")
"""Words with which a docstring continues the one before it, or the name above it, instead of a sentence."""


def test_docstrings_stand_alone() -> None:
    """A reader, or a page that is made of them, has each without its neighbours.  Those of tests follow their names."""
    found = [
        f"{name(file)}, line {docstring.lineno}: {text[:60]!r}: say what it is, as in 'Version of …' or 'Does what … does'"
        for file in CODE
        if file.relative_to(ROOT).parts[0] != "tests"
        for docstring in docstrings_of(file)
        if FRAGMENT.match(text := str(docstring.value).lstrip())
    ]
    found += [
        f"the config {config.name}: {config.doc[:60]!r}"
        for config in (*TOPIC_CONFIGS.values(), *CLUSTER_CONFIGS.values())
        if FRAGMENT.match(config.doc)
    ]
    assert not found, "\n".join(found)


def lines_with_prose(file: Path) -> set[int]:
    """The lines of docstrings and comments; directives to the tools are not prose."""
    comments = {number for number, text in comments_in(file) if not text.startswith(("# type: ", "# noqa"))}
    return comments.union(*(range(text.lineno, (text.end_lineno or text.lineno) + 1) for text in docstrings_of(file)))


def test_docstrings_and_comments_have_120_columns() -> None:
    """ruff's formatter breaks code, and leaves prose as it is."""
    found = [
        f"{name(file)}, line {number}: break it"
        for file in CODE
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS and "# ----" not in line and number in lines_with_prose(file)
    ]
    assert not found, "\n".join(found)
