"""Idempotent producers continue when their gateway dies, at another gateway, and in a log without their batches."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaProducer
from kafka.errors import OutOfOrderSequenceNumberError

import spark_log
from simulation.harness.stores import Wrapper
from spark_log import NewTopic
from spark_log.errors import StorageUnavailable
from spark_log.gateway.api import INIT_PRODUCER_ID
from spark_log.gateway.error_codes import NONE, OUT_OF_ORDER_SEQUENCE_NUMBER, REQUEST_TIMED_OUT
from spark_log.gateway.messages import InitProducerIdRequest
from spark_log.gateway.produced_batches import parse_batch
from spark_log.gateway.rounds import RoundWriter, Waiting
from spark_log.journal.journal import Journal
from spark_log.recovery.repair import repair
from spark_log.store.local import LocalStore
from spark_log.store.object_names import LOG
from spark_log.store.open import open_store
from tests.gateway.running import DEADLINE_S, Running
from tests.gateway.test_gateway_produce import Process, produce
from tests.gateway.test_gateway_repeats import batch, new_id, values
from tests.restored import copy_of, restored
from tests.services import Services

KILLS = 2


class Load:
    """A producer that sends numbers until it is stopped."""

    def __init__(self, send: Callable[[bytes], Any], flush: Callable[[], Any]) -> None:
        self._send, self._flush, self._stopping = send, flush, threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._send(b"%d" % self.sent)
            self.sent += 1
            self._stopping.wait(0.002)
        self._flush()

    def stop(self) -> list[bytes | None]:
        """Waits until all is acknowledged.  Returns the values that were sent."""
        self._stopping.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return [b"%d" % n for n in range(self.sent)]


def ends(log: spark_log.Log) -> list[int]:
    state = log.journal.refresh()
    return [part.end for _, part in state.topic_partitions(state.names["orders"])]


# Promise: gateway.md#writes
def test_producers_continue_when_their_gateway_is_killed(log: spark_log.Log, python_client: Callable[..., Any]) -> None:
    """SIGKILL under load: each record is there once, in order, and nothing fails."""
    gateway, failed = Process(log.url), list[Any]()
    settings = {"enable.idempotence": True, "linger.ms": 1, "retry.backoff.ms": 50, "log_level": 0}
    one = confluent_kafka.Producer(
        {"bootstrap.servers": gateway.address, "batch.num.messages": 20, "error_cb": failed.append, **settings}
    )
    other = python_client(KafkaProducer, gateway.address, enable_idempotence=True, retry_backoff_ms=50)

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)

    def send(value: bytes) -> None:
        one.produce("orders", value, partition=0, on_delivery=delivered)
        one.poll(0)

    futures = list[Any]()
    loads = [
        Load(send, lambda: one.flush(DEADLINE_S)),
        Load(lambda value: futures.append(other.send("orders", value, partition=1)), lambda: other.flush(DEADLINE_S)),
    ]
    for _ in range(KILLS):
        wanted = [end + 50 for end in ends(log)]
        while any(end < least for end, least in zip(ends(log), wanted, strict=True)):
            time.sleep(0.1)
        gateway.end(signal.SIGKILL)
        gateway = Process(log.url, gateway.address)
    sent = [load.stop() for load in loads]
    gateway.end(signal.SIGTERM)
    assert [one for one in failed if one.fatal() or one.code() >= 0] == []
    assert all(future.succeeded() for future in futures)
    assert [values(log, partition=n) for n in (0, 1)] == sent


@pytest.fixture(params=["without a coordinator", "with one"])
def gateways(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Two gateways of a log, and the log."""
    folder, services = tmp_path / "log", Services()
    url = str(folder) if request.param == "without a coordinator" else services.url(folder)
    with spark_log.connect(url) as log:
        log.create_topic(NewTopic("orders", 1))
    logs = [spark_log.connect(url) for _ in range(2)]
    running = [Running(log) for log in logs]
    yield running, logs[0]
    for gateway in running:
        gateway.close()
    for log in logs:
        log.close()
    services.close()


# Promise: gateway.md#writes
def test_a_batch_is_recognised_by_another_gateway(gateways: tuple[list[Running], spark_log.Log]) -> None:
    """Whichever has written it; the next one is accepted by both, and one out of order by none."""
    (a, b), log = gateways
    producer = a.ask(INIT_PRODUCER_ID, 4, InitProducerIdRequest()).producer_id

    def sent(gateway: Running, sequence: int) -> tuple[int, int]:
        data = batch(b"%d" % sequence, producer=producer, sequence=sequence)
        (one,) = produce(gateway, ("orders", 0, data))
        return one.error_code, one.base_offset

    assert [sent(a, 0), sent(b, 0), sent(b, 1), sent(a, 1), sent(a, 2), sent(b, 3)] == [
        (0, n) for n in (0, 0, 1, 1, 2, 3)
    ]
    assert sent(a, 5) == sent(b, 5) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert b.ask(INIT_PRODUCER_ID, 4, InitProducerIdRequest(producer_id=producer, producer_epoch=0)).producer_epoch == 1
    assert values(log) == [b"0", b"1", b"2", b"3"]


