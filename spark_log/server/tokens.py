"""Bearer tokens and their permissions."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from spark_log.errors import AuthenticationFailed, AuthorizationFailed, InvalidRequest
from spark_log.metadata.command_base import Command
from spark_log.metadata.commands import AnyCommand, Append, SeveralCommands
from spark_log.metadata.commits.identities import (
    DRAWN,
    OWNED,
    identity_in,
    identity_of_principal,
    is_named,
    topics_written,
)
from spark_log.metadata.object_tags import tag_of_hash, tagged
from spark_log.metadata.state import State

TOKEN_MIN = 16
"""Characters of a token, at least."""
ROLES = ("read", "write", "admin")
"""Each includes the ones before it."""


class Grant(NamedTuple):
    """The permissions of a token."""

    name: str
    role: str
    topics: tuple[str, ...] = ()
    """Prefixes of topics the token has access to; empty: all topics."""
    groups: tuple[str, ...] = ()
    """Prefixes of groups the token has access to; empty: all groups."""
    producers: tuple[str, ...] = ()
    """Prefixes of transactional ids, `producerId` and `txnAppId`; empty: those of topics."""
    tag: str = ""
    """In the names of the objects that its clients upload (`metadata/object_tags.py`)."""

    @property
    def is_limited(self) -> bool:
        """Whether others may have what this token has no access to."""
        return bool(self.topics or self.groups or self.producers)


GROUP = "group:"
PRODUCER = "producer:"
"""Marks a prefix of producer identities (above: of groups); topic names cannot contain a colon."""
ANYBODY = Grant("anybody", "admin")
"""The grant without configured tokens."""


class Tokens:
    """The tokens of a configuration; only their hashes are stored."""

    def __init__(self, grants: Mapping[bytes, Grant]) -> None:
        self._grants = grants

    def __bool__(self) -> bool:
        return bool(self._grants)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The grants of all tokens; without tokens, that of everybody."""
        return tuple(self._grants.values()) or (ANYBODY,)

    def grant(self, header: str | None) -> Grant:
        """The grant of an Authorization header.  Raises AuthenticationFailed."""
        if not self._grants:
            return ANYBODY
        kind, _, token = (header or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise AuthenticationFailed('no token was sent: give spark_log.connect(url, token="…") or PYLOG_TOKEN')
        digest = _digest(token.strip())
        for known, grant in self._grants.items():
            if hmac.compare_digest(known, digest):
                return grant
        raise AuthenticationFailed("the coordinator does not know this token")


def _digest(token: str) -> bytes:
    """The hash of any bytes: header bytes that are not UTF-8 are surrogates."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def parse_tokens(section: Mapping[str, str]) -> Tokens:
    """Tokens of a configuration: `name = role token [topic prefix …] [group:prefix …] [producer:prefix …]`, with the
    token in plain text or as `sha256:<hex>`.

    Raises InvalidRequest.
    """
    grants = {}
    for name, text in section.items():
        if not name.isprintable():
            raise InvalidRequest(f"tokens: the name {name!r} has characters that cannot be printed: give another name")
        role, token, *prefixes = [*text.split(), "", ""][: max(2, len(text.split()))]
        if role and role not in ROLES and len(role) < TOKEN_MIN:  # a longer one may be a token, which is not printed
            raise InvalidRequest(f"tokens: {name} has the unknown role {role!r}: expected one of {', '.join(ROLES)}")
        if role not in ROLES or len(token) < TOKEN_MIN or {GROUP, PRODUCER} & {*prefixes}:
            raise InvalidRequest(
                f"tokens: {name} is not of the form `role token [topic prefix …] [group:prefix …] [producer:prefix "
                "…]`, with "
                f"role {', '.join(ROLES)} and a token of 16 characters at least"
            )
        try:
            digest = bytes.fromhex(token[7:]) if token.startswith("sha256:") else _digest(token)
        except ValueError:
            digest = b""
        if len(digest) != 32:
            raise InvalidRequest(f"tokens: the hash of {name} is not 64 hexadecimal digits")
        topics = tuple(prefix for prefix in prefixes if not prefix.startswith((GROUP, PRODUCER)))
        groups, producers = _after(GROUP, prefixes), _after(PRODUCER, prefixes)
        grants[digest] = Grant(name, role, topics, groups, producers, tag_of_hash(digest))
    return Tokens(grants)


def _after(kind: str, prefixes: Sequence[str]) -> tuple[str, ...]:
    return tuple(prefix.removeprefix(kind) for prefix in prefixes if prefix.startswith(kind))


def allows_producer(grant: Grant, producer: str, state: State) -> bool:
    """Whether the token has access to a producer identity."""
    try:
        _check_producer(grant, producer, state)
    except AuthorizationFailed:
        return False
    return True


def check_allowed(grant: Grant, command: Command, state: State) -> None:
    """Raises AuthorizationFailed if the token does not allow a command, or one of an atomic set of commands."""
    for part in command.parts():
        _check_one(grant, part, state)


def _check_one(grant: Grant, command: Command, state: State) -> None:
    if ROLES.index(command.role) > ROLES.index(grant.role):
        raise AuthorizationFailed(
            f"the token {grant.name!r} has the role {grant.role}, and this needs the role {command.role}"
        )
    if grant.topics or grant.groups:
        _check_names(grant, command, state)
    for producer in command.producers():
        _check_producer(grant, producer, state)
    if isinstance(command, Append) and grant.topics and grant.tag:
        _check_uploaded(grant, command)


def _check_uploaded(grant: Grant, append: Append) -> None:
    """Raises AuthorizationFailed for objects of others, which are not committed yet: everybody may list them."""
    ends = tagged("", "seg", grant.tag), tagged("", "idx", grant.tag)
    other = next((made.name for made in append.commit.objects if not made.name.endswith(ends)), None)
    if other is not None:
        raise AuthorizationFailed(
            f"object {other!r} was not uploaded with the token {grant.name!r}: a commit names its own uploads only; "
            "upload the data again"
        )


def sees(name: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a token with these prefixes has access to a topic or group."""
    return not prefixes or name.startswith(prefixes)


def check_names(grant: Grant, *, topics: Sequence[str] = (), groups: Sequence[str] = ()) -> None:
    """Raises AuthorizationFailed if the token has no access to one of these topics and groups."""
    for kind, names, prefixes in (("topics", topics, grant.topics), ("groups", groups, grant.groups)):
        for name in names:
            if not sees(name, prefixes):
                raise AuthorizationFailed(
                    f"the token {grant.name!r} is for {kind} that begin with {' or '.join(prefixes)}, not {name!r}"
                )


def _check_names(grant: Grant, command: Command, state: State) -> None:
    topics, groups = command.topics(state), command.groups()
    check_names(grant, topics=topics, groups=groups)
    of_its_groups = bool(groups and grant.groups)
    if command.role == "admin" and not topics and not of_its_groups:
        limits = " and ".join(
            kind for kind, prefixes in (("topics", grant.topics), ("groups", grant.groups)) if prefixes
        )
        raise AuthorizationFailed(f"the token {grant.name!r} is for some {limits}, and this is about the whole log")


def _check_producer(grant: Grant, producer: str, state: State) -> None:
    """Raises AuthorizationFailed if the token has no access to this identity: a client that uses an identity can fence
    its owner, or make its commits pass for duplicates.

    An identity with a user-defined name belongs to the tokens that have a prefix of it.  A random identity, of a
    stream or a plain writer, has the name of the token (`with_identities`), unless it is older than the tokens: then it
    belongs to those that may write the topics of its last commit.  That of a query that writes from `foreachBatch` may
    name its topic, which the token has to be for.
    """
    kind, _, name = producer.removeprefix(_owner(grant)).partition(":")
    prefixes = grant.producers or grant.topics
    drawn = kind == "app" and DRAWN.match(name)
    if is_named(producer) and prefixes:
        if not name.startswith(prefixes):
            raise AuthorizationFailed(
                f"the token {grant.name!r} is for producer identities that begin with {' or '.join(prefixes)}, not "
                f"{name!r}"
            )
    elif not producer.startswith(OWNED):
        check_names(grant, topics=topics_written(producer, state))
    if drawn and (topic := name.rpartition(":")[2]):
        check_names(grant, topics=(topic,))


def with_identities(grant: Grant, command: AnyCommand, state: State) -> AnyCommand:
    """The command with the identities under which it is decided.

    Those of queries and plain writers are the tokens' own.  Their names are random, but others see them, in the log or
    on Spark's pages: under a name that all share, a commit of another tenant would make the next one of its owner pass
    for a repeat.
    """
    if grant == ANYBODY:
        return command
    if isinstance(command, SeveralCommands):
        some = tuple(with_identities(grant, part, state) for part in command.commands)
        return replace(command, commands=some)
    if not isinstance(command, Append):
        return command
    producer = _identity(grant, command.commit.producer, state)
    return replace(command, commit=replace(command.commit, producer=producer))


def _identity(grant: Grant, producer: str, state: State) -> str:
    found = identity_in(state, grant.name, producer)
    is_owned = found != producer or all(sees(name, grant.topics) for name in topics_written(producer, state))
    return found if is_owned else identity_of_principal(grant.name, producer)


def _owner(grant: Grant) -> str:
    return identity_of_principal(grant.name, "")
