"""Ids of members that own a whole group: `client@host:process-unique`.

A consumer or a stream makes its id itself, so the id says which process it is.  A coordinator makes the ids of members
that share a group, and knows their hosts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_FORM = re.compile(r"(?P<client_id>.*)@(?P<host>[^@]*):(?P<process>\d+)-[^-@]*", re.DOTALL)


class MemberOrigin(NamedTuple):
    """The process of a member, as far as it is known."""

    client_id: str = ""
    host: str = ""
    process: int | None = None


def member_id(origin: MemberOrigin, unique: str) -> str:
    """The id of a member that has just started."""
    return f"{origin.client_id}@{origin.host}:{origin.process}-{unique}"


def origin_of(member: str) -> MemberOrigin:
    """The origin in an id; empty for an id of another form."""
    found = _FORM.fullmatch(member)
    return MemberOrigin() if found is None else MemberOrigin(found["client_id"], found["host"], int(found["process"]))
