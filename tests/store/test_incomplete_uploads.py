"""Multipart uploads of writers that died: maintenance aborts those that are old, and an erasure waits for the
others.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

import spark_log
from spark_log import Log
from spark_log.client.admin.brokers import PUT_MS_MAX
from spark_log.errors import AccessDenied
from spark_log.maintenance.maintain import maintain_once
from spark_log.store.remote import FsspecStore, abort_uploads
from tests.s3_server import DENIED, Faults, UploadTimes, s3_server

KEYS = {"key": "key", "secret": "secret"}
HOUR_S = PUT_MS_MAX / 1000
_numbers = itertools.count()


class Server:
    def __init__(self, url: str, faults: Faults, times: UploadTimes) -> None:
        self.url, self.faults, self.times = url, faults, times
        self.client: Any = boto3.client(
            "s3", endpoint_url=url, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
        )
        self.bucket = f"uploads-{next(_numbers)}"
        self.client.create_bucket(Bucket=self.bucket)
        self.options = {**KEYS, "endpoint_url": url}

    def begin(self, key: str) -> None:
        """The uploader dies after one part."""
        upload = self.client.create_multipart_upload(Bucket=self.bucket, Key=key)["UploadId"]
        self.client.upload_part(Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"secret-person")

    def uploads(self) -> list[str]:
        found = self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ())
        return sorted(one["Key"] for one in found)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[str, Faults, UploadTimes]]:
    faults, times = Faults(), UploadTimes()
    with s3_server(faults, times) as url:
        yield url, faults, times


@pytest.fixture
def server(running: tuple[str, Faults, UploadTimes]) -> Iterator[Server]:
    yield Server(*running)
    running[1].fail("", "", 0)
    running[2].began_s = None


@pytest.fixture
def store(server: Server) -> FsspecStore:
    return FsspecStore(f"s3://{server.bucket}/log", server.options)


# Promise: storage-failures.md#what-a-killed-writer-leaves
def test_old_uploads_are_aborted_and_the_others_are_told(server: Server, store: FsspecStore) -> None:
    """Only those below the prefix: another log may be in the bucket."""
    for key in (
        "log/data/0000000000000000/a.seg",
        "log/data/0000000000000000/b.seg",
        "log/meta/ckpt/1",
        "log2/data/0000000000000000/c.seg",
    ):
        server.begin(key)
    server.times.began_s = 1000.0
    assert store.sweep("data/", 1_000_000) == (0, 1_000_000)
    assert store.sweep("data/", 1_000_001) == (2, None)
    assert server.uploads() == ["log/meta/ckpt/1", "log2/data/0000000000000000/c.seg"]
    assert store.sweep("data/", 1_000_001) == (0, None)


def test_a_log_at_the_root_of_a_bucket(server: Server) -> None:
    server.begin("data/0000000000000000/a.seg")
    assert FsspecStore(f"s3://{server.bucket}", server.options).sweep("data/", time.time_ns()) == (1, None)
    assert server.uploads() == []


class Pages:
    """An S3 filesystem whose storage lists two uploads at a time; the server of these tests lists all of them."""

    def __init__(self, fs: Any) -> None:
        self.fs, self.pages = fs, 0

    def call_s3(self, name: str, **asked: Any) -> Any:
        if name != "list_multipart_uploads":
            return self.fs.call_s3(name, **asked)
        after = asked.pop("KeyMarker", ""), asked.pop("UploadIdMarker", "")
        found = self.fs.call_s3(name, **asked)
        left = sorted((one["Key"], one["UploadId"], one) for one in found.get("Uploads", ()))
        left = [one for one in left if one[:2] > after]
        page, self.pages = {"Uploads": [one for _, _, one in left[:2]], "IsTruncated": len(left) > 2}, self.pages + 1
        return page | {"NextKeyMarker": left[1][0], "NextUploadIdMarker": left[1][1]} if len(left) > 2 else page


def test_uploads_on_several_pages_are_aborted(server: Server, store: FsspecStore) -> None:
    """A storage lists a thousand at a time, also several of one key."""
    for number in (0, 1, 1, 1, 2):
        server.begin(f"log/data/0000000000000000/{number}.seg")
    paged = Pages(store._fs)
    assert abort_uploads(paged, server.bucket, "log/", "data/", time.time_ns()) == (5, None)
    assert paged.pages == 3 and server.uploads() == []


def test_uploads_of_others_stay(server: Server, store: FsspecStore) -> None:
    """A committer of Spark completes its uploads when the whole job has ended."""
    others = ["log/data/0000000000000000/deep/a.seg", "log/data/sales/part-0.parquet", "log/data/team1/data/a.seg"]
    for key in others:
        server.begin(key)
    assert store.sweep("data/", time.time_ns()) == (0, None)
    assert server.uploads() == others


# Promise: storage-failures.md#what-a-killed-writer-leaves
def test_a_store_that_does_not_list_uploads_says_so_once(
    server: Server, store: FsspecStore, caplog: pytest.LogCaptureFixture
) -> None:
    server.begin("log/data/0000000000000000/a.seg")
    server.faults.fail("GET", server.bucket, 2, DENIED)
    with caplog.at_level(logging.WARNING, "spark_log"):
        assert store.sweep("data/", time.time_ns()) == store.sweep("meta/", time.time_ns()) == (0, None)
    (text,) = [one.getMessage() for one in caplog.records]
    assert "s3:ListBucketMultipartUploads" in text and "lifecycle rule" in text


# Promise: storage-failures.md#what-a-killed-writer-leaves
def test_an_upload_that_may_not_be_aborted_is_an_error(server: Server, store: FsspecStore) -> None:
    """It has records, and stays."""
    server.begin("log/data/0000000000000000/a.seg")
    server.faults.fail("DELETE", "a.seg", 1, DENIED)
    with pytest.raises(AccessDenied, match="a.seg|data/"):
        store.sweep("data/", time.time_ns())


def maintain(log: Log) -> int:
    """Maintenance after the fence; the number of erasures that are not done."""
    log.append("people", [{"key": b"customer-18", "value": b"more"}])
    log.append("people", [{"key": b"customer-18", "value": b"more"}])
    maintain_once(log)
    return len(log.admin.list_erasures())


# Promise: tasks/erase.md#when-the-records-are-gone
def test_an_erasure_waits_for_an_upload_of_a_writer_that_died(server: Server) -> None:
    """It is aborted an hour after it was begun; then the erasure is done."""
    with spark_log.connect(f"s3://{server.bucket}/log", storage_options=server.options) as log:
        log.append("people", [{"key": b"customer-17", "value": b"secret-person"}])
        log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
        server.begin("log/data/0000000000000000/1.seg")
        server.times.began_s = time.time() - HOUR_S + 600
        assert log.admin.erase_records("people", ["customer-17"]).records == 1
        assert [maintain(log) for _ in range(3)] == [1, 1, 1] and server.uploads()
        server.times.began_s = time.time() - HOUR_S - 600
        while maintain(log):
            pass
        assert server.uploads() == []
