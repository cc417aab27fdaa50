"""The default number of tasks at the same time: the number of processors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark_pylog.source.splits import cores


@pytest.mark.parametrize(
    ("quota", "expected"), [("50000 100000\n", 1), ("100000 100000\n", 1), ("max 100000\n", None), ("", None)]
)
def test_a_container_has_its_share_of_the_processors(tmp_path: Path, quota: str, expected: int | None) -> None:
    """Rounded up; without a limit it has all."""
    (tmp_path / "cpu.max").write_text(quota)
    assert cores(tmp_path / "cpu.max") == (expected or len(os.sched_getaffinity(0)))


def test_without_containers_all_processors_count(tmp_path: Path) -> None:
    """Outside of any, and where there is no such file."""
    assert cores(tmp_path / "cpu.max") == len(os.sched_getaffinity(0))
    (tmp_path / "cpu.max").write_text(f"{10**9} 1000")
    assert cores(tmp_path / "cpu.max") == len(os.sched_getaffinity(0))
