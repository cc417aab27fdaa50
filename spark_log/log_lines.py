"""Lines in the logger `spark_log` have names of others, and reach terminals."""

from __future__ import annotations

import logging

from spark_log.text import printable_lines

logger = logging.getLogger("spark_log")
"""For all parts of pylog."""
_formatter = logging.Formatter()


class PrintableLines(logging.Filter):
    """Escapes control characters in messages and tracebacks, for all handlers; other messages stay as they are."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (shown := printable_lines(message)) != message:
            record.msg, record.args = shown, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = printable_lines(_formatter.formatException(record.exc_info))
        return True


def make_printable(*names: str) -> None:
    """Filter loggers, each of them once: a filter is not inherited."""
    for name in names:
        named = logging.getLogger(name)
        if not any(isinstance(one, PrintableLines) for one in named.filters):
            named.addFilter(PrintableLines())
