"""The set of voters: what a majority of it has reached, and its encoding in an entry."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

import msgspec

from spark_log.bounds import INT_MAX
from spark_log.errors import InvalidRequest
from spark_log.quorum.messages import ReplicaKey

Voters: TypeAlias = tuple[ReplicaKey, ...]
"""Sorted; each id occurs once."""

_DECODER = msgspec.json.Decoder(Voters)


def check_node_id(node_id: int) -> None:
    """Raises InvalidRequest."""
    if not 0 <= node_id <= INT_MAX:
        raise InvalidRequest(f"node id: {node_id} is not between 0 and {INT_MAX}")


def maybe_node_id(text: str) -> int | None:
    """None if it is not the id of a node."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(INT_MAX))):
        return None
    return int(text) if int(text) <= INT_MAX else None


def key_text(key: ReplicaKey) -> str:
    return f"{key.id}@{key.directory}"


def voters_text(voters: Iterable[ReplicaKey]) -> str:
    """For people."""
    return ", ".join(map(key_text, voters))


def check_quorum(own: Voters, others: Voters) -> None:
    """That two nodes can be of one quorum: voters change one by one, so the sets of nodes that run have one in common.

    Raises InvalidRequest.
    """
    if own and others and not set(own) & set(others):
        raise InvalidRequest(
            f"another quorum has the same cluster id: its voters are {voters_text(others)}, and here they are "
            f"{voters_text(own)}; format the directories of one of the two again, without voters, to join the other"
        )


def is_majority(some: Collection[ReplicaKey], voters: Voters) -> bool:
    """Whether more than half of the voters are among `some`."""
    return sum(voter in some for voter in voters) > len(voters) // 2


def majority_reached(values: Sequence[int]) -> int:
    """The largest number that is not above the values of a majority; one value for each voter."""
    return sorted(values, reverse=True)[len(values) // 2]


def encode_voters(voters: Voters) -> bytes:
    """The data of an entry of the kind VOTERS."""
    return msgspec.json.encode(voters)


def decode_voters(data: bytes) -> Voters:
    """The voters in the data of such an entry."""
    return _DECODER.decode(data)
