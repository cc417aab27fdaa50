"""Clients without rights on `meta/`: the coordinator serves the metadata.  docs/service.md has the rules."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import NoMetadataStore
from spark_log.client.consumer.consumer import Consumer
from spark_log.client.log import Log
from spark_log.client.open_journal import find_claim, journal_through
from spark_log.errors import (
    AuthenticationFailed,
    InconsistentClusterId,
    InvalidRequest,
    ThrottlingQuotaExceeded,
    UnknownTopicOrPartition,
)
from spark_log.http.address import parse_target
from spark_log.journal.store_operations import AskClaim, AskSnapshot, AskStatus
from spark_log.metadata.state import Leadership
from spark_log.roots.root_options import RootOptions
from spark_log.rpc.client import HttpLink
from spark_log.serve.serve import Running
from spark_log.server.quotas import Quota
from spark_log.server.shared_claims import VALUE_BYTES_MAX
from spark_log.store.open import open_store
from tests.processes import Process, free_port
from tests.server.asking import BILLING, TOKENS, eventually
from tests.services import Services


def client(address: str, *, partial: bool = False) -> Log:
    """A client whose store raises for any access to `meta/`.

    address:  one, or several after commas.
    """
    link = HttpLink(parse_target(f"pylog://{address}"))
    info = link.info()
    link.cluster_id = info.cluster_id
    assert info.metadata == "served"
    store = NoMetadataStore(open_store(info.storage, None, "os"))
    return Log(journal_through(link, store, RootOptions.of(None, "os"), served=True, partial=partial))


@pytest.fixture
def running(services: Services, tmp_path: Path) -> Running:
    found = services.start(tmp_path / "log", metadata="served")
    eventually(lambda: found.coordinator.leading)
    return found


@pytest.fixture(params=[False, True], ids=["whole", "topics"])
def log(running: Running, request: pytest.FixtureRequest) -> Iterator[Log]:
    with client(running.coordinator.address, partial=request.param) as found:
        yield found


def snapshots_made(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return int(re.search(r"^pylog_snapshots_total (\d+)$", text, re.MULTILINE)[1])  # type: ignore[index]


def poll(consumer: Consumer) -> list[bytes]:
    return [record.value for records in consumer.poll(timeout_ms=500).values() for record in records]


def values(log: Log, topic: str) -> list[bytes]:
    return sorted(log.read(topic).column("value").to_pylist())


# Promise: service.md#clients-without-rights-on-meta
def test_everything_works_without_rights_on_meta(log: Log, running: Running) -> None:
    """Appends, a producer, transactions, a group that polls, topics, positions: the page says so."""
    log.append("orders", [{"value": b"1"}])
    with log.producer() as producer:
        producer.send("orders", b"2")
    with log.transaction("etl") as transaction:
        transaction.append("orders", [{"value": b"3"}])
    assert values(log, "orders") == [b"1", b"2", b"3"]
    with log.consumer("orders", group_id="billing", auto_offset_reset="earliest") as consumer:
        found: list[bytes] = []
        eventually(lambda: found.extend(poll(consumer)) or len(found) == 3)
        consumer.commit()
    admin = log.admin
    admin.create_topics([spark_log.NewTopic("more", 3)])
    admin.create_partitions({"more": 5})
    assert set(admin.list_topics()) == {"orders", "more"}
    assert admin.list_consumer_group_offsets("billing")
    admin.delete_topics(["more"])
    with pytest.raises(UnknownTopicOrPartition):
        log.read("more")


# Promise: service.md#clients-without-rights-on-meta
def test_the_metadata_of_a_served_log_is_not_there(log: Log) -> None:
    """A tool that needs the files says where to run."""
    with pytest.raises(InvalidRequest, match="needs the URL of the storage"):
        log.journal.metadata.list("meta/log/")


def test_a_url_is_enough(running: Running) -> None:
    """The coordinator says that it serves the metadata."""
    with spark_log.connect(f"pylog://{running.coordinator.address}") as log:
        assert log.journal.metadata_log.is_served
        assert log.journal.run(log.journal.metadata_log.status()).checkpoint == 0


# Promise: service.md#clients-without-rights-on-meta
def test_what_was_acknowledged_is_read(running: Running) -> None:
    """By another client's refresh, each time; a waiting client is woken."""
    one, other = client(running.coordinator.address).journal, client(running.coordinator.address)
    for number in range(20):
        other.append("t", [{"value": b"x"}])
        state = one.refresh()
        assert state.partitions[state.names["t"], 0].end == number + 1
    version = one.state.version
    append = threading.Timer(0.2, other.append, ("t", [{"value": b"x"}]))
    append.start()
    assert one.wait(0, 5000).version > version
    append.join()


def test_a_client_that_is_far_behind_gets_a_snapshot(running: Running) -> None:
    """The coordinator has forgotten the records after its version."""
    one, other = client(running.coordinator.address).journal, client(running.coordinator.address)
    other.append("t", [{"value": b"x"}])
    running.coordinator.tail.records.forget()
    assert one.refresh() == other.journal.refresh() == running.coordinator.state
    assert snapshots_made(running.coordinator.address) == 2


# Promise: service.md#clients-without-rights-on-meta
def test_clients_share_a_snapshot(running: Running) -> None:
    """As long as the changes after it are few."""
    address = running.coordinator.address
    with client(address) as writer:
        for _ in range(3):
            writer.append("t", [{"value": b"x"}])
            assert client(address).journal.state == writer.journal.state
    assert snapshots_made(address) == 1


