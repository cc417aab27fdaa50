"""The application gets entries behind a snapshot only if it has the state of the snapshot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from spark_log.quorum.messages import Entry, Kind, Position
from spark_log.quorum.node.applier import Applier
from spark_log.runtime.daemon_threads import DaemonThreads
from tests.unit.quorum.node.test_disk import VOTERS, LocalFiles, formatted


class Application:
    def __init__(self) -> None:
        self.did = list[object]()

    def apply(self, index: int, data: bytes) -> None:
        self.did.append(index)

    def snapshot(self) -> Iterable[bytes]:
        return []

    def restore(self, pieces: Iterator[bytes]) -> None:
        self.did.append(b"".join(pieces))


def test_entries_behind_a_snapshot_that_was_replaced_are_not_applied(tmp_path: Path) -> None:
    """A newer snapshot, which has them, was fetched before the first one was read."""
    disk, application = formatted(LocalFiles(str(tmp_path))), Application()
    disk.write_snapshot(Position(1, 8), VOTERS, [b"state of 8"])

    def entry(offset: int) -> Entry:
        return Entry(offset, 1, Kind.DATA, b"")

    async def scenario() -> None:
        threads = DaemonThreads(1, "restoring")
        applier = Applier(application, disk, threads, lambda entry: None, time.monotonic)
        applier.give(Position(1, 5), (entry(5),))
        applier.give(None, (entry(6), entry(7)))
        applier.give(Position(1, 8), (entry(8),))
        task = asyncio.create_task(applier.run())
        await asyncio.wait_for(applier.reached(9), 10)
        task.cancel()
        threads.close()

    asyncio.run(scenario())
    assert application.did == [b"state of 8", 8]
