"""Shares of steps from a profiler's stacks, as `make flames` prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"

TASK = "[Executor task launch worker for task 0.0 tid=7];java/lang/Thread.run;"
STACKS = f"""\
{TASK}org/apache/spark/sql/execution/arrow/ArrowWriter.sizeInBytes;X.x 3
{TASK}org/apache/spark/sql/execution/arrow/ArrowWriter.write 4
{TASK}org/apache/spark/sql/execution/arrow/ArrowWriter.write;Y.y 1
{TASK}sun/nio/ch/SocketChannelImpl.write 1
{TASK}Z.z 1
[C2 CompilerThread0 tid=9];Compile::Compile 90
"""


# Promise: measurements-kafka.md#where-sparks-jvm-spends-its-time
def test_the_shares_are_of_the_threads_that_run_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample belongs to its step, what fits none to the rest, and other threads do not count."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from _flames import OTHER, WRITE, by_step

    size, cache, into_arrow, to_python = WRITE
    found = by_step(STACKS, WRITE)
    assert found == pytest.approx({size: 0.3, cache: 0.0, into_arrow: 0.5, to_python: 0.1, OTHER: 0.1})
