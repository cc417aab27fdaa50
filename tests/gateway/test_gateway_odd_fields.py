"""Odd values in each field of each request to a gateway: it refuses the request, and no neighbour is harmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

import spark_log
from spark_log import NewTopic
from spark_log.gateway.api import API_VERSIONS, APIS, FETCH, METADATA, Api
from spark_log.gateway.codec import FIXED, WireField
from spark_log.gateway.messages import ApiVersionsRequest, MetadataRequest
from spark_log.recovery.verify import verify
from tests.gateway.running import Running, frame
from tests.gateway.test_gateway_codec import EXAMPLES

Serve = Callable[..., Running]
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = ("", "a\x1b]0;x\x07\n", "nan", "\ufeff", "é" * 16_383)
BYTES = (b"", bytes(range(256)), None)
AT_ONCE = 32
"""Connections."""
WAITS_S = 2.0
"""Some requests wait for other members, or for records.  They are cancelled when the gateway ends."""


def odd_values(wire: WireField, value: Any) -> Iterator[Any]:
    if wire.kind in FIXED and wire.kind != "bool":
        most = 1 << BITS[wire.kind] - 1
        yield from (-most, most - 1, -1, 0)
    elif wire.kind == "bool":
        yield not value
    elif wire.kind == "uuid":
        yield from ("0" * 32, "f" * 32)
    elif wire.kind == "array":
        yield from ((), [*value, *value])
    else:
        yield from TEXTS if wire.kind == "text" else BYTES
    if wire.nullable:
        yield None


def changed(message: Any, version: int) -> Iterator[Any]:
    """The message with an odd value in one field, at any depth; only fields that the version has."""
    for one in fields(message):
        wire, value = one.metadata["wire"], getattr(message, one.name)
        if not wire.since <= version <= wire.until:
            continue
        yield from (replace(message, **{one.name: odd}) for odd in odd_values(wire, value))
        for number, item in enumerate(value if wire.kind == "array" and value else ()):
            items = changed(item, version) if is_dataclass(item) else odd_items(wire)
            yield from (replace(message, **{one.name: [*value[:number], odd, *value[number + 1 :]]}) for odd in items)


def odd_items(wire: WireField) -> Iterator[Any]:
    return odd_values(WireField(str(wire.item), 0, 0), None)


def requests(api: Api) -> Iterator[bytes]:
    """In the first and the last version."""
    example = EXAMPLES[api][0]
    if api is FETCH:
        example = replace(example, max_wait_ms=0)
    for version in dict.fromkeys((api.first, api.last)):
        for message in changed(example, version):
            yield frame(api, version, message)


async def sent(address: str, frames: list[bytes]) -> None:
    """Each on its own connection, which the gateway may close without an answer."""
    host, _, port = address.rpartition(":")
    limit = asyncio.Semaphore(AT_ONCE)

    async def ask(data: bytes) -> None:
        async with limit:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data)
            with suppress(ConnectionError, asyncio.TimeoutError):
                await asyncio.wait_for(reader.read(4), WAITS_S)
            writer.close()

    await asyncio.gather(*map(ask, frames))


# Promise: gateway.md#limits
@pytest.mark.parametrize("api", [api for api in APIS.values() if api is not API_VERSIONS], ids=lambda api: str(api.key))
def test_an_odd_field_is_refused_alone(
    serve: Serve, log: spark_log.Log, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """No request ends in an error that nobody expected, which is logged with its traceback."""
    log.admin.create_topics([NewTopic("t", 3)])
    gateway = serve()
    asyncio.run(sent(gateway.address, list(requests(api))))
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert gateway.ask(API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0
    assert "orders" in {one.name for one in gateway.ask(METADATA, 13, MetadataRequest(topics=None)).topics}
    log.append("orders", [{"value": b"x"}])
    assert verify(log) == [] and log.read("orders").num_rows == 1
