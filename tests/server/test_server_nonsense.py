"""The coordinator's port answers an invalid request with a message, and nothing is written."""

from __future__ import annotations

import http.client
import json
import random
import socket
import urllib.error
import urllib.parse
import urllib.request

import pytest

from spark_log.serve.serve import Running
from tests.server.asking import GOOD, body_of, raw, request


# Promise: service.md#as-a-service
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("PUT", "/v1/commands", 405),
        ("GET", "/v1/groups", 409),
        ("GET", "/v1/groups?cluster_id=other", 409),
        ("GET", "/v1/changes?cluster_id=other&since=1&wait_ms=1", 405),
    ],
)
def test_requests_that_are_none_get_a_sentence(small: Running, method: str, path: str, status: int) -> None:
    """With a status of 4xx."""
    code, answer = request(small.coordinator.address, method, path)
    assert code == status and answer["message"]


def test_a_balancer_may_ask_for_the_health_without_a_body(small: Running) -> None:
    """HEAD is answered as GET is."""
    host, _, port = small.coordinator.address.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("HEAD", "/health")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    connection.close()


@pytest.mark.parametrize("since", ["x", "-1", -1, 1.5, "", 10**30, "١", None])
def test_a_version_that_is_no_number_gets_a_sentence(small: Running, since: object) -> None:
    """And is named."""
    asked = {"cluster_id": small.coordinator.cluster_id, "since": since, "wait_ms": 1}
    code, answer = request(small.coordinator.address, "POST", "/v1/changes", json.dumps(asked).encode())
    assert code == 400 and "$.since" in answer["message"]


def spoilt(good: bytes, rng: random.Random) -> bytes:
    """A body with bytes changed, cut, doubled; deep nests; other types."""
    data = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                del data[at : at + rng.randint(1, 20)]
            case 2:
                data[at:at] = data[at : at + rng.randint(1, 20)]
            case _:
                data[at:at] = rng.choice([b"[" * 3000, b'{"a":' * 2000, b"null", b"1e999", b"\xff\xfe", b'"'])
    return bytes(data)


def test_malformed_json_never_writes_anything_and_always_gets_a_sentence(small: Running) -> None:
    """A request with bytes that are wrong: 4xx."""
    rng, good = random.Random(7), body_of(small, GOOD | {"type": "no such"})
    for trial in range(150):
        data, before = spoilt(good, rng), small.coordinator.state
        code, answer = request(small.coordinator.address, "POST", "/v1/commands", data)
        assert 400 <= code < 500 and answer["message"], f"trial {trial}: {data[:200]!r}"
        assert small.coordinator.state is before


ASKED: dict[str, dict[str, object]] = {
    "sync": {"type": "sync_group", "group_id": "f", "member_id": "m", "generation_id": 1, "assignments": {"m": "eA=="}},
    "heartbeat": {"type": "heartbeat", "group_id": "f", "member_id": "m", "generation_id": 1},
    "leave": {"type": "leave_group", "group_id": "f", "members": [["m", None]]},
    "join": {
        "type": "join_group",
        "group_id": "f",
        "session_timeout_ms": 9000,
        "rebalance_timeout_ms": 9000,
        "protocol_type": "consumer",
        "protocols": [],
    },
}


@pytest.mark.parametrize("path", ASKED)
def test_malformed_requests_of_members_never_write_anything(small: Running, path: str) -> None:
    """A broken request gets a 4xx with a message; a valid request of an unknown member gets a response."""
    rng = random.Random(7)
    good = json.dumps({"cluster_id": small.coordinator.cluster_id, "request": ASKED[path], "wait_ms": 0}).encode()
    assert request(small.coordinator.address, "POST", f"/v1/group/{path}", good)[0] == 200
    refused, before = 0, small.coordinator.state
    for trial in range(100):
        data = spoilt(good, rng)
        code, answer = request(small.coordinator.address, "POST", f"/v1/group/{path}", data)
        if code == 200:
            assert set(answer) == {"response"}, f"trial {trial}: {data!r}"
        else:
            assert 400 <= code < 500 and answer["message"], f"trial {trial}: {data[:200]!r} {code}"
            refused += 1
        assert small.coordinator.state is before
    assert refused > 50


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "x"])
def test_any_method_on_any_path_gets_an_answer(small: Running, method: str) -> None:
    """And a sentence, if it is none that is served; nothing is written."""
    rng, before = random.Random(7), small.coordinator.state
    paths = [
        "/",
        "/v1",
        "/v1/group",
        "/v1/group/x",
        "/v1/groups",
        "/v1/changes",
        "/v1/commands",
        "//",
        "/../etc/passwd",
    ]
    for path in [*paths, *("/" + urllib.parse.quote(rng.randbytes(rng.randint(1, 60))) for _ in range(10))]:
        answer = raw(small.coordinator.address, f"{method} {path} HTTP/1.0\r\n\r\n".encode(), ended=False)
        assert answer.startswith(b"HTTP/1.") and b" 4" in answer[:13], (path, answer[:200])
    assert small.coordinator.state is before
    assert request(small.coordinator.address, "GET", "/health")[0] == 200


