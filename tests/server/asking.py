"""Requests of the tests to the coordinator's port: tokens, requests of clients, and bytes that no client sends."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spark_log
from spark_log.serve.serve import Running
from spark_log.server.tokens import parse_tokens

READ, WRITE, ADMIN, BILLING, BILLING_TOPICS, BILLING_ADMIN = (
    f"{name}-token-of-the-tests" for name in ("read", "write", "admin", "billing", "billing-topics", "billing-admin")
)
TOKENS = parse_tokens(
    {
        "reader": f"read {READ}",
        "writer": f"write {WRITE}",
        "boss": f"admin {ADMIN}",
        "billing": f"write {BILLING} billing. bills group:billing. group:bills",
        "billing-topics": f"write {BILLING_TOPICS} billing.",
        "billing-boss": f"admin {BILLING_ADMIN} billing. group:billing.",
    }
)


def connect(address: str, token: str | None) -> spark_log.Log:
    return spark_log.connect(f"pylog://{address}", token=token)


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
    """The answer to bytes, after which nothing follows if `ended`; empty if the server only closes the connection."""
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


def eventually(true: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something to be true."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not become true"
        time.sleep(0.02)


def make_certificate(folder: Path) -> tuple[str, str]:
    """Files of a new certificate for 127.0.0.1 and its key."""
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
