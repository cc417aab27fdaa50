"""Coordinators of real logs: who has a log, who follows, and what happens when one goes."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.client.open_journal import open_journal
from spark_log.errors import (
    CommitUnknown,
    CoordinatorNotAvailable,
    InconsistentClusterId,
    NotCoordinator,
    StorageError,
)
from spark_log.http.address import this_host
from spark_log.journal.journal import Journal
from spark_log.journal.storage.storage_health import MARKS
from spark_log.serve.serve import Running
from spark_log.store.local import LocalStore
from tests.processes import Process, free_port
from tests.services import Services

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    found = Services()
    yield found
    found.close()


@pytest.fixture
def folder(tmp_path: Path, services: Services) -> Iterator[Path]:
    """Where a log is; its coordinators are stopped."""
    yield tmp_path / "log"
    services.stop_all()


def eventually(true: object, seconds: float = 20.0) -> None:
    """Wait until a function gives something true."""
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def values(log: spark_log.Log) -> list[bytes]:
    return list(log.read("t", columns=["value"]).column("value").to_pylist())


def impatient(log: spark_log.Log, coordinator_wait_ms: int = 1000) -> spark_log.Log:
    """The same log, which waits a second for a coordinator instead of half a minute."""
    log.journal.metadata_log.context = replace(log.journal.context, coordinator_wait_ms=coordinator_wait_ms)
    return log


# ------------------------------------------------------------------------------------------------- taking over, releasing


# Promise: service.md#leadership
def test_an_embedded_writer_follows_the_coordinator_that_took_its_log_over(services: Services, folder: Path) -> None:
    """A handle that was open before continues through the coordinator; its records are visible to all clients."""
    with spark_log.connect(str(folder)) as log:
        log.append("t", [{"value": b"alone"}])
        running = services.start(folder)
        eventually(lambda: running.coordinator.leading)
        log.append("t", [{"value": b"led"}])
        assert log.journal.state.coordinator.address == running.coordinator.address
        assert running.coordinator.metrics.commands >= 1
        assert values(log) == [b"alone", b"led"]


# Promise: service.md#leadership
def test_after_a_graceful_stop_embedded_writers_have_the_log_again(services: Services, folder: Path) -> None:
    """The last thing that a coordinator writes is that it is none any more."""
    running = services.start(folder)
    with spark_log.connect(str(folder)) as log:
        log.append("t", [{"value": b"led"}])
        services.stop(running)
        log.append("t", [{"value": b"alone"}])
        assert log.journal.state.coordinator.in_force == 0
        assert values(log) == [b"led", b"alone"]


# Promise: service.md#leadership
def test_a_client_of_a_coordinator_waits_for_it_and_does_not_write_by_itself(services: Services, folder: Path) -> None:
    """While it is away nothing is written, and the error says who was asked; nothing was done."""
    running = services.start(folder)
    url = f"pylog://{running.coordinator.address}"
    with impatient(spark_log.connect(url)) as log:
        log.append("t", [{"value": b"1"}])
        services.stop(running)
        with pytest.raises(CoordinatorNotAvailable, match=running.coordinator.address) as away:
            log.append("t", [{"value": b"lost"}])
        assert not away.value.maybe_applied
        services.start(folder, listen=running.coordinator.address)
        log.append("t", [{"value": b"2"}])
        assert values(log) == [b"1", b"2"]


def test_who_waits_goes_on_as_soon_as_the_coordinator_is_back(services: Services, folder: Path) -> None:
    """A restart is a pause for those who write meanwhile."""
    running = services.start(folder)
    with spark_log.connect(f"pylog://{running.coordinator.address}") as log:
        log.append("t", [{"value": b"1"}])
        services.stop(running)
        writer = threading.Thread(target=log.append, args=("t", [{"value": b"2"}]))
        writer.start()
        time.sleep(0.3)
        services.start(folder, listen=running.coordinator.address)
        writer.join(20)
        assert values(log) == [b"1", b"2"]


def test_who_starts_while_the_coordinator_starts_waits_for_it(services: Services, folder: Path) -> None:
    """A job that is sent off in that moment need not fail."""
    address = f"127.0.0.1:{free_port()}"
    started = threading.Timer(0.5, services.start, (folder,), {"listen": address})
    started.start()
    with spark_log.connect(f"pylog://{address}") as log:
        log.append("t", [{"value": b"1"}])
        assert values(log) == [b"1"]
    started.join()


def test_who_starts_while_the_coordinator_dies_waits_for_the_next_one(services: Services, folder: Path) -> None:
    """Its connection is there, and is hung up on; the address refuses others, till the coordinator is there again."""
    door = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{door.getsockname()[1]}"

    def die_and_start_again() -> None:
        dying, _ = door.accept()
        door.close()
        dying.recv(1000)
        dying.close()
        services.start(folder, listen=address)

    started = threading.Thread(target=die_and_start_again)
    started.start()
    with spark_log.connect(f"pylog://{address}") as log:
        log.append("t", [{"value": b"1"}])
        assert values(log) == [b"1"]
    started.join()


def leave_behind(folder: Path, address: str, host: str) -> None:
    """A log whose coordinator died without a word."""
    Journal.open(LocalStore(str(folder), "os"), create=True).take_over(0, address, host)


# Promise: service.md#leadership
def test_a_log_whose_coordinator_died_is_not_written_until_it_is_released_by_hand(folder: Path) -> None:
    """The error says how; a release is under the next epoch, so the dead one stays dead."""
    leave_behind(folder, f"127.0.0.1:{free_port()}", this_host())
    with impatient(spark_log.connect(str(folder))) as log:
        with pytest.raises(CoordinatorNotAvailable, match="pylog cluster release --force"):
            log.append("t", [{"value": b"no"}])
        assert log.journal.release(log.journal.state.coordinator.epoch + 1)
        log.append("t", [{"value": b"yes"}])
        assert values(log) == [b"yes"] and log.journal.state.coordinator.epoch == 2


# Promise: service.md#leadership
def test_a_coordinator_on_another_machines_loopback_is_refused_at_once(folder: Path) -> None:
    """Its address means somebody else here."""
    leave_behind(folder, "127.0.0.1:9550", "elsewhere")
    with spark_log.connect(str(folder)) as log, pytest.raises(NotCoordinator, match="listens on elsewhere"):
        log.append("t", [{"value": b"no"}])


# Promise: service.md#leadership
def test_started_again_at_its_address_it_takes_over_at_once(services: Services, folder: Path) -> None:
    """The owner of the port is the one that died, so nobody has to wait for it."""
    address = f"127.0.0.1:{free_port()}"
    leave_behind(folder, address, this_host())
    running = services.start(folder, listen=address, takeover_ms=600_000)
    eventually(lambda: running.coordinator.epoch == 2, 5)


# Promise: service.md#leadership
def test_a_standby_takes_over_when_the_first_is_gone_and_not_before(
    services: Services, folder: Path, tmp_path: Path
) -> None:
    """It waits while the other answers; a client that knows both addresses continues."""
    first = Process(folder, free_port())
    standby = services.start(folder, takeover_ms=3000)
    with spark_log.connect(f"pylog://{standby.coordinator.address},{first.address}") as log:
        log.append("t", [{"value": b"1"}])
        time.sleep(4)
        assert not standby.coordinator.leading
        first.kill()
        log.append("t", [{"value": b"2"}])
        assert standby.coordinator.leading and standby.coordinator.epoch == 2
        assert values(log) == [b"1", b"2"]


# Promise: service.md#leadership
def test_a_coordinator_that_was_replaced_while_it_slept_writes_nothing_more(services: Services, folder: Path) -> None:
    """Its commit is refused by the log, and its clients are sent to the other one."""
    running = services.start(folder, takeover_ms=600_000)
    eventually(lambda: running.coordinator.leading)
    address = running.coordinator.address
    with impatient(spark_log.connect(f"pylog://{address}")) as log:
        log.append("t", [{"value": b"1"}])
        other = Journal.open(LocalStore(str(folder), "os"), create=False)
        other.take_over(1, f"127.0.0.1:{free_port()}", this_host())
        with pytest.raises(CoordinatorNotAvailable):
            log.append("t", [{"value": b"2"}])
        eventually(lambda: not running.coordinator.leading)
        assert values(log) == [b"1"]


# Promise: monitoring.md#probes
def test_an_idle_coordinator_overwrites_its_mark_and_adds_no_records(services: Services, folder: Path) -> None:
    """One small object is what its health costs in space; it is removed when the coordinator stops."""
    store = LocalStore(str(folder), "os")
    running = services.start(folder, storage_timeout_ms=3000)
    eventually(lambda: running.coordinator.leading and store.list(MARKS))
    version, (mark,) = running.coordinator.state.version, store.list(MARKS)
    found = {store.get(mark)}
    eventually(lambda: found.add(store.get(mark)) or len(found) >= 3)
    assert store.list(MARKS) == [mark] and running.coordinator.state.version == version
    assert running.coordinator.health().healthy
    services.stop(running)
    assert store.list(MARKS) == []


class Denying(Wrapper):
    """A storage that rejects writes."""

    def put(self, key: str, chunks: object) -> None:
        raise StorageError(f"{key}: read-only file system")


def test_a_coordinator_does_not_start_on_a_storage_that_denies_writes(services: Services, folder: Path) -> None:
    """It could not lead, however often it tried."""
    with spark_log.connect(folder, durability="os"):
        pass
    with pytest.raises(StorageError, match="read-only file system"):
        services.start(folder, Denying(LocalStore(str(folder), "os")))


# Promise: monitoring.md#probes
def test_a_coordinator_that_takes_over_removes_the_marks_of_others(services: Services, folder: Path) -> None:
    """Those that were killed leave theirs; those that run write theirs again."""
    store = LocalStore(str(folder), "os")
    store.put(f"{MARKS}gone-1", [b"x"])
    running = services.start(folder, storage_timeout_ms=3000)
    eventually(lambda: running.coordinator.leading and f"{MARKS}gone-1" not in store.list(MARKS))


def test_two_that_advertise_the_same_address_do_not_take_the_log_from_each_other_in_turn(
    services: Services, folder: Path
) -> None:
    """The later one has it, once; the one before stands by."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = f"127.0.0.1:{door.getsockname()[1]}"
        first = services.start(folder, advertise=address, takeover_ms=600_000)
        eventually(lambda: first.coordinator.leading)
        second = Services()
        later = second.start(folder, advertise=address, takeover_ms=600_000)
        eventually(lambda: later.coordinator.leading and not first.coordinator.leading)
        time.sleep(2.5)
        assert (later.coordinator.epoch, first.coordinator.epoch) == (2, 0)
        second.close()


