"""A proxy before an S3 server, which answers some requests itself: see `Faults` of `tests/s3_server.py`."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import make_server

from tests.s3_server import App, Faults

OF_A_CONNECTION = ("connection", "expect", "keep-alive", "transfer-encoding")
"""Headers that a proxy does not pass on."""


@contextmanager
def behind(faults: Faults, url: str) -> Iterator[str]:
    """The URL of a proxy before the server at `url`."""
    server = make_server(
        "127.0.0.1", 0, faults.wrapped(_forward(url)), threaded=True, request_handler=MotoRequestHandler
    )
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    serving.join()


def _forward(url: str) -> App:
    """Requests pass as they are, so their signatures hold: the host, which they contain, stays the proxy's."""
    host, port = urlsplit(url).hostname, urlsplit(url).port

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        connection = http.client.HTTPConnection(str(host), port, timeout=60)
        connection.putrequest(environ["REQUEST_METHOD"], environ["RAW_URI"], skip_host=True, skip_accept_encoding=True)
        for name, value in _headers(environ).items():
            connection.putheader(name, value)
        connection.endheaders(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or None)
        answer = connection.getresponse()
        passed = [(name, value) for name, value in answer.getheaders() if name.lower() not in OF_A_CONNECTION]
        body = answer.read()
        connection.close()
        start_response(f"{answer.status} {answer.reason}", passed)
        return [body]

    return app


def _headers(environ: Mapping[str, Any]) -> dict[str, str]:
    named = {name.removeprefix("HTTP_"): value for name, value in environ.items() if name.startswith("HTTP_")}
    named |= {name: environ[name] for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(name)}
    return {
        name.replace("_", "-"): value
        for name, value in named.items()
        if name.replace("_", "-").lower() not in OF_A_CONNECTION
    }
