"""Coordinators, as the tests of their port have them."""

from __future__ import annotations

from tests.server.conftest import certificate, guarded, services

__all__ = ["certificate", "guarded", "services"]
