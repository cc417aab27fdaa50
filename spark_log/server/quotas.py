"""Quotas: limits on the topics, groups, connections and changes of a token's clients.

Topics, partitions and groups are counted by name: those with a prefix of the token, or all if it has no prefix.  So
the count is the same after a restart, and tokens with the same prefixes share it.  Requests in progress count with
everything they may create.

Runs on the event loop of the server, except `Quotas.usage`, which metrics call in other threads.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from spark_log.errors import InvalidRequest, QuotaExceeded, ThrottlingQuotaExceeded
from spark_log.journal.unseen_changes import UnseenChanges
from spark_log.metadata.command_base import Command
from spark_log.metadata.commands import AddPartitions, CreateTopic
from spark_log.metadata.groups.group_commands import RenewSession
from spark_log.metadata.state import State
from spark_log.monitoring.quota_usage import Usage
from spark_log.server.tokens import Grant


class Quota(NamedTuple):
    """The limits of one token.  None: no limit."""

    topics: int | None = None
    partitions: int | None = None
    """The sum over all its topics."""
    groups: int | None = None
    connections: int | None = None
    """Connections that have sent a complete request."""
    commits: int | None = None
    """Changes per second: commits of records or positions, and all other commands except heartbeats."""


def parse_quotas(section: Mapping[str, str], principals: Sequence[str]) -> dict[str, Quota]:
    """Quotas of a configuration: `name of a token = topics=10 partitions=100 …`.  Raises InvalidRequest."""
    found = {}
    for name, text in section.items():
        if name not in principals:
            raise InvalidRequest(f"quotas: no token is called {name!r}; [tokens] has {', '.join(principals) or 'none'}")
        values = {}
        for part in text.split():
            kind, _, number = part.partition("=")
            if (
                kind not in Quota._fields
                or kind in values
                or not (number.isascii() and number.isdigit() and int(number))
            ):
                raise InvalidRequest(
                    f"quotas: {name}: {part!r} is invalid; expected "
                    f"{', '.join(f'{kind}=N' for kind in Quota._fields)}, each at "
                    "most once, with N above 0"
                )
            values[kind] = int(number)
        found[name] = Quota(**values)
    return found


class TokenBucket:
    """Holds the changes allowed in one second; full at the beginning."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._level = float(rate)
        self._filled_s = -math.inf

    def take(self, now_s: float, count: int = 1) -> float:
        """Take some and return 0; or take nothing and return the seconds until one is available.

        Several are taken as soon as one is available, and the next ones wait for the rest: there may be more than the
        bucket ever holds.
        """
        self._level = min(self.rate, self._level + (now_s - self._filled_s) * self.rate)
        self._filled_s = now_s
        if self._level < 1:
            return (1 - self._level) / self.rate
        self._level -= count
        return 0.0


class Quotas:
    """Limits and usage of a coordinator's tokens."""

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas: Mapping[str, Quota] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._claims: dict[str, dict[Claim, None]] = {}
        """The claims of the requests in progress, by the names of their tokens."""
        self._commits: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._sizes = _GrantSizes()
        self.replace(quotas)

    def replace(self, quotas: Mapping[str, Quota]) -> None:
        """Apply new quotas."""
        self._quotas = quotas
        rates = {name: quota.commits for name, quota in quotas.items() if quota.commits is not None}
        known = self._buckets
        self._buckets = {
            name: known[name] if name in known and known[name].rate == rate else TokenBucket(rate)
            for name, rate in rates.items()
        }

    def of(self, principal: str) -> Quota:
        return self._quotas.get(principal, Quota())

    def claim(self, grant: Grant) -> Claim:
        """A claim for one request; release it when the request is answered."""
        claim = Claim(self, grant)
        self._claims.setdefault(grant.name, {})[claim] = None
        return claim

    def release(self, claim: Claim) -> None:
        claims = self._claims[claim.grant.name]
        del claims[claim]
        if not claims:
            del self._claims[claim.grant.name]

    def claims_of(self, principal: str) -> Iterable[Claim]:
        return self._claims.get(principal, ())

    def note_change(self, principal: str, now_s: float, count: int = 1) -> None:
        """Raises ThrottlingQuotaExceeded.

        count:  of the changes, which are made together.
        """
        bucket = self._buckets.get(principal)
        wait_s = 0.0 if bucket is None else bucket.take(now_s, count)
        if bucket is not None and wait_s:
            self._refused[principal] += 1
            raise ThrottlingQuotaExceeded(
                f"the token {principal!r} has a quota of commits={bucket.rate} a second; nothing was done, retry in "
                f"{wait_s * 1000:.0f} ms",
                retry_after_ms=math.ceil(wait_s * 1000),
            )
        self._commits[principal] += count

    def check(self, principal: str, kind: str, used: int, limit: int | None) -> None:
        """Raises QuotaExceeded if `used`, including the request, exceeds the limit."""
        if limit is not None and used > limit:
            self._refused[principal] += 1
            raise QuotaExceeded(
                f"the token {principal!r} has a quota of {kind}={limit}, and would have {used}; nothing was done. "
                "Delete some, or increase the quota"
            )

    def note(self, state: State) -> None:
        """There is a new state: the next `usage` visits what changed."""
        self._sizes.note(state)

    def usage(self, grants: Sequence[Grant], state: State, connections: Callable[[str], int]) -> list[Usage]:
        """Usage of each token.  May be called from any thread: it reads counters that the event loop increments."""
        return [
            Usage(
                grant.name,
                *size,
                connections(grant.name),
                self._commits[grant.name],
                self._refused[grant.name],
            )
            for grant, size in zip(grants, self._sizes.of(grants, state), strict=True)
        ]


