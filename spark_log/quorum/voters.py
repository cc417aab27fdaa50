"""The set of voters: what a majority of it has reached, and its encoding in an entry."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

import msgspec

from spark_log.quorum.messages import ReplicaKey

Voters: TypeAlias = tuple[ReplicaKey, ...]
"""Sorted; each id occurs once."""

_DECODER = msgspec.json.Decoder(Voters)


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
    """Of the data of such an entry."""
    return _DECODER.decode(data)
