"""docs/promises.md lists what the pages promise; each page, section, test and benchmark that it names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tests.unit.test_pages import ROOT, anchors

LIST = ROOT / "docs" / "promises.md"
GUIDES = {
    *(
        f"docs/{name}.md"
        for name in (
            "comparison",
            "failures",
            "faq",
            "glossary",
            "promises",
            "README",
            "release",
            "troubleshooting",
            "when-not",
        )
    ),
}
"""Pages that explain and compare: what they say of pylog is promised, and linked, on another page."""
PROMISED = sorted(
    path
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if page.parent.name != "decisions" and (path := str(page.relative_to(ROOT))) not in GUIDES
)
_REASONS = ("not tested: ", "measured: ")
RUN = {
    "docs/api.md",
    "docs/frames.md",
    "docs/operations.md",
    *(page for page in PROMISED if page.startswith("docs/tasks/")),
}
"""Pages that are made, run or checked as a whole: one row will do for all of their sections."""
WITHOUT = {
    "README.md": {"pylog", "where-to-go-next"},
    "docs/dependencies.md": {"extras", "to-work-on-pylog-dev"},
    "docs/from-kafka.md": {"the-change", "what-you-gain"},
    "docs/latency.md": {"latency-of-a-stream"},
    "docs/copies.md": {"copy-mirror-and-move-a-log"},
    "docs/measurements.md": {"measurements"},
    "docs/measurements-alone.md": {"measured-alone"},
    "docs/measurements-kafka.md": {"compared-with-kafka"},
    "docs/retention.md": {"retention"},
    "docs/performance.md": {"performance"},
    "docs/security.md": {"security"},
    "docs/spark-read.md": {"read-a-topic-in-spark"},
    "docs/spark-sql.md": {"sql-over-topics"},
    "docs/spark-streams.md": {"streaming-queries-in-spark"},
    "docs/spark-typed.md": {"typed-topics-in-spark"},
    "docs/spark-write.md": {"write-a-topic-from-spark"},
    "docs/storage-failures.md": {"when-storage-fails"},
}
"""Headings of sections that promise nothing which another section does not."""


class Promise(NamedTuple):
    """A row of the list."""

    page: str
    """The table it is in."""
    link: str
    """Of its section."""
    text: str
    keepers: str
    """Promises, by the tests that fail if one is broken."""


def promises() -> Iterator[Promise]:
    page = ""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            page = line.removeprefix("## ")
        elif row := re.fullmatch(r"\| \[.*?\]\(([^)]+)\) \| (.+) \| (.+) \|", line):
            yield Promise(page, *row.groups())


def test_every_page_has_its_promises() -> None:
    """The README and each page of docs/, once."""
    tables = re.findall(r"^## (.*)$", LIST.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(tables) == PROMISED
    assert {promise.page for promise in promises()} == set(PROMISED)


def test_every_row_is_understood() -> None:
    """One that is not of the form would not be checked at all."""
    rows = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line.startswith("| [")]
    assert len(rows) == len(list(promises()))


def test_every_section_is_on_its_page() -> None:
    """A promise belongs to a heading of the page that its table is of."""
    for promise in promises():
        path, _, anchor = promise.link.partition("#")
        target = (LIST.parent / path).resolve()
        assert target == ROOT / promise.page, promise
        assert anchor in anchors(target), promise


def test_every_section_has_its_promises() -> None:
    """A new section of a page needs a row."""
    for page in PROMISED:
        listed = {promise.link.partition("#")[2] for promise in promises() if promise.page == page}
        missing = anchors(ROOT / page) - listed - WITHOUT.get(page, set())
        assert not missing or (page in RUN and listed), f"{page}: no promise in {sorted(missing)}"


def test_every_guide_exists() -> None:
    """None stays in the list after it is gone."""
    assert all((ROOT / page).exists() for page in {*GUIDES, *RUN})


def test_a_promise_is_short() -> None:
    """15 words at most: the page has the rest."""
    assert [promise.text for promise in promises() if len(promise.text.split()) > 15] == []


def test_every_promise_is_kept_by_something_that_exists() -> None:
    """A test function, a benchmark, a target of make that measures, or a reason why there is none."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for promise in promises():
        tests = re.findall(r"`([^`]+\.py)::(\w+)`", promise.keepers)
        files = re.findall(r"`(benchmarks/[^`]+)`", promise.keepers)
        assert tests or files or any(reason in promise.keepers for reason in _REASONS), promise
        for path, name in tests:
            assert name in functions_of(path), f"{promise.text}: {path}::{name} does not exist"
        for path in files:
            assert (ROOT / path).exists(), f"{promise.text}: {path} does not exist"
        for target in re.findall(r"`make ([a-z-]+)`", promise.keepers):
            assert target in targets, f"{promise.text}: make {target} does not exist"


def test_each_test_that_a_page_names_exists() -> None:
    """In any of its tables or sentences."""
    for page in (ROOT / "docs").rglob("*.md"):
        for path, name in re.findall(r"`([^`\s]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
            assert name in functions_of(path), f"{page.name}: {path}::{name} does not exist"


@cache
def functions_of(path: str) -> set[str]:
    """Names of the test functions of a file; none if there is no such file."""
    if not (ROOT / path).exists():
        return set()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_")}
