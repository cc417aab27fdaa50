"""A bucket that is busy or loses connections, over HTTP: what reaches the server, and what a user sees."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import boto3
import pytest

import spark_log
from simulation.harness.clocks import ManualClock
from spark_log.errors import AccessDenied, StorageError, StorageUnavailable
from spark_log.store.remote import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, FsspecStore
from spark_log.store.retry import RETRY_MS, RetryingStore
from spark_log.store.transient import is_of_storage, is_transient
from tests.s3_server import BAD, BUSY, DENIED, RESET, Faults, s3_server

KEYS = {"key": "key", "secret": "secret"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Faults]]:
    faults = Faults()
    with s3_server(faults) as url:
        yield url, faults
        faults.fail("", "", 0)


@pytest.fixture
def faults(server: tuple[str, Faults]) -> Iterator[Faults]:
    yield server[1]
    server[1].fail("", "", 0)


@pytest.fixture
def bucket(server: tuple[str, Faults]) -> str:
    name = f"busy-{next(_numbers)}"
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=server[0], **keys).create_bucket(Bucket=name)
    return name


@pytest.fixture
def store(server: tuple[str, Faults], bucket: str) -> FsspecStore:
    return FsspecStore(f"s3://{bucket}/log", {**KEYS, "endpoint_url": server[0]})


# Promise: storage.md#credentials-and-endpoints
def test_time_limits_are_those_of_the_page_unless_they_are_set(server: tuple[str, Faults], bucket: str) -> None:
    """docs/storage.md: a connection and an answer have timeouts, and `config_kwargs` changes one without the other."""
    own = {**KEYS, "endpoint_url": server[0]}
    stock = FsspecStore(f"s3://{bucket}/log", own)
    changed = FsspecStore(f"s3://{bucket}/log", {**own, "config_kwargs": {"read_timeout": 7}})
    for store, read_s in ((stock, READ_TIMEOUT_S), (changed, 7)):
        config = store._fs.s3.meta.config
        assert (config.connect_timeout, config.read_timeout) == (CONNECT_TIMEOUT_S, read_s)


def test_a_listing_that_finds_nothing_is_one_request(store: FsspecStore, faults: Faults, bucket: str) -> None:
    """A young log has no checkpoints, and they are listed in each commit."""
    store.put("meta/log/1", [b"x"])
    for method, requests in (("GET", 1), ("HEAD", 0)):
        faults.fail(method, bucket, 0)
        assert store.list("meta/ckpt/") == []
        assert faults.asked == requests
    assert store.list("meta/log/") == store.list("meta/") == ["meta/log/1"]
    assert store.list("me/") == []


# Promise: storage-failures.md#when-the-storage-is-busy-or-unreachable
@pytest.mark.parametrize(("answer", "most"), [(BUSY, 1), (RESET, 2)], ids=["503", "reset"])
def test_each_try_is_one_request(store: FsspecStore, faults: Faults, answer: tuple[str, bytes], most: int) -> None:
    """No library waits and repeats beneath; aiohttp repeats a GET once, immediately, if a connection that was idle is
    reset.
    """
    clock = ManualClock()
    retrying = RetryingStore(store, clock)
    retrying.put("a", [b"x"])
    for method, ask in (("GET", lambda: retrying.get("a")), ("PUT", lambda: retrying.put("b", [b"y"]))):
        faults.fail(method, store.url.removeprefix("s3:/"), 1000, answer)
        with pytest.raises(StorageUnavailable) as raised:
            ask()
        assert faults.asked <= most * (len(RETRY_MS) + 1) and not raised.value.maybe_applied
    faults.fail("GET", "/log/a", 2, answer)
    assert retrying.get("a") == b"x"
    assert faults.asked == 3


def test_a_large_put_is_repeated_whole(store: FsspecStore, faults: Faults) -> None:
    """One part of the upload fails."""
    data = [bytes([n]) * (5 << 20) for n in range(4)]
    faults.fail("PUT", "/log/large", 1)
    RetryingStore(store, ManualClock()).put("large", data)
    assert store.size("large") == 20 << 20


# Promise: storage-failures.md#when-the-storage-is-busy-or-unreachable
def test_an_append_and_a_scan_outlive_a_busy_bucket(server: tuple[str, Faults], bucket: str, faults: Faults) -> None:
    """Data puts, commits, and data gets."""
    log = spark_log.connect(f"s3://{bucket}/log", {**KEYS, "endpoint_url": server[0]})
    log.create_topic(spark_log.NewTopic("t", 1))
    for method, text in (("PUT", "/data/"), ("PUT", "/meta/log/")):
        faults.fail(method, text, 2)
        log.append("t", [{"value": "v"}])
        assert faults.left < 0, "it has failed twice"
    faults.fail("GET", "/data/", 2)
    assert log.read("t").num_rows == 2 and faults.left < 0


# Promise: storage-failures.md#when-the-storage-is-busy-or-unreachable
def test_a_bad_request_is_raised_immediately(store: FsspecStore, faults: Faults) -> None:
    """It is not the storage that is away."""
    retrying = RetryingStore(store, ManualClock())
    faults.fail("PUT", "/log/", 1000, BAD)
    with pytest.raises(StorageError, match="makes no sense") as raised:
        retrying.put("a", [b"x"])
    assert not raised.value.retriable and faults.asked == 1


def test_a_request_that_the_bucket_denies_is_told(store: FsspecStore, faults: Faults) -> None:
    """Unlike an error of the bucket, it says nothing about others."""
    faults.fail("GET", "/log/a", 1000, DENIED)
    with pytest.raises(AccessDenied, match="a: access denied .*check credentials and permissions"):
        RetryingStore(store, ManualClock()).get("a")
    assert faults.asked == 1


def test_a_bug_is_not_the_storage_s(store: FsspecStore) -> None:
    """An error that no library raises on purpose stays what it is."""
    with pytest.raises(TypeError):
        store.get("a", "nonsense", 7)  # type: ignore[arg-type]


class HttpError(Exception):
    """As gcsfs has it."""

    def __init__(self, code: int) -> None:
        super().__init__(f"status {code}")
        self.code = code


HttpError.__module__ = "gcsfs.retry"


class ServiceRequestError(Exception):
    """As Azure's client has it for a connection that could not be made."""


ServiceRequestError.__module__ = "azure.core.exceptions"


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (HttpError(503), True),
        (HttpError(429), True),
        (HttpError(400), False),
        (HttpError(404), False),
        (ServiceRequestError("cannot connect"), True),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (OSError("certificate verify failed: CERTIFICATE_VERIFY_FAILED"), False),
    ],
    ids=repr,
)
def test_errors_of_other_libraries(error: Exception, transient: bool) -> None:
    """By their status, or by their class."""
    assert is_of_storage(error) and is_transient(error) == transient


@pytest.mark.parametrize("error", [TypeError(), KeyError(), AssertionError()], ids=repr)
def test_errors_that_no_storage_raises(error: Exception) -> None:
    """Bugs, here or in a library."""
    assert not is_of_storage(error) and not is_transient(error)
