"""How much load can one coordinator take?

`pylog serve` runs on a local disk with fsync.  50 clients commit objects that were uploaded before; the objects are
only named, because the coordinator does not read them.  3,000 clients wait for records of one topic, are all woken by
one append and wait again, while others commit to another topic.  One more member joins a group of 100.  Finally, the
time of one record from `append` in one client to `poll` in another.

By hand: an fsync of some milliseconds is shared by all commits that arrive meanwhile, plus 0.3 ms of Python per commit.
The clients run on the same processors.  On other processors, the bound is the coordinator's CPU seconds per thousand
commits; `commits_per_cpu_second` is the inverse.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import common
from _waiting import rebalance, wake

import spark_log
from spark_log.journal.store_operations import Ask
from spark_log.metadata.commands import Append
from spark_log.metadata.records import CommitRecord
from spark_log.model import DataObject, Run
from spark_log.store.object_names import data_key

ROOT = Path(__file__).parent.parent
CLIENTS, PROCESSES, PARTITIONS = 50, 5, 8
WAITING = 3000
BESIDE, PAUSE_S = 10, 0.03
"""Clients that commit while others wait, and their pauses: about 250 commits a second."""
MEMBERS = 100


def main() -> None:
    given = common.arguments(
        __doc__, rows=20_000, of="commits; fewer than 3,000 also limit the rest", rounds=None, warm=None
    )
    waiting, clients = min(WAITING, given.rows), min(CLIENTS, given.rows)
    with (
        common.folder() as folder,
        serving(folder) as (server, address),
        spark_log.connect(f"pylog://{address}") as log,
    ):
        log.create_topic(spark_log.NewTopic("t", PARTITIONS))
        log.create_topic(spark_log.NewTopic("latency", 1))
        latencies = append_to_poll(log, min(200, given.rows))
        before, cpu = log.journal.refresh().version, cpu_s(server.pid)
        times, seconds = commits(address, clients, max(1, given.rows // clients))
        cpu = cpu_s(server.pid) - cpu
        records = log.journal.refresh().version - before
        woken, beside, memory = crowd(log, server.pid, waiting)
        members = min(MEMBERS, given.rows)
        settled, settled_cpu = asyncio.run(rebalance(address, log.cluster_id, members, lambda: cpu_s(server.pid)))
    common.report(
        "coordinator",
        clients=clients,
        commits_per_second=len(times) / seconds,
        commits_target=2000,
        cpu_s_per_1000_commits=cpu / len(times) * 1000,
        commits_per_cpu_second=len(times) / max(cpu, 0.01),
        commits_a_record=len(times) / records,
        p50_ms=percentile(times, 50),
        p99_ms=percentile(times, 99),
        append_to_poll_p50_ms=percentile(latencies, 50),
        append_to_poll_target_ms=15,
        waiting=waiting,
        woken_after_s=woken,
        woken_target_s=3,
        commits_meanwhile=len(beside),
        commit_meanwhile_p50_ms=percentile(beside, 50),
        commit_meanwhile_p99_ms=percentile(beside, 99),
        commit_meanwhile_target_ms=50,
        memory_mb=memory[1],
        memory_of_waiting_mb=memory[1] - memory[0],
        memory_target_mb=400,
        members=members,
        rebalance_s=settled,
        rebalance_cpu_s=settled_cpu,
        rebalance_target_s=0.5,
    )


@contextmanager
def serving(folder: str, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A coordinator and its address."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "spark_log.cli", "-u", folder, "serve", "--listen", address, *flags]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None and "listening" in server.stdout.readline()
            yield server, address
        finally:
            server.terminate()


def percentile(times: list[float], of: int) -> float:
    return sorted(times)[len(times) * of // 100] * 1000


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def resident_mb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, kernel time included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def commits(address: str, clients: int, each: int, pause_s: float = 0.0) -> tuple[list[float], float]:
    """Seconds of each commit, and of all together."""
    answers: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
    processes = min(PROCESSES, clients)
    share = clients // processes
    work = [
        multiprocessing.Process(target=some_clients, args=(address, share, each, pause_s, answers))
        for _ in range(processes)
    ]
    begun = time.perf_counter()
    for process in work:
        process.start()
    times = [one for _ in work for one in answers.get(timeout=600)]
    seconds = time.perf_counter() - begun
    for process in work:
        process.join()
    return times, seconds


def some_clients(
    address: str, count: int, each: int, pause_s: float, answers: multiprocessing.Queue[list[float]]
) -> None:
    times: list[float] = []
    names = [f"p{os.getpid()}-{n}" for n in range(count)]
    threads = [threading.Thread(target=client, args=(address, name, each, pause_s, times)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.put(times)


def client(address: str, name: str, each: int, pause_s: float, times: list[float]) -> None:
    with spark_log.connect(f"pylog://{address}") as log:
        state, link = log.journal.state, log.journal.link
        assert link is not None
        topic_id, epoch = state.names["t"], state.version
        for sequence in range(each):
            commit = CommitRecord(
                producer=name,
                sequence=sequence,
                birth=epoch,
                upload_epoch=epoch,
                objects=(DataObject(data_key(epoch, f"{name}-{sequence}.seg"), 100, 50),),
                slices=((0, Run(topic_id, sequence % PARTITIONS, 0, 50, 1, 1, 1, 0, 0)),),
            )
            begun = time.perf_counter()
            # A client that requests no records of others: it waits only for its acknowledgement.
            answered = link.ask(Ask(state.coordinator, [Append(commit=commit)], 2**53))
            times.append(time.perf_counter() - begun)
            time.sleep(pause_s)
            assert not isinstance(answered.outcomes[0], Exception), answered


def append_to_poll(log: spark_log.Log, count: int) -> list[float]:
    """Seconds from the call of `append` in one thread to the record in the hands of a consumer in another thread."""
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


def crowd(log: spark_log.Log, pid: int, waiting: int) -> tuple[float, list[float], list[int]]:
    """Seconds until all waiting clients are woken, seconds of each concurrent commit, and memory before and during the
    wait.
    """
    address, state = log.journal.state.coordinator.address, log.journal.refresh()
    memory = [resident_mb(pid)]
    beside: list[float] = []
    each = max(1, min(300, waiting // 10))
    worker = threading.Thread(target=lambda: beside.extend(commits(address, min(BESIDE, waiting), each, PAUSE_S)[0]))

    def all_wait() -> None:
        memory.append(resident_mb(pid))
        worker.start()
        time.sleep(each * PAUSE_S / 2)

    woken = asyncio.run(
        wake(
            address,
            log.cluster_id,
            state.names["latency"],
            state.version,
            waiting,
            all_wait,
            lambda: log.append("latency", [{"value": b"news"}]),
            worker.join,
        )
    )
    return woken, beside, memory


if __name__ == "__main__":
    main()
