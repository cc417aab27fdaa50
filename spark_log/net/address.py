"""Addresses of coordinators: `pylog://host:9550[,host2:9550]`, and what may be said to whom."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import parse_qsl

from spark_log.errors import InvalidRequest

SCHEME = "pylog://"
PORT = 9550
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+")


class Target(NamedTuple):
    """What a `pylog://` URL says."""

    addresses: tuple[str, ...]
    """`host:port`, in the order in which they are tried."""
    ca: str | None = None
    """TLS with a certificate that this file vouches for, or the machine's own list (`system`); None: no TLS."""


def is_coordinator(url: str) -> bool:
    return url[: len(SCHEME)].lower() == SCHEME


def parse_target(url: str) -> Target:
    """The addresses in a URL, `?ca=FILE` or `?ca=system` asking for TLS.  Raises InvalidRequest."""
    hosts, _, query = url[len(SCHEME) :].partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(set(options) - {"ca"}):
        raise InvalidRequest(f"url: {url!r} has the option {unknown[0]!r}; a coordinator's URL takes ca=FILE only")
    addresses = tuple(parse_address(one, "url") for one in hosts.rstrip("/").split(","))
    return Target(addresses, options.get("ca"))


def parse_address(text: str, what: str) -> str:
    """`host:port` with the port filled in.  Raises InvalidRequest."""
    host, port = split_address(text.strip(), what)
    return f"{host}:{port}"


def split_address(text: str, what: str) -> tuple[str, int]:
    """(host, port).  Raises InvalidRequest."""
    found = re.fullmatch(rf"({_HOST.pattern})(?::([0-9]{{1,5}}))?", text)
    if found is None or int(found[2] or PORT) > 65535:
        raise InvalidRequest(f"{what}: {text!r} is no address; give host:port, as in localhost:{PORT}")
    return found[1], int(found[2] or PORT)


def is_loopback(address: str) -> bool:
    """Whether an address means the machine on which it is used."""
    return is_loopback_host(split_address(address, "address")[0])


def is_loopback_host(host: str) -> bool:
    """Whether a host without a port means the machine on which it is used.  A name such as 127.example.org does not."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def is_own_host(header: str, own: Collection[str]) -> bool:
    """Whether a Host header names this machine itself, or one of `own`, which are in small letters.

    A page of the web can have its own name resolve to 127.0.0.1; then the user's browser sends that name.
    """
    found = re.fullmatch(rf"({_HOST.pattern})(?::[0-9]{{1,5}})?", header.strip())
    if found is None:
        return False
    host = found[1].lower().removesuffix(".")
    return is_loopback_host(host) or host in own


def this_host() -> str:
    """This machine's name."""
    return socket.gethostname()