@pytest.mark.parametrize(
    "wrong", [None, 1, "x", [], {"type": "append"}, GOOD | {"partitions": "3"}, GOOD | {"more": 1}]
)
def test_commands_of_another_shape_are_refused(small: Running, wrong: object) -> None:
    """A request with one invalid command is refused as a whole."""
    code, answer = request(small.coordinator.address, "POST", "/v1/commands", body_of(small, GOOD, wrong))
    assert code == 400 and "the request is not valid" in answer["message"]
    assert "fuzz" not in small.coordinator.state.names


OBJECT = ["data/0000000000000000/x.seg", 10, 5]
RUN = ["ID", 0, 0, 10, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("objects", "slices", "more"),
    [
        ([OBJECT], [[1, RUN]], {}),
        ([OBJECT], [[-1, RUN]], {}),
        ([["data/../../etc/passwd", 10, 5]], [[0, RUN]], {}),
        ([["data/0000000000000001/x.seg", 10, 5]], [[0, RUN]], {}),
        ([OBJECT], [[0, ["ID", -1, 0, 10, 1, 1, 1, 0, 0]]], {}),
        ([OBJECT], [[0, ["ID", 0, 0, 10, 1, -5, 1, 0, 0]]], {}),
        ([OBJECT], [[0, RUN]], {"counts": [1, 2, 3]}),
    ],
)
def test_a_commit_that_makes_no_sense_is_refused_and_writes_nothing(
    small: Running, objects: object, slices: object, more: dict[str, object]
) -> None:
    """It is well-formed JSON of the right types; nobody who replays the log ever sees it."""
    state = small.coordinator.state
    commit = {"type": "commit", "producer": "p", "sequence": 0, "upload_epoch": 0, "objects": objects, "slices": slices}
    body = body_of(small, {"type": "append", "commit": commit | more}).replace(b"ID", state.names["t"].encode())
    code, answer = request(small.coordinator.address, "POST", "/v1/commands", body)
    refused = answer if code == 400 else answer["outcomes"][0]["failure"]
    assert refused["error"] == "InvalidRequest"
    assert small.coordinator.state is state


@pytest.mark.parametrize(
    ("path", "asked", "message"),
    [
        ("join", {"type": "heartbeat", "group_id": "g", "member_id": "m", "generation_id": 1}, "HeartbeatRequest"),
        ("heartbeat", {"type": "journaled", "group_id": "g", "ticket": 0}, "journaled"),
        ("sync", {"type": "sync_group", "group_id": "g", "member_id": "m", "generation_id": "x"}, "int"),
        ("leave", {"type": "leave_group", "group_id": "g", "members": [1]}, "array"),
        ("join", {"type": "join_group", "group_id": "g", "session_timeout_ms": 9000}, "rebalance_timeout_ms"),
        (
            "join",
            {"type": "join_group", "group_id": "g", "session_timeout_ms": 9000, "rebalance_timeout_ms": 10**18},
            "max_poll_interval_ms",
        ),
    ],
)
def test_what_no_member_asks_is_refused(small: Running, path: str, asked: object, message: str) -> None:
    """With what is wrong; and what only the coordinator says to itself cannot be sent."""
    body = {"cluster_id": small.coordinator.cluster_id, "request": asked}
    status, answer = request(small.coordinator.address, "POST", f"/v1/group/{path}", json.dumps(body).encode())
    assert status == 400 and message in answer["message"]


# Promise: service.md#as-a-service
def test_random_bytes_do_not_disturb_it(small: Running) -> None:
    """They get a 400 with a message, or a closed connection if they end in one; others continue."""
    rng, before = random.Random(7), small.coordinator.state
    for trial in range(40):
        data = rng.randbytes(rng.randint(1, 400))
        answer = raw(small.coordinator.address, data + b"\r\n\r\n", ended=False)
        assert answer.startswith(b"HTTP/1.") and b" 400 " in answer[:20], f"trial {trial}: {data!r}"
        assert answer.partition(b"\r\n\r\n")[2].strip(), f"trial {trial}: {data!r}"
        raw(small.coordinator.address, data)
    assert small.coordinator.state is before
    assert request(small.coordinator.address, "GET", "/health")[0] == 200


# Promise: service.md#as-a-service
def test_large_bodies_and_headers_are_refused(small: Running) -> None:
    """By their size, before they are understood; a body that says how large it is, before it comes."""
    address = small.coordinator.address
    assert request(address, "POST", "/v1/commands", b" " * 30_000)[0] == 413
    promised = b"POST /v1/commands HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000\r\n\r\n"
    assert b" 413 " in raw(address, promised, ended=False)[:20]
    long = b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 5000 + b"\r\n\r\n"
    assert b" 431 " in raw(address, long, ended=False)[:20]


# Promise: service.md#as-a-service
def test_a_client_that_does_not_finish_its_request_is_hung_up_on(small: Running) -> None:
    """Half a header, half a body: after the limit the connection is closed, and others were not kept waiting."""
    host, _, port = small.coordinator.address.partition(":")
    halves = [b"POST /v1/comm", b"POST /v1/commands HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"]
    slow = [socket.create_connection((host, int(port)), 10) for _ in halves]
    for connection, half in zip(slow, halves, strict=True):
        connection.sendall(half)
    assert request(small.coordinator.address, "GET", "/health")[0] == 200
    for connection in slow:
        connection.settimeout(15)
        answer = b""
        try:
            while part := connection.recv(1000):
                answer += part
        except ConnectionResetError:
            pass
        assert not answer or b" 408 " in answer[:20]
        connection.close()
