"""A log in a bucket: S3 and stores like it, Google Cloud Storage, Azure, through fsspec.

Only file systems whose `pipe_file(mode="create")` is a conditional put of the store itself are taken.  Listings are never
cached (a cached one hides what others wrote), and reads always name a range, since a whole read may ask for the size
from such a listing first.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from spark_log.errors import InvalidRequest, ObjectNotFound, StorageError, StorageUnavailable
from spark_log.store.base import Bytes, check_key

SMALL_BYTES = 8 << 20
"""Objects up to this size are one put; larger ones are uploaded in parts as they come."""
DELETES_PER_CALL = 1000
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60


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


class FsspecStore:
    """Objects under a prefix of a bucket.

    storage_options:  of the fsspec file system; text is taken for true, false, numbers and JSON objects, as Spark options
                      are all text.  `endpoint_url` works everywhere.
    """

    local = False

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        scheme, _, rest = url.partition("://")
        if scheme not in BACKENDS:
            raise InvalidRequest(
                f"url: {scheme}:// cannot carry a log, since it has no way to create a name exclusively; possible are "
                f"paths, file://, {', '.join(f'{name}://' for name in BACKENDS)}"
            )
        if not urlsplit(url).netloc:
            raise InvalidRequest(f"url: {url!r} names no bucket")
        self._backend = BACKENDS[scheme]
        self._root = rest.rstrip("/")
        self._options = {name: _value(given) for name, given in storage_options.items()}
        self._opened: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def url(self) -> str:
        return f"{self._backend.protocol}://{self._root}"

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

        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True, **self._options}
        if self._backend.protocol == "s3":
            given = options.get("config_kwargs", {})
            options["config_kwargs"] = {
                "connect_timeout": CONNECT_TIMEOUT_S,
                "read_timeout": READ_TIMEOUT_S,
                **(given if isinstance(given, dict) else {}),
            }
        try:
            fs = fsspec.filesystem(self._backend.protocol, **options)
        except ImportError as error:
            raise InvalidRequest(
                f"url: {self.url} needs a library that is not installed: pip install 'spark-log[{self._backend.extra}]'"
            ) from error
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"storage options of {self.url}: {error}") from error
        if self._backend.protocol == "gs" and _is_zonal(fs, self._root.split("/")[0]):
            raise InvalidRequest(
                f"url: {self.url} is a zonal bucket, where an exclusive create overwrites; use a regional one"
            )
        return fs

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= start:
            return b""
        with self._said(key):
            try:
                return bytes(self._fs.cat_file(self._path(key), start=start, end=end))
            except FileNotFoundError:
                raise ObjectNotFound(f"{self.url}/{key} is not there", key=key) from None
            except OSError as error:
                if "range" in str(error).lower() and (size := self.size(key)) is not None and start >= size:
                    return b""
                raise

    def size(self, key: str) -> int | None:
        with self._said(key):
            try:
                return int(self._fs.info(self._path(key))["size"])
            except FileNotFoundError:
                return None

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        path, head, rest = self._path(key), bytearray(), iter(chunks)
        for chunk in rest:
            head += chunk
            if len(head) > SMALL_BYTES:
                break
        with self._said(key):
            if len(head) <= SMALL_BYTES:
                self._fs.pipe_file(path, bytes(head))
                return
            with self._fs.open(path, "wb", block_size=SMALL_BYTES) as target:
                target.write(head)
                for chunk in rest:
                    target.write(chunk)

    def put_new(self, key: str, data: bytes) -> bool:
        """A conditional put.  A client may repeat a put whose answer was lost, and then find its own object: False may lie."""
        assert data, f"an empty object {key} would be put without the condition"
        with self._said(key):
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
        cut = len(self._root) + 1
        with self._said(prefix):
            try:
                found = self._fs.find(f"{self._root}/{prefix}".rstrip("/"))
            except FileNotFoundError:
                return []
        return sorted(name[cut:] for name in found)

    def delete(self, keys: Iterable[str]) -> None:
        paths = [self._path(key) for key in keys]
        for at in range(0, len(paths), DELETES_PER_CALL):
            with self._said(paths[at]):
                self._delete(paths[at : at + DELETES_PER_CALL])

    def _delete(self, paths: Sequence[str]) -> None:
        """In one call where the store has it; otherwise one by one, since a name that is gone is no error."""
        if self._backend.protocol == "s3":
            self._fs.rm(paths)
            return
        for path in paths:
            try:
                self._fs.rm_file(path)
            except FileNotFoundError:
                continue

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    @contextmanager
    def _said(self, key: str) -> Iterator[None]:
        """Errors of the client libraries as two kinds: refused, and of unknown outcome."""
        try:
            yield
        except (StorageError, InvalidRequest):
            raise
        except PermissionError as error:
            raise StorageError(
                f"{self.url}/{key}: access denied ({error}); check credentials and permissions"
            ) from error
        except FileNotFoundError as error:
            raise StorageError(f"{self.url}: no such bucket ({error})") from error
        except Exception as error:
            if _no_credentials(error):
                raise StorageError(
                    f"{self.url}: no credentials here ({error}); give them as storage options "
                    "(in Spark: storage.key, storage.secret), so that tasks on other machines have them too"
                ) from error
            raise StorageUnavailable(f"{self.url}/{key}: {type(error).__name__}: {error}") from error


def _no_credentials(error: BaseException) -> bool:
    return "credential" in f"{type(error).__name__} {error}".lower()


def _is_zonal(fs: Any, bucket: str) -> bool:
    check: Callable[[str], bool] | None = getattr(fs, "_is_zonal_bucket", None)
    return bool(check and check(bucket))


def _value(given: Any) -> Any:
    """A Spark option's text as what it stands for."""
    if not isinstance(given, str):
        return given
    text = given.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidRequest(f"storage options: {text!r} is not JSON: {error}") from error
    return given


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "-"
