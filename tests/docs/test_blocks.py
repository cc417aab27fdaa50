"""Every block of Python on a page is run by a test, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blocks import blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

RUN_BY = {
    "README.md": ["tests/test_readme.py"],
    "docs/clients.md": ["tests/client/test_clients_page.py"],
    "docs/frames.md": ["tests/docs/test_frames_page.py"],
    "docs/spark.md": ["tests/spark/test_spark_threads.py"],
    "docs/spark-sql.md": ["tests/spark/test_spark_sql.py"],
    "docs/tasks/backfill.md": ["tests/spark/test_spark_task_pages.py"],
    "docs/tasks/dead-letters.md": ["tests/spark/test_spark_task_pages.py"],
    "docs/tasks/erase.md": ["tests/client/test_erase_page.py"],
    "docs/tasks/exactly-once.md": ["tests/spark/test_spark_task_pages.py"],
    "docs/tasks/flow.md": ["tests/flows/test_flow_page.py"],
    "docs/tasks/keep-the-latest.md": ["tests/spark/test_spark_task_pages.py"],
    "docs/tasks/late-data.md": ["tests/spark/test_spark_task_pages.py"],
    "docs/tasks/replay.md": ["tests/spark/test_spark_task_pages.py"],
    "docs/tasks/share-a-topic.md": ["tests/spark/test_spark_task_pages.py"],
    "docs/tasks/typed.md": ["tests/client/test_typed_topics.py"],
}
"""By page: tests that run its blocks."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    """`<!-- not run: reason -->` before it."""
    to_run = [block for block in blocks(page) if block.reason is None]
    assert len(to_run) == page.read_text(encoding="utf-8").count("```python") - _with_a_reason(page)
    assert bool(to_run) == (name(page) in RUN_BY), f"no test runs the Python of {name(page)}"


def _with_a_reason(page: Path) -> int:
    return sum(block.reason is not None for block in blocks(page))


def test_the_tests_that_run_them_exist() -> None:
    """And no page is left in the list that is gone."""
    for page, tests in RUN_BY.items():
        assert (ROOT / page).exists(), page
        assert all((ROOT / test).exists() for test in tests), tests
