"""The Python of the page on flows runs."""

from __future__ import annotations

from pathlib import Path

from tests.blocks import program

PAGE = Path(__file__).parents[2] / "docs" / "tasks" / "flow.md"


# Promise: tasks/flow.md#process-records-as-they-arrive, tasks/flow.md#when-a-streaming-query-is-the-better-choice
def test_the_python_of_the_page_on_flows_runs(url: str) -> None:
    """On storage and with a coordinator."""
    exec(compile(program(PAGE).replace("/tmp/pylog-flow/log", url), str(PAGE), "exec"), {})
