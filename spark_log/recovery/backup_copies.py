"""Copying the objects of a log to and from its backups.  Reads no log: executors of a Spark job do it, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from spark_log.metadata.state import ObjectRow
from spark_log.replication.checked_copies import copy_from_any
from spark_log.replication.copy_throttle import Pace
from spark_log.roots.read_failover import NOT_READ
from spark_log.runtime.size_groups import size_groups
from spark_log.store.base import ObjectStore

PARALLEL_COPIES = 4
"""Objects that a task copies at the same time."""
SHARE_BYTES, SHARE_OBJECTS = 256 << 20, 1000
"""A task copies about so much."""


class NeededObject(NamedTuple):
    """An object that is to be copied.  Sent to tasks."""

    name: str
    row: ObjectRow | None


class BackupShare(NamedTuple):
    """The objects that a task copies."""

    folder: str
    """The backup that has these objects, or gets them."""
    objects: tuple[NeededObject, ...]

    @property
    def bytes(self) -> int:
        return sum(one.row.size for one in self.objects if one.row is not None)


class CopiedShare(NamedTuple):
    """The result of a task.  Sent back by it."""

    objects: int
    bytes: int
    absent: dict[str, str]
    """Objects that are in no root, or whose root cannot be reached, with the error.  The log may have dropped them
    meanwhile.
    """


CopyShares = Callable[[Sequence[BackupShare]], Iterable[CopiedShare]]
"""Copies some shares, in this process or in tasks."""


def shares_of(folder: str, objects: Iterable[NeededObject]) -> Iterator[BackupShare]:
    """Objects divided among tasks."""
    groups = size_groups(objects, lambda one: 0 if one.row is None else one.row.size, SHARE_BYTES, SHARE_OBJECTS)
    return (BackupShare(folder, tuple(some)) for some in groups)


def copy_share(source: ObjectStore, target: ObjectStore, share: BackupShare, pace: Pace) -> CopiedShare:
    """Copy the objects of a share, with the bytes of segments checked on the way.

    Raises CorruptObject for a damaged object, and StorageError if a storage fails.
    """
    sizes, absent = list[int](), dict[str, str]()

    def copied(one: NeededObject) -> None:
        try:
            sizes.append(copy_from_any(source, target, one.name, one.row, pace))
        except NOT_READ as error:
            absent[one.name] = str(error)

    with ThreadPoolExecutor(PARALLEL_COPIES, thread_name_prefix="pylog-backup") as pool:
        for _ in pool.map(copied, share.objects):
            pass
    return CopiedShare(len(sizes), sum(sizes), absent)
