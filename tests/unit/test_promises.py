"""Each section of the pages has a test that keeps it, or a row of docs/promises.md that says why there is none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.promises import kept, listing
from tests.unit.test_pages import ROOT, anchors

LIST = ROOT / "docs" / "promises.md"
GUIDES = {
    *(
        f"docs/{name}.md"
        for name in (
            "architecture",
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


KEPT = kept()


class Row(NamedTuple):
    """A promise without a test."""

    link: str
    text: str
    reason: str
    """A program that measures it, or why it is not tested."""

    @property
    def page(self) -> Path:
        return (LIST.parent / self.link.partition("#")[0]).resolve()

    @property
    def anchor(self) -> str:
        return self.link.partition("#")[2]


def rows() -> Iterator[Row]:
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if row := re.fullmatch(r"\| \[.*?\]\(([^)]+)\) \| (.+) \| (.+) \|", line):
            yield Row(*row.groups())


def test_every_row_is_understood() -> None:
    """One that is not of the form would not be checked at all."""
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line.startswith("| [")]
    assert len(lines) == len(list(rows()))


def test_every_mark_is_above_a_test() -> None:
    """Not above a helper, and not at the end of a file."""
    assert [promise for promise in KEPT if not promise.test.partition("::")[2].startswith("test_")] == []
    marks = [
        link
        for file in (ROOT / "tests").rglob("*.py")
        for mark in re.findall(r"^ *# Promise: (.+?),?$", file.read_text(encoding="utf-8"), re.MULTILINE)
        for link in mark.split(", ")
    ]
    assert sorted(marks) == sorted(promise.link for promise in KEPT)


def test_every_section_is_on_its_page() -> None:
    """Promises belong to headings of pages that promise something."""
    for promise in [*KEPT, *rows()]:
        assert str(promise.page.relative_to(ROOT)) in PROMISED, promise
        assert promise.anchor in anchors(promise.page), promise


def test_every_section_has_its_promises() -> None:
    """A new section of a page needs a test with a mark, or a row."""
    listed: dict[Path, set[str]] = {}
    for promise in (*KEPT, *rows()):
        listed.setdefault(promise.page, set()).add(promise.anchor)
    for page in PROMISED:
        found = listed.get(ROOT / page, set())
        missing = anchors(ROOT / page) - found - WITHOUT.get(page, set())
        assert found and (not missing or page in RUN), f"{page}: no test keeps {sorted(missing)}"


def test_the_promises_of_a_page_are_listed() -> None:
    """By section, as words and as the name of the test."""
    promise = next(promise for promise in KEPT if promise.link == "service.md#groups")
    found = listing("service.md")
    assert f"    {promise}\n" in found.partition("service.md#groups\n")[2].partition("\n\n")[0] + "\n"
    assert "clients.md#" not in found


def test_every_guide_exists() -> None:
    """None stays in the list after it is gone."""
    assert all((ROOT / page).exists() for page in {*GUIDES, *RUN})


def test_every_row_has_a_benchmark_that_exists_or_a_reason() -> None:
    """A program that measures, a target of make that does, or why there is none."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for row in rows():
        files = re.findall(r"`(benchmarks/[^`]+)`", row.reason)
        assert files or any(reason in row.reason for reason in _REASONS), row
        for path in files:
            assert (ROOT / path).exists(), f"{row.text}: {path} does not exist"
        for target in re.findall(r"`make ([a-z-]+)`", row.reason):
            assert target in targets, f"{row.text}: make {target} does not exist"


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
