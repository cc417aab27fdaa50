"""A node that forgets continues when entries that it waits for are truncated: the next ones may never come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from simulation.harness.crash_files import CrashFiles
from spark_log.quorum.messages import EMPTY, Entry, Kind
from spark_log.quorum.node.snapshots import NodeSnapshots
from spark_log.quorum.ready import Kept, Persist
from spark_log.quorum.replica_log import ReplicaLog
from tests.unit.quorum.node.test_disk import VOTERS, formatted, logs

LIMIT_S = 60.0


class Replica:
    """The parts of a machine and of an applier that forgetting reads, beside a disk in memory."""

    bytes = 0

    def __init__(self) -> None:
        self.files = CrashFiles()
        self.disk = formatted(self.files)
        self.disk.load()
        self.log = ReplicaLog.restore(EMPTY, VOTERS, ())
        self.end = 0
        """That is applied."""

    @property
    def durable_end(self) -> int:
        return self.log.end

    def append(self, count: int) -> None:
        entries = tuple(Entry(self.log.end + one, 1, Kind.DATA, b"data") for one in range(count))
        self.log.append(entries)
        self.disk.write(Persist(number=1, epoch=1, voted=None, entries=entries))

    def truncate(self, end: int) -> None:
        self.log.truncate(end)
        self.disk.write(Persist(number=1, epoch=1, voted=None, truncate_to=end))

    def snapshot(self) -> Iterable[bytes]:
        return [b"state"]

    def snapshotted(self, end: int, keep_from: int) -> Kept:
        self.log.compact(end, keep_from)
        return Kept(keep_from)


class Immediately:
    """In place of the threads."""

    async def submit(self, function: Callable[..., Any], *values: Any) -> Any:
        return function(*values)


async def eventually(true: Callable[[], bool]) -> None:
    ends_s = asyncio.get_running_loop().time() + LIMIT_S
    while not true():
        assert asyncio.get_running_loop().time() < ends_s
        await asyncio.sleep(0.01)


def snapshots_of(replica: Any, tasks: list[asyncio.Task[None]]) -> NodeSnapshots:
    def spawn(work: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.get_running_loop().create_task(work))

    threads: Any = Immediately()
    return NodeSnapshots(
        replica.disk,
        replica,
        threads=threads,
        writer=threads,
        machine=lambda: replica,
        snapshotted=replica.snapshotted,
        spawn=spawn,
        has_ended=lambda: False,
        bytes_max=1 << 30,
    )


def test_entries_that_are_truncated_meanwhile_do_not_hold_it_up() -> None:
    """A leader that is cut off has entries that nobody else has.  It follows, and nothing is appended any more."""

    async def scenario() -> None:
        replica, tasks = Replica(), list[asyncio.Task[None]]()
        snapshots = snapshots_of(replica, tasks)
        replica.append(9)
        replica.end = 5
        snapshots.forget(3)
        await eventually(lambda: len(logs(replica.files)) == 2)  # it has begun a new file
        replica.truncate(6)
        replica.end = 6
        await eventually(lambda: tasks[0].done())
        assert snapshots.forgotten == 0 and tasks[0].exception() is None
        snapshots.forget(3)
        await eventually(lambda: snapshots.forgotten == 3)
        assert all(entry.offset >= 6 for entry in replica.disk.load().entries)

    asyncio.run(scenario())