def test_a_coordinator_serves_a_log_in_a_bucket(services: Services, folder: Path, s3: object) -> None:
    """Clients reach the objects with their own options; afterwards the bucket alone has the whole log."""
    bucket = s3()  # type: ignore[operator]
    running = services.start(folder, url=bucket.url, storage=bucket.options)
    with spark_log.connect(f"pylog://{running.coordinator.address}", bucket.options) as log:
        log.append("t", [{"value": b"1"}, {"value": b"2"}])
        with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
            assert [record.value for some in consumer.poll(20_000).values() for record in some] == [b"1", b"2"]
    services.stop(running)
    with spark_log.connect(bucket.url, bucket.options) as log:
        assert values(log) == [b"1", b"2"]
        assert log.admin.list_consumer_group_offsets("g")[spark_log.TopicPartition("t", 0)].offset == 2


def test_a_coordinator_of_another_log_is_refused(services: Services, folder: Path, tmp_path: Path) -> None:
    """The cluster id comes before anything else."""
    first, other = services.start(folder), services.start(tmp_path / "other")
    with spark_log.connect(f"pylog://{first.coordinator.address}") as log:
        log.append("t", [{"value": b"1"}])
        link = log.journal.link
        assert link is not None
        swapped = open_journal(f"pylog://{other.coordinator.address}", create=False).link
        assert swapped is not None
        swapped.cluster_id = link.cluster_id  # type: ignore[attr-defined]
        log.journal.link = swapped
        with pytest.raises(InconsistentClusterId):
            log.append("t", [{"value": b"2"}])
        swapped.close()
        link.close()


