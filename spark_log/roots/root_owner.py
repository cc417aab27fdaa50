"""`meta/log.json` on the root of a broker: of which log's storage the root is.

A copy of a log has its cluster id, and names the same brokers.  It must not delete there what the original needs, nor
write what the original deletes.
"""

from __future__ import annotations

import platform

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.errors import ObjectNotFound, WrongRoot
from spark_log.roots.broker_roots import BROKER_KEY, Roots
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import META
from spark_log.store.open import is_other_storage

OWNER_KEY = f"{META}log.json"


class OwnerFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `meta/log.json`."""

    log: str
    """URL of the log's own root."""
    host: str
    """The machine on which this URL was used."""


def write_owner(root: ObjectStore, log_url: str) -> None:
    """Say that a root is that of a broker of the log with this storage."""
    root.put(OWNER_KEY, [msgspec.json.encode(_owner(log_url)) + b"\n"])


def check_owner(root: ObjectStore, log_url: str) -> None:
    """`refuse_copy`, and say that the root is that of a broker of this log."""
    if refuse_copy(root, log_url) != _owner(log_url):
        write_owner(root, log_url)


def owner_of(root: ObjectStore) -> str:
    """URL of the log's own root, as this root of a broker has it; empty if it has none."""
    found = _read(root)
    return "" if found is None else found.log


def check_first_use(roots: Roots, broker: int) -> None:
    """`refuse_copy` before a process first writes to the root of a broker."""
    key = broker, roots.brokers[broker].directory
    if key not in roots.of_this_log:
        refuse_copy(roots.root(broker), roots.own.url)
        roots.of_this_log.add(key)


def refuse_copy(root: ObjectStore, log_url: str) -> OwnerFile | None:
    """The content of the file; None if there is none.

    Raises WrongRoot if a root is certainly that of a log with another storage, of which this one is a copy.  Folders
    are compared on one machine only: another one may mount the same folder elsewhere.
    """
    found, mine = _read(root), _owner(log_url)
    if found is not None and is_other_storage(log_url, found.log, same_machine=found.host == mine.host):
        raise WrongRoot(
            f"{root.url} belongs to the log at {found.log}, and {log_url} is a copy of that log: nothing is "
            f"written or deleted there. If it is a mirror, `pylog mirror set {log_url}` makes it one again, and `pylog recover` "
            f"makes a mirror the log. If the log was moved to {log_url}, delete {root.url}/{OWNER_KEY}; "
            f"{BROKER_KEY} stays"
        )
    return found


def _owner(log_url: str) -> OwnerFile:
    return OwnerFile(log=log_url, host=platform.node())


def _read(root: ObjectStore) -> OwnerFile | None:
    """None if there is none, or it is damaged."""
    try:
        return msgspec.json.decode(root.get(OWNER_KEY), type=OwnerFile)
    except (ObjectNotFound, *UNREADABLE):
        return None
