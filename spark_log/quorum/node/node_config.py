"""The settings of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_log.errors import InvalidRequest
from spark_log.http.address import is_loopback, parse_address, split_address
from spark_log.quorum.node.handshake import check_secret
from spark_log.quorum.ready import Config
from spark_log.quorum.voters import check_node_id

SNAPSHOT_BYTES = 64 << 20
SLOW_DISK_MS = 10_000
DIGEST_MS = 600_000
TIMES = Config(high_watermark_wait_ms=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The configuration of one node."""

    directory: str
    """Formatted by `pylog quorum init` for this cluster and this node."""
    cluster_id: str
    node_id: int
    listen: str
    advertise: str = ""
    """The address for other nodes; empty: the one it listens on."""
    peers: Mapping[int, str]
    """Addresses of the other nodes, by id."""
    secret: str = field(repr=False)
    """The secret that all nodes share, and no client knows."""
    certificate: str = ""
    key: str = ""
    ca: str = ""
    """Certificates that verify the other nodes, or `system`."""
    insecure: bool = False
    """Listen for other machines without TLS: the secret can be read in the network."""
    snapshot_bytes: int = SNAPSHOT_BYTES
    """Bytes of entries between two snapshots."""
    slow_disk_ms: int = SLOW_DISK_MS
    """A leader whose disk has not finished a write for so long hands over."""
    digest_ms: int = DIGEST_MS
    """An interval of the application's time: nodes compare their states at the first entry of each interval, and
    more often while they differ.  The same on all."""
    level: int = 0
    """The level of entries up to which the application understands them: other nodes show it."""
    times: Config = TIMES


def check_node_config(config: NodeConfig) -> None:
    """Raises InvalidRequest for settings that are invalid or unsafe."""
    check_secret(config.secret)
    for node_id in (config.node_id, *config.peers):
        check_node_id(node_id)
    for node_id, address in config.peers.items():
        parse_address(address, f"peers: node {node_id}")
        if node_id == config.node_id:
            raise InvalidRequest(f"peers: {node_id} is this node: give the addresses of the other nodes")
    if len({bool(config.certificate), bool(config.key), bool(config.ca)}) > 1:
        raise InvalidRequest("certificate, key and ca go together: give all or none")
    if not (config.certificate or config.insecure or is_loopback(config.listen)):
        raise InvalidRequest(
            f"listen: {config.listen} can be reached from other machines; give certificate, key and ca, or insecure "
            "to send the secret without TLS"
        )
    if not config.advertise and split_address(config.listen, "listen")[0] in ("0.0.0.0", "[::]"):
        raise InvalidRequest(f"advertise: {config.listen} is not an address for other nodes; give one")