# --------------------------------------------------------------------------------------------------------- real processes


def test_a_producer_rides_through_a_coordinator_that_is_killed(folder: Path) -> None:
    """Started again at its address, every record that was acknowledged is there, once, in order."""
    port = free_port()
    process = Process(folder, port)
    with spark_log.connect(f"pylog://{process.address}") as log:
        producer = log.producer(linger_ms=1)
        futures = []
        stop = threading.Event()

        def produce() -> None:
            while not stop.is_set():
                futures.append(producer.send("t", b"%d" % len(futures)))
                time.sleep(0.002)

        writer = threading.Thread(target=produce)
        writer.start()
        for _ in range(2):
            time.sleep(0.7)
            process.kill()
            process = Process(folder, port)
        time.sleep(0.5)
        stop.set()
        writer.join()
        producer.close()
        offsets = [future.result(30).offset for future in futures]
        assert offsets == list(range(len(futures)))
        assert values(log) == [b"%d" % n for n in range(len(futures))]
    assert process.terminate() == 0


def test_what_it_says_can_be_read(folder: Path) -> None:
    """Where it listens, that it leads, and what becomes of the log in the end, a line each, with the time."""
    port = free_port()
    command = [sys.executable, "-m", "spark_log.cli", "-u", str(folder), "serve", "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on 127.0.0.1:{port} for {Path(folder).as_uri()}\n"
        with spark_log.connect(f"pylog://127.0.0.1:{port}") as log:
            log.append("t", [{"value": b"1"}])
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == 0
    assert [re.sub(r"^[-0-9]+ [:,0-9]+ ", "", line).partition(" file:")[0] for line in said] == [
        "WARNING created a new log at",
        f"INFO 127.0.0.1:{port} leads",
        "INFO this coordinator released",
    ]


# Promise: clients.md#errors
def test_a_commit_whose_answer_is_lost_says_that_it_may_be_in(services: Services, folder: Path) -> None:
    """A coordinator that takes the request and dies: in or not in is not known, and that is what the error says."""
    running = services.start(folder)
    with impatient(spark_log.connect(f"pylog://{running.coordinator.address}")) as log:
        log.append("t", [{"value": b"1"}])
        services.stop(running)
        with Deaf(running) as deaf, pytest.raises(CommitUnknown, match="may have been applied"):
            log.append("t", [{"value": b"2"}])
        assert deaf.heard


# Promise: clients.md#producer
def test_a_commit_that_may_be_in_stays_so_when_nobody_answers_any_more(services: Services, folder: Path) -> None:
    """The tries after it reached nobody, and do not make it undone."""
    running = services.start(folder)
    with impatient(spark_log.connect(f"pylog://{running.coordinator.address}"), 100) as log:
        log.append("t", [{"value": b"1"}])
        services.stop(running)
        deaf = Deaf(running, once=True)
        with deaf, pytest.raises(CoordinatorNotAvailable) as refused:
            log.append("t", [{"value": b"2"}])
        assert deaf.heard == 1 and refused.value.maybe_applied


def test_without_retries_a_producers_commit_is_made_once(services: Services, folder: Path) -> None:
    """If its answer is lost, the future says that the record may be in, long before the delivery timeout."""
    running = services.start(folder)
    with impatient(spark_log.connect(f"pylog://{running.coordinator.address}"), 200) as log:
        once, again = log.producer(retries=0, linger_ms=0), log.producer(linger_ms=0, delivery_timeout_ms=60_000)
        once.send("t", b"1").result(60)
        services.stop(running)
        with Deaf(running) as deaf:
            assert isinstance(once.send("t", b"2").exception(60), CommitUnknown) and deaf.heard
            waiting = again.send("t", b"3")
            time.sleep(1)
            assert not waiting.done()
        services.start(folder, listen=running.coordinator.address)
        assert waiting.result(60).offset == 1
        once.close()
        again.close()


class Deaf:
    """Listens at a coordinator's address, takes requests, or one, and hangs up."""

    def __init__(self, running: Running, *, once: bool = False) -> None:
        self._once = once
        host, _, port = running.coordinator.address.partition(":")
        self._socket = socket.create_server((host, int(port)))
        self.heard = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.heard += len(connection.recv(1000)) > 0
            if self.heard and self._once:
                self._socket.close()
                return

    def __enter__(self) -> Deaf:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
