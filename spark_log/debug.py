"""The switch that shows what errors of pylog hide: tracebacks and causes."""

from __future__ import annotations

import os

DEBUG_VARIABLE = "PYLOG_DEBUG"


def shows_tracebacks() -> bool:
    """Whether errors are shown with their traceback and causes, not as one sentence: PYLOG_DEBUG=1."""
    return os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")
