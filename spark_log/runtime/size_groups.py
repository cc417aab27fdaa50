"""Divides work into groups of about one size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def size_groups(
    items: Iterable[Item], size: Callable[[Item], int], size_max: int, count_max: int | None = None
) -> Iterator[list[Item]]:
    """Neighbours in groups of at most `size_max` and `count_max` items; an item of a larger size is alone."""
    group, total = list[Item](), 0
    for one in items:
        more = size(one)
        if group and (total + more > size_max or len(group) == count_max):
            yield group
            group, total = [], 0
        group.append(one)
        total += more
    if group:
        yield group
