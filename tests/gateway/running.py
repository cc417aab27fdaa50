"""A gateway in this process, requests by hand, and clients of it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import confluent_kafka
from kafka.net.inet import KafkaNetSocket

import spark_log
from spark_log.gateway.api import Api
from spark_log.gateway.codec import FrameBytes, layout
from spark_log.gateway.gateway import Gateway, parse_addresses
from spark_log.gateway.messages import RequestHeader
from spark_log.gateway.port import LIMITS
from spark_log.groups.group import GroupConfig
from spark_log.http.connection_limits import ConnectionLimits
from tests.services import QUICK

DEADLINE_S = 60.0
"""For what is known to come: only a failure waits so long."""


class Running:
    """A gateway on a loopback port."""

    def __init__(
        self,
        log: spark_log.Log,
        prefixes: tuple[str, ...] = (),
        limits: ConnectionLimits = LIMITS,
        listen: str = "127.0.0.1:0",
        *,
        read_only: bool = False,
        groups: GroupConfig = QUICK,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._gateway, self.address = self._run(self._start(log, prefixes, limits, listen, read_only, groups))

    async def _start(
        self,
        log: spark_log.Log,
        prefixes: tuple[str, ...],
        limits: ConnectionLimits,
        listen: str,
        read_only: bool,
        groups: GroupConfig,
    ) -> tuple[Gateway, str]:
        addresses = parse_addresses(listen, None, insecure=False)
        gateway = Gateway(log, addresses, prefixes, limits, read_only=read_only, groups=groups)
        return gateway, await gateway.start()

    def _run(self, steps: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(steps, self._loop).result(DEADLINE_S)

    def close(self) -> None:
        self._run(self._gateway.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._gateway._port.connections)

    @contextmanager
    def connection(self) -> Iterator[socket.socket]:
        host, _, port = self.address.rpartition(":")
        with socket.create_connection((host, int(port)), DEADLINE_S) as opened:
            yield opened

    def ask(self, api: Api, version: int, request: object) -> Any:
        """One request on one connection, and its response."""
        with self.connection() as opened:
            opened.sendall(frame(api, version, request))
            body = received(opened)
        source = FrameBytes(body)
        assert source.take(4) == b"\0\0\0\7"
        flexible = version >= api.flexible
        if flexible and api.key != 18:
            source.skip_tags()
        response = layout(api.response, version, flexible).read(source)
        assert source.left == 0
        return response


def frame(api: Api, version: int, request: object) -> bytes:
    flexible = version >= api.flexible
    parts: list[bytes] = []
    header = RequestHeader(api_key=api.key, api_version=version, correlation_id=7, client_id="a test")
    layout(RequestHeader, 0, False).write(header, parts.append)
    if flexible:
        parts.append(b"\0")
    layout(api.request, version, flexible).write(request, parts.append)
    body = b"".join(parts)
    return len(body).to_bytes(4, "big") + body


def received(opened: socket.socket) -> bytes:
    """The next frame; empty if the connection was closed."""
    size, data = 4, b""
    while len(data) < size:
        more = opened.recv(size - len(data))
        if not more:
            assert not data
            return b""
        data += more
        size = 4 + int.from_bytes(data[:4], "big") if len(data) >= 4 else size
    return data[4:]


def librdkafka(address: str, **settings: Any) -> confluent_kafka.Consumer:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False, "log_level": 0, **names}
    )


class KeptSocket(KafkaNetSocket):
    """Keeps the sockets of kafka-python, which leaves some of them to the garbage collector, in a later test."""

    SCHEMES = ("kept",)
    made: ClassVar[list[socket.socket]] = []

    def socket(self, *args: Any, **settings: Any) -> socket.socket:
        self.made.append(super().socket(*args, **settings))
        return self.made[-1]


def kafka_python(kind: Callable[..., Any], address: str, *topics: str, **settings: Any) -> Any:
    """A consumer or producer.

    It asks for metadata often: while an answer is under way that names no topic, kafka-python forgets to ask for the
    topics that were subscribed meanwhile, and a leader without metadata assigns no partitions.  It also connects again
    soon, however often that has failed.
    """
    often = {"metadata_max_age_ms": 500, "reconnect_backoff_max_ms": 500, "proxy_url": "kept://"}
    return kind(*topics, bootstrap_servers=address, **{**often, **settings})


def consumed(address: str, topic: str, starts: dict[int, int], ends: dict[int, int], **settings: Any) -> list[Any]:
    """The messages between offsets, by librdkafka."""
    consumer, found = librdkafka(address, enable_partition_eof=True, **settings), []
    consumer.assign([confluent_kafka.TopicPartition(topic, number, at) for number, at in starts.items()])
    at_end: dict[int, int] = {}
    deadline = time.monotonic() + DEADLINE_S
    while at_end != ends and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.1):
            if message.error() is None:
                found.append(message)
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                at_end[message.partition()] = message.offset()
            else:
                raise AssertionError(message.error())
    consumer.close()
    assert at_end == ends
    return found
