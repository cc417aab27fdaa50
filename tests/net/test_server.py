"""The coordinator's port: who is let in, and what nonsense gets."""

from __future__ import annotations

import http.client
import json
import logging
import random
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import spark_log
from spark_log.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    CoordinatorNotAvailable,
    InconsistentClusterId,
    InvalidRequest,
    TopicAlreadyExists,
)
from spark_log.groups.messages import HeartbeatRequest
from spark_log.metadata.commands import CreateTopic
from spark_log.net.address import Target, parse_target
from spark_log.net.client import HttpLink
from spark_log.net.server import CHANGES_BYTES_MAX, Limits, Server
from spark_log.net.tokens import parse_tokens
from spark_log.node.serve import Running
from tests.services import Services

READ, WRITE, ADMIN, BILLING = (f"{name}-token-of-the-tests" for name in ("read", "write", "admin", "billing"))
TOKENS = parse_tokens(
    {
        "reader": f"read {READ}",
        "writer": f"write {WRITE}",
        "boss": f"admin {ADMIN}",
        "billing": f"write {BILLING} billing. bills",
    }
)


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    found = Services()
    yield found
    found.close()


@pytest.fixture(scope="module")
def guarded(services: Services, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a coordinator with tokens."""
    return services.start(tmp_path_factory.mktemp("guarded") / "log", tokens=TOKENS).coordinator.address


@pytest.fixture(scope="module")
def small(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Running:
    """A coordinator with narrow limits."""
    limits = Limits(body_bytes=20_000, header_bytes=2000, connections=12, request_ms=1000)
    running = services.start(tmp_path_factory.mktemp("small") / "log", limits=limits)
    with spark_log.connect(f"pylog://{running.coordinator.address}") as log:
        log.admin.create_topics([spark_log.NewTopic("t")])
    return running


def connect(address: str, token: str | None) -> spark_log.Log:
    return spark_log.connect(f"pylog://{address}", token=token)


# ----------------------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("token", [None, "not-one-that-it-knows"])
def test_who_has_no_good_token_learns_nothing(guarded: str, token: str | None) -> None:
    """Not even where the log is."""
    with pytest.raises(AuthenticationFailed):
        connect(guarded, token)


def test_roles_include_the_ones_before_them(guarded: str) -> None:
    """A reader keeps positions and writes nothing, a writer appends and changes no configs, an admin does everything."""
    with connect(guarded, ADMIN) as log:
        log.append("roles", [{"value": b"x"}])
        log.admin.incremental_alter_configs({"roles": {"retention.ms": "1000"}})
    with connect(guarded, WRITE) as log:
        log.append("roles", [{"value": b"y"}])
        with pytest.raises(AuthorizationFailed, match="set configs needs admin"):
            log.admin.incremental_alter_configs({"roles": {"retention.ms": "1"}})
    with connect(guarded, READ) as log:
        consumer = log.consumer("roles", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
        assert sum(map(len, consumer.poll(5000).values())) == 2
        consumer.commit()
        consumer.close()
        with pytest.raises(AuthorizationFailed, match="append needs write"):
            log.append("roles", [{"value": b"z"}])


def test_a_token_may_be_for_some_topics(guarded: str) -> None:
    """What it may not touch is named, and of a commit over several topics nothing is done."""
    with connect(guarded, BILLING) as log:
        log.append("billing.invoices", [{"value": b"x"}])
        with pytest.raises(AuthorizationFailed, match=r"begin with billing. or bills, not 'orders'"):
            log.append("orders", [{"value": b"x"}])
    with connect(guarded, ADMIN) as log:
        log.admin.create_topics([spark_log.NewTopic("orders")])
    with connect(guarded, BILLING) as log:
        txn = log.transaction("both").__enter__()
        txn.send("billing.invoices", b"1")
        txn.send("orders", b"1")
        with pytest.raises(AuthorizationFailed, match="'orders'"):
            txn.__exit__(None, None, None)
        assert log.read("billing.invoices").num_rows == 1


def test_a_token_is_not_sent_to_an_address_that_was_not_configured(guarded: str) -> None:
    """An embedded client that follows the log to a coordinator has none to show there, whatever its environment holds."""
    link = HttpLink(Target(("127.0.0.1:1",)), ADMIN)
    assert "Authorization" in link._headers("127.0.0.1:1")
    assert "Authorization" not in link._headers(guarded)
    with connect(guarded, ADMIN) as log:
        storage = log.url
    with spark_log.connect(storage) as embedded, pytest.raises(AuthenticationFailed, match="no token"):
        embedded.append("roles", [{"value": b"x"}])


def test_who_may_read_the_storage_reads_on_without_a_token(guarded: str) -> None:
    """A coordinator that does not talk to a client is no reason not to see what is in the log."""
    with connect(guarded, ADMIN) as log:
        storage = log.url
        with spark_log.connect(storage) as embedded:
            consumer = embedded.consumer("readable", auto_offset_reset="earliest")
            log.append("readable", [{"value": b"x"}])
            assert sum(map(len, consumer.poll(5000).values())) == 1
            consumer.close()


@pytest.mark.parametrize(
    "text", ["write", "write short", f"owner {ADMIN}", "write sha256:12345678901234567890", "write sha256:" + "zz" * 32]
)
def test_a_token_that_is_none_is_refused_at_the_start(text: str) -> None:
    """With its name, and without showing it."""
    with pytest.raises(InvalidRequest, match="somebody") as refused:
        parse_tokens({"somebody": text})
    assert text.partition(" ")[2] not in str(refused.value) or " " not in text


def test_tokens_may_be_given_by_their_hash() -> None:
    """So that the file does not hold them."""
    digest = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    assert parse_tokens({"me": f"read sha256:{digest}"}).grant("Bearer secret").role == "read"


# -------------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    names = (str(folder / "certificate.pem"), str(folder / "key.pem"))
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-out", names[0], "-keyout", names[1]),
        ],
        check=True,
        capture_output=True,
    )
    return names


def test_tls_is_spoken_and_checked(services: Services, tmp_path: Path, certificate: tuple[str, str]) -> None:
    """A client with the right authority gets in; without TLS, or with another authority, it does not."""
    running = services.start(tmp_path / "log", certificate=certificate[0], key=certificate[1], tokens=TOKENS)
    address = running.coordinator.address
    with spark_log.connect(f"pylog://{address}?ca={certificate[0]}", token=WRITE) as log:
        log.append("t", [{"value": b"x"}])
        assert log.read("t").num_rows == 1
    with pytest.raises(CoordinatorNotAvailable, match="certificate"):
        spark_log.connect(f"pylog://{address}?ca=system", token=WRITE)
    with pytest.raises(InvalidRequest, match=rf"{address} speaks TLS: give it as pylog://{address}\?ca=FILE"):
        spark_log.connect(f"pylog://{address}", token=WRITE)
    services.stop(running)


def test_who_follows_a_coordinator_that_speaks_tls_is_told_how(
    services: Services, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    """The log does not say so; a change by the storage's URL is refused at once, and is certainly not in."""
    running = services.start(tmp_path / "log", certificate=certificate[0], key=certificate[1], tokens=TOKENS)
    with spark_log.connect(f"pylog://{running.coordinator.address}?ca={certificate[0]}", token=WRITE) as served:
        served.append("t", [{"value": b"led"}])
    log = spark_log.connect(str(tmp_path / "log"), durability="os")
    with pytest.raises(InvalidRequest, match="speaks TLS") as caught:
        log.append("t", [{"value": b"x"}])
    assert not caught.value.maybe_applied
    services.stop(running)
    assert log.append("t", [{"value": b"x"}]) == {spark_log.TopicPartition("t", 0): range(1, 2)}


# --------------------------------------------------------------------------------------------------------------- nonsense


def request(address: str, method: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    """(status, what the JSON of the answer says)."""
    asked = urllib.request.Request(f"http://{address}{path}", data=body, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def raw(address: str, data: bytes, *, ended: bool = True) -> bytes:
    """What comes back for bytes, which nothing follows if `ended`; empty if the server only hangs up."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.settimeout(3)
        try:
            connection.sendall(data)
            if ended:
                connection.shutdown(socket.SHUT_WR)
            return connection.recv(10_000)
        except OSError:
            return b""


GOOD = {"type": "create_topic", "name": "fuzz", "partitions": 1, "topic_id": "1"}


def body_of(running: Running, *commands: object) -> bytes:
    asked = {"cluster_id": running.coordinator.cluster_id, "since": 0, "commands": commands}
    return json.dumps(asked).encode()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("PUT", "/v1/commands", 405),
        ("GET", "/v1/changes?since=x&wait_ms=1", 409),
        ("GET", "/v1/changes?cluster_id=other&since=1&wait_ms=1", 409),
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


@pytest.mark.parametrize("since", ["x", "-1", "1.5", "", "9" * 30, "١"])
def test_a_version_that_is_no_number_gets_a_sentence(small: Running, since: str) -> None:
    """And is named."""
    quoted = urllib.parse.quote(since)
    path = f"/v1/changes?cluster_id={small.coordinator.cluster_id}&since={quoted}&wait_ms=1"
    code, answer = request(small.coordinator.address, "GET", path)
    assert code == 400 and answer["message"].startswith("since: ")


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
    """What is spoilt gets a 4xx with a sentence; what is still a request, of a member that there is not, a response."""
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
    """None of a request is carried out if one is no command."""
    code, answer = request(small.coordinator.address, "POST", "/v1/commands", body_of(small, GOOD, wrong))
    assert code == 400 and "the request is not what was expected" in answer["message"]
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
    assert code == 200 and answer["outcomes"][0]["failure"]["error"] == "InvalidRequest"
    assert small.coordinator.state is state


def test_commits_that_arrive_together_share_a_record(small: Running) -> None:
    """While one record is on its way to the disk, the next one is filled."""
    address = f"pylog://{small.coordinator.address}"
    logs = [spark_log.connect(address) for _ in range(6)]
    before, began = small.coordinator.state.version, threading.Barrier(6)

    def work(log: spark_log.Log) -> None:
        began.wait()
        for _ in range(15):
            log.append("t", [{"value": b"x"}])

    threads = [threading.Thread(target=work, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()
    assert 15 <= small.coordinator.state.version - before < 90


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


def test_a_token_for_some_topics_joins_for_no_others(guarded: str) -> None:
    """And without one nobody is let into a group."""
    with connect(guarded, BILLING) as log, pytest.raises(AuthorizationFailed, match="'secret'"):
        log.consumer("secret", group_id="spies").poll(5000)
    with connect(guarded, READ) as log:
        link = HttpLink(parse_target(f"pylog://{guarded}"), None, log.cluster_id)
        asked = HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
        with pytest.raises(AuthenticationFailed):
            link.ask_group(log.journal.state.coordinator, asked, 0)
        link.close()


def test_random_bytes_do_not_disturb_it(small: Running) -> None:
    """They get a 400 with a sentence, or a closed connection if that is what they end with; others go on."""
    rng, before = random.Random(7), small.coordinator.state
    for trial in range(40):
        data = rng.randbytes(rng.randint(1, 400))
        answer = raw(small.coordinator.address, data + b"\r\n\r\n", ended=False)
        assert answer.startswith(b"HTTP/1.") and b" 400 " in answer[:20], f"trial {trial}: {data!r}"
        assert answer.partition(b"\r\n\r\n")[2].strip(), f"trial {trial}: {data!r}"
        raw(small.coordinator.address, data)
    assert small.coordinator.state is before
    assert request(small.coordinator.address, "GET", "/health")[0] == 200


def test_large_bodies_and_headers_are_refused(small: Running) -> None:
    """By their size, before they are understood; a body that says how large it is, before it comes."""
    address = small.coordinator.address
    assert request(address, "POST", "/v1/commands", b" " * 30_000)[0] == 413
    promised = b"POST /v1/commands HTTP/1.1\r\nHost: x\r\nContent-Length: 30000\r\n\r\n"
    assert b" 413 " in raw(address, promised, ended=False)[:20]
    long = b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 5000 + b"\r\n\r\n"
    assert b" 400 " in raw(address, long, ended=False)[:20]


def test_a_client_that_does_not_finish_its_request_is_hung_up_on(small: Running) -> None:
    """Half a header, half a body: after the limit the connection is closed, and others were not kept waiting."""
    host, _, port = small.coordinator.address.partition(":")
    halves = [b"POST /v1/comm", b"POST /v1/commands HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"]
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


def test_more_connections_than_the_limit_are_told_so(small: Running) -> None:
    """Those that were there before are served on."""
    host, _, port = small.coordinator.address.partition(":")
    with spark_log.connect(f"pylog://{small.coordinator.address}") as log:
        idle = [socket.create_connection((host, int(port)), 10) for _ in range(14)]
        code, answer = request(small.coordinator.address, "GET", "/health")
        assert code == 503 and "connections" in answer["message"]
        for connection in idle:
            connection.close()
        log.append("t", [{"value": b"x"}])


# --------------------------------------------------------------------------------------------------------------- messages


def test_errors_arrive_as_what_they_were(small: Running) -> None:
    """With the value that is needed to recover."""
    with spark_log.connect(f"pylog://{small.coordinator.address}") as log:
        with pytest.raises(TopicAlreadyExists, match="'t' exists already"):
            log.admin.create_topics([spark_log.NewTopic("t")])
        with pytest.raises(spark_log.errors.OffsetOutOfRange) as out:
            log.admin.delete_records({spark_log.TopicPartition("t", 0): 10**6})
        assert (out.value.start, out.value.end) == (
            0,
            log.journal.state.partitions[log.journal.state.names["t"], 0].end,
        )


class Broken:
    """Groups of a coordinator with a bug."""

    def notice(self) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("a bug")


def test_a_bug_of_the_coordinator_may_have_done_what_was_asked(services: Services, small: Running) -> None:
    """Who asked for a change is told so, and may ask again; who only asked is told that it does not work."""
    server = Server(small.coordinator, Broken(), tokens=TOKENS, limits=Limits())
    told, small.coordinator.on_change = small.coordinator.on_change, lambda: None
    port = services.run(server.start("127.0.0.1", 0, None))
    small.coordinator.on_change = told
    link = HttpLink(Target((f"127.0.0.1:{port}",)), ADMIN, small.coordinator.cluster_id)
    held = small.coordinator.state.coordinator._replace(address="")
    logging.getLogger("spark_log").setLevel(logging.CRITICAL + 1)
    try:
        with pytest.raises(CoordinatorNotAvailable, match="its log has the details") as change:
            link.ask(held, [CreateTopic(name="x", partitions=1, topic_id="x")], 0)
        with pytest.raises(CoordinatorNotAvailable) as question:
            link.groups(held)
    finally:
        logging.getLogger("spark_log").setLevel(logging.NOTSET)
        link.close()
        services.run(server.stop())
    assert (change.value.maybe_applied, question.value.maybe_applied) == (True, False)


def test_another_log_than_the_one_that_was_meant(small: Running, guarded: str) -> None:
    """A coordinator does nothing for who means another log."""
    wrong = body_of(small, GOOD).replace(small.coordinator.cluster_id.encode(), b"0" * 32)
    code, answer = request(small.coordinator.address, "POST", "/v1/commands", wrong)
    assert code == 409 and answer["error"] == InconsistentClusterId.__name__


def test_metrics_are_prometheus_text(small: Running) -> None:
    """Its own parser reads them."""
    with urllib.request.urlopen(f"http://{small.coordinator.address}/metrics", timeout=20) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    assert families["pylog_leading"].samples[0].value == 1
    assert families["pylog_commit_seconds"].type == "histogram"
    assert families["pylog_topic_records"].samples[0].labels == {"topic": "t"}
    page = (
        (Path(__file__).parents[2] / "docs" / "service.md").read_text().partition("| metric |")[2].partition("\n\n")[0]
    )
    told = {name.removesuffix("_total") for name in re.findall(r"`(pylog_\w+)", page)}
    assert told == set(families), "docs/service.md tells all of them"


def test_metrics_count_what_is_there(services: Services, tmp_path: Path) -> None:
    """Records, what groups have not read, and who waits."""
    running = services.start(tmp_path / "log")
    url = f"pylog://{running.coordinator.address}"
    with spark_log.connect(url) as log, spark_log.connect(url) as other:
        log.append("t", [{"value": b"x"}] * 5)
        log.admin.alter_consumer_group_offsets("g", {spark_log.TopicPartition("t", 0): 2})
        waiting = threading.Thread(target=other.consumer("t").poll, args=(20_000,))
        waiting.start()
        deadline = time.monotonic() + 20
        while (found := samples(running.coordinator.address))["pylog_long_polls"] != 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert (found["pylog_topic_records{topic=t}"], found["pylog_group_lag{group=g,topic=t}"]) == (5, 3)
        assert found["pylog_objects"] == 1 and found["pylog_objects_bytes"] > 0
        log.append("t", [{"value": b"x"}])
        waiting.join(20)
        found = samples(running.coordinator.address)
        assert (found["pylog_long_polls"], found["pylog_group_lag{group=g,topic=t}"]) == (0, 4)
    services.stop(running)


def samples(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        return {
            sample.name
            + ("{" + ",".join(f"{k}={v}" for k, v in sample.labels.items()) + "}" if sample.labels else ""): (
                sample.value
            )
            for family in text_string_to_metric_families(answer.read().decode())
            for sample in family.samples
        }


def test_a_commit_s_time_is_that_of_a_record(services: Services, tmp_path: Path) -> None:
    """What finds nothing to write, such as upkeep every second, makes no commit look quick."""
    running = services.start(tmp_path / "log")
    with spark_log.connect(f"pylog://{running.coordinator.address}") as log:
        log.append("t", [{"value": b"x"}])
        before = samples(running.coordinator.address)
        for _ in range(5):
            log.admin.alter_consumer_group_offsets("g", {spark_log.TopicPartition("t", 0): 1})
        after = samples(running.coordinator.address)
    assert after["pylog_commit_seconds_count"] == before["pylog_commit_seconds_count"] + 1
    assert after["pylog_commands_total"] >= before["pylog_commands_total"] + 5
    services.stop(running)


def test_who_waits_is_woken_by_a_commit(small: Running) -> None:
    """Long before the time that it asked for is over, and with the records of the commit."""
    with spark_log.connect(f"pylog://{small.coordinator.address}") as log, spark_log.connect(log.url) as other:
        log.append("t", [{"value": b"x"}])
        known = log.journal.refresh()
        link = log.journal.link
        assert link is not None
        threading.Timer(0.3, other.append, ("t", [{"value": b"news"}])).start()
        began = time.monotonic()
        changes = link.changes(known.coordinator, known.version, 30_000)
        assert time.monotonic() - began < 15
        assert changes.version == known.version + 1 and b'"type":"commit"' in changes.batches[0]


def test_who_waits_for_a_topic_is_not_woken_by_records_of_others(small: Running) -> None:
    """Nor by positions; what comes to the topic is told at once, with all that was passed over."""
    with spark_log.connect(f"pylog://{small.coordinator.address}") as log, spark_log.connect(log.url) as other:
        for topic in ("mine", "theirs"):
            log.append(topic, [{"value": b"x"}])
        known = log.journal.refresh()
        link = log.journal.link
        assert link is not None
        began = time.monotonic()
        threading.Timer(0.2, other.append, ("theirs", [{"value": b"news"}])).start()
        threading.Timer(1.0, other.append, ("mine", [{"value": b"news"}])).start()
        changes = link.changes(known.coordinator, known.version, 30_000, topics=[known.names["mine"]])
        assert 0.9 < time.monotonic() - began < 15
        assert changes.version == known.version + 2 and len(changes.batches) == 2


def test_no_wake_up_is_lost(services: Services, tmp_path: Path) -> None:
    """Clients that wait for one topic each, and ask again while others append, hear of every append to it, soon."""
    topics, appends, waiting = 3, 60, 24
    with spark_log.connect(services.url(tmp_path / "log")) as log:
        for number in range(topics):
            log.create_topic(spark_log.NewTopic(f"t{number}"))
        known, link = log.journal.refresh(), log.journal.link
        assert link is not None
        longest: list[float] = []

        def hear(number: int) -> None:
            topic_id, version, heard = known.names[f"t{number % topics}"], known.version, 0
            while heard < appends // topics:
                began = time.monotonic()
                changes = link.changes(known.coordinator, version, 30_000, topics=[topic_id])
                longest.append(time.monotonic() - began)
                heard += sum(topic_id.encode() in batch for batch in changes.batches)
                version = changes.version

        threads = [threading.Thread(target=hear, args=(number,)) for number in range(waiting)]
        for thread in threads:
            thread.start()
        for number in range(appends):
            log.append(f"t{number % topics}", [{"value": b"x"}])
            time.sleep(random.Random(number).random() / 100)
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert max(longest) < 20, "somebody was not woken, and heard of it when the wait was over"


def test_a_client_that_hangs_up_while_it_waits_is_noticed(services: Services, tmp_path: Path) -> None:
    """Its connection counts no longer."""
    coordinator = services.start(tmp_path / "log").coordinator
    host, _, port = coordinator.address.partition(":")
    # For a topic that is not there: whatever the coordinator has to write after its start would be an answer at once.
    path = (
        f"/v1/changes?cluster_id={coordinator.cluster_id}&since={coordinator.state.version}&topics=none&wait_ms=60000"
    )
    with closing(socket.create_connection((host, int(port)))) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: {coordinator.address}\r\n\r\n".encode())
        wait_for_metric(coordinator.address, "pylog_long_polls", 1)
        assert metric(coordinator.address, "pylog_connections") > 1
    wait_for_metric(coordinator.address, "pylog_connections", 1)


def metric(address: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    return float(families[name].samples[0].value)


def wait_for_metric(address: str, name: str, value: float) -> None:
    deadline = time.monotonic() + 20
    while metric(address, name) != value and time.monotonic() < deadline:
        time.sleep(0.05)
    assert metric(address, name) == value


def test_an_old_version_is_answered_at_once_only_if_there_is_news_for_who_asks(small: Running) -> None:
    """What came to other topics since is told when the wait is over."""
    with spark_log.connect(f"pylog://{small.coordinator.address}") as log:
        for topic in ("quiet", "busy"):
            log.append(topic, [{"value": b"x"}])
        known, link = log.journal.refresh(), log.journal.link
        assert link is not None
        log.append("busy", [{"value": b"x"}])
        began = time.monotonic()
        changes = link.changes(known.coordinator, known.version, 30_000, topics=[known.names["busy"]])
        assert changes.version == known.version + 1 and time.monotonic() - began < 15
        began = time.monotonic()
        changes = link.changes(known.coordinator, known.version, 400, topics=[known.names["quiet"]])
        assert changes.version == known.version + 1 and 0.3 < time.monotonic() - began < 15


def test_who_waits_while_much_comes_to_others_is_told_with_its_own_news(services: Services, tmp_path: Path) -> None:
    """Not in between: its waits end, and it stays where it is; then it reads from the storage what no answer holds."""
    with (
        spark_log.connect(services.url(tmp_path / "log")) as log,
        spark_log.connect(services.url(tmp_path / "log")) as other,
    ):
        log.create_topic(spark_log.NewTopic("mine"))
        log.create_topic(spark_log.NewTopic("wide", 500))
        known = log.journal.refresh()
        wide = [{"value": b"x", "partition": number} for number in range(500)]
        for _ in range(CHANGES_BYTES_MAX // 20_000):
            other.append("wide", wide)
        mine = [known.names["mine"]]
        assert log.journal.wait(0, 200, topics=mine).version == known.version
        other.append("mine", [{"value": b"x"}])
        assert log.journal.wait(0, 30_000, topics=mine).version == other.journal.state.version
