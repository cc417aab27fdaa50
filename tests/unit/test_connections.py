"""Which connection is closed for another one."""

from __future__ import annotations

import pytest

from spark_log.errors import CoordinatorNotAvailable
from spark_log.http.connection_limits import ConnectionLimits, Connections, Peer, network_of


class Pool:
    """Connections that note which of them were closed."""

    def __init__(self, **limits: int) -> None:
        self.closed: list[int] = []
        self.connections = Connections(ConnectionLimits()._replace(**limits))
        self.made = 0

    def accept(self, address: str = "192.0.2.1", now_s: float = 0.0) -> Peer:
        number = self.made
        self.made += 1
        return self.connections.accept(address, lambda: self.closed.append(number), now_s)


def test_the_oldest_silent_connection_goes_first() -> None:
    """Clients stay, however old they are."""
    pool = Pool(silent_connections=2)
    client = pool.accept()
    pool.connections.establish(client, "billing")
    for _ in range(3):
        pool.accept()
    assert pool.closed == [1]
    assert (len(pool.connections), pool.connections.silent, pool.connections.of_principal("billing")) == (3, 2, 1)


def test_a_silent_connection_whose_health_was_asked_for_is_new_again() -> None:
    """The one before it goes."""
    pool = Pool(silent_connections=2)
    checked, _ = pool.accept(), pool.accept()
    pool.connections.begin(checked)
    pool.connections.end(checked, 75.0)
    pool.accept()
    assert pool.closed == [1]


# Promise: service.md#as-a-service
def test_an_address_with_many_silent_connections_pushes_out_its_own() -> None:
    """The only one of another address stays, though it is the oldest."""
    pool = Pool(silent_connections=4)
    pool.accept("198.51.100.7")
    for _ in range(10):
        pool.accept()
    assert pool.closed == [1, 2, 3, 4, 5, 6, 7]


def test_a_connection_without_a_request_in_time_is_closed() -> None:
    """While a request is handled it has no deadline."""
    pool = Pool(request_ms=1000)
    pool.accept()
    handled = pool.accept()
    pool.connections.begin(handled)
    late = pool.accept(now_s=0.5)
    pool.connections.close_overdue(1.1)
    assert pool.closed == [0] and len(pool.connections) == 2
    pool.connections.remove(late)
    pool.connections.remove(late)
    assert len(pool.connections) == 1


# Promise: service.md#as-a-service
def test_clients_have_limits_in_all_and_for_each_address() -> None:
    """One that is refused stays silent; a place that becomes free is taken."""
    pool = Pool(connections=3, connections_per_address=2)
    first, second, third, other, last = (
        pool.accept(ip) for ip in ("192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3")
    )
    for peer in (first, second, first):
        pool.connections.establish(peer, "me")
    with pytest.raises(CoordinatorNotAvailable, match="2 of clients at 192.0.2.1"):
        pool.connections.establish(third, "me")
    pool.connections.establish(other, "me")
    with pytest.raises(CoordinatorNotAvailable, match="connections: 3 of clients"):
        pool.connections.establish(last, "me")
    pool.connections.remove(first)
    pool.connections.establish(third, "another")
    assert (pool.connections.of_principal("me"), pool.connections.of_principal("another")) == (2, 1)
    pool.connections.remove(first)  # again, and it takes nothing from others
    assert len(pool.connections) == 4


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::abcd:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_counts_as_one_address(address: str, network: str) -> None:
    """One machine has all addresses of a /64."""
    assert network_of(address) == network


# Promise: service.md#as-a-service
@pytest.mark.parametrize(("descriptors", "found"), [(100_000, (10_000, 1_000)), (1024, (618, 206)), (10, (1, 1))])
def test_limits_leave_descriptors_to_the_storage(descriptors: int, found: tuple[int, int]) -> None:
    """And keep one place at least."""
    limits = ConnectionLimits().within(descriptors)
    assert (limits.connections, limits.silent_connections) == found


# Promise: service.md#as-a-service
def test_an_address_that_opens_many_without_a_token_waits() -> None:
    """Twice the limit at the same time, then as many as the limit in each second; other addresses do not wait."""
    pool = Pool(strangers_per_s=10)
    waits = [pool.connections.charge(pool.accept(), 5.0) for _ in range(40)]
    assert waits[:20] == [0.0] * 20
    assert waits[20:] == pytest.approx([0.1 * number for number in range(1, 21)])
    assert pool.connections.charge(pool.accept("198.51.100.7"), 5.0) == 0.0
    assert pool.connections.charge(pool.accept(), 6.0) == pytest.approx(1.1)
    assert pool.connections.charge(pool.accept(), 60.0) == 0.0


# Promise: service.md#as-a-service
def test_connections_with_a_valid_token_do_not_count() -> None:
    """Nor do those that were closed before they were opened; each is refunded once."""
    pool = Pool(strangers_per_s=1)
    for _ in range(100):
        client = pool.accept()
        assert pool.connections.charge(client, 5.0) == 0.0
        pool.connections.establish(client, "billing")
        pool.connections.establish(client, "billing")
    first, second, third = pool.accept(), pool.accept(), pool.accept()
    assert [pool.connections.charge(one, 5.0) for one in (first, second, third)] == [0.0, 0.0, 1.0]
    pool.connections.refund(third)
    pool.connections.refund(third)
    assert pool.connections.charge(pool.accept(), 5.0) == 1.0


def test_each_valid_token_opens_the_oldest_connection_that_waits() -> None:
    """Thousands of clients of one address that start together wait for each other, and not for the limit."""
    pool, opened = Pool(strangers_per_s=1), list[int]()
    first, second = pool.accept(), pool.accept()
    waiting = [pool.accept() for _ in range(3)]
    other = pool.accept("198.51.100.7")
    for number, one in enumerate([*waiting, other]):
        pool.connections.wait(one, lambda number=number: opened.append(number))  # type: ignore[misc]
    pool.connections.establish(first, "billing")
    pool.connections.establish(first, "billing")
    assert opened == [0]
    pool.connections.end_wait(waiting[1])
    pool.connections.refund(waiting[1])
    assert opened == [0]
    pool.connections.establish(second, "billing")
    pool.connections.establish(waiting[0], "billing")
    assert opened == [0, 2]
