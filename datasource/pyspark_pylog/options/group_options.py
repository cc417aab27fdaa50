"""The options of a stream's group: `group.id`, `group.members` and `group.member`.  Pure.

Each function raises InvalidRequest, which names the option.
"""

from __future__ import annotations

from pyspark_pylog.options.start_and_end import ReadBounds
from pyspark_pylog.options.values import DIGITS_MAX, Options, positive, whole
from spark_log.errors import InvalidRequest
from spark_log.groups.member_share import MEMBERS_MAX, Share
from spark_log.http.address import is_coordinator
from spark_log.text import is_name


def group_of(options: Options, streaming: bool) -> str | None:
    for name in ("group.id", "group.members", "group.member"):
        if name in options and not streaming:
            raise InvalidRequest(
                f"option {name} is for streams; for a batch use log.bookmark, or startingOffsets=group:NAME"
            )
    if "group.id" not in options:
        return None
    name = options["group.id"].strip()
    if not name:
        raise InvalidRequest("option group.id: is empty; give the group a name")
    if not is_name(name):
        raise InvalidRequest(
            f"option group.id: {name!r} has characters that cannot be printed; give the group another name"
        )
    return name


def share_of(options: Options) -> Share | None:
    """The partitions that a query reads of those that it shares with others."""
    if _is_auto(options):
        return None
    members, number = _members(options), whole(options, "group.member")
    if members is None and number is None:
        return None
    if "group.id" not in options:
        name = "group.member" if members is None else "group.members"
        raise InvalidRequest(f"option {name}: needs group.id, the group whose partitions the queries share")
    if members is None:
        raise InvalidRequest("option group.member: needs group.members, the number of queries that share the group")
    if members > MEMBERS_MAX:
        raise InvalidRequest(f"option group.members: {members} is more than {MEMBERS_MAX}")
    numbers = f"a number from 0 to {members - 1}, which no other query of the group has"
    if number is None:
        raise InvalidRequest(f"option group.members: needs group.member, {numbers}; or auto, with a coordinator")
    if number >= members:
        raise InvalidRequest(f"option group.member: {number} is not below group.members, {members}: give it {numbers}")
    return Share(number, members)


def _members(options: Options) -> int | None:
    text = options.get("group.members", "1").strip()
    if not text.isdecimal() or len(text) > DIGITS_MAX or int(text) == 0:
        raise InvalidRequest(
            f"option group.members: {text!r} is not the number of queries that share the group, such as 3; or auto, with "
            "a coordinator"
        )
    return positive(options, "group.members")


def _is_auto(options: Options) -> bool:
    return options.get("group.members", "").strip().lower() == "auto"


def is_coordinated(options: Options, url: str, start: ReadBounds) -> bool:
    """Whether a coordinator divides the group's partitions."""
    if not _is_auto(options):
        return False
    if "group.id" not in options:
        raise InvalidRequest("option group.members: needs group.id, the group whose partitions the queries share")
    if "group.member" in options:
        raise InvalidRequest("option group.member: with group.members=auto, the coordinator divides; leave it out")
    if "assign" in options:
        raise InvalidRequest("option assign: with group.members=auto, the coordinator assigns; use subscribe")
    if start.latest_per_key:
        raise InvalidRequest(
            f"option {start.option}: with group.members=auto, no query has a partition from its start to its end; give "
            "the number of queries, and each its group.member"
        )
    if not is_coordinator(url):
        raise InvalidRequest(
            "option group.members: auto needs the URL of a coordinator, as in pylog://host:9550; without one, give the "
            "number of queries, and each its group.member"
        )
    return True