def test_the_state_of_an_earlier_version(running: Running) -> None:
    """Tasks of a query read the version that one of them has pinned."""
    log = client(running.coordinator.address)
    log.append("t", [{"value": b"x"}])
    before = log.journal.refresh()
    log.append("t", [{"value": b"x"}])
    other = client(running.coordinator.address).journal
    assert other.state_at(before.version) == before
    assert other.state_at(10_000) is None


# Promise: service.md#clients-without-rights-on-meta
def test_a_standby_takes_over_and_clients_go_on_from_where_they_are(tmp_path: Path) -> None:
    """Their versions never go back, nothing is lost, and they need no new snapshot."""
    flags = ("--metadata", "served", "--takeover-after", "1s")
    first, second = (Process(tmp_path / "log", free_port(), *flags) for _ in range(2))
    try:
        eventually(lambda: first.leads)
        both = f"{first.address},{second.address}"
        with client(both) as log, client(both, partial=True) as other:
            journal, versions = log.journal, list[int]()
            for number in range(6):
                if number == 3:
                    eventually(lambda: second.health()[1].version == journal.refresh().version)
                    first.kill()
                    versions += [journal.poll().version, journal.wait(0, 100).version]
                (log if number % 2 else other).append("t", [{"value": b"%d" % number}])
                versions.append(journal.refresh().version)
            assert versions == sorted(versions) and journal.state.coordinator.address == second.address
            assert values(log, "t") == values(other, "t") == [b"%d" % number for number in range(6)]
        assert snapshots_made(second.address) == 0
    finally:
        for process in (first, second):
            process.kill()


CLAIM = "meta/pin/query-1"


def claim_of(number: int, version: int = 0) -> bytes:
    return json.dumps({"version": version, "by": number, "made_ms": 1}).encode()


# Promise: service.md#clients-without-rights-on-meta
def test_one_of_many_tasks_makes_a_claim(running: Running) -> None:
    """The others wait for it, and all get its value; a process without the coordinator gets the same."""
    url, cluster_id = f"pylog://{running.coordinator.address}", running.coordinator.cluster_id
    link, store = HttpLink(parse_target(url), cluster_id=cluster_id), running.coordinator.tail.inner
    makers: list[int] = []

    def task(number: int) -> bytes:
        found = find_claim(url, store, cluster_id, CLAIM, served=True)
        if found is None:
            makers.append(number)
            found = link.claim(AskClaim(Leadership(), CLAIM, claim_of(number)))
        assert found is not None
        return found

    with ThreadPoolExecutor(20) as pool:
        found = set(pool.map(task, range(1, 21)))
    assert len(makers) == 1 and found == {claim_of(makers[0])}
    assert link.claim(AskClaim(Leadership(), CLAIM, claim_of(99))) in found
    assert find_claim(url, store, cluster_id, CLAIM) in found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, claim_of(1)) for name in ("meta/log/1", "meta/pin/../log/1", "meta/pin/")),
        *(
            (CLAIM, value)
            for value in (
                b"{}",
                claim_of(1, version=10**9),
                json.dumps({"version": 0, "by": "x" * VALUE_BYTES_MAX}).encode(),
                b'{"version":0}',
                b'{"version":0,"made_ms":9999999999999}',
            )
        ),
    ],
)
def test_other_files_are_not_claimed(running: Running, name: str, value: bytes) -> None:
    """A client could write the metadata otherwise, or a claim that never expires."""
    link = HttpLink(parse_target(f"pylog://{running.coordinator.address}"), cluster_id=running.coordinator.cluster_id)
    with pytest.raises(InvalidRequest, match="name: |value: "):
        link.claim(AskClaim(Leadership(), name, value))


# Promise: security.md#quotas
def test_claims_have_a_quota(services: Services, tmp_path: Path) -> None:
    """A client that makes one after another waits, like one that commits too often."""
    quotas = {"billing": Quota(commits=1)}
    limited = services.start(tmp_path / "limited", metadata="served", tokens=TOKENS, quotas=quotas).coordinator
    eventually(lambda: limited.leading)
    link = HttpLink(parse_target(f"pylog://{limited.address}"), BILLING, cluster_id=limited.cluster_id)

    def refused(number: int) -> bool:
        try:
            link.claim(AskClaim(Leadership(), f"{CLAIM}-{number}", claim_of(number)))
        except ThrottlingQuotaExceeded as error:
            return 0 < error.retry_after_ms <= 1000
        return False

    with ThreadPoolExecutor(30) as pool:
        assert any(pool.map(refused, range(60)))


# Promise: service.md#clients-without-rights-on-meta
def test_a_snapshot_needs_a_token(guarded: str) -> None:
    """Any valid one, as all requests for changes: prefixes limit changes, and not what is read."""
    link = HttpLink(parse_target(f"pylog://{guarded}"), BILLING)
    link.cluster_id = link.info().cluster_id
    found = link.snapshot(AskSnapshot(Leadership()))
    assert found is not None
    without = HttpLink(parse_target(f"pylog://{guarded}"), cluster_id=link.cluster_id)
    with pytest.raises(AuthenticationFailed):
        without.snapshot(AskSnapshot(Leadership()))
    with pytest.raises(AuthenticationFailed):
        without.status(AskStatus(Leadership()))
    with pytest.raises(AuthenticationFailed):
        without.claim(AskClaim(Leadership(), CLAIM, None))


def test_another_log_at_the_address_is_noticed(running: Running, services: Services, tmp_path: Path) -> None:
    """Its state is not mixed with that of the first one."""
    other = services.start(tmp_path / "other", metadata="served").coordinator
    link = HttpLink(parse_target(f"pylog://{other.address}"), cluster_id=running.coordinator.cluster_id)
    with pytest.raises(InconsistentClusterId):
        link.snapshot(AskSnapshot(Leadership()))
