"""Requests are repeated in one place: what is transient, for a bounded time; anything else is raised immediately."""

from __future__ import annotations

import errno
import os
import pickle
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import spark_log
from simulation.harness.clocks import ManualClock
from simulation.harness.stores import ClockedStore, Wrapper
from spark_log.client.producer.append import upload_rows
from spark_log.client.producer.commit import PlainProducer
from spark_log.client.reader.fetch import fetch
from spark_log.errors import AccessDenied, CommitUnknown, StorageError, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.journal.storage.storage_log import IDLE_MS
from spark_log.store.base import Bytes, Chunks, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from spark_log.store.retry import RETRY_MS, RETRY_TOTAL_MS, RetryingStore, with_retries


class Failing(Wrapper):
    """Raises `error` for the next `left` requests of a kind for keys that begin so; each takes `takes_ms`."""

    def __init__(self, inner: ObjectStore, clock: ManualClock | None = None) -> None:
        super().__init__(inner)
        self.clock = clock
        self.left, self.takes_ms, self.asked = 0, 0, 0
        self.kind, self.prefix = "", ""
        self.error: Callable[[str], Exception] = StorageUnavailable

    def fail(self, kind: str, prefix: str, count: int, error: Callable[[str], Exception] = StorageUnavailable) -> None:
        self.kind, self.prefix, self.left, self.error, self.asked = kind, prefix, count, error, 0

    def _ask(self, kind: str, key: str) -> None:
        if kind != self.kind or not key.startswith(self.prefix):
            return
        self.asked += 1
        if self.clock is not None:
            self.clock.ms += self.takes_ms
        if self.left:
            self.left -= 1
            raise self.error(f"{key}: 503 Slow Down")

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._ask("get", key)
        return super().get(key, start, end)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        data = b"".join(chunks)  # as a store that fails late
        self._ask("put", key)
        super().put(key, [data])

    def put_new(self, key: str, data: bytes) -> bool:
        self._ask("put_new", key)
        return super().put_new(key, data)

    def list(self, prefix: str) -> list[str]:
        self._ask("list", prefix)
        return super().list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._ask("delete", "")
        super().delete(keys)

    def size(self, key: str) -> int | None:
        self._ask("size", key)
        return super().size(key)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def failing(tmp_path: Path, clock: ManualClock) -> Failing:
    return Failing(ClockedStore(LocalStore(str(tmp_path / "log"), "os"), clock), clock)


@pytest.fixture
def log(failing: Failing, clock: ManualClock) -> spark_log.Log:
    log = spark_log.Log(Journal.open(failing, create=True, clock=clock, rng=random.Random(7)))
    log.create_topic(spark_log.NewTopic("t", 1))
    return log


# ------------------------------------------------------------------------------------------------------------ users


def test_an_append_outlives_failing_data_puts(log: spark_log.Log, failing: Failing) -> None:
    """As often as the layer repeats."""
    failing.fail("put", "data/", len(RETRY_MS))
    log.append("t", [{"value": "v"}])
    assert failing.left == 0 and log.read("t").num_rows == 1


# Promise: clients.md#errors
def test_an_append_whose_data_was_not_put_is_not_in(log: spark_log.Log, failing: Failing) -> None:
    """Before any commit, an error may be answered with the same call again."""
    failing.fail("put", "data/", 1000)
    with pytest.raises(StorageUnavailable, match="503 Slow Down") as raised:
        log.append("t", [{"value": "v"}])
    assert raised.value.retriable and not raised.value.maybe_applied


# Promise: clients.md#errors, storage-failures.md#when-the-storage-is-busy-or-unreachable
@pytest.mark.parametrize("kind", ["put_new", "get", "list"])
def test_a_commit_whose_outcome_is_not_known_may_be_in(log: spark_log.Log, failing: Failing, kind: str) -> None:
    """The storage fails when the record is put or read back, and before the next attempts."""
    epoch = log.journal.recent().version
    uploaded = upload_rows(log.journal, "t", [{"value": "v"}], epoch)
    failing.fail(kind, "meta/", 10_000)
    with pytest.raises(CommitUnknown) as raised:
        PlainProducer(log.journal).commit(epoch, [uploaded])
    assert raised.value.maybe_applied


