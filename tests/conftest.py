"""What all tests share."""

from __future__ import annotations

from tests.profiles import load_profile

load_profile()
