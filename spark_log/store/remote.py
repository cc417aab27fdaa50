"""A log in a bucket: S3 and stores like it, Google Cloud Storage, Azure, through fsspec.

Only file systems whose `pipe_file(mode="create")` is a conditional put in the store are supported.  Listings are never
cached, because a cached listing hides other writers' objects.  Reads always name a range, because a whole read may
take the size from such a listing.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from spark_log.errors import (
    AccessDenied,
    InvalidRequest,
    NoCredentials,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from spark_log.log_lines import logger
from spark_log.store.base import NOTHING, Bytes, Swept, check_key, check_not_empty, check_prefix, split_prefix
from spark_log.store.fsspec_options import parse_json, typed_options
from spark_log.store.transient import is_of_storage, is_transient
from spark_log.text import install_extra

SMALL_BYTES = 8 << 20
"""Objects up to this size are one put; larger ones are multipart uploads."""
DELETES_PER_CALL = 1000
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
S3_CONNECTIONS = 50
"""botocore's default is 10, so parallel requests would wait."""
S3_ATTEMPTS = 1
"""For botocore and s3fs: only `retry.py` retries.  With their defaults, 5 of 5, waits would multiply to minutes."""


class Backend(NamedTuple):
    """A kind of bucket."""

    protocol: str
    extra: str
    libraries: tuple[str, ...]


BACKENDS = {
    "s3": Backend("s3", "s3", ("s3fs", "fsspec", "botocore")),
    "s3a": Backend("s3", "s3", ("s3fs", "fsspec", "botocore")),
    "gs": Backend("gs", "gcs", ("gcsfs", "fsspec")),
    "gcs": Backend("gs", "gcs", ("gcsfs", "fsspec")),
    "abfs": Backend("abfs", "abfs", ("adlfs", "fsspec", "azure-storage-blob")),
    "abfss": Backend("abfs", "abfs", ("adlfs", "fsspec", "azure-storage-blob")),
    "az": Backend("abfs", "abfs", ("adlfs", "fsspec", "azure-storage-blob")),
}


REFUSED = {
    **dict.fromkeys(
        ("webhdfs", "dbfs", "http", "https", "ftp", "sftp"), "storage there cannot create a name exclusively"
    ),
    "hdfs": "its clients overwrite names, or hang in forked processes",
}
"""Schemes that cannot have a log, and why."""


