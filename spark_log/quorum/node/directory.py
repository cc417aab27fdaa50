"""A data directory: formatted once, and locked by the process that uses it."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spark_log.bounds import INT_MAX
from spark_log.errors import InconsistentClusterId, InvalidRequest, StorageError
from spark_log.quorum.messages import EMPTY, ReplicaKey
from spark_log.quorum.node.disk import NEW, PART, Disk, replace_file
from spark_log.quorum.node.file_operations import Files, LocalFiles
from spark_log.quorum.node.log_file_sequence import snapshot_name
from spark_log.quorum.node.vote_and_identity import META, QUORUM_STATE, Meta, decode_meta, encode_meta, encode_state
from spark_log.quorum.snapshot_format import encode_snapshot
from spark_log.quorum.voters import Voters, check_node_id, maybe_node_id

LOCK = ".lock"
FIRST = (QUORUM_STATE, snapshot_name(EMPTY))
"""Written before `meta.properties`, when a directory is formatted."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PLACEHOLDER = re.compile(r"((my|your|some)[-_])?(cluster|directory)?[-_]?(id)?|dir\d?|x+|\.+|<.*>", re.IGNORECASE)
"""Words of documents in place of an id."""


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """A directory that this process has locked."""

    meta: Meta
    disk: Disk
    _files: LocalFiles
    _lock: int

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._files.close()
        os.close(self._lock)


def format_directory(path: str, meta: Meta, voters: Voters) -> None:
    """Make a directory the disk of a replica.

    voters:  the first ones of a new cluster; empty for a replica that joins.
    Raises InvalidRequest if it is formatted already, or not empty.
    """
    check_node_id(meta.node_id)
    check_id("cluster id", meta.cluster_id)
    check_id("directory id", meta.directory_id)
    if voters and meta.key not in voters:
        raise InvalidRequest(f"voters: {meta.node_id}@{meta.directory_id} is not among them")
    _make(path)
    lock = _locked(path)
    files = LocalFiles(path)
    try:
        _check_empty(path)
        write_format(files, meta, voters)
    finally:
        files.close()
        os.close(lock)


def check_id(what: str, value: str) -> None:
    """Raises InvalidRequest for a name that cannot be an id, or that was copied from a document: two clusters, or two
    disks of a node, must not have the same one.
    """
    make = "`pylog quorum random-id` makes one"
    if _PLACEHOLDER.fullmatch(value):
        raise InvalidRequest(f"{what}: {value!r} stands for an id that nothing else has: {make}")
    if not _ID.fullmatch(value):
        raise InvalidRequest(f"{what}: {value!r} is not made of 1 to 64 letters, digits, '-' and '_': {make}")


def write_format(files: Files, meta: Meta, voters: Voters) -> None:
    """The first files of an empty directory."""
    replace_file(files, QUORUM_STATE, encode_state(0, None))
    replace_file(files, snapshot_name(EMPTY), b"".join(encode_snapshot(EMPTY, voters, ())))
    replace_file(files, META, encode_meta(meta))


def _make(path: str) -> None:
    """The directory, with its name durable, and the names of the directories that are made for it."""
    parents = parents_to_sync(path)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be made a directory: {error.strerror}") from error
    for parent in parents:
        LocalFiles(parent).sync_names()


def parents_to_sync(path: str) -> list[str]:
    """The directories that get a new name when this one is made, and in any case its parent, as it may be made already,
    by a process that was killed.  The outermost one is first.
    """
    parent = os.path.dirname(os.path.abspath(path))
    found = [parent]
    while not os.path.isdir(found[0]) and os.path.dirname(found[0]) != found[0]:
        found.insert(0, os.path.dirname(found[0]))
    return found


def _check_empty(path: str) -> None:
    if (Path(path) / META).exists():
        found = read_meta(path)
        raise InvalidRequest(
            f"{path} is formatted already, for node {found.node_id} of the cluster {found.cluster_id}: use another "
            "directory, or delete its content, which other nodes may need"
        )
    if others := _others(path):
        raise InvalidRequest(f"{path} is not empty: it has {others[0]}; use an empty directory")


def _others(path: str) -> list[str]:
    """Names in a directory, apart from hidden ones, and from those of a formatting, whose process may have been
    killed.
    """
    known = {"lost+found", *FIRST, *(name + ending for name in (META, *FIRST) for ending in (NEW, PART))}
    return sorted(name for name in os.listdir(path) if name not in known and not name.startswith("."))


def read_meta(path: str) -> Meta:
    """The identity of a directory.  Raises InvalidRequest if it is not formatted, CorruptObject."""
    file = Path(path) / META
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if os.path.exists(path) and (not os.path.isdir(path) or _others(path)):
            raise InvalidRequest(
                f"{path} is not the directory of a node of a quorum, which has a file {META}: give the one that `pylog "
                "quorum init` has formatted"
            ) from None
        raise InvalidRequest(f"{path} is not formatted: run `pylog quorum init` for an empty directory") from None
    except OSError as error:
        raise StorageError(error.errno, f"{file} cannot be read: {error.strerror}") from error
    return decode_meta(data, str(file))


def open_directory(
    path: str, *, cluster_id: str, node_id: int, open_files: Callable[[str], LocalFiles] = LocalFiles
) -> DataDirectory:
    """Lock a directory, and check that it is the one of this node.

    open_files:  makes the operations on its files.
    Raises InvalidRequest if it is not formatted, is another node's or is in use, InconsistentClusterId, CorruptObject.
    """
    meta = read_meta(path)
    if meta.cluster_id != cluster_id:
        raise InconsistentClusterId(f"{path} belongs to the cluster {meta.cluster_id}, not to {cluster_id}")
    if meta.node_id != node_id:
        raise InvalidRequest(f"{path} is the directory of node {meta.node_id}, not of node {node_id}")
    lock = _locked(path)
    files = open_files(path)
    files.forget_cached()
    return DataDirectory(meta, Disk(files), files, lock)


def _locked(path: str) -> int:
    """A file descriptor that holds the lock until it is closed.  Raises InvalidRequest, with the holder's process."""
    try:
        descriptor = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidRequest(
            f"{path}/{LOCK} cannot be opened: {error.strerror}; the directory and its files have to belong to the user "
            "who runs the node"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise InvalidRequest(
            f"{path} is used by {holder}, or by a child of it: stop it first, or use another directory"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
    return descriptor


def parse_voters(text: str) -> Voters:
    """`1@directory-id,2@directory-id`.  Raises InvalidRequest."""
    found = []
    for one in text.split(","):
        node, _, directory = one.strip().partition("@")
        node_id = maybe_node_id(node)
        if node_id is None or not _ID.fullmatch(directory):
            raise InvalidRequest(
                f"voters: {one!r} is not of the form ID@DIRECTORY-ID, with an id up to {INT_MAX}, and a directory id as "
                "`pylog quorum random-id` makes it"
            )
        check_id("voters", directory)
        found.append(ReplicaKey(node_id, directory))
    if len({key.id for key in found}) < len(found):
        raise InvalidRequest(f"voters: {text!r} has a node twice")
    return tuple(sorted(found))
