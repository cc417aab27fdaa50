"""Copies of a quorum's metadata beside the records, from which a log survives the loss of all nodes.

The leader writes one every few minutes, until both that are kept have the newest version: the older one is used if the
newest is damaged.  It has the form of a node's snapshot, under a name that begins with the epoch of the leader: a
quorum that replaces another one has higher epochs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from spark_log.configs.settings import cluster_config
from spark_log.errors import ConcurrentChange, CorruptObject, NoSpace, ObjectNotFound
from spark_log.journal.failure_isolation import log_retry
from spark_log.log_lines import logger
from spark_log.metadata.formats.checkpoint_format import folded
from spark_log.quorum.messages import Position
from spark_log.quorum.snapshot_format import encode_snapshot, read_state
from spark_log.runtime.clock import Clock
from spark_log.runtime.collector_pause import collector_paused
from spark_log.runtime.threads import SYSTEM_THREADS, Threads
from spark_log.server.quorum.state import Content, parse_snapshot
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import SNAPSHOTS, listed, snapshot_epoch, snapshot_key, snapshot_version

INTERVAL = "metadata.log.max.snapshot.interval.ms"
KEPT = 2
LOOK_S = 1.0
FOLDER_MS = 5_000
"""How often a leader looks whether the folder is still its own."""
SETTLE_MS = 30_000
"""A node that begins to lead has other work first."""
REST = 50
"""A snapshot that takes a second is followed by so many seconds without one."""
LATE = 3
"""A copy is late if it has lacked changes for so many intervals."""


def put_snapshot(store: ObjectStore, content: Content, unique: str, epoch: int | None = None) -> str:
    """Write a snapshot, read it back, and delete all but the newest two; returns its name.

    On a full disk, only the newest one of before stays.

    epoch:  of the quorum that writes it; None: that of the state.
    Raises NoSpace, CorruptObject if the storage returns other bytes than were put, and ConcurrentChange if a later
    leader has written a copy: then none stays, since maintenance may have deleted what it would name.
    """
    with collector_paused():
        compact = content._replace(state=folded(content.state))
    end = Position(epoch=epoch or compact.state.coordinator.epoch, offset=compact.state.version)
    data = b"".join(encode_snapshot(end, (), compact.pieces()))
    name = snapshot_key(end.epoch, end.offset, unique)
    upto = name.removesuffix(f"{unique}.checkpoint")
    _not_after_others(store, name, upto)
    try:
        store.put(name, (data,))
    except NoSpace:  # maintenance frees no space before there is a newer copy
        store.delete(listed(store, SNAPSHOTS)[:-1])
        store.put(name, (data,))
    if store.get(name) != data:
        raise CorruptObject(f"{store.url}/{name} cannot be read back as it was written")
    store.delete(_not_after_others(store, name, upto)[:-KEPT])
    return name


def _not_after_others(store: ObjectStore, name: str, upto: str) -> list[str]:
    """All copies; one of the same version may sort behind ours.

    Raises ConcurrentChange if a later leader has written one, and deletes ours.
    """
    copies = listed(store, SNAPSHOTS)
    if copies and copies[-1][: len(upto)] > upto:
        store.delete([name])
        raise ConcurrentChange(f"{store.url}/{copies[-1]} is of a later leader: this one writes no copy")
    return copies


def newest_snapshot(store: ObjectStore) -> Content | None:
    """The newest one that can be read; None if there is none.  Raises CorruptObject if none of them can be read."""
    return named_snapshot(store)[1]


def named_snapshot(store: ObjectStore) -> tuple[str, Content | None]:
    """The result of `newest_snapshot` with its name, and what it raises."""
    damage = None
    for name in reversed(listed(store, SNAPSHOTS)):
        try:
            data = store.get(name)
            pieces = read_state(partial(_part, data), len(data), name)
            return name, parse_snapshot(pieces, name)
        except ObjectNotFound:
            continue  # a leader has deleted it meanwhile
        except CorruptObject as error:
            logger.error("%s/%s cannot be used: %s", store.url, name, error)
            damage = damage or error
    if damage is not None:
        raise damage
    return "", None


def newest_epoch(store: ObjectStore) -> int:
    """The epoch of the leader that wrote the newest snapshot; 0 if there is none."""
    return max(map(snapshot_epoch, listed(store, SNAPSHOTS)), default=0)


def copy_age_text(age_ms: int) -> str:
    """The metric of the copy's age, in Prometheus's text format."""
    name, what = "pylog_quorum_copy_age_seconds", "Since when the copy on the storage lacks changes."
    return f"# HELP {name} {what}\n# TYPE {name} gauge\n{name} {age_ms / 1000:.1f}\n"


def _part(data: bytes, start: int, length: int) -> bytes:
    return data[start : start + length]


class RootSnapshots:
    """Written by the leader, in a thread."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        unique: Callable[[], str],
        final: Callable[[], Content],
        may_write: Callable[[], bool],
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        """
        final:      returns the newest final state; called in the thread.
        may_write:  whether the folder still belongs to this quorum; asked every few seconds as well.
        """
        self._store, self._clock, self._unique = store, clock, unique
        self._final, self._may_write = final, may_write
        self._threads = threads
        self.copied = 0
        """The version of the older one on the storage; 0: none was written yet."""
        self._newest = 0
        """The version of the last one that was written."""
        self._error = ""
        """The error of the last attempt."""
        self._interval_ms: float = 0
        self.is_current_ms = clock.monotonic_ms()
        """When a snapshot last had the newest version."""
        self._next_ms: float = clock.monotonic_ms()
        self._asks_ms = clock.monotonic_ms()

    def begin(self, stop: threading.Event) -> None:
        """Write them until the event is set."""
        self.is_current_ms = self._clock.monotonic_ms()  # other leaders have written them until now
        self._next_ms = self.is_current_ms + SETTLE_MS
        self._threads.start(partial(self._keep, stop), "pylog-root-snapshots")

    def _keep(self, stop: threading.Event) -> None:
        while not stop.wait(LOOK_S):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  nobody else would write them
                log_retry(f"no snapshot was written to {self._store.url}", error, stop.is_set)

    def look(self) -> None:
        """Write a snapshot, if it is due, and look whether the folder is still this quorum's."""
        version, now_ms = self._final().state.version, self._clock.monotonic_ms()
        if now_ms >= self._asks_ms:
            self._asks_ms = now_ms + FOLDER_MS  # also after an error
            if not self._may_write():
                return
        if version == self._newest:
            self.is_current_ms = now_ms
        if version != self.copied and now_ms >= self._next_ms:
            self.write()

    @property
    def age_ms(self) -> int:
        """How long the newest copy has lacked changes."""
        return self._clock.monotonic_ms() - self.is_current_ms

    def metric(self) -> str:
        return copy_age_text(self.age_ms)

    def problem(self) -> str:
        """Why the copy is late; empty: it is not.  May be called in any thread."""
        state = self._final().state
        interval_ms = max(self._interval_ms, cluster_config(state.configs, INTERVAL))
        if self._newest == state.version or self.age_ms <= SETTLE_MS + LATE * interval_ms:
            return ""
        why = f" ({self._error})" if self._error else ""
        return (
            f"the copy of the metadata at {self._store.url}/{SNAPSHOTS} has lacked changes for "
            f"{self.age_ms // 1000:,} s{why}: if all nodes are lost, these changes are lost, and until there is a newer "
            "copy no object that it may name is deleted. The leader's log has the errors: look at the storage, and at "
            f"the rights of the node on {SNAPSHOTS}"
        )

    def write(self) -> None:
        """Write a snapshot now, unless the folder belongs to another quorum."""
        content, began_ms = self._final(), self._clock.monotonic_ms()
        interval_ms = cluster_config(content.state.configs, INTERVAL)
        self._next_ms = began_ms + interval_ms  # also after an error
        if self._may_write():
            try:
                put_snapshot(self._store, content, self._unique())
                self.copied = min(map(snapshot_version, listed(self._store, SNAPSHOTS)), default=content.state.version)
            except Exception as error:
                self._error = str(error)
                raise
            self._newest, self.is_current_ms, self._error = content.state.version, began_ms, ""
            self._interval_ms = max(interval_ms, REST * (self._clock.monotonic_ms() - began_ms))
            self._next_ms = began_ms + self._interval_ms
