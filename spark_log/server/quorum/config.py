"""The section [quorum] of the configuration of `pylog serve`: this process is a node of a quorum."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from spark_log.errors import InvalidRequest
from spark_log.http.address import parse_address
from spark_log.quorum.node.directory import read_meta
from spark_log.quorum.node.node_config import NodeConfig
from spark_log.quorum.voters import maybe_node_id

LISTEN = "127.0.0.1:9551"
SETTINGS = ("directory", "listen", "advertise", "peers", "secret", "certificate", "key", "ca", "insecure")


def read_quorum(values: Mapping[str, str], path: str | None) -> NodeConfig:
    """The node of a directory that `pylog quorum init` has formatted.  Raises InvalidRequest."""
    for name in values:
        if name not in SETTINGS:
            raise InvalidRequest(f"{path or 'flags'}: [quorum] has no {name!r}; expected {', '.join(SETTINGS)}")
    if not values.get("directory"):
        raise InvalidRequest(
            "[quorum]: give the directory that `pylog quorum init` has formatted, as directory or --quorum"
        )
    meta, peers = read_meta(values["directory"]), parse_peers(values.get("peers", ""))
    peers.pop(meta.node_id, None)  # so that all nodes may have the same list
    if peers and not values.get("secret"):
        raise InvalidRequest(
            "[quorum]: give the secret of the nodes, the same on all of them; clients must not know it"
        )
    return NodeConfig(
        directory=values["directory"],
        cluster_id=meta.cluster_id,
        node_id=meta.node_id,
        listen=parse_address(values.get("listen", LISTEN), "[quorum] listen"),
        advertise=parse_address(values["advertise"], "[quorum] advertise") if values.get("advertise") else "",
        peers=peers,
        secret=values.get("secret") or secrets.token_urlsafe(),
        certificate=values.get("certificate", ""),
        key=values.get("key", ""),
        ca=values.get("ca", ""),
        insecure=_flag(values.get("insecure", "false")),
    )


def quorum_access(values: Mapping[str, str], path: str) -> tuple[list[str], str, str | None]:
    """The addresses of the nodes, their secret, and the certificates that verify them, for a command that asks nodes.

    Raises InvalidRequest.
    """
    if not values.get("secret"):
        raise InvalidRequest(f"{path}: [quorum] has no secret: commands need that of the nodes")
    own = parse_address(values.get("advertise") or values.get("listen", LISTEN), "[quorum] listen")
    addresses = list(dict.fromkeys([own, *parse_peers(values.get("peers", "")).values()]))
    return addresses, values["secret"], values.get("ca") or None


def parse_peers(text: str) -> dict[int, str]:
    """`1@host:9551,2@host2:9551`: addresses by node.  Raises InvalidRequest."""
    found: dict[int, str] = {}
    for one in filter(None, (part.strip() for part in text.split(","))):
        node, _, address = one.partition("@")
        node_id = maybe_node_id(node)
        if node_id is None or not address:
            raise InvalidRequest(f"[quorum] peers: {one!r} is not of the form NODE@HOST:PORT, as in 2@host2:9551")
        if node_id in found:
            raise InvalidRequest(f"[quorum] peers: node {node_id} is there twice")
        found[node_id] = parse_address(address, "[quorum] peers")
    return found


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"invalid value {text!r} for [quorum] insecure: expected true or false")
    return text.lower() == "true"
