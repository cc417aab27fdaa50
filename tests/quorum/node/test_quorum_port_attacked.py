"""Peers without the secret at the port of a quorum's node: commits continue."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from spark_log.quorum.node.port import LIMITS
from tests.quorum.node.quorum_nodes import cluster, run

UPGRADE = (
    b"GET /v1/quorum HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
BAD = UPGRADE + b"Authorization: Bearer nope\r\n\r\n"
KINDS = {
    "nothing": b"",
    "half a head": b"GET /v1/quorum HTTP/1.1\r\nX: " + b"a" * 1000,
    "another secret": BAD,
    "many requests": BAD * 500,
    "a frame of 2^63 bytes before the answer": BAD + b"\x82\x7f\x7f" + b"\xff" * 7 + bytes(1 << 18),
    "a body of 2^63 bytes": b"POST /v1/quorum HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775807\r\n\r\n"
    + bytes(1 << 18),
    "chunks": b"POST /v1/quorum HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 20_000,
    "a head of 200 KB": b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)),
    "a number with 5,000 digits": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "garbage": os.urandom(1 << 18),
}


@pytest.mark.parametrize("kind", KINDS)
def test_commits_continue_beside_peers_without_the_secret(tmp_path: Path, kind: str) -> None:
    """More of them than silent connections may be."""

    async def attack(address: str) -> asyncio.StreamWriter | None:
        host, _, port = address.partition(":")
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(KINDS[kind])
            return writer
        return None

    async def test() -> None:
        async with cluster(tmp_path) as found:
            await found.append(b"before")
            address = found.addresses[await found.leader()]
            peers = [await attack(address) for _ in range(LIMITS.silent_connections + 10)]
            entries = [b"%d" % number for number in range(20)]
            for entry in entries:
                await found.append(entry)
            await found.all_have([b"before", *entries])
            for peer in peers:
                if peer is not None:
                    peer.transport.abort()

    run(test)
