"""How long does a record take through a bucket: embedded, and through a coordinator?

A store in memory with S3's latencies: 15 ms for a get or a listing, 30 ms for a put, with jitter from a seed.  By hand,
without what Python adds: `send` and wait is an object, a record, and its read-back: 30 + 30 + 15 ms, and through a
coordinator the same, because it writes the record in the same way.  A waiting consumer polls the bucket up to four
times a second: 0 to 250 ms, then the record, its confirmation and the data: 45 ms.  A coordinator tells it of the
commit, so it waits for the data only: 15 ms.  A read of one record is a look at the log and the data: 30 ms.

    --tries N       of each
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import common

sys.path.insert(0, str(Path(__file__).parents[1]))

import spark_log
from simulation.harness.slow_store import SlowStore
from spark_log.client.open_journal import reopen_journal
from spark_log.journal.journal import Journal
from spark_log.store.memory import MemoryStore
from tests.services import Services

IDLE_S = 1.0
"""Before each append that a consumer waits for, as in a topic with a record a second."""
Open = Callable[[], spark_log.Log]


def milliseconds(do: Callable[[], object], tries: int) -> list[float]:
    found = []
    for _ in range(tries):
        begun = time.perf_counter()
        do()
        found.append((time.perf_counter() - begun) * 1000)
    return found


def send_and_wait(new: Open, tries: int) -> list[float]:
    with new() as log, log.producer() as producer:
        producer.send("t", b"x").result(60)
        return milliseconds(lambda: producer.send("t", b"x").result(60), tries)


def append_to_poll(new: Open, tries: int) -> list[float]:
    """From the call of `append` in one client until `poll` returns the record in another."""
    with new() as log, new() as other, other.consumer("t", auto_offset_reset="latest") as consumer:
        consumer.poll(0)
        return [_seen_after(log, consumer) for _ in range(tries)]


def _seen_after(log: spark_log.Log, consumer: Any) -> float:
    begun: list[float] = []

    def append() -> None:
        time.sleep(IDLE_S)
        begun.append(time.perf_counter())
        log.append("t", [{"value": b"x"}])

    thread = threading.Thread(target=append)
    thread.start()
    found: dict[Any, Any] = {}
    while not found:
        found = consumer.poll(5000)
    seen = time.perf_counter()
    thread.join()
    return (seen - begun[0]) * 1000


def read_one(new: Open, tries: int) -> list[float]:
    with new() as log:
        log.append("t", [{"value": b"x"}])
        return milliseconds(lambda: log.read("t", partition=0, start=0, end=1), tries)


QUESTIONS = {"send and wait": send_and_wait, "append to poll": append_to_poll, "read a record": read_one}


def measure(tries: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with closing(Services()) as services:
        for side in ("embedded", "coordinator"):
            inner = MemoryStore(uuid.uuid4().hex)
            with spark_log.Log(Journal.open(inner, create=True)) as log:
                log.create_topic(spark_log.NewTopic("t", 1))
                cluster = log.journal.cluster_id
            url = ""
            if side == "coordinator":
                url = f"pylog://{services.start(Path(side), SlowStore(inner)).coordinator.address}"

            def new(inner: MemoryStore = inner, url: str = url, cluster: str = cluster) -> spark_log.Log:
                return spark_log.Log(reopen_journal(url or inner.url, SlowStore(inner), cluster))

            for name, ask in QUESTIONS.items():
                times = ask(new, tries)
                found.setdefault(name, {})[f"{side}_p50"] = statistics.median(times)
                found[name][f"{side}_least"] = min(times)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=30, help="of each (30)")
    given = parser.parse_args()
    for name, figures in (found := measure(given.tries)).items():
        print(f"{name}: " + ", ".join(f"{what} {value:.0f} ms" for what, value in figures.items()))
    common.report("bucket_latency", **found)


if __name__ == "__main__":
    main()
