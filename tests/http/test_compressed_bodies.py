"""A compressed body is refused by its header, and never decompressed: a few KB can be a GB."""

from __future__ import annotations

import gzip
import time

import pytest

from tests.server.asking import READ, raw

BOMB = gzip.compress(bytes(400 << 20))
PATHS = ("/v1/commands", "/v1/changes", "/v1/claim", "/v1/group/join", "/health", "/no/such/path")


def sent(address: str, path: str, body: bytes, *, encoding: str, token: str = "") -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {address}",
        f"Content-Encoding: {encoding}",
        f"Content-Length: {len(body)}",
        *([f"Authorization: Bearer {token}"] if token else []),
    ]
    return raw(address, "\r\n".join([*lines, "", ""]).encode() + body, ended=False)


# Promise: service.md#as-a-service
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip", "x"])
def test_a_compressed_body_is_refused(guarded: str, encoding: str) -> None:
    """A client that is let in hears why."""
    answer = sent(guarded, "/v1/commands", gzip.compress(b"{}"), encoding=encoding, token=READ)
    assert b" 400 " in answer.splitlines()[0] and b"Content-Encoding" in answer and b"uncompressed" in answer


# Promise: service.md#as-a-service
def test_the_token_is_checked_first(guarded: str) -> None:
    """Nobody without a token learns more than that it is missing."""
    answer = sent(guarded, "/v1/commands", gzip.compress(b"{}"), encoding="gzip")
    assert b" 401 " in answer.splitlines()[0] and b"token" in answer


def test_a_body_that_says_identity_is_read(guarded: str) -> None:
    answer = sent(guarded, "/v1/changes", b"{}", encoding="identity", token=READ)
    assert b"cluster_id" in answer  # the first field that it lacks


# Promise: service.md#as-a-service
@pytest.mark.parametrize("token", ["", READ])
@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_decompressed_for_anybody(guarded: str, path: str, token: str) -> None:
    """The coordinator is a thread of this process: its processor time is counted."""
    before_s = time.process_time()
    for _ in range(3):
        assert sent(guarded, path, BOMB, encoding="gzip", token=token)
    assert time.process_time() - before_s < 0.5
