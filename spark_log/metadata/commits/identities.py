"""Identities of producers: whether users named them, and under which one a log has the commits of a token's clients.

Pure.
"""

from __future__ import annotations

import re

from spark_log.metadata.state import ProducerState, State

NAMED = ("txn", "sink", "app")
"""Kinds of identities with user-defined names: transactional ids, `producerId`, `txnAppId`."""
DRAWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/")
"""A query id in front of the name of an application that writes from the query's `foreachBatch`."""
OWNED = "@"
"""Before the name of the token to which an identity belongs.  A name of a token has no colon, which follows it."""


def is_named(producer: str) -> bool:
    """Whether a user has chosen the name of an identity."""
    kind, _, name = producer.partition(":")
    return kind in NAMED and not (kind == "app" and DRAWN.match(name))


def producer_of(state: State, producer: str, sequence: int) -> ProducerState | None:
    """The row of an identity for a commit of it; None if nothing that it has written counts for that any more."""
    known = state.producers.get(producer)
    return None if known is None or is_of_deleted(state, producer, known, sequence) else known


def is_of_deleted(state: State, producer: str, known: ProducerState, sequence: int) -> bool:
    """Whether an identity is an application whose versions count no more, because its topics are deleted.

    Each version is written once to a topic, and one that is created again is another topic.  The topics of the last
    version are known.  A lower one may have gone to others, unless the topic that the application names is a new one.
    """
    last = known.last_commit
    if last is None or not last.topics or not (producer.startswith("app:") and is_named(producer)):
        return False
    if any(state.live_topic(one) is not None for one in last.topics):
        return False
    return sequence >= last.sequence or _has_new_topic(state, producer, known)


def _has_new_topic(state: State, producer: str, known: ProducerState) -> bool:
    """Whether the topic in the identity of an application was created after its last commit, or is not there."""
    name = producer.rpartition(":")[2]
    topic_id = state.names.get(name)
    return bool(name) and (topic_id is None or state.topics[topic_id].created_ms >= known.time)


def topics_written(producer: str, state: State) -> list[str]:
    """The topics of the last commit under an identity."""
    known = state.producers.get(producer)
    last = None if known is None else known.last_commit
    return sorted({state.topics[one].name for one in last.topics if one in state.topics}) if last is not None else []


def identity_in(state: State, principal: str, producer: str) -> str:
    """The identity under which a log has the commits of a token's clients.

    A query that is older than the tokens keeps its identity: its next batch may be a repeat.
    """
    owned, known = identity_of_principal(principal, producer), state.producers.get(producer)
    is_older = (
        known is not None and not known.plain and owned not in state.producers and topics_written(producer, state)
    )
    return producer if is_older else owned


def identity_of_principal(principal: str, producer: str) -> str:
    """The name that the log has for an identity of a token's clients; empty principal: there are no tokens."""
    return producer if not principal or is_named(producer) else f"{OWNED}{principal}:{producer}"
