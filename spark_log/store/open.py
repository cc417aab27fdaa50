"""From a URL to its store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from spark_log.errors import InvalidRequest
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore


def open_store(url: str, storage_options: Mapping[str, Any] | None = None, durability: str = "disk") -> ObjectStore:
    """The store at `url`: a path, file://, memory://, s3:// (or s3a://), gs:// or abfs://.

    Raises InvalidRequest for a URL that cannot carry a log, with the reason.
    """
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme in ("", "file"):
        path = unquote(urlsplit(url).path) if scheme else url
        if not path:
            raise InvalidRequest(f"url: {url!r} has no path")
        return LocalStore(path, durability)
    if scheme == "memory":
        return MemoryStore(url.removeprefix("memory://"))
    if scheme == "pylog":
        raise InvalidRequest(
            f"url: {url} is a coordinator's address, and this version has none: give the log's storage URL"
        )
    from spark_log.store.remote import FsspecStore

    return FsspecStore(url, storage_options or {})
