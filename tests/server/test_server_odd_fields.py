"""Odd values in each field of each request to a coordinator: it answers with a sentence, and no neighbour is harmed."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from spark_log.serve.serve import Running
from tests.server.asking import request
from tests.server.test_server_nonsense import ASKED
from tests.unit.metadata.test_odd_commands import ODD, places, with_odd

BODIES: dict[str, dict[str, Any]] = {
    "/v1/commands": {"since": 0, "head": "", "commands": [], "held": None},
    "/v1/changes": {"since": 0, "head": "", "wait_ms": 0, "topics": ["t"], "group": "g", "standby": True},
    "/v1/topics": {
        "held": [0, "", {"t": ["", []]}, ["g"]],
        "wait_ms": 0,
        "topics": ["t"],
        "group": "g",
        "standby": True,
        "confirmed": True,
    },
    "/v1/objects": {"names": ["data/0000000000000001/x.seg"], "standby": True},
    "/v1/snapshot": {"snapshot": "", "at": 0, "version": None, "at_least": 0, "standby": True},
    "/v1/claim": {"name": "meta/pin/x", "value": '{"version": 1}', "wait_ms": 0},
    **{f"/v1/group/{name}": {"request": asked, "wait_ms": 0} for name, asked in ASKED.items()},
}
LARGE = next(odd for odd in ODD if isinstance(odd, str) and len(odd) > 20_000)
"""More than the body that this port takes, which another test sends."""
WAITING = {"wait_ms"}
"""Only odd values beyond their bounds: others let a request wait."""


def bodies(path: str, running: Running) -> Iterator[bytes]:
    """The request with an odd value in one field, or with one more field that its type has."""
    whole = {"cluster_id": running.coordinator.cluster_id, **BODIES[path]}
    for place in places(whole):
        for odd in ODD:
            waits = place[-1] in WAITING and isinstance(odd, int) and 0 <= odd < 2**63
            if not waits and odd != LARGE:
                yield json.dumps(with_odd(whole, place, odd)).encode()


def asked(connection: http.client.HTTPConnection, path: str, body: bytes, *, again: bool = True) -> tuple[int, bytes]:
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (http.client.HTTPException, ConnectionError):  # a busy machine takes longer than the limit of this port
        connection.close()
        if not again:
            raise
    return asked(connection, path, body, again=False)


# Promise: service.md#as-a-service
@pytest.mark.parametrize("path", BODIES)
def test_an_odd_field_gets_a_sentence(small: Running, path: str) -> None:
    """400 or an answer; 500 would be an error that nobody expected."""
    host, _, port = small.coordinator.address.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    statuses = set()
    for body in bodies(path, small):
        status, answer = asked(connection, path, body)
        assert status < 500 and answer, body[:300]
        statuses.add(status)
    connection.close()
    assert 400 in statuses
    assert request(small.coordinator.address, "GET", "/health")[0] == 200
