"""The pages of docs/tasks run as they are pasted, block after block, each with a separate log."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.blocks import program

PAGES = sorted((Path(__file__).parents[2] / "docs" / "tasks").glob("*.md"))


# Promise: tasks/backfill.md#backfill-history, tasks/dead-letters.md#keep-bad-records-dead-letters,
# Promise: tasks/exactly-once.md#exactly-once-end-to-end, tasks/keep-the-latest.md#keep-the-latest-record-of-each-key,
# Promise: tasks/late-data.md#handle-late-data, tasks/replay.md#replay-a-topic,
# Promise: tasks/share-a-topic.md#share-a-topic-among-queries
@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_task_page_runs(classic: SparkSession, tmp_path: Path, page: Path) -> None:
    """Nothing is defined before its first block but the session, which the block gets; what it asserts holds."""
    assert classic is SparkSession.builder.getOrCreate()
    code = program(page).replace(f"/tmp/pylog-{page.stem}", str(tmp_path / "pasted"))
    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})
