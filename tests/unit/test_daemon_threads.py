"""The threads of a node's disk."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from spark_log.runtime.daemon_threads import DaemonThreads

HANGS = """
import asyncio, threading
from spark_log.runtime.daemon_threads import DaemonThreads

async def main():
    DaemonThreads(1, "disk").submit(threading.Event().wait)

asyncio.run(main())
"""


def test_results_and_errors_arrive_in_order() -> None:
    async def test() -> None:
        threads = DaemonThreads(1, "disk")
        assert await asyncio.gather(*(threads.submit(divmod, number, 2) for number in range(3))) == [
            (0, 0),
            (0, 1),
            (1, 0),
        ]
        with pytest.raises(ZeroDivisionError):
            await threads.submit(divmod, 1, 0)
        threads.close()

    asyncio.run(test())


def test_a_call_that_is_under_way_ends_and_others_are_cancelled() -> None:
    async def test() -> None:
        threads, begun, ends = DaemonThreads(1, "disk"), threading.Event(), threading.Event()
        first = threads.submit(lambda: begun.set() or ends.wait())
        await asyncio.to_thread(begun.wait)
        second = threads.submit(str)
        threads.close()
        assert threads.is_alive
        ends.set()
        assert await first
        for never in (second, threads.submit(str)):
            with pytest.raises(asyncio.CancelledError):
                await never
        while threads.is_alive:
            await asyncio.sleep(0.001)

    asyncio.run(test())


def test_a_disk_that_hangs_does_not_keep_the_process() -> None:
    subprocess.run([sys.executable, "-c", HANGS], check=True, timeout=120)