def test_a_commit_of_an_idle_process_that_cannot_read_is_not_in(
    log: spark_log.Log, failing: Failing, clock: ManualClock
) -> None:
    """It reads the last records before it puts one."""
    epoch = log.journal.recent().version
    uploaded = upload_rows(log.journal, "t", [{"value": "v"}], epoch)
    clock.ms += 1 + IDLE_MS
    failing.fail("get", "meta/", 10_000)
    with pytest.raises(StorageUnavailable) as raised:
        PlainProducer(log.journal).commit(epoch, [uploaded])
    failing.left = 0
    assert not raised.value.maybe_applied and log.read("t").num_rows == 0


def test_a_refused_commit_is_not_in(log: spark_log.Log, failing: Failing) -> None:
    """A put-if-absent that the storage refuses is neither repeated nor of unknown outcome."""
    failing.fail("put_new", "meta/", 10_000, StorageError)
    with pytest.raises(StorageError) as raised:
        log.append("t", [{"value": "v"}])
    assert not raised.value.maybe_applied and failing.asked == 1


def test_a_commit_waits_longer_each_time_for_a_storage_that_takes_no_record(
    log: spark_log.Log, failing: Failing, clock: ManualClock
) -> None:
    """A busy bucket is not asked hundreds of times a second, and not for ever."""
    failing.fail("put_new", "meta/", 10_000)
    began = clock.ms
    with pytest.raises(CommitUnknown):
        log.append("t", [{"value": "v"}])
    assert failing.asked <= 100 and clock.ms - began < 90_000


def test_scans_and_consumers_outlive_failing_gets(log: spark_log.Log, failing: Failing) -> None:
    """Of segments, whole or by their index."""
    log.append("t", [{"value": "v"}] * 3)
    failing.fail("get", "data/", 3)
    assert log.read("t").num_rows == 3 and failing.left == 0
    failing.fail("get", "data/", 3)
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        assert sum(map(len, consumer.poll(timeout_ms=0).values())) == 3
    failing.fail("get", "data/", 3)
    (read,) = log.plan("t")
    assert sum(part.records.num_rows for part in fetch(log.journal.objects, read)) == 3


# -------------------------------------------------------------------------------------------------------- the layer


ASKS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("a"),
    "size": lambda store: store.size("a"),
    "list": lambda store: store.list("d/"),
    "put": lambda store: store.put("b", [b"x"]),
    "delete": lambda store: store.delete(["c"]),
}


@pytest.fixture
def retrying(clock: ManualClock) -> tuple[RetryingStore, Failing]:
    memory = MemoryStore(os.urandom(8).hex())
    memory.put("a", [b"1"])
    failing = Failing(memory, clock)
    return RetryingStore(failing, clock), failing


# Promise: storage-failures.md#when-the-storage-is-busy-or-unreachable
@pytest.mark.parametrize("kind", ASKS)
def test_what_may_be_repeated_is(retrying: tuple[RetryingStore, Failing], kind: str) -> None:
    """A bounded number of times."""
    store, failing = retrying
    failing.fail(kind, "", 3)
    ASKS[kind](store)
    assert failing.asked == 4
    failing.fail(kind, "", 1000)
    with pytest.raises(StorageUnavailable):
        ASKS[kind](store)
    assert failing.asked <= len(RETRY_MS) + 1


# Promise: storage-failures.md#when-the-storage-is-busy-or-unreachable
@pytest.mark.parametrize("error", [StorageError, TypeError])
@pytest.mark.parametrize("kind", ASKS)
def test_what_is_not_transient_is_raised_immediately(
    retrying: tuple[RetryingStore, Failing], kind: str, error: type[Exception]
) -> None:
    """As what it is: a refusal, or a bug."""
    store, failing = retrying
    failing.fail(kind, "", 1000, error)
    with pytest.raises(error) as raised:
        ASKS[kind](store)
    assert failing.asked == 1 and not isinstance(raised.value, StorageUnavailable)


