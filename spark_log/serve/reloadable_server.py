"""A server whose tokens, quotas and certificate can be replaced while it runs."""

from __future__ import annotations

from dataclasses import replace

from spark_log.errors import InvalidRequest
from spark_log.http.address import split_address
from spark_log.http.tls import Tls, tls_context
from spark_log.serve.serve_config import ServeConfig, check_config
from spark_log.server.server import Server


async def listen(server: Server, config: ServeConfig, tls: Tls | None) -> tuple[int, str]:
    """The port, and the address for clients.  Raises InvalidRequest if the server cannot listen there."""
    host, port = split_address(config.listen, "listen")
    try:
        port = await server.start(host, port, tls)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequest(
            f"cannot listen on {config.listen}: {reason}; choose another address to listen on (--listen, or listen in the file of --conf)"
        ) from error
    return port, config.advertise or f"{host}:{port}"


class Reloadable:
    """A running coordinator's server."""

    def __init__(self, config: ServeConfig, server: Server) -> None:
        self._config = config
        self._server = server

    def replace(self, new: ServeConfig) -> None:
        """Apply the tokens, quotas and certificate of another configuration; its other settings require a restart.

        Raises InvalidRequest, and then changes nothing.
        """
        check_config(new)
        if self._config.tokens and not new.tokens:
            raise InvalidRequest("[tokens]: the configuration has none; removing the last token requires a restart")
        if bool(self._config.certificate) != bool(new.certificate):
            raise InvalidRequest("[tls]: enabling or disabling TLS requires a restart")
        tls = tls_context(new.certificate, new.key) if new.certificate else None
        self._server.replace(new.tokens, new.quotas, tls)
        self._config = replace(
            self._config, tokens=new.tokens, quotas=new.quotas, certificate=new.certificate, key=new.key
        )
