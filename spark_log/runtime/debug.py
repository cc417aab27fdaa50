"""The switches for debugging: tracebacks and causes of errors, and checks of each change of a log."""

from __future__ import annotations

import os

DEBUG_VARIABLE = "PYLOG_DEBUG"


def shows_tracebacks() -> bool:
    """Whether PYLOG_DEBUG=1 is set: errors are shown with traceback and causes, not as one sentence."""
    return os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")


INVARIANTS_VARIABLE = "PYLOG_CHECK_INVARIANTS"


def checks_invariants() -> bool:
    """Whether PYLOG_CHECK_INVARIANTS=1 is set: a process that decides changes refuses one that breaks a rule of the log
    (metadata/invariants).  Each change then looks at the whole state.
    """
    return os.environ.get(INVARIANTS_VARIABLE, "0") not in ("", "0")
