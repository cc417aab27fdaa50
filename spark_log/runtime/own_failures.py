"""Which errors of a request to a root are this process's own, and say nothing about the root.

Another process may find the root in order.  So none of them fences a broker, or gives up records that are only there.
"""

from __future__ import annotations

import errno

from spark_log.errors import AccessDenied

LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
NO_THREAD = "can't start new thread"
"""The text of Python's RuntimeError."""


def is_own(error: BaseException | None) -> bool:
    """Whether the process has no access to the root, or has no file, thread or memory left."""
    while error is not None:
        if isinstance(error, AccessDenied | MemoryError) or (isinstance(error, OSError) and error.errno in LIMITS):
            return True
        if isinstance(error, RuntimeError) and str(error) == NO_THREAD:
            return True
        error = error.__cause__ or error.__context__
    return False
