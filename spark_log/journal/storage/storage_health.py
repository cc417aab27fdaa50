"""Whether a coordinator's storage accepts writes: when a write was last completed and read back.

Records of the metadata log count.  Without records, the coordinator overwrites a small object under `meta/alive/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from spark_log.errors import ClockSkewed, NoSpace, StorageError, StorageUnavailable
from spark_log.runtime.clock import Clock
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import listed, log_key, log_version

MARKS = "meta/alive/"
VERSIONS_AHEAD = 64
"""Opening a log looks for as many (`HOLE_PROBES`)."""
PROBES = 3
"""Without a write, a probe is due after this fraction of the timeout."""


def mark_key(host: str, address: str) -> str:
    """The key of the object of the coordinator at an address; the same after a restart."""
    return MARKS + re.sub(r"[^A-Za-z0-9.-]", "-", f"{host}-{address}")


def write_probe(store: ObjectStore, key: str) -> None:
    """Write a small object and delete it.  Raises StorageError if the storage does not accept it."""
    store.put(key, (b"probe",))
    store.delete((key,))


def in_the_way(store: ObjectStore, version: int) -> Iterator[tuple[str, str]]:
    """Names of the records after a version that are not free on a disk, and why that matters; a bucket has none."""
    for key in map(log_key, range(version + 1, version + 1 + VERSIONS_AHEAD) if store.local else ()):
        if store.written_ms(key) is not None and store.size(key) is None:
            says = f"this is not a file, so commits will fail at version {log_version(key)}"
            yield key, f"{says}; see what is there, and remove it or move it elsewhere"


class StorageHealth:
    """The coordinator's thread writes and records it.  That thread may hang, so other threads check the age of the
    last write."""

    def __init__(self, store: ObjectStore, clock: Clock, timeout_ms: int) -> None:
        """
        timeout_ms:  the storage has failed if no write was completed for this long.
        """
        self._store = store
        self._clock = clock
        self._timeout_ms = timeout_ms
        self.error = ""
        """The last error since the last write."""
        self._written_ms = clock.monotonic_ms()

    def note_write(self) -> None:
        """A write was completed and read back."""
        self._written_ms = self._clock.monotonic_ms()
        self.error = ""

    def note_failure(self, error: ClockSkewed | StorageError) -> None:
        """The storage returned an error, or nothing is written because the clock is wrong."""
        self.error = str(error)

    @property
    def age_ms(self) -> int:
        """Time since the last write; at first since the start."""
        return self._clock.monotonic_ms() - self._written_ms

    @property
    def problem(self) -> str:
        """The problem with the storage; empty without one."""
        age_ms = self.age_ms
        if age_ms < self._timeout_ms:
            return ""
        why = self.error or "the storage does not answer, or is too slow, or this process was suspended"
        return (
            f"no write to {self._store.url} was completed for {age_ms / 1000:.0f} s, storage.timeout is "
            f"{self._timeout_ms / 1000:g} s: {why}"
        )

    @property
    def is_probe_due(self) -> bool:
        return self.age_ms * PROBES >= self._timeout_ms

    def probe(self, key: str, unique: str) -> bool:
        """Overwrite the object and read it back; whether that succeeded."""
        try:
            self._store.put(key, (unique.encode(),))
            if self._store.get(key) != unique.encode():
                raise StorageUnavailable(f"{self._store.url}/{key}: a read after a write returned different data")
        except StorageError as error:
            self.note_failure(error)
            return False
        self.note_write()
        return True

    def check_writable(self, unique: str) -> None:
        """Raises StorageError if the storage denies writes.  A full or silent one may recover."""
        with suppress(StorageUnavailable, NoSpace):
            write_probe(self._store, f"{MARKS}start-{unique}")

    def remove_marks(self, *, but: str = "") -> None:
        """Delete the objects of coordinators that are gone; a running one writes its object again."""
        try:
            self._store.delete([key for key in listed(self._store, MARKS) if key != but])
        except StorageError as error:
            self.note_failure(error)
