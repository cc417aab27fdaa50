"""Addresses of coordinators: `pylog://host:9550[,host2:9550]`, and checks of hosts."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qsl

from spark_log.errors import InvalidRequest

SCHEME = "pylog://"
PORT = 9550
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+")


class Target(NamedTuple):
    """A parsed `pylog://` URL."""

    addresses: tuple[str, ...]
    """`host:port`, tried in this order."""
    ca: str | None = None
    """TLS with a certificate that this file verifies, or the machine's own list (`system`); None: no TLS."""


def is_coordinator(url: str) -> bool:
    return url[: len(SCHEME)].lower() == SCHEME


def parse_target(url: str) -> Target:
    """The addresses in a URL; `?ca=FILE` or `?ca=system` requests TLS.  Raises InvalidRequest."""
    hosts, _, query = url[len(SCHEME) :].partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(set(options) - {"ca"}):
        raise InvalidRequest(f"url: unknown option {unknown[0]!r} in {url!r}; a coordinator's URL takes ca=FILE only")
    addresses = tuple(parse_address(one, "url") for one in hosts.rstrip("/").split(","))
    return Target(addresses, options.get("ca"))


def parse_address(text: str, what: str) -> str:
    """`host:port`, with the default port if it is missing.  Raises InvalidRequest."""
    host, port = split_address(text.strip(), what)
    return f"{host}:{port}"


def split_address(text: str, what: str) -> tuple[str, int]:
    """(host, port).  Raises InvalidRequest."""
    found = re.fullmatch(rf"({_HOST.pattern})(?::([0-9]{{1,5}}))?", text)
    if found is None or int(found[2] or PORT) > 65535:
        raise InvalidRequest(f"{what}: {text!r} is not an address; give host:port, as in localhost:{PORT}")
    return found[1], int(found[2] or PORT)


def is_loopback(address: str) -> bool:
    """Whether an address refers to the machine on which it is used."""
    return is_loopback_host(split_address(address, "address")[0])


@lru_cache(1024)
def is_loopback_host(host: str) -> bool:
    """Whether a host without a port refers to the machine on which it is used.  127.example.org does not."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def is_own_host(header: str, own: Collection[str]) -> bool:
    """Whether a Host header refers to this machine, or to one of `own`, which are in lower case.

    A web page can resolve its own name to 127.0.0.1 (DNS rebinding); the user's browser then sends that name.
    """
    host, loopback = _host_of(header)
    return loopback or host in own


@lru_cache(maxsize=64)  # each request has the header, and clients use few addresses
def _host_of(header: str) -> tuple[str, bool]:
    """The host that a Host header names, and whether it is a loopback host; empty for an invalid header."""
    found = re.fullmatch(rf"({_HOST.pattern})(?::[0-9]{{1,5}})?", header.strip())
    if found is None:
        return "", False
    host = found[1].lower().removesuffix(".")
    return host, is_loopback_host(host)


def this_host() -> str:
    """This machine's name."""
    return socket.gethostname()
