"""TLS of a port, and of connections to it."""

from __future__ import annotations

import ssl

from spark_log.errors import InvalidRequest

Tls = ssl.SSLContext


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS with a certificate.  Raises InvalidRequest for invalid files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(f"certificate {certificate} and key {key} cannot be used: {error}") from error
    return context


def ca_context(ca: str) -> ssl.SSLContext:
    """TLS with certificates that a file verifies, or the machine's own list (`system`).  Raises InvalidRequest."""
    try:
        return ssl.create_default_context(cafile=None if ca == "system" else ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"ca={ca} is not a file with certificates ({str(error) or type(error).__name__}): give one, or `system`"
        ) from error


def any_certificate() -> ssl.SSLContext:
    """TLS without verification, for requests that have no secret."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def node_contexts(certificate: str, key: str, ca: str) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """For the port of a node, and for its connections to others; None without a certificate.  Raises InvalidRequest."""
    return (tls_context(certificate, key), ca_context(ca)) if certificate else (None, None)
