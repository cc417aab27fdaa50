"""What a member of a group says of itself, by its consumer's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spark_log.errors import InvalidRequest
from spark_log.groups.assignors import Assignor, make_assignor


class MemberSettings(NamedTuple):
    """What a member says of itself."""

    assignors: Sequence[Assignor]
    """The one that it likes best first."""
    session_ms: int
    heartbeat_ms: int
    poll_ms: int
    """A consumer that does not poll for so long gives its partitions up, and the others wait so long for it to rejoin."""
    instance: str | None = None
    client_id: str = ""
    rack: str | None = None


def member_settings(settings: Mapping[str, Any]) -> MemberSettings:
    """Raises InvalidRequest for an assignor that cannot be used, or heartbeats that are rarer than a session is long."""
    given = settings["partition_assignment_strategy"]
    assignors = [make_assignor(one) for one in ([given] if isinstance(given, str | type) else given)]
    if not assignors:
        raise InvalidRequest("partition_assignment_strategy: give one assignor at least")
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
