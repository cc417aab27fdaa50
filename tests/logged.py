"""Messages that pylog logged in a test."""

from __future__ import annotations

import logging

import pytest


def logged(caplog: pytest.LogCaptureFixture, *about: str) -> list[str]:
    """Messages about one of these.

    A thread that an earlier test left may log, too: a test that counts messages says which ones.
    """
    return [record.getMessage() for record in records_of(caplog, *about)]


def records_of(caplog: pytest.LogCaptureFixture, *about: str) -> list[logging.LogRecord]:
    """Records with one of these in their messages."""
    return [record for record in caplog.records if any(one in record.getMessage() for one in about)]
