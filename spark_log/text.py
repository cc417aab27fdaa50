"""Formatting of text for people."""

from __future__ import annotations


def counted(count: int, what: str, plural: str = "") -> str:
    """`1 row`, `2,000 rows`; an irregular plural is given."""
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"
