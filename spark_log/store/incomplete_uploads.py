"""Multipart uploads on S3 that were begun and not completed: an uploader that died leaves its parts for ever."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from spark_log.store.base import Swept

_OF_A_LOG = re.compile(r"data/[0-9a-f]{16}/[^/]+|meta/.+")
"""Names in a log's root.  Others are of somebody else: committers of Spark keep their uploads open for hours."""


class Upload(NamedTuple):
    key: str
    """In the bucket."""
    id: str
    began_ms: int
    """By the clock of the storage."""


class CannotList(Exception):
    """The storage does not list incomplete uploads, or not for these credentials."""


def abort_uploads(fs: Any, bucket: str, root: str, prefix: str, before_ms: int) -> Swept:
    """Abort the uploads to a log's objects that begin with a prefix of its root, and were begun before a time.

    fs:    of s3fs.
    root:  prefix of the log in the bucket, with its slash; empty: the bucket is the log's root.
    Raises CannotList, and the errors of the library.
    """
    aborted, left = 0, list[int]()
    for upload in list(_uploads(fs, bucket, f"{root}{prefix}")):
        if not _OF_A_LOG.fullmatch(upload.key.removeprefix(root)):
            continue
        if upload.began_ms >= before_ms:
            left.append(upload.began_ms)
            continue
        with suppress(FileNotFoundError):  # another process, or a lifecycle rule, has done it
            fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload.key, UploadId=upload.id)
            aborted += 1
    return Swept(aborted, min(left, default=None))


def _uploads(fs: Any, bucket: str, prefix: str) -> Iterator[Upload]:
    after: dict[str, str] = {}
    while True:
        page = _page(fs, Bucket=bucket, Prefix=prefix, **after)
        for one in page.get("Uploads", ()):
            yield Upload(one["Key"], one["UploadId"], int(one["Initiated"].timestamp() * 1000))
        if not page.get("IsTruncated"):
            return
        after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def _page(fs: Any, **asked: str) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = fs.call_s3("list_multipart_uploads", **asked)
    except PermissionError as error:
        raise CannotList(str(error)) from error
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise CannotList(str(error)) from error
        raise
    return found
