"""Fixtures of pytest for programs that use a log.

Put this line into the `conftest.py` of your tests: `pytest_plugins = ["spark_log.testing.fixtures"]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_log.client.log import Log, connect


@pytest.fixture
def pylog_url(tmp_path: Path) -> str:
    """URL of a log of this test, in a folder that pytest removes later.  The first client or job creates the log."""
    return (tmp_path / "pylog").as_uri()


@pytest.fixture
def pylog_log(pylog_url: str) -> Iterator[Log]:
    """An open log at `pylog_url`.  It does not wait for the disk (`durability="os"`)."""
    with connect(pylog_url, durability="os") as log:
        yield log
