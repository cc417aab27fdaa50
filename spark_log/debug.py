"""The switch that shows tracebacks and causes of pylog's errors."""

from __future__ import annotations

import os

DEBUG_VARIABLE = "PYLOG_DEBUG"


def shows_tracebacks() -> bool:
    """Whether PYLOG_DEBUG=1 is set: errors are shown with traceback and causes, not as one sentence."""
    return os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")
