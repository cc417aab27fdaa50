"""Opens the store of a URL."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from spark_log.errors import InvalidRequest
from spark_log.store.base import ObjectStore
from spark_log.store.local import Guard, LocalStore
from spark_log.store.memory import MemoryStore
from spark_log.store.mounts import mount_of, mount_point_of, unmounted_point
from spark_log.store.object_names import FORMAT_KEY

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
"""At least two letters: one letter is a Windows drive."""
ADDRESS = re.compile(r"[A-Za-z0-9.-]+:[0-9]+")


def open_store(
    url: str,
    storage_options: Mapping[str, Any] | None = None,
    durability: str = "disk",
    guard: Guard | None = None,
    *,
    has_begun: bool = False,
) -> ObjectStore:
    """The store at `url`: a path, file://, memory://, s3:// (or s3a://), gs:// or abfs://.

    guard, has_begun:  of a folder, for `LocalStore`.
    Raises InvalidRequest, with the reason, for a URL that cannot hold a log.
    """
    if "\x00" in url:
        raise InvalidRequest(f"url: {url!r} has a zero character, which no path has")
    found = SCHEME.match(url)
    if not found:
        if not url:
            raise InvalidRequest(f"url: {url!r} has no path")
        if ADDRESS.fullmatch(url):
            raise InvalidRequest(f"url: {url!r} is an address: a coordinator is pylog://{url}, and a folder ./{url}")
        if url.lower().startswith("file:"):
            raise InvalidRequest(
                f"url: {url} has no absolute path: give file:///PATH, or a relative path without a scheme, as in "
                f"{url[5:] or 'log'}"
            )
        return _local(url, url, storage_options, durability, guard, has_begun)
    scheme, rest = found[1].lower(), url[found.end() :]
    match scheme:
        case "file":
            return _local(url, _path_of(url, rest), storage_options, durability, guard, has_begun)
        case "memory":
            return MemoryStore(rest.removeprefix("//"))
        case "pylog":
            raise InvalidRequest(
                f"url: {url} is a coordinator's address, which has no storage: give the log's storage URL; if "
                "its metadata is in a quorum, this is not possible yet, see docs/quorum.md"
            )
    from spark_log.store.remote import FsspecStore

    return FsspecStore(f"{scheme}:{rest}", storage_options or {})


def is_local(url: str) -> bool:
    """Whether a store's URL is of a folder, or of memory: its operations take microseconds."""
    return url.startswith(("file:", "memory:"))


def mount_point_of_url(url: str) -> str:
    """The mount point by `mount_point_of`, for the URL of a store; empty for a bucket."""
    return mount_point_of(_path_of(url, url.removeprefix("file:"))) if url.startswith("file:") else ""


def mount_of_url(url: str) -> int:
    """The mount by `mount_of`, for the URL of a store; 0 for a bucket."""
    return mount_of(_path_of(url, url.removeprefix("file:"))) if url.startswith("file:") else 0


def unmounted_point_of_url(url: str) -> str:
    """The point by `unmounted_point`, for the URL of a store; empty for a bucket."""
    return unmounted_point(_path_of(url, url.removeprefix("file:"))) if url.startswith("file:") else ""


def log_around(url: str) -> str:
    """The folder of a log in which that of a URL is; empty if there is none, and for a bucket."""
    if not url.startswith("file:"):
        return ""
    around = Path(_path_of(url, url.removeprefix("file:"))).parent
    return str(around) if (around / FORMAT_KEY).exists() else ""


def free_of_url(url: str) -> int | None:
    """Free bytes of the disk of a folder; None for a bucket.  May hang, and raises OSError."""
    if not url.startswith("file:"):
        return None
    disk = os.statvfs(_path_of(url, url.removeprefix("file:")))
    return disk.f_bavail * disk.f_frsize


def is_other_storage(url: str, other: str, *, same_machine: bool) -> bool:
    """Whether two URLs of stores certainly name two different storages.

    Folders are compared if both URLs are of this machine; elsewhere one folder may be mounted at different paths.

    same_machine:  both URLs are of this machine.
    """
    if url == other:
        return False
    paths = [url.startswith("file://"), other.startswith("file://")]
    if not all(paths):
        return not any(paths) and url.partition(":")[0] == other.partition(":")[0]
    try:
        return same_machine and not os.path.samefile(
            *(_path_of(one, one.removeprefix("file:")) for one in (url, other))
        )
    except OSError:  # one of them is not there, or not for this user
        return False


def _local(
    url: str,
    path: str,
    storage_options: Mapping[str, Any] | None,
    durability: str,
    guard: Guard | None,
    has_begun: bool,
) -> LocalStore:
    if storage_options:
        raise InvalidRequest(
            f"storage options ({', '.join(storage_options)}) are for buckets, and {url} is a local path: leave them out"
        )
    return LocalStore(path, durability, guard, has_begun=has_begun)


def _path_of(url: str, rest: str) -> str:
    """The path in a file URL: `/path`, as Hadoop writes it, or `//[localhost]/path`."""
    if not rest.startswith("//"):
        return unquote(rest)
    host, _, path = rest[2:].partition("/")
    if host not in ("", "localhost"):
        raise InvalidRequest(
            f"url: {url} names the host {host!r}; a path begins after three slashes: file:///{rest[2:]}"
        )
    if not path:
        raise InvalidRequest(f"url: {url!r} has no path")
    return unquote(f"/{path}")
