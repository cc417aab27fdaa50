"""The deadlines of many groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_log.server.group_deadlines import Deadlines

CHANGES = st.lists(st.tuples(st.sampled_from("abcde"), st.none() | st.integers(0, 20)), max_size=300)


@given(CHANGES, st.integers(0, 20), st.integers(1, 5))
def test_deadlines_come_up_as_in_a_dict(changes: list[tuple[str, int | None]], now_ms: int, most: int) -> None:
    """The last deadline of each name counts; those that are due are returned once, the earliest first, `most` at a
    time.
    """
    deadlines, expected = Deadlines(), dict[str, int]()
    for name, at_ms in changes:
        deadlines.set(name, at_ms)
        expected.pop(name, None)
        if at_ms is not None:
            expected[name] = at_ms
        assert deadlines.first_ms == min(expected.values(), default=None)
    due = [name for at_ms, name in sorted((at_ms, name) for name, at_ms in expected.items()) if at_ms <= now_ms]
    found: list[str] = []
    while some := deadlines.pop_due(now_ms, most):
        assert len(some) <= most
        found += some
    assert found == due
    assert deadlines.first_ms == min((at_ms for at_ms in expected.values() if at_ms > now_ms), default=None)
