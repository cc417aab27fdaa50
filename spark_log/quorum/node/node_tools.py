"""Answers the requests of operators' commands to a node: see `tool_requests.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol, TypeVar

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.errors import InvalidRequest, NotLeaderOrFollower, RequestTimedOut
from spark_log.quorum.leading import VoterChange
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.node_metrics import metrics_text
from spark_log.quorum.node.node_status import NodeStatus
from spark_log.quorum.node.pending_appends import not_leader
from spark_log.quorum.node.port import Tool
from spark_log.quorum.node.tool_requests import HAND_OVER, METRICS, STATUS, VOTERS, HandOverRequest, VotersRequest
from spark_log.quorum.voters import key_text, voters_text

COMMIT_S = 3.0
"""For a change of voters to be committed."""
LOOK_S = 0.02
Request = TypeVar("Request")


class AdministeredNode(Protocol):
    """The part of a node that commands use."""

    def status(self) -> NodeStatus | None: ...

    def add_voter(self, key: ReplicaKey) -> VoterChange: ...

    def remove_voter(self, key: ReplicaKey) -> VoterChange: ...

    async def hand_over(self, to: int | None = None) -> bool: ...


class NodeTools:
    """The tools of one node."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node
        self.by_path: Mapping[tuple[str, str], Tool] = {
            ("GET", STATUS): self._status,
            ("GET", METRICS): self._metrics,
            ("POST", VOTERS): self._change_voters,
            ("POST", HAND_OVER): self._hand_over,
        }

    def _known(self) -> NodeStatus:
        status = self._node.status()
        if status is None:
            raise InvalidRequest("this node has not joined yet: it knows no voters, and asks the other nodes for them")
        return status

    async def _status(self, body: bytes) -> bytes:
        return msgspec.json.encode(self._known())

    async def _metrics(self, body: bytes) -> bytes:
        return metrics_text(self._known()).encode()

    async def _change_voters(self, body: bytes) -> bytes:
        request = _decode(body, VotersRequest)
        if request.add is not None:
            key, change = request.add, self._node.add_voter(request.add)
        elif request.remove is not None:
            key, change = request.remove, self._node.remove_voter(request.remove)
        else:
            raise InvalidRequest("add or remove: give a voter")
        if change is not VoterChange.NONE:
            raise refusal(change, self._known(), key)
        await self._until_committed(key)
        return b"{}"

    async def _until_committed(self, key: ReplicaKey) -> None:
        ends_s = asyncio.get_running_loop().time() + COMMIT_S
        while (status := self._known()).role == "leader":
            if status.are_voters_committed:
                return
            if asyncio.get_running_loop().time() > ends_s:
                break
            await asyncio.sleep(LOOK_S)
        raise _maybe_made(f"the change of the voter {key_text(key)} is not committed yet")

    async def _hand_over(self, body: bytes) -> bytes:
        request, status = _decode(body, HandOverRequest), self._known()
        if status.role != "leader":
            raise not_leader(status.leader, status.epoch)
        others = {voter.id for voter in status.voters if voter != status.key}
        if request.to is not None and request.to not in others:
            raise InvalidRequest(f"node {request.to} is not another voter: the voters are {voters_text(status.voters)}")
        if not others:
            raise InvalidRequest("this node is the only voter: no other node can lead")
        if not await self._node.hand_over(request.to):
            raise RequestTimedOut("no other node leads yet: look at `pylog quorum describe`")
        return b"{}"


def _decode(body: bytes, kind: type[Request]) -> Request:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise InvalidRequest(f"the request is not valid: {error}") from error


def _maybe_made(why: str) -> RequestTimedOut:
    error = RequestTimedOut(f"{why}: look at `pylog quorum describe`")
    error.maybe_applied = True
    return error


def refusal(
    change: VoterChange, status: NodeStatus, key: ReplicaKey
) -> InvalidRequest | NotLeaderOrFollower | RequestTimedOut:
    """Why a change of voters was not begun, and what to do.  Pure."""
    match change:
        case VoterChange.NOT_LEADER_OR_FOLLOWER:
            return not_leader(status.leader, status.epoch)
        case VoterChange.DUPLICATE_VOTER:
            found = next(voter for voter in status.voters if voter.id == key.id)
            cure = "there is nothing to do" if found == key else "remove that one first"
            return InvalidRequest(f"node {key.id} is a voter already, as {key_text(found)}: {cure}")
        case VoterChange.VOTER_NOT_FOUND:
            return InvalidRequest(f"{key_text(key)} is not a voter: the voters are {voters_text(status.voters)}")
        case VoterChange.INVALID_REQUEST:
            return InvalidRequest(f"node {key.id} leads: let another node lead first, with `pylog quorum transfer`")
        case _:
            return RequestTimedOut(f"the voters cannot be changed now: {_obstacle(status, key)}")


def _obstacle(status: NodeStatus, key: ReplicaKey) -> str:
    """In the order in which the leader checks."""
    found = next((one for one in status.replication if one.key == key), None)
    if not status.are_voters_committed:
        return "another change is not committed yet"
    if key in status.voters:
        return "no majority of the other voters fetches; start them first"
    if found is None:
        return f"{key_text(key)} does not fetch from the leader; start that node, with the addresses of the others"
    if found.is_silent:
        return (
            f"{key_text(key)} has not fetched from the leader for {found.fetched_ms_ago // 1000} s; start that node, or "
            "format another directory for it"
        )
    if found.log_end < status.high_watermark:
        return f"{key_text(key)} lacks {status.high_watermark - found.log_end:,} committed entries; wait for it"
    return "the leader has not committed an entry of its epoch yet, or no majority of the new voters fetches"
