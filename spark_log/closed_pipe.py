"""Output to a pipe that its reader has closed, as `head` does."""

from __future__ import annotations

import os
import sys

EXIT_CLOSED_PIPE = 141
"""The exit status that a shell shows for a program that SIGPIPE has ended."""


def discard_output() -> None:
    """Send the rest of the output nowhere: Python would try to write it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
