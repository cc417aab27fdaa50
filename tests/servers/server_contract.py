"""Tests of each real server of objects: the contract of a store, races, writers that are killed, a whole life."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_log
from simulation.harness.store_contract import ObjectStoreContract
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import DATA
from spark_log.store.probe import probe
from spark_log.store.remote import FsspecStore
from spark_log.store.retry import with_retries
from tests.chaos.test_sigkill import check
from tests.recovery.test_other_lines_elsewhere import check_is_kept_until_given_up, mixed_log
from tests.s3_server import BUSY, RESET, Faults
from tests.servers.logs import check_a_life, check_killed_writer, check_writers_beside
from tests.servers.server import Server, running
from tests.servers.slow_down import behind


class ServerContract(ObjectStoreContract):
    """Subclasses name the server."""

    kind: type[Server]

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with running(cls.kind(tmp_path_factory.mktemp("server"))) as found:
            yield found

    @pytest.fixture
    def url(self, server: Server) -> str:
        return server.bucket(f"b{uuid.uuid4().hex}")

    @pytest.fixture
    def store(self, server: Server, url: str) -> ObjectStore:
        """With the retries that every client has: a put beside deletes in its folder may be refused once."""
        return with_retries(FsspecStore(f"{url}/some/prefix", server.options), SystemClock(), random.Random())

    # Promise: testing.md#real-object-stores, storage.md#servers-for-s3
    def test_of_eight_writers_one_wins_each_of_150_names(self, server: Server, url: str) -> None:
        probe(FsspecStore(f"{url}/log", server.options), races=150, nonce="many")

    # Promise: testing.md#real-object-stores
    def test_a_writer_is_killed(self, server: Server, url: str) -> None:
        check_killed_writer(url, server.options)

    # Promise: testing.md#real-object-stores
    def test_the_server_is_killed_under_its_writers(self, tmp_path: Path) -> None:
        """SIGKILL in the middle of their requests, twice."""
        with running(self.kind(tmp_path)) as own:

            def killed() -> None:
                own.kill()
                own.start()

            check_writers_beside(own.bucket("bucket"), own.options, killed, killed)

    @pytest.mark.parametrize("answer", [BUSY, RESET])
    def test_an_append_waits_while_the_server_asks_to_slow_down(
        self, server: Server, url: str, answer: tuple[str, bytes]
    ) -> None:
        """503 Slow Down, or a reset connection, three times for each kind of object: it is appended once."""
        faults = Faults()
        with behind(faults, server.url) as proxy:
            log = spark_log.connect(f"{url}/log", {**server.options, "endpoint_url": proxy})
            log.append("t", [{"value": b"first"}])
            for number, (method, text) in enumerate(server.puts):
                faults.fail(method, text, 3, answer)
                log.append("t", [{"value": b"%d" % number}])
                assert faults.asked >= 4
            values = [b"first", *(b"%d" % number for number, _ in enumerate(server.puts))]
            assert log.read("t").column("value").to_pylist() == values

    # Promise: testing.md#real-object-stores
    def test_killed_writers_lose_nothing(self, server: Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The runs of the suite with killed writers, here with transactions."""
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        check(f"{url}/log", "transaction", 1, rounds=3)

    # Promise: storage-failures.md#when-the-metadata-is-damaged
    def test_lost_records_are_copied_back_beside_later_ones(self, server: Server, url: str) -> None:
        store = FsspecStore(f"{url}/log", server.options)
        mixed = mixed_log(lambda: spark_log.connect(store.url, server.options), store)
        check_is_kept_until_given_up(mixed, lambda log: [{*store.list(DATA)}])

    # Promise: testing.md#real-object-stores
    def test_a_log_is_maintained_copied_and_recovered(self, server: Server, url: str) -> None:
        place = FsspecStore(f"{server.bucket(f'm{uuid.uuid4().hex}')}/mirror", server.options)
        check_a_life(spark_log.connect(f"{url}/log", server.options), place, server.options)
