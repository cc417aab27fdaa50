"""Work divided into groups of about one size."""

from __future__ import annotations

from spark_log.runtime.size_groups import size_groups


def grouped(sizes: list[int], count_max: int | None = None) -> list[list[int]]:
    return list(size_groups(sizes, lambda one: one, 10, count_max))


def test_neighbours_share_a_group_as_far_as_they_fit() -> None:
    """An item of a larger size is alone, and what needs no space is limited by the number alone."""
    assert grouped([]) == []
    assert grouped([4, 6, 1, 5, 5]) == [[4, 6], [1, 5], [5]]
    assert grouped([3, 50, 3]) == [[3], [50], [3]]
    assert grouped([0] * 5, 2) == [[0, 0], [0, 0], [0]]
    assert grouped([4, 6, 1], 1) == [[4], [6], [1]]
