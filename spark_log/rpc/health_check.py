"""Asking a coordinator for its health, on a separate connection and without a token."""

from __future__ import annotations

import http.client
import socket
import ssl

from spark_log.errors import InvalidRequest
from spark_log.http.address import split_address
from spark_log.http.client_connection import CONNECT_S, Connection, Endpoint, HttpResponse, Wait, resolve
from spark_log.http.tls import any_certificate, ca_context
from spark_log.log_lines import logger
from spark_log.rpc.messages import Health, decode


def health_of(address: str, *, tls: bool, ca: str | None = None) -> Health | None:
    """The health of a coordinator; None if none answers.

    ca:  with TLS, only certificates that this file (or `system`) verifies are accepted; None: any certificate, because
         no secret is sent.
    """
    context = None if not tls else any_certificate() if ca is None else ca_context(ca)
    for endpoint in resolve(address):
        answer = get_health(endpoint, context)
        if answer is not None:
            try:
                found: Health = decode(answer.data, Health, "the reply")
                return found
            except InvalidRequest:
                continue
    return None


def is_refused(address: str) -> bool:
    """Whether every endpoint of an address refuses connections: its machine runs, and no process listens."""
    return all(map(_refuses, resolve(address)))


def _refuses(endpoint: Endpoint) -> bool:
    if not endpoint.ip:
        return False
    try:
        socket.create_connection((endpoint.ip, split_address(endpoint.address, "address")[1]), CONNECT_S).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def get_health(endpoint: Endpoint, tls: ssl.SSLContext | None, limit_s: float = CONNECT_S) -> HttpResponse | None:
    """The reply to GET /health; None without one."""
    try:
        connection = Connection(endpoint, tls, limit_s)
    except ssl.SSLCertVerificationError as error:
        logger.warning("%s: its certificate is invalid (%s)", endpoint.address, error)
        return None
    except OSError:
        return None
    try:
        return connection.ask("GET", "/health", None, {}, Wait(limit_s))
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
