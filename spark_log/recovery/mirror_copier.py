"""Copies of objects from any root of a log to the root of a mirror."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from spark_log.errors import CorruptObject, ObjectNotFound
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.state import ObjectRow
from spark_log.recovery.whole_copies import Needed
from spark_log.replication.checked_copies import copy_from_any
from spark_log.replication.copy_throttle import Pace
from spark_log.rewriting.rewrite import Progress
from spark_log.roots.read_failover import CopiesAway
from spark_log.store.base import ObjectStore
from spark_log.store.copy_object import copy_object

PARALLEL_COPIES = 4
"""Objects that are copied at the same time."""


def _copy(source: Journal, target: ObjectStore, name: str, row: ObjectRow | None) -> int | None:
    """Copy an object from any root that has a good copy; its size, or None if it is gone.

    If all are damaged, one is copied as it is: the mirror would not continue with what comes later.
    Raises StorageUnavailable if the newest state has it, and the root that does cannot be reached.
    """
    try:
        return copy_from_any(source.objects, target, name, row, Pace(source.context.clock))
    except ObjectNotFound:
        return None
    except CopiesAway:
        if name in source.newest.objects:
            raise
        return None
    except CorruptObject as error:
        if row is None:
            raise
        size = copy_object(source.objects, target, name, row.size)
        logger.warning("%s is mirrored as it is, because it is damaged: run `pylog verify --deep`: %s", name, error)
        return size


@dataclass(slots=True)
class MirrorCopier:
    """Copies objects from root to root, and counts them."""

    source: Journal
    target: ObjectStore
    progress: Progress | None = None
    objects: int = 0
    bytes: int = 0

    def copy(self, wanted: Needed) -> str:
        """Copy objects; the name of one that is gone, and "" if none is.

        An object that is there already has the same content.  Raises CorruptObject for one of another size, and
        StorageUnavailable for one whose root cannot be reached.
        """
        total, at, wanted = sum(row.size for row in wanted.values() if row is not None), 0, dict(sorted(wanted.items()))
        with ThreadPoolExecutor(PARALLEL_COPIES, thread_name_prefix="pylog-mirror") as pool:
            copies = pool.map(partial(_copy, self.source, self.target), wanted, wanted.values())
            for name, copied in zip(wanted, copies, strict=True):
                if copied is None:
                    return name
                self.objects += 1
                self.bytes += copied
                at += copied
                if self.progress is not None:
                    self.progress("copy", min(at, total), total)
        return ""
