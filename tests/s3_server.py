"""moto's S3 server, which changes one thing at a time.

moto checks whether a key exists and then writes it, so of two conditional puts at the same time both may win; S3 lets
one win.  Reads run in parallel.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
READS = ("GET", "HEAD")
ALONE = """
import time
from tests.s3_server import s3_server
with s3_server() as url:
    print(url, flush=True)
    time.sleep(600)
"""


BUSY = (
    "503 Slow Down",
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
)
BAD = (
    "400 Bad Request",
    b"<?xml version='1.0'?><Error><Code>InvalidArgument</Code><Message>That makes no sense.</Message></Error>",
)
DENIED = (
    "403 Forbidden",
    b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
)
RESET = ("", b"")
"""Instead of an answer the connection is reset."""


class Faults:
    """Answers the next `left` requests with a method for paths that contain a text, without the store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.fail("", "", 0)

    def fail(self, method: str, text: str, count: int, answer: tuple[str, bytes] = BUSY) -> None:
        with self._lock:
            self.method, self.text, self.left, self.answer = method, text, count, answer
            self.asked = 0

    def wrapped(self, app: App) -> App:
        def faulty(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            with self._lock:
                if environ["REQUEST_METHOD"] != self.method or self.text not in environ["PATH_INFO"]:
                    return app(environ, start_response)
                self.asked += 1
                self.left -= 1
                failing, (status, body) = self.left >= 0, self.answer
            if not failing:
                return app(environ, start_response)
            if not status:
                environ["werkzeug.socket"].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                raise ConnectionResetError
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]

        return faulty


class UploadTimes:
    """Lists incomplete uploads with a time when they were begun; moto's are all of 2010."""

    def __init__(self) -> None:
        self.began_s: float | None = None
        """Seconds since 1970; None: now."""

    def wrapped(self, app: App) -> App:
        def timed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            if "uploads" not in environ["QUERY_STRING"] or environ["REQUEST_METHOD"] != "GET":
                return app(environ, start_response)
            answered: list[Any] = []
            body = b"".join(app(environ, lambda *answer: answered.extend(answer)))
            began = datetime.fromtimestamp(time.time() if self.began_s is None else self.began_s, timezone.utc)
            body = re.sub(rb"(?<=<Initiated>)[^<]*", began.strftime("%Y-%m-%dT%H:%M:%S.000Z").encode(), body)
            headers = [one for one in answered[1] if one[0].lower() != "content-length"]
            start_response(answered[0], [*headers, ("Content-Length", str(len(body)))])
            return [body]

        return timed


@contextmanager
def s3_server(faults: Faults | None = None, times: UploadTimes | None = None) -> Iterator[str]:
    """Its URL."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = (times or UploadTimes()).wrapped(_one_change_at_a_time(DomainDispatcherApplication(create_backend_app)))
    if faults is not None:
        app = faults.wrapped(app)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    serving.join()


@contextmanager
def s3_process() -> Iterator[tuple[str, int]]:
    """The server in a process that can be stopped, with a bucket "bucket": its URL and the process."""
    import boto3

    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    root = Path(__file__).parents[1]
    with subprocess.Popen([sys.executable, "-c", ALONE], cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="bucket")
            yield url, process.pid
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()


def _one_change_at_a_time(app: App) -> App:
    lock = threading.Lock()

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in READS:
            return app(environ, start_response)
        with lock:
            return app(environ, start_response)

    return guarded