class FsspecStore:
    """Objects under a prefix of a bucket.

    storage_options:  options of the fsspec file system; `fsspec_options.py` converts those given as text.
    """

    local = False

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        scheme, _, rest = url.partition(":")
        if scheme not in BACKENDS:
            known = REFUSED.get(scheme, "the scheme is unknown")
            raise InvalidRequest(
                f"url: {scheme}:{rest} cannot have a log, because {known}; give a path, or file://, {', '.join(f'{name}://' for name in BACKENDS)}, and pylog:// for a coordinator"
            )
        self._backend = BACKENDS[scheme]
        self._address = rest.removeprefix("//").rstrip("/")
        bucket, _, folder = self._address.partition("/")
        if not rest.startswith("//") or not bucket:
            raise InvalidRequest(f"url: {url!r} names no bucket")
        self._options = {name: parse_json(name, given) for name, given in storage_options.items()}
        if self._backend.protocol == "abfs" and "@" in bucket:
            # Spark's spelling: container@account.dfs.core.windows.net
            bucket, _, host = bucket.partition("@")
            self._options.setdefault("account_name", host.partition(".")[0])
        self._bucket = bucket
        self._root = f"{bucket}/{check_key(folder)}" if folder else bucket
        self._opened: tuple[int, Any] | None = None
        self._has_warned = False
        """Whether it has warned that incomplete uploads cannot be listed."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def url(self) -> str:
        return f"{self._backend.protocol}://{self._address}"

    @property
    def bucket(self) -> tuple[str, str, str]:
        """The bucket of a service: all that decides how names are created in it."""
        return self._backend.protocol, self._bucket, repr(sorted(self._options.items()))

    def fingerprint(self) -> str:
        return " ".join((self._backend.protocol, *(f"{name} {_version(name)}" for name in self._backend.libraries)))

    @property
    def _fs(self) -> Any:
        """The file system of this process: its event loop does not survive a fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), self._open())
        return self._opened[1]

    def _open(self) -> Any:
        import fsspec

        try:
            kind = fsspec.get_filesystem_class(self._backend.protocol)
        except ImportError as error:
            raise InvalidRequest(
                f"url: {self.url} needs a library that is not installed: {install_extra(self._backend.extra)}"
            ) from error
        options = {**_defaults(self._backend.protocol), **typed_options(kind, self._options)}
        if self._backend.protocol == "s3":
            options["config_kwargs"] = {**S3_CONFIG, **_mapping(options.get("config_kwargs"), "config_kwargs")}
        try:
            fs = kind(**options)
            if self._backend.protocol == "s3":
                fs.retries = S3_ATTEMPTS
                fs.connect()  # creates the client without a request, so that an invalid option fails here
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"storage options of {self.url}: {error}") from error
        if self._backend.protocol == "gs" and _is_zonal(fs, self._bucket):
            raise InvalidRequest(
                f"url: {self.url} is a zonal bucket, where an exclusive create overwrites; use a regional one"
            )
        return fs

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= start:
            return b""
        with self._storage_errors(key):
            try:
                return bytes(self._fs.cat_file(self._path(key), start=start, end=end))
            except FileNotFoundError:
                raise ObjectNotFound(f"{self.url}/{key} is not there", key=key) from None
            except Exception as error:
                # A range past the end: each library raises another error for it, some only the status.
                past_end = "range" in str(error).lower() or getattr(error, "code", None) == 416
                if past_end and (size := self.size(key)) is not None and start >= size:
                    return b""
                raise

    def size(self, key: str) -> int | None:
        with self._storage_errors(key):
            try:
                found = self._fs.info(self._path(key))
            except FileNotFoundError:
                return None
        return int(found["size"]) if found["type"] == "file" else None

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        path, head, rest = self._path(key), bytearray(), iter(chunks)
        for chunk in rest:
            head += chunk
            if len(head) > SMALL_BYTES:
                break
        if len(head) > SMALL_BYTES:
            self._put_parts(key, head, rest)
            return
        with self._storage_errors(key):
            self._fs.pipe_file(path, bytes(head))

    def _put_parts(self, key: str, head: Bytes, rest: Iterator[Bytes]) -> None:
        """Multipart upload.  If it fails, the parts are aborted: closing the file would complete the object."""
        with self._storage_errors(key):
            target = self._fs.open(self._path(key), "wb", block_size=SMALL_BYTES)
        try:
            with self._storage_errors(key):
                target.write(head)
            for chunk in rest:
                with self._storage_errors(key):
                    target.write(chunk)
            with self._storage_errors(key):
                target.close()
        except BaseException:
            _give_up(target)
            raise

    def put_new(self, key: str, data: bytes) -> bool:
        """A conditional put.  A client that retries after a lost answer may find its object, so False may be wrong."""
        check_not_empty(key, data)
        with self._storage_errors(key):
            try:
                self._fs.pipe_file(self._path(key), data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno == errno.EINVAL and "condition" in str(error).lower():
                    return False
                raise
        return True

    def list(self, prefix: str) -> list[str]:
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        path = f"{self._root}/{check_prefix(prefix)}"
        with self._storage_errors(prefix):
            try:
                found = self._find(prefix)
            except FileNotFoundError:
                return {}
        cut = len(self._root) + 1
        return {name[cut:]: int(about["size"]) for name, about in found.items() if name.startswith(path)}

    def _find(self, prefix: str) -> Mapping[str, Mapping[str, Any]]:
        """By name, what the store says of objects that begin with a prefix, and perhaps of others of its folder.

        If a folder on S3 is empty, s3fs checks in two more requests whether it is an object, unless a prefix is given.
        """
        folder, names = split_prefix(prefix)
        path = f"{self._root}/{folder}"
        if self._backend.protocol == "s3":
            parent, _, name = path.rpartition("/")
            where = (path, names) if names else (parent, f"{name}/")
            return self._fs.find(where[0], prefix=where[1], detail=True)
        return self._fs.find(path, detail=True)

    def delete(self, keys: Iterable[str]) -> None:
        paths = [self._path(key) for key in keys]
        for at in range(0, len(paths), DELETES_PER_CALL):
            with self._storage_errors(paths[at]):
                self._delete(paths[at : at + DELETES_PER_CALL])

    def written_ms(self, key: str) -> int | None:
        """`Last-Modified`; to a second on S3."""
        with self._storage_errors(key):
            try:
                written = self._fs.modified(self._path(key))
            except (FileNotFoundError, NotImplementedError):
                return None
        return int(written.timestamp() * 1000)

    def sweep(self, prefix: str, before_ms: int) -> Swept:
        """Abort incomplete uploads on S3.  Google and Azure list none, and delete them themselves after a week.

        If S3 does not list them for these credentials, this is left to a lifecycle rule, and a warning says so.
        """
        if self._backend.protocol != "s3":
            return NOTHING
        root = f"{self._root}/".removeprefix(f"{self._bucket}/")
        with self._storage_errors(prefix):
            try:
                return abort_uploads(self._fs, self._bucket, root, check_prefix(prefix), before_ms)
            except CannotList as error:
                self._warn_of_uploads(error)
                return NOTHING

    def _warn_of_uploads(self, error: CannotList) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "incomplete uploads at %s cannot be listed (%s), and may keep records for ever: allow "
                "s3:ListBucketMultipartUploads and s3:AbortMultipartUpload, or add a lifecycle rule that aborts them, see "
                "docs/storage-failures.md",
                self.url,
                error,
            )

    def _delete(self, paths: Sequence[str]) -> None:
        """One call if the store supports it; otherwise one by one, because a missing name is not an error."""
        if self._backend.protocol == "s3":
            keys = [{"Key": path.removeprefix(f"{self._bucket}/")} for path in paths]
            check_deleted(
                self._fs.call_s3("delete_objects", Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True})
            )
            return
        for path in paths:
            try:
                self._fs.rm_file(path)
            except FileNotFoundError:
                continue

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    @contextmanager
    def _storage_errors(self, key: str) -> Iterator[None]:
        """Convert errors of client libraries to StorageError or StorageUnavailable.  Bugs' errors pass unchanged."""
        try:
            yield
        except (StorageError, InvalidRequest):
            raise
        except FileNotFoundError as error:
            raise StorageError(f"{self.url}: no such bucket ({error})") from error
        except Exception as error:
            if _no_credentials(error):
                raise NoCredentials(
                    f"{self.url}: no credentials ({error}); give them as storage options "
                    "(in Spark: storage.key, storage.secret), so that tasks on other machines have them too"
                ) from error
            if _is_denied(error):
                raise AccessDenied(
                    f"{self.url}/{key}: access denied ({error}); check credentials and permissions"
                ) from error
            if not is_of_storage(error):
                raise
            kind = StorageUnavailable if is_transient(error) else StorageError
            raise kind(f"{self.url}/{key}: {type(error).__name__}: {error}") from error


