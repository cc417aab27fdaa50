"""One node of a quorum introduces itself to another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_log.errors import AuthenticationFailed, InconsistentClusterId, InvalidRequest, SparkLogError
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.handshake import (
    ADDRESS,
    LEVEL,
    SOURCE,
    NodeIdentity,
    check_request,
    check_secret,
    level_of,
    parse_key,
    reply_headers,
    request_headers,
    voters_of,
)

SECRET = "0123456789abcdef"
ONE = NodeIdentity(cluster_id="c", key=ReplicaKey(1, "a"), address="one:9551", process="p1")
TWO = NodeIdentity(cluster_id="c", key=ReplicaKey(2, "b"), address="two:9551", process="p2")


def test_a_node_introduces_itself() -> None:
    """With its directory, its address and its process; the reply has the voters."""
    assert check_request(request_headers(ONE, 2, SECRET), TWO, SECRET) == ONE
    assert voters_of(reply_headers(TWO, (ONE.key, TWO.key))) == (ONE.key, TWO.key)
    assert voters_of(reply_headers(TWO, ())) == ()
    assert [level_of(headers) for headers in (reply_headers(replace(TWO, level=4), ()), {}, {LEVEL: "x"})] == [4, 0, 0]


# Promise: raft.md#between-nodes
@pytest.mark.parametrize(
    ("headers", "error", "message"),
    [
        ({}, AuthenticationFailed, "the secret differs"),
        (request_headers(ONE, 2, "another secret 1"), AuthenticationFailed, "the secret differs"),
        (request_headers(ONE, 2, "\udcff"), AuthenticationFailed, "the secret differs"),
        (request_headers(replace(ONE, cluster_id="d"), 2, SECRET), InconsistentClusterId, "cluster c, not to d"),
        (request_headers(ONE, 3, SECRET), InvalidRequest, "this is node 2, not node 3"),
        (request_headers(replace(ONE, key=ReplicaKey(2, "x")), 2, SECRET), InvalidRequest, "this is node 2 as well"),
        ({**request_headers(ONE, 2, SECRET), SOURCE: "1"}, InvalidRequest, "is not a node id up to 2147483647"),
        ({**request_headers(ONE, 2, SECRET), ADDRESS: "a b"}, InvalidRequest, "is not an address"),
    ],
)
def test_a_stranger_is_refused(headers: dict[str, str], error: type[SparkLogError], message: str) -> None:
    """The secret is checked first: others learn nothing."""
    with pytest.raises(error, match=message):
        check_request(headers, TWO, SECRET)


def test_a_key_is_parsed() -> None:
    assert parse_key("1@a@b") == ReplicaKey(1, "a@b")
    for text in ("", "x@a", "1@", "²@a", "2147483648@a", "9" * 5000 + "@a"):
        with pytest.raises(InvalidRequest):
            parse_key(text)


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ("short", "has 5 characters: expected 16 at least"),
        (SECRET + "\n", "remove the newline at its end"),
        (SECRET + " ", "replace the character 17"),
        ("gehei\u0301m" + SECRET, "replace the character 6"),
    ],
)
def test_a_secret_fits_into_a_header(secret: str, message: str) -> None:
    """The others get it unchanged; the message does not show it."""
    check_secret(SECRET)
    with pytest.raises(InvalidRequest, match=message) as refused:
        check_secret(secret)
    assert secret not in str(refused.value)
