"""A log with some records, and the command for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Pylog


@pytest.fixture
def pylog(tmp_path: Path) -> Pylog:
    """Topic "orders": three partitions, ten records in partition 1, keys k0 to k9, values v0 to v9, header h=x."""
    pylog = Pylog(tmp_path / "log")
    pylog.ok("topic", "create", "orders", "-p", "3", "-c", "retention.ms=3600000")
    lines = "".join(f"k{n}:v{n}\n" for n in range(10))
    pylog.ok("produce", "orders", "--key-delimiter", ":", "-p", "1", "-H", "h=x", stdin=lines)
    return pylog
