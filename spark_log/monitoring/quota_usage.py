"""How much of its quotas each token uses, for metrics."""

from __future__ import annotations

from typing import NamedTuple


class Usage(NamedTuple):
    """The usage of a token, for the metrics."""

    principal: str
    topics: int
    partitions: int
    groups: int
    connections: int
    commits: int
    refused: int