def test_a_put_if_absent_is_asked_once(retrying: tuple[RetryingStore, Failing]) -> None:
    """Its caller reads back: the first try may have been done."""
    store, failing = retrying
    failing.fail("put_new", "", 1000)
    with pytest.raises(StorageUnavailable):
        store.put_new("n", b"x")
    assert failing.asked == 1


# Promise: storage-failures.md#when-the-storage-is-busy-or-unreachable
def test_a_request_does_not_begin_when_its_time_is_over(
    retrying: tuple[RetryingStore, Failing], clock: ManualClock
) -> None:
    """Refused as late, it must not be done afterwards."""
    _, failing = retrying
    store = RetryingStore(failing, clock, until_ms=clock.monotonic_ms())
    failing.fail("put_new", "", 0)
    with pytest.raises(StorageUnavailable, match="did not answer"):
        store.put_new("n", b"x")
    assert failing.asked == 0


# Promise: spark-read.md#options-of-a-read, storage-failures.md#when-the-storage-is-busy-or-unreachable
@pytest.mark.parametrize("takes_ms", [0, 5_000, 20_000, 60_000])
def test_the_time_is_bounded(retrying: tuple[RetryingStore, Failing], clock: ManualClock, takes_ms: int) -> None:
    """However long an answer takes; one that never comes is asked for twice."""
    store, failing = retrying
    failing.takes_ms = takes_ms
    failing.fail("get", "", 1000)
    began = clock.ms
    with pytest.raises(StorageUnavailable):
        store.get("a")
    assert failing.asked >= 2
    assert clock.ms - began <= RETRY_TOTAL_MS + 1.5 * RETRY_MS[0] + max(2 * takes_ms - RETRY_TOTAL_MS, takes_ms)


def test_chunks_are_made_anew_for_each_try(retrying: tuple[RetryingStore, Failing]) -> None:
    """Those that can be had only once are tried once."""
    store, failing = retrying
    failing.fail("put", "", 2)
    store.put("b", Chunks(lambda: iter([b"x", b"y"])))
    assert store.get("b") == b"xy"
    failing.fail("put", "", 2)
    with pytest.raises(StorageUnavailable):
        store.put("c", iter([b"x"]))
    assert failing.asked == 1


# Promise: storage-failures.md#when-the-storage-is-busy-or-unreachable
def test_there_is_one_layer(retrying: tuple[RetryingStore, Failing]) -> None:
    """Also where a store comes with one, and after it has travelled."""
    store, failing = retrying
    assert with_retries(store) is store
    copy = pickle.loads(pickle.dumps(RetryingStore(failing.inner)))
    assert copy.get("a") == b"1" and not isinstance(copy.inner, RetryingStore)


# -------------------------------------------------------------------------------------------------------- local disks


class Ailing(LocalStore):
    """A disk on which the next write to a file fails."""

    code = 0

    def _fill(self, fd: int, chunks: Iterable[Bytes]) -> None:
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        super()._fill(fd, chunks)


# Promise: storage-failures.md#when-the-storage-is-busy-or-unreachable
@pytest.mark.parametrize(
    ("code", "transient"),
    [
        (errno.EIO, True),
        (errno.ESTALE, True),
        (errno.ETIMEDOUT, True),
        (errno.EHOSTDOWN, True),
        (errno.ENOTCONN, True),
        (errno.EBUSY, True),
        (errno.ENOSPC, False),
        (errno.EDQUOT, False),
        (errno.EACCES, False),
        (errno.EROFS, False),
        (errno.EMFILE, False),
    ],
)
def test_errors_of_a_disk(tmp_path: Path, code: int, transient: bool) -> None:
    """A server that is away may come back; a full disk, or one that may not be written, needs somebody."""
    store = Ailing(str(tmp_path))
    store.code = code
    with pytest.raises(StorageError, match=os.strerror(code)) as raised:
        store.put("a", [b"x"])
    assert isinstance(raised.value, StorageUnavailable) == transient == raised.value.retriable
    assert isinstance(raised.value, AccessDenied) == (code == errno.EACCES)
    assert not raised.value.maybe_applied
