"""What coordinators and their clients say to each other: typed messages, JSON on the wire.

    GET  /health                                Health, without a token; status 503 while the storage fails
    GET  /alive                                 the same, always with status 200
    GET  /v1/cluster                            ClusterInfo
    POST /v1/commands   CommandsRequest         CommandsReply
    POST /v1/changes    ChangesRequest          ChangesReply; waits until the log has something new, `wait_ms` at most
    GET  /v1/groups?cluster_id=                 GroupsReply: who shares what, as it is at the moment
    POST /v1/group/join|sync|heartbeat|leave       GroupAsked, GroupAnswered; join and sync wait for the other members

What is refused as a whole gets a status of 4xx or 5xx and a `Failure`.  A command that is refused by itself does not hinder
the others of its request: its outcome says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from spark_log import errors
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.groups.group import Roster
from spark_log.groups.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from spark_log.metadata.commands import AnyCommand

PROTOCOL = 2
"""2: requests for changes have a body."""
WAIT_MS_MAX = 60_000
"""A request for changes waits so long at most."""
_FIELDS = ("start", "end", "current", "owner", "key", "address", "epoch", "last", "version", "retry_after_ms")
"""What errors carry for whoever recovers from them."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all messages.  Fields that are not known are passed over: they are of a newer version."""


class ClusterInfo(Message, frozen=True, kw_only=True):
    """Who answers, and which log it has."""

    pylog: int
    """Version of the protocol."""
    cluster_id: str
    storage: str
    """URL of the log's storage, where clients read and write objects themselves."""
    leading: bool
    """False: it stands by."""
    address: str
    """Of the one that leads, as far as is known here."""
    epoch: int
    version: int
    """Of the newest record that is known here."""


class Health(Message, frozen=True, kw_only=True):
    """A sign of life."""

    cluster_id: str
    leading: bool
    epoch: int
    version: int
    healthy: bool = True
    reason: str = ""
    """Why it is not."""
    storage_age_ms: int = 0
    """Since a write to the storage was last completed and read back."""
    stepped_down: int = 0
    """The last epoch that it gave up, since no write to its storage was completed."""


class CommandsRequest(Message, frozen=True, kw_only=True):
    cluster_id: str
    since: int
    """Version that is known at the client."""
    commands: tuple[AnyCommand, ...]


class Failure(Message, frozen=True, kw_only=True):
    """An error of `spark_log.errors`."""

    error: str
    """Its name."""
    message: str
    maybe_applied: bool = False
    fields: dict[str, Any] = {}


class CommandOutcome(Message, frozen=True, kw_only=True):
    """Of one command: a reply, or an error."""

    reply: Any = None
    failure: Failure | None = None


class CommandsReply(Message, frozen=True, kw_only=True):
    outcomes: tuple[CommandOutcome, ...]
    batches: tuple[str, ...] = ()
    """Objects of the log after `since`; none if they are too many: then they are on the storage."""


class ChangesRequest(Message, frozen=True, kw_only=True):
    """Wait for changes of the log."""

    cluster_id: str
    since: Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
    """The version that the client knows."""
    wait_ms: Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
    topics: tuple[str, ...] | None = None
    """Ids: wait for records of these topics, and for changes that are not records; None: for any change."""
    group: str = ""
    """A rebalance of this group ends the wait as well."""


class ChangesReply(Message, frozen=True, kw_only=True):
    version: int
    batches: tuple[str, ...] = ()
    """The same."""


MemberRequest: TypeAlias = JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest
MemberResponse: TypeAlias = JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse
GROUP_PATHS: Mapping[str, type[MemberRequest]] = {
    "/v1/group/join": JoinGroupRequest,
    "/v1/group/sync": SyncGroupRequest,
    "/v1/group/heartbeat": HeartbeatRequest,
    "/v1/group/leave": LeaveGroupRequest,
}


class GroupAsked(Message, frozen=True, kw_only=True):
    """From a member of a group, or who wants to be one."""

    cluster_id: str
    request: MemberRequest
    wait_ms: int = 0
    """A heartbeat that has no news may wait so long for some."""


class GroupAnswered(Message, frozen=True, kw_only=True):
    response: MemberResponse


class GroupView(Message, frozen=True, kw_only=True):
    """A group that members share, or are about to."""

    group_id: str
    state: str
    """Kafka's: PreparingRebalance, CompletingRebalance, Stable, Empty."""
    roster: Roster
    """With what each member was assigned last."""


class GroupsReply(Message, frozen=True, kw_only=True):
    groups: tuple[GroupView, ...]


encode = msgspec.json.Encoder().encode


_DECODERS: Mapping[type[Message], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (
        ClusterInfo,
        Health,
        CommandsRequest,
        CommandsReply,
        ChangesRequest,
        ChangesReply,
        GroupAsked,
        GroupAnswered,
        GroupsReply,
        Failure,
    )
}
"""Made once: to find out how such a union is decoded takes longer than to decode one."""


def decode(data: bytes, kind: type[Message], what: str) -> Any:
    """A message of a type.  Raises InvalidRequest, with what is wrong where."""
    try:
        return _DECODERS[kind].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{what} is not what was expected: {error}") from error


def batches_as_text(batches: Sequence[bytes]) -> tuple[str, ...]:
    """Objects of the log as JSON can have them: they are text."""
    return tuple(data.decode() for data in batches)


def failure_of(error: SparkLogError) -> Failure:
    """An error as it travels."""
    fields = {name: value for name, value in vars(error).items() if name in _FIELDS}
    return Failure(error=type(error).__name__, message=str(error), maybe_applied=error.maybe_applied, fields=fields)


def error_of(failure: Failure) -> SparkLogError:
    """The error that travelled; one of a kind that is not known here is a plain InvalidRequest with its name."""
    kind = getattr(errors, failure.error, None)
    try:
        if not (isinstance(kind, type) and issubclass(kind, SparkLogError)):
            raise TypeError
        error = kind(failure.message, **failure.fields)
    except TypeError:
        error = InvalidRequest(f"{failure.error}: {failure.message}")
    error.maybe_applied = failure.maybe_applied
    return error
