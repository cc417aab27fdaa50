"""Formatting of text for people."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
