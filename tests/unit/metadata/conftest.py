"""A history to decide on."""

from __future__ import annotations

import pytest

from tests.unit.metadata.history import History


@pytest.fixture
def log() -> History:
    return History()
