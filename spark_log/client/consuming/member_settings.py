"""Group member settings, from the settings of a consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spark_log.errors import InvalidRequest
from spark_log.groups.assignors import Assignor, make_assignor


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


def member_settings(settings: Mapping[str, Any]) -> MemberSettings:
    """Raises InvalidRequest for an unusable assignor, or if heartbeat_interval_ms is not below session_timeout_ms."""
    given = settings["partition_assignment_strategy"]
    assignors = [make_assignor(one) for one in ([given] if isinstance(given, str | type) else given)]
    if not assignors:
        raise InvalidRequest("partition_assignment_strategy: it is empty; give at least one assignor")
    if settings["heartbeat_interval_ms"] >= settings["session_timeout_ms"]:
        raise InvalidRequest(
            f"heartbeat_interval_ms: {settings['heartbeat_interval_ms']} is not less than session_timeout_ms, "
            f"{settings['session_timeout_ms']}; give a third of it"
        )
    return MemberSettings(
        assignors=assignors,
        session_ms=settings["session_timeout_ms"],
        heartbeat_ms=settings["heartbeat_interval_ms"],
        poll_ms=settings["max_poll_interval_ms"],
        instance=settings["group_instance_id"],
        client_id=settings["client_id"] or "",
        rack=settings["client_rack"] or None,
    )