S3_CONFIG = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "read_timeout": READ_TIMEOUT_S,
    "max_pool_connections": S3_CONNECTIONS,
    "retries": {"total_max_attempts": S3_ATTEMPTS, "mode": "standard"},
}


def _defaults(protocol: str) -> dict[str, Any]:
    """Options of a file system that apply if the user gives none."""
    common = {"use_listings_cache": False, "skip_instance_cache": True}
    if protocol == "abfs":
        return {**common, "connection_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S}
    if protocol == "gs":
        from aiohttp import ClientTimeout  # gcsfs passes this to aiohttp; its default waits forever

        waits = ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
        return {**common, "requests_timeout": waits}
    return common


def _mapping(given: Any, name: str) -> Mapping[str, Any]:
    if given is None or isinstance(given, Mapping):
        return given or {}
    raise InvalidRequest(f"storage option {name}: {given!r} is not a JSON object")


def _give_up(target: Any) -> None:
    """Abort an upload.  If that fails, maintenance does it (`FsspecStore.sweep`)."""
    try:
        target.discard()
    except Exception as error:  # noqa: BLE001  the caller raises the original error
        logger.debug("parts of %s stay behind: %s", target.path, error)
    target.closed = True


def check_deleted(answer: Mapping[str, Any]) -> None:
    """S3 reports success for a multi-object delete that failed in part, and s3fs ignores that.  Raises OSError."""
    for error in answer.get("Errors", ()):
        kind = PermissionError if error["Code"] == "AccessDenied" else OSError
        raise kind(f"delete of {error['Key']}: {error['Code']} {error.get('Message', '')}")


def _no_credentials(error: BaseException) -> bool:
    return is_of_storage(error) and "credential" in f"{type(error).__name__} {error}".lower()


def _is_denied(error: BaseException) -> bool:
    """S3's errors are PermissionErrors, Azure's carry the HTTP status, Google's the word `Forbidden`."""
    if isinstance(error, PermissionError) or str(error).startswith("Forbidden"):
        return True
    return any(getattr(error, name, None) in (401, 403) for name in ("status_code", "code"))


def _is_zonal(fs: Any, bucket: str) -> bool:
    """Older gcsfs does not know zonal buckets; the probe then detects them."""
    from fsspec.asyn import sync

    check = getattr(fs, "_is_zonal_bucket", None)
    return check is not None and bool(sync(fs.loop, check, bucket))


@cache
def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "-"


_OF_A_LOG = re.compile(r"data/[0-9a-f]{16}/[^/]+|meta/.+")
"""Names in a log's root.  Others are of somebody else: committers of Spark keep their uploads open for hours."""


class Upload(NamedTuple):
    """A multipart upload that was begun and not completed: an uploader that died leaves its parts for ever."""

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
