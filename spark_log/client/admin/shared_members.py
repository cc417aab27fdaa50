"""Removing the members of a group that they share through a coordinator."""

from __future__ import annotations

from spark_log.errors import CoordinatorNotAvailable, NotCoordinator
from spark_log.groups.messages import LeaveGroupRequest, LeavingMember
from spark_log.journal.journal import Journal
from spark_log.metadata.groups.shared_groups import members_in_force
from spark_log.rpc.client import HttpLink

AGAIN_MS = 100
"""Pause between requests while no coordinator answers."""


def remove_shared_members(journal: Journal, link: HttpLink, group: str) -> None:
    """Remove the members that the group has now.  Waits for a coordinator as long as a change would.

    A repeated request names the same members: those that have joined since stay.
    Raises CoordinatorNotAvailable, `maybe_applied` if a request was sent and not answered.
    """
    clock = journal.context.clock
    deadline_ms, unknown = clock.monotonic_ms() + journal.context.coordinator_wait_ms, False
    members = tuple(LeavingMember(member.member_id) for member in members_in_force(journal.state, group))
    while True:
        try:
            link.ask_group(journal.state.coordinator, LeaveGroupRequest(group_id=group, members=members), 0)
            return
        except (CoordinatorNotAvailable, NotCoordinator) as error:
            unknown |= error.maybe_applied
            if clock.monotonic_ms() + AGAIN_MS >= deadline_ms:
                failed = CoordinatorNotAvailable(str(error))
                failed.maybe_applied = unknown
                raise failed from error
        clock.sleep_ms(AGAIN_MS)
        journal.poll()