class DeafStore(Wrapper):
    """Puts records of the metadata log, and fails then, as long as it is deaf."""

    deaf = False

    def put_new(self, key: str, data: bytes) -> bool:
        created = super().put_new(key, data)
        self._pass(key)
        return created

    def _pass(self, key: str, *, writes: bool = False) -> None:
        if self.deaf and key.startswith(LOG) and not writes:
            raise StorageUnavailable(f"{key}: no answer")


# Promise: gateway.md#writes
@pytest.mark.parametrize("rest", [(), (1, 2)])
def test_a_commit_of_unknown_outcome_is_recognised(log: spark_log.Log, rest: tuple[int, ...]) -> None:
    """The record is in the log: its batch is sent again, alone or with later ones."""
    store = DeafStore(open_store(log.url, None, "os"))
    deaf, loop, producer = spark_log.Log(Journal.open(store, create=False)), asyncio.new_event_loop(), new_id()
    writer, topic_id = RoundWriter(deaf.journal), deaf.journal.state.names["orders"]

    def sent(*sequences: int) -> list[tuple[int, int]]:
        batches = [parse_batch(batch(b"%d" % n, producer=producer, sequence=n)) for n in sequences]
        round_ = [Waiting("orders", topic_id, 0, one, -1, 1000, loop.create_future()) for one in batches]
        writer.write(round_)
        return [(one.outcome.code, one.outcome.offset) if one.outcome else (99, 0) for one in round_]

    store.deaf = True
    assert sent(0) == [(REQUEST_TIMED_OUT, -1)]
    store.deaf = False
    assert sent(0, *rest) == [(NONE, n) for n in (0, *rest)]
    assert values(log) == [b"%d" % n for n in (0, *rest)]
    deaf.close()
    loop.close()


def restore(log: spark_log.Log, copy: Path, version: int) -> spark_log.Log:
    return restored(log.url.removeprefix("file://"), copy)


def poll(producer: confluent_kafka.Producer) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        producer.poll(0.1)


# Promise: gateway.md#writes
def test_clients_report_that_the_log_lacks_what_they_have_sent(
    log: spark_log.Log, tmp_path: Path, python_client: Callable[..., Any]
) -> None:
    """The log was restored from a copy.  librdkafka needs a new producer, kafka-python continues."""
    gateway, reports = Running(log), list[Any]()
    settings = {"enable.idempotence": True, "linger.ms": 0, "log_level": 0, "error_cb": lambda error: None}
    one = confluent_kafka.Producer({"bootstrap.servers": gateway.address, **settings})
    other = python_client(KafkaProducer, gateway.address, enable_idempotence=True)

    def send(value: bytes) -> Any:
        one.produce("orders", value, partition=0, on_delivery=lambda error, message: reports.append(error))
        sent = other.send("orders", value, partition=1)
        other.flush(DEADLINE_S)
        return sent

    assert send(b"kept").succeeded() and one.flush(DEADLINE_S) == 0
    copy = copy_of(log, tmp_path / "copy")
    assert send(b"lost").succeeded() and one.flush(DEADLINE_S) == 0
    gateway.close()
    with restored(log.url.removeprefix("file://"), copy) as again:
        gateway = Running(again, listen=gateway.address)
        assert isinstance(send(b"refused").exception, OutOfOrderSequenceNumberError)
        assert send(b"next").succeeded()
        with pytest.raises(confluent_kafka.KafkaException, match="FATAL,code=OUT_OF_ORDER_SEQUENCE_NUMBER"):
            poll(one)
        gateway.close()
        assert [values(again, partition=n) for n in (0, 1)] == [[b"kept"], [b"kept", b"next"]]
    assert reports[:2] == [None, None]


def accept_loss(log: spark_log.Log, copy: Path, version: int) -> spark_log.Log:
    log.close()
    folder = Path(log.url.removeprefix("file://"))
    (folder / LOG / f"{version:020d}.rec").unlink()
    repair(LocalStore(folder), is_alive=lambda holder: False, accept_loss=True)
    return spark_log.connect(log.url)


# Promise: gateway.md#writes
@pytest.mark.parametrize("change", [restore, accept_loss])
def test_a_producer_continues_in_a_log_without_its_last_batches(
    log: spark_log.Log, tmp_path: Path, change: Callable[[spark_log.Log, Path, int], spark_log.Log]
) -> None:
    """Batches that the log has are recognised.  The next one of the client is out of order, as in Kafka: it raises its
    epoch, and begins again with 0."""
    gateway = Running(log)
    producer = gateway.ask(INIT_PRODUCER_ID, 4, InitProducerIdRequest()).producer_id

    def sent(sequence: int, value: bytes, epoch: int = 0) -> tuple[int, int]:
        (one,) = produce(gateway, ("orders", 0, batch(value, producer=producer, sequence=sequence, epoch=epoch)))
        return one.error_code, one.base_offset

    assert sent(0, b"kept") == (NONE, 0)
    copy = copy_of(log, tmp_path / "copy")
    assert sent(1, b"lost") == (NONE, 1)
    version = log.journal.refresh().version
    gateway.close()
    with change(log, copy, version) as again:
        gateway = Running(again)
        assert [sent(0, b"kept"), sent(2, b"new")] == [(NONE, 0), (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
        assert [sent(0, b"new", epoch=1), sent(0, b"new", epoch=1), sent(1, b"next", epoch=1)] == [
            (NONE, 1),
            (NONE, 1),
            (NONE, 2),
        ]
        gateway.close()
        assert values(again) == [b"kept", b"new", b"next"]
