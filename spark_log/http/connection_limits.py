"""Limits on a coordinator's connections, and which of them are closed first.

A connection is *silent* until it has sent a complete request with a valid token.  Silent are connections that were
only accepted, that are in a TLS handshake, that have sent half a request, or that request only the health.  Silent
connections have a separate limit, so that they take no places from clients.  Above the limit, the address with most of
them loses its oldest one.  An address that opens many of them in a second waits: each one, and most of all a TLS
handshake, takes the event loop time.  Those that then send a valid token do not count.

Pure: the caller passes the time and a function that closes the connection.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from spark_log.errors import CoordinatorNotAvailable, QuotaExceeded

DESCRIPTORS_KEPT = 200
"""File descriptors reserved for the storage and everything else."""
BURST_S = 2.0
"""An address may open as many connections at the same time as it may in this time."""
NETWORKS_MAX = 10_000
"""Above it, networks are forgotten that have not opened more than they may."""


class ConnectionLimits(NamedTuple):
    """Limits of the server."""

    body_bytes: int = 8 << 20
    header_bytes: int = 16 << 10
    connections: int = 10_000
    """Client connections: those that have sent a complete request with a valid token."""
    connections_per_address: int = 5_000
    silent_connections: int = 1_000
    strangers_per_s: int = 100
    """New connections per address and second that send no valid token; twice as many at the same time."""
    request_ms: int = 30_000
    """Timeout for a complete request, and for a TLS handshake."""

    def within(self, descriptors: int) -> ConnectionLimits:
        """These limits, or lower ones for a process with this limit of open files."""
        free = max(descriptors - DESCRIPTORS_KEPT, 2)
        silent = min(self.silent_connections, max(free // 4, 1))
        return self._replace(silent_connections=silent, connections=min(self.connections, free - silent))

    @property
    def descriptors(self) -> int:
        """Open files that a process needs for these limits."""
        return self.connections + self.silent_connections + DESCRIPTORS_KEPT


class Peer:
    """One connection."""

    def __init__(self, network: str, close: Callable[[], object], deadline_s: float) -> None:
        self.network = network
        self.close = close
        self.deadline_s: float | None = deadline_s
        """When a complete request must have arrived; None while one is being handled."""
        self.principal: str | None = None
        """Name of the client's token; None while silent."""
        self.is_charged = True
        """It counts for `strangers_per_s`."""


