"""Looks at a quorum and changes it, from outside, through the port of its nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    NotLeaderOrFollower,
    RequestTimedOut,
    SparkLogError,
)
from spark_log.http.address import parse_address
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.handshake import check_secret, parse_key
from spark_log.quorum.node.node_status import NodeStatus
from spark_log.quorum.node.request import ask_node
from spark_log.quorum.node.tool_requests import HAND_OVER, STATUS, VOTERS, HandOverRequest, VotersRequest
from spark_log.quorum.voters import Voters, voters_text

AGAIN_S = 0.2
LATER = (NotLeaderOrFollower, RequestTimedOut, CoordinatorNotAvailable)
"""Errors after which a change is tried again."""


class QuorumAdmin:
    """Has the addresses of some nodes, and finds the leader through them."""

    def __init__(self, addresses: Sequence[str], secret: str, ca: str | None = None) -> None:
        check_secret(secret)
        self._addresses = [parse_address(address, "nodes") for address in addresses]
        self._secret, self._ca = secret, ca

    def answers(self) -> dict[str, NodeStatus | SparkLogError]:
        """By address, of the nodes that were given and of those that they know."""
        found = self._ask(self._addresses)
        known = {one for status in found.values() if isinstance(status, NodeStatus) for one in _others(status, found)}
        return found | self._ask(sorted(known))

    def _ask(self, addresses: Sequence[str]) -> dict[str, NodeStatus | SparkLogError]:
        if not addresses:
            return {}
        with ThreadPoolExecutor(len(addresses)) as threads:
            return dict(zip(addresses, threads.map(self._status, addresses), strict=True))

    def _status(self, address: str) -> NodeStatus | SparkLogError:
        try:
            data = ask_node(address, "GET", STATUS, None, secret=self._secret, ca=self._ca)
            return msgspec.json.decode(data, type=NodeStatus)
        except SparkLogError as error:
            return error
        except UNREADABLE as error:
            return InvalidRequest(f"{address} is not a node of a quorum: {error}")

    def leader(self) -> tuple[str, NodeStatus]:
        """Its address and status.  Raises CoordinatorNotAvailable, with what each node says."""
        found = self._ask(self._addresses)
        if not any(isinstance(one, NodeStatus) and one.role == "leader" for one in found.values()):
            found = self.answers()
        return leader_among(found)

    def add_voter(self, voter: str, timeout_s: float) -> ReplicaKey:
        """Returns when the change is committed.  Tries again until the timeout, while the voter lacks entries.

        voter:  as for `replica_to_add`, which chooses again for each try: its node may just be starting.
        """

        def request(status: NodeStatus) -> tuple[ReplicaKey, VotersRequest]:
            key = replica_to_add(status, voter)
            return key, VotersRequest(add=key)

        return self._change(request, lambda key, voters: key in voters, timeout_s)

    def remove_voter(self, key: ReplicaKey, timeout_s: float) -> None:
        """Returns when the change is committed."""
        self._change(lambda _: (key, VotersRequest(remove=key)), lambda key, voters: key not in voters, timeout_s)

    def _change(
        self,
        request: Callable[[NodeStatus], tuple[ReplicaKey, VotersRequest]],
        is_made: Callable[[ReplicaKey, Voters], bool],
        timeout_s: float,
    ) -> ReplicaKey:
        """A change whose answer is lost may have been made."""
        deadline_s, is_repeated = time.monotonic() + timeout_s, False
        while True:
            try:
                address, status = self.leader()
                key, body = request(status)
                if is_repeated and status.are_voters_committed and is_made(key, status.voters):
                    return key
                is_repeated = True
                self._post(address, VOTERS, body)
                return key
            except LATER:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(AGAIN_S)

    def hand_over(self, to: int | None = None) -> int:
        """Let another node lead; the id of the one that led."""
        address, status = self.leader()
        if status.key.id != to:
            self._post(address, HAND_OVER, HandOverRequest(to=to))
        return status.key.id

    def wait_for_leader(self, timeout_s: float) -> int:
        """The id of the node that leads, as soon as one does.  Raises CoordinatorNotAvailable."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return self.leader()[1].key.id
            except CoordinatorNotAvailable:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(AGAIN_S)

    def _post(self, address: str, path: str, request: Any) -> None:
        ask_node(address, "POST", path, msgspec.json.encode(request), secret=self._secret, ca=self._ca)


def _others(status: NodeStatus, asked: Mapping[str, object]) -> list[str]:
    """Addresses that the node knows and that were not asked."""
    return [address for address in status.addresses.values() if address not in asked]


def leader_among(answers: Mapping[str, NodeStatus | SparkLogError]) -> tuple[str, NodeStatus]:
    """The newest leader.  Raises CoordinatorNotAvailable, or the error of all nodes."""
    leaders = [
        (address, one) for address, one in answers.items() if isinstance(one, NodeStatus) and one.role == "leader"
    ]
    if leaders:
        return max(leaders, key=lambda found: found[1].epoch)
    errors = [one for one in answers.values() if isinstance(one, SparkLogError)]
    if len(errors) == len(answers) and not any(isinstance(one, LATER) for one in errors):
        raise errors[0]
    raise CoordinatorNotAvailable(f"no node leads: {'; '.join(map(_says, answers.values()))}")


def _says(answer: NodeStatus | SparkLogError) -> str:
    if isinstance(answer, NodeStatus):
        return f"node {answer.key.id} is {answer.role} in epoch {answer.epoch}"
    return str(answer)


def replica_to_add(status: NodeStatus, text: str) -> ReplicaKey:
    """The replica that `key_of` gives; of several replicas with the id, the one that fetches.  The others are former
    directories of the node: the leader knows them for some minutes.
    """
    found = [one for one in status.replication if str(one.key.id) == text]
    if sum(not one.is_silent for one in found) > 1 or not found:
        return key_of(status, text)
    return min(found, key=lambda one: one.fetched_ms_ago).key


def key_of(status: NodeStatus, text: str) -> ReplicaKey:
    """A replica by `ID@DIRECTORY-ID`, or by its id if the leader knows one replica with that id.

    Raises InvalidRequest.
    """
    if "@" in text:
        return parse_key(text)
    known = sorted({*status.voters, *(one.key for one in status.replication), status.key})
    found = [key for key in known if str(key.id) == text]
    if len(found) == 1:
        return found[0]
    raise InvalidRequest(
        f"{text!r} is {'several replicas' if found else 'not a replica'} that the leader knows; it knows "
        f"{voters_text(known)}: give ID@DIRECTORY-ID"
    )
