"""Group member settings, from the settings of a consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spark_log.errors import InvalidRequest
from spark_log.groups.assignors import Assignor, make_assignor
from spark_log.rpc.client import ANSWER_S


class MemberSettings(NamedTuple):
    """The values a member sends to its coordinator."""

    assignors: Sequence[Assignor]
    """In order of preference."""
    session_ms: int
    heartbeat_ms: int
    poll_ms: int
    """max.poll.interval.ms, also the rebalance timeout: how long the others wait for the member to rejoin."""
    instance: str | None = None
    client_id: str = ""
    rack: str | None = None

    @property
    def answer_s(self) -> float:
        """How long the reply to a heartbeat may take, in seconds, in addition to the time that the heartbeat waits.

        A heartbeat waits for a third of the session at most, and its reply may get lost with the connection.  After two
        such waits and this timeout, there is still time to send another heartbeat before the session ends.
        """
        return min(max(self.session_ms / 6000, 1.0), ANSWER_S)


def member_settings(settings: Mapping[str, Any]) -> MemberSettings:
    """Raises InvalidRequest for an unusable assignor, or if heartbeat_interval_ms is not below session_timeout_ms."""
    given = settings["partition_assignment_strategy"]
    assignors = [make_assignor(one) for one in ([given] if isinstance(given, str | type) else given)]
    if not assignors:
        raise InvalidRequest("partition_assignment_strategy: it is empty; give at least one assignor")
    session_ms, heartbeat_ms = settings["session_timeout_ms"], settings["heartbeat_interval_ms"]
    if heartbeat_ms is None:
        heartbeat_ms = max(1, session_ms // 3)
    elif heartbeat_ms >= session_ms:
        raise InvalidRequest(
            f"heartbeat_interval_ms: {heartbeat_ms} is not less than session_timeout_ms, {session_ms}; give a third of "
            "it, or leave it out"
        )
    return MemberSettings(
        assignors=assignors,
        session_ms=session_ms,
        heartbeat_ms=heartbeat_ms,
        poll_ms=settings["max_poll_interval_ms"],
        instance=settings["group_instance_id"],
        client_id=settings["client_id"] or "",
        rack=settings["client_rack"] or None,
    )
