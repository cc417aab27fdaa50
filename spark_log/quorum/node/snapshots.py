"""The snapshots that a node makes of its application, and what they replace on its disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

from spark_log.errors import NoSpace, StorageError
from spark_log.log_lines import logger
from spark_log.quorum.machine import Machine
from spark_log.quorum.messages import Position
from spark_log.quorum.node.applier import Applier
from spark_log.quorum.node.disk import Disk
from spark_log.quorum.ready import Kept
from spark_log.runtime.daemon_threads import DaemonThreads

AGAIN_S = 30.0
"""After a snapshot for which the disk had no space."""
LOOK_S = 0.05


class NodeSnapshots:
    """Belongs to the event loop of the node."""

    def __init__(
        self,
        disk: Disk,
        applier: Applier,
        *,
        threads: DaemonThreads,
        writer: DaemonThreads,
        machine: Callable[[], Machine | None],
        snapshotted: Callable[[int, int], Kept | None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        has_ended: Callable[[], bool],
        bytes_max: int,
    ) -> None:
        """
        threads:      write snapshots.
        writer:       the thread of the log's disk.
        snapshotted:  gives the machine that input: the end of a snapshot, and from where on entries are kept.
        has_ended:    whether the node has.
        bytes_max:    of entries, after which there is another snapshot.
        """
        self._disk, self._applier, self._threads, self._writer = disk, applier, threads, writer
        self._machine, self._snapshotted, self._spawn, self._has_ended = machine, snapshotted, spawn, has_ended
        self._bytes_max, self._after_s = bytes_max, 0.0
        self._is_making = self._is_forgetting = False
        self.forgotten = 0
        """The version of the application before which the disk has nothing; 0: not known since the start."""

    def look(self) -> None:
        """Make a snapshot, if it is due.  An entry was applied."""
        loop_s = asyncio.get_running_loop().time()
        if self._applier.bytes >= self._bytes_max and not self._is_making and loop_s > self._after_s:
            self._make(self._applier.end)

    def forget(self, version: int) -> None:
        """Begin to replace all entries that are applied, and older snapshots, by a new snapshot.

        version:  of the application's state: `forgotten` gets it when nothing of before is left.  If it does not get
                  it, as on a full disk, call this again.
        """
        if not self._is_forgetting and asyncio.get_running_loop().time() > self._after_s:
            self._is_forgetting = True
            self._spawn(self._forget(version))

    async def _forget(self, version: int) -> None:
        try:
            await self._replace_log(version)
        except NoSpace as error:
            logger.error("erased records may be left in %s: %s", self._disk.files.path, error)
            self._after_s = asyncio.get_running_loop().time() + AGAIN_S
        finally:
            self._is_forgetting = False

    async def _replace_log(self, version: int) -> None:
        """Entries that are applied, and not durable here yet, would be in the new file."""
        machine = self._machine()
        if machine is None or machine.durable_end < self._applier.end:
            return
        end = await self._writer.submit(self._disk.begin_file)
        while self._applier.end < end:
            if machine.log.end < end or self._has_ended():
                return  # some of these entries were truncated, and the next ones may never come
            await asyncio.sleep(LOOK_S)
        if not self._is_making:
            self._make(self._applier.end)
        while self._is_making:
            await asyncio.sleep(LOOK_S)
        if await self._writer.submit(self._disk.forget, end):
            snapshot = machine.log.snapshot.offset
            self._snapshotted(snapshot, min(end, snapshot))
            self.forgotten = version

    def _make(self, end: int) -> None:
        """Make a snapshot of all entries before `end`, which are applied.  The state is taken now; a thread writes it.

        Does nothing if a snapshot of the leader, which is restored next, has overtaken the application.
        """
        machine = self._machine()
        assert machine is not None, "entries come from the machine"
        log = machine.log
        if end <= log.snapshot.offset:
            return
        self._is_making = True
        snapshot, voters, pieces = log.position_at(end), log.voters_at(end), self._applier.snapshot()
        write = partial(self._disk.write_snapshot, snapshot, voters, self._until_ended(pieces))
        self._spawn(self._finish(machine, snapshot, write))

    def _until_ended(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """For the thread of snapshots: the directory must not change after the node has ended."""
        for piece in pieces:
            if self._has_ended():
                raise StorageError("the node ended while it made a snapshot")
            yield piece

    async def _finish(self, machine: Machine, snapshot: Position, write: Callable[[], None]) -> None:
        """Forget the entries before the previous snapshot, unless a follower will need them: one that lacks later ones
        needs no snapshot.
        """
        try:
            await self._threads.submit(write)
        except NoSpace as error:
            logger.error("no snapshot was made: %s", error)
            self._after_s = asyncio.get_running_loop().time() + AGAIN_S
            return
        finally:
            self._is_making = False
        before, kept = machine.log.snapshot.offset, None
        if snapshot.offset > before:
            kept = self._snapshotted(snapshot.offset, before)
        await self._writer.submit(self._disk.snapshotted, snapshot, kept or Kept(before))
