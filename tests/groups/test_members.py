"""The order and the counts of a group's members."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_log.groups.members import Member, Members
from spark_log.groups.messages import MemberProtocol

NAMES = st.lists(st.sampled_from(("range", "sticky", "roundrobin")), max_size=4)
CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.none() | st.tuples(NAMES, st.none() | st.integers(0, 3), st.booleans()))
)


def member(member_id: str, protocols: list[str], join: int | None, owes_sync: bool) -> Member:
    offered = tuple(MemberProtocol(name, name.encode()) for name in protocols)
    return Member(member_id, None, "", "", 1, 1, offered, join=join, owes_sync=owes_sync)


@given(CHANGES)
def test_the_order_and_the_counts_are_those_of_all_members(
    changes: list[tuple[str, tuple[list[str], int | None, bool] | None]],
) -> None:
    """After every change, and in a copy; a copy and its original do not affect each other.  The order is that of a
    dictionary: the order of joining.
    """
    members, model = Members(), dict[str, Member]()
    for member_id, change in changes:
        before, arrivals = members.copy(), members.changes
        present = member_id in members
        if change is not None:
            members[member_id] = model[member_id] = member(member_id, *change)
        elif present:
            del members[member_id], model[member_id]
        assert members.changes == arrivals + (present == (change is None) and (present or change is not None))
        assert list(members.items()) == list(model.items())
        for each in (members, before):
            check(each)


def check(members: Members) -> None:
    assert members.joining == sum(one.join is not None for one in members.values())
    assert members.unsynced == sum(one.owes_sync for one in members.values())
    assert members.metadata_bytes == sum(len(known.metadata) for one in members.values() for known in one.protocols)
    offered = ("range", "unknown", "sticky", "roundrobin")
    supported = [{known.name for known in one.protocols} for one in members.values()]
    assert members.supporting(offered) == [name for name in offered if all(name in names for names in supported)]
