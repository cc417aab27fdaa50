"""Output to a pipe that its reader has closed, as `head` does, and standard streams that are closed or full."""

from __future__ import annotations

import os
import sys
from typing import TextIO

EXIT_CLOSED_PIPE = 141
"""The exit status that a shell shows for a program that SIGPIPE has ended."""


def discard_output(but: TextIO | None = None) -> None:
    """Send the rest of the output nowhere: Python would try to write it at its end.

    but:  a stream that still works.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream is not but:
            os.dup2(nowhere, stream.fileno())


def open_missing_streams() -> None:
    """Python has no standard stream for a descriptor that was closed before it began, as by `pylog … >&-`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  until the process ends
