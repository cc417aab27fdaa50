"""moto's S3 server, which changes one thing at a time.

moto looks whether a key is there and then writes it, so that of two conditional puts that come together both may win; S3 lets
one win.  Reads go on side by side.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
READS = ("GET", "HEAD")


@contextmanager
def s3_server() -> Iterator[str]:
    """Its URL."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = _one_change_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    serving.join()


def _one_change_at_a_time(app: App) -> App:
    lock = threading.Lock()

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in READS:
            return app(environ, start_response)
        with lock:
            return app(environ, start_response)

    return guarded