class Connections:
    """All connections of one port."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._silent: dict[str, dict[Peer, None]] = {}
        """By network, oldest first."""
        self._silent_count = 0
        self._clients: set[Peer] = set()
        self._of_network: Counter[str] = Counter()
        self._of_principal: Counter[str] = Counter()
        self._paid_until_s: dict[str, float] = {}
        """By network: when all of its connections that count are within `strangers_per_s`."""
        self._waiting: dict[str, dict[Peer, Callable[[], object]]] = {}
        """By network, those that wait until they are opened, oldest first, and what opens them."""

    def __len__(self) -> int:
        return len(self._clients) + self._silent_count

    def __iter__(self) -> Iterator[Peer]:
        yield from self._clients
        for peers in self._silent.values():
            yield from peers

    @property
    def silent(self) -> int:
        return self._silent_count

    def of_principal(self, name: str) -> int:
        """Number of client connections that use a token."""
        return self._of_principal[name]

    def accept(self, address: str, close: Callable[[], object], now_s: float) -> Peer:
        """Add a connection.  Another silent one may be closed for it."""
        peer = Peer(network_of(address), close, now_s + self.limits.request_ms / 1000)
        self._add_silent(peer)
        if self._silent_count > self.limits.silent_connections:
            self.displace(1)
        return peer

    def charge(self, peer: Peer, now_s: float) -> float:
        """Count a new connection; for how many seconds it waits until it is opened."""
        if len(self._paid_until_s) >= NETWORKS_MAX:
            self._paid_until_s = {network: at for network, at in self._paid_until_s.items() if at > now_s}
        rate = self.limits.strangers_per_s
        until_s = max(self._paid_until_s.get(peer.network, 0.0), now_s) + 1 / rate
        self._paid_until_s[peer.network] = until_s
        return max(0.0, until_s - BURST_S - now_s)

    def refund(self, peer: Peer) -> None:
        """A connection does not count any more: it has sent a valid token, or was closed before it was opened."""
        if peer.is_charged and peer.network in self._paid_until_s:
            self._paid_until_s[peer.network] -= 1 / self.limits.strangers_per_s
        peer.is_charged = False

    def wait(self, peer: Peer, go_on: Callable[[], object]) -> None:
        """A connection waits for the time that `charge` returned, or until `go_on` is called."""
        self._waiting.setdefault(peer.network, {})[peer] = go_on

    def end_wait(self, peer: Peer) -> None:
        """A connection is opened or closed."""
        waiting = self._waiting.get(peer.network, {})
        waiting.pop(peer, None)
        if not waiting:
            self._waiting.pop(peer.network, None)

    def _open_next(self, network: str) -> None:
        """The oldest connection that waits takes the place of one that does not count any more."""
        if waiting := self._waiting.get(network):
            peer, go_on = next(iter(waiting.items()))
            self.end_wait(peer)
            go_on()

    def displace(self, count: int) -> int:
        """Close `count` silent connections.  Returns how many there were to close."""
        for closed in range(count):
            if not self._silent:
                return closed
            most = max(self._silent.values(), key=len)
            oldest = next(iter(most))
            self.remove(oldest)
            oldest.close()
        return count

    def establish(self, peer: Peer, principal: str, quota: int | None = None) -> None:
        """Mark a peer as a client: it has sent a complete request with the token of this name.

        quota:  limit of connections with this token; None: no limit.
        Raises CoordinatorNotAvailable above the connection limits, QuotaExceeded above the quota.
        """
        if peer.is_charged:
            self.refund(peer)
            self._open_next(peer.network)
        if peer.principal == principal:
            return
        if quota is not None and self._of_principal[principal] >= quota:
            raise QuotaExceeded(f"the token {principal!r} has a quota of connections={quota}, which is reached")
        if peer in self._clients:
            self._rename(peer, principal)
            return
        if peer not in self._silent.get(peer.network, ()):
            return  # it has hung up
        limits = self.limits
        if len(self._clients) >= limits.connections:
            raise CoordinatorNotAvailable(f"connections: {limits.connections} of clients are open, which is the limit")
        if self._of_network[peer.network] >= limits.connections_per_address:
            raise CoordinatorNotAvailable(
                f"connections.per.address: {limits.connections_per_address} of clients at {peer.network} are open, "
                "which is "
                "the limit"
            )
        self.remove(peer)
        peer.principal = principal
        self._clients.add(peer)
        self._of_network[peer.network] += 1
        self._of_principal[principal] += 1

    def _rename(self, peer: Peer, principal: str) -> None:
        if peer.principal is not None and peer.principal != principal:
            self._of_principal[peer.principal] -= 1
            self._of_principal[principal] += 1
            peer.principal = principal

    def begin(self, peer: Peer) -> None:
        """A request is being handled."""
        peer.deadline_s = None

    def end(self, peer: Peer, deadline_s: float) -> None:
        """The request is answered; the deadline is for the next one.  A silent peer becomes the newest."""
        peer.deadline_s = deadline_s
        peers = self._silent.get(peer.network, {})
        if peer in peers:
            del peers[peer]
            peers[peer] = None

    def remove(self, peer: Peer) -> None:
        """The connection is closed, or about to be."""
        if peer in self._clients:
            assert peer.principal is not None, "a client has a name"
            self._clients.remove(peer)
            for counts, key in ((self._of_network, peer.network), (self._of_principal, peer.principal)):
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
        peers = self._silent.get(peer.network, {})
        if peer in peers:
            self._silent_count -= 1
            del peers[peer]
            if not peers:
                del self._silent[peer.network]

    def _add_silent(self, peer: Peer) -> None:
        self._silent.setdefault(peer.network, {})[peer] = None
        self._silent_count += 1

    def close_idle(self, principals: Collection[str]) -> None:
        """Close idle connections of clients whose tokens are not among these."""
        for peer in [
            peer for peer in self._clients if peer.principal not in principals and peer.deadline_s is not None
        ]:
            self.remove(peer)
            peer.close()

    def close_overdue(self, now_s: float) -> None:
        """Close connections whose request did not arrive in time."""
        for peer in [peer for peer in self if peer.deadline_s is not None and peer.deadline_s < now_s]:
            self.remove(peer)
            peer.close()


def network_of(address: str) -> str:
    """The unit of address limits: for IPv6 the /64 prefix, all of which may belong to one machine."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, 64), strict=False))
