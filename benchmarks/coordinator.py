"""How much does one coordinator take?

Beside `pylog serve` on a local disk with fsync: 50 clients that commit objects which were uploaded before (named only, as the
coordinator does not look at them), 3,000 that wait for news and are all woken by one append, and how long one record takes
from `append` in one client to `poll` in another.  By hand: an fsync of some milliseconds shared by as many commits as arrive
meanwhile, and 0.3 ms of Python for each.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import aiohttp
import common

import spark_log
from spark_log.journal.protocol import data_key
from spark_log.metadata.commands import Append
from spark_log.metadata.records import Commit
from spark_log.model import DataObject, Run

ROOT = Path(__file__).parent.parent
CLIENTS, PROCESSES, PARTITIONS = 50, 5, 8
WAITING = 3000


def main() -> None:
    given = common.arguments(__doc__, rows=20_000)
    waiting = min(WAITING, given.rows)
    with common.folder() as folder:
        address = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "spark_log.cli", "-u", folder, "serve", "--listen", address]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            try:
                assert server.stdout is not None and "listening" in server.stdout.readline()
                with spark_log.connect(f"pylog://{address}") as log:
                    log.create_topic(spark_log.NewTopic("t", PARTITIONS))
                    log.create_topic(spark_log.NewTopic("latency", 1))
                    latencies = append_to_poll(log, min(200, given.rows))
                    before = log.journal.refresh().version
                    times, seconds = commits(address, given.rows)
                    records = log.journal.refresh().version - before
                    memory = [resident_mb(server.pid)]
                    woken = asyncio.run(wake(log, address, waiting, lambda: memory.append(resident_mb(server.pid))))
            finally:
                server.terminate()
    common.report(
        "coordinator",
        clients=CLIENTS,
        commits_per_second=len(times) / seconds,
        commits_target=2000,
        commits_a_record=len(times) / records,
        p50_ms=percentile(times, 50),
        p99_ms=percentile(times, 99),
        append_to_poll_p50_ms=percentile(latencies, 50),
        append_to_poll_target_ms=15,
        waiting=waiting,
        woken_after_s=woken,
        woken_target_s=3,
        memory_mb=memory[1],
        memory_of_waiting_mb=memory[1] - memory[0],
        memory_target_mb=400,
    )


def percentile(times: list[float], of: int) -> float:
    return sorted(times)[len(times) * of // 100] * 1000


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def resident_mb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


def commits(address: str, total: int) -> tuple[list[float], float]:
    """Seconds that each commit took, and all of them together."""
    answers: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
    each = max(1, total // CLIENTS)
    work = [multiprocessing.Process(target=some_clients, args=(address, n, each, answers)) for n in range(PROCESSES)]
    begun = time.perf_counter()
    for process in work:
        process.start()
    times = [one for _ in work for one in answers.get(timeout=600)]
    seconds = time.perf_counter() - begun
    for process in work:
        process.join()
    return times, seconds


def some_clients(address: str, process: int, each: int, answers: multiprocessing.Queue[list[float]]) -> None:
    times: list[float] = []
    names = [f"p{os.getpid()}-{n}" for n in range(CLIENTS // PROCESSES)]
    threads = [threading.Thread(target=client, args=(address, name, each, times)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.put(times)


def client(address: str, name: str, each: int, times: list[float]) -> None:
    with spark_log.connect(f"pylog://{address}") as log:
        state, link = log.journal.state, log.journal.link
        assert link is not None
        topic_id, epoch = state.names["t"], state.version
        for sequence in range(each):
            commit = Commit(
                producer=name,
                sequence=sequence,
                birth=epoch,
                upload_epoch=epoch,
                objects=(DataObject(data_key(epoch, f"{name}-{sequence}.seg"), 100, 50),),
                slices=((0, Run(topic_id, sequence % PARTITIONS, 0, 50, 1, 1, 1, 0, 0)),),
            )
            begun = time.perf_counter()
            # A client that asks for no records of others: it wants nothing but its own acknowledgement.
            answered = link.ask(state.coordinator, [Append(commit=commit)], 2**53)
            times.append(time.perf_counter() - begun)
            assert not isinstance(answered.outcomes[0], Exception), answered


def append_to_poll(log: spark_log.Log, count: int) -> list[float]:
    """Seconds from the call of `append` in one thread to the record in the hands of a consumer in another."""
    times = []
    with spark_log.connect(f"pylog://{log.journal.state.coordinator.address}") as other:
        consumer = other.consumer("latency", auto_offset_reset="latest")
        consumer.poll(0)
        for _ in range(count):
            begun: list[float] = []

            def append(begun: list[float] = begun) -> None:
                begun.append(time.perf_counter())
                log.append("latency", [{"value": b"x"}])

            timer = threading.Timer(0.05, append)
            timer.start()
            while not consumer.poll(5000):
                pass
            times.append(time.perf_counter() - begun[0])
            timer.join()
        consumer.close()
    return times


async def wake(log: spark_log.Log, address: str, count: int, all_wait: object) -> float:
    """Seconds from an append until all that wait have heard of it."""
    version = log.journal.refresh().version
    path = f"http://{address}/v1/changes?cluster_id={log.cluster_id}&since={version}&wait_ms=60000"
    heard: list[float] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None)) as session:

        async def wait() -> None:
            async with session.get(path) as answer:
                answer.raise_for_status()
                await answer.read()
            heard.append(time.perf_counter())

        waits = []
        for number in range(count):
            waits.append(asyncio.create_task(wait()))
            if number % 100 == 99:
                await asyncio.sleep(0.05)
        await asyncio.sleep(3)
        assert not heard, "somebody did not wait"
        all_wait()  # type: ignore[operator]
        begun = time.perf_counter()
        await asyncio.to_thread(log.append, "t", [{"value": b"news"}])
        await asyncio.gather(*waits)
    return max(heard) - begun


if __name__ == "__main__":
    main()