class _Size:
    """The number of things that a token has access to."""

    __slots__ = ("groups", "partitions", "topics")

    def __init__(self) -> None:
        self.topics = self.partitions = self.groups = 0


class _GrantSizes:
    """The number of things that each token has access to.  A call visits what changed since the last.  Thread-safe."""

    def __init__(self) -> None:
        self._unseen = UnseenChanges()
        self._lock = threading.Lock()
        self._grants: tuple[Grant, ...] = ()
        self._sizes: list[_Size] = []

    def note(self, state: State) -> None:
        self._unseen.note(state)

    def of(self, grants: Sequence[Grant], state: State) -> list[tuple[int, int, int]]:
        """Topics, partitions and groups, in the order of the grants."""
        with self._lock:
            old, new, changes = self._unseen.visit(state)
            if changes is None or self._grants != tuple(grants):
                self._grants, self._sizes = tuple(grants), [_Size() for _ in grants]
                self._add(new.names.values(), new, 1)
                self._add_groups(new.groups, 1)
            else:
                self._add(changes.topics, old, -1)
                self._add(changes.topics, new, 1)
                self._add_groups([name for name in changes.groups if name in old.groups], -1)
                self._add_groups([name for name in changes.groups if name in new.groups], 1)
            return [(size.topics, size.partitions, size.groups) for size in self._sizes]

    def _add(self, topic_ids: Iterable[str], state: State, sign: int) -> None:
        found = [state.topics[topic_id] for topic_id in topic_ids if topic_id in state.topics]
        live = [topic for topic in found if not topic.deleted]
        for grant, size in zip(self._grants, self._sizes, strict=True):
            mine = [topic.partitions for topic in live if _may_use_topic(grant, topic.name)]
            size.topics += sign * len(mine)
            size.partitions += sign * sum(mine)

    def _add_groups(self, names: Iterable[str], sign: int) -> None:
        for grant, size in zip(self._grants, self._sizes, strict=True):
            size.groups += sign * sum(_may_use_group(grant, name) for name in names)


class Claim:
    """The topics, partitions and groups that one request may create."""

    def __init__(self, quotas: Quotas, grant: Grant) -> None:
        self.grant = grant
        self.topics: dict[str, int] = {}
        """Partition counts of new and extended topics."""
        self.groups: set[str] = set()
        self._quotas = quotas

    def add(self, command: Command, state: State, now_s: float) -> None:
        """Raises QuotaExceeded or ThrottlingQuotaExceeded; then nothing of the command is claimed."""
        parts = [part for part in command.parts() if not isinstance(part, RenewSession)]
        if not parts:
            return
        sizes: dict[str, int] = {}
        for part in parts:
            if isinstance(part, CreateTopic | AddPartitions):
                _raise_to(sizes, {part.name: part.partitions if isinstance(part, CreateTopic) else part.total})
        self._check_topics(sizes, state)
        self._check_groups(command.groups(), state)
        self._quotas.note_change(self.grant.name, now_s, len(parts))
        _raise_to(self.topics, sizes)
        self.groups.update(command.groups())

    def add_group(self, group: str, state: State) -> None:
        """Claim a group that a member joins.  Raises QuotaExceeded."""
        self._check_groups((group,), state)
        self.groups.add(group)

    def release(self) -> None:
        self._quotas.release(self)

    def _check_topics(self, sizes: Mapping[str, int], state: State) -> None:
        name, quota = self.grant.name, self._quotas.of(self.grant.name)
        if not sizes or (quota.topics is None and quota.partitions is None):
            return
        known = topic_sizes(self.grant, state)
        if all(known.get(topic, 0) >= count > 0 for topic, count in sizes.items()):
            return  # nothing is created
        for claim in self._quotas.claims_of(name):
            _raise_to(known, claim.topics)
        _raise_to(known, sizes)
        self._quotas.check(name, "topics", len(known), quota.topics)
        self._quotas.check(name, "partitions", sum(known.values()), quota.partitions)

    def _check_groups(self, groups: Sequence[str], state: State) -> None:
        name, quota = self.grant.name, self._quotas.of(self.grant.name)
        if quota.groups is None or all(group in state.groups for group in groups):
            return
        known = group_names(self.grant, state).union(groups)
        known.update(*(claim.groups for claim in self._quotas.claims_of(name)))
        self._quotas.check(name, "groups", len(known), quota.groups)


def _raise_to(known: dict[str, int], sizes: Mapping[str, int]) -> None:
    for topic, count in sizes.items():
        known[topic] = max(known.get(topic, 0), count)


def topic_sizes(grant: Grant, state: State) -> dict[str, int]:
    """Partition counts of the topics that a token has access to."""
    return {
        name: state.topics[topic_id].partitions for name, topic_id in state.names.items() if _may_use_topic(grant, name)
    }


def group_names(grant: Grant, state: State) -> set[str]:
    """The groups that a token has access to."""
    return {name for name in state.groups if _may_use_group(grant, name)}


def _may_use_topic(grant: Grant, name: str) -> bool:
    return not grant.topics or name.startswith(grant.topics)


def _may_use_group(grant: Grant, name: str) -> bool:
    return not grant.groups or name.startswith(grant.groups)
