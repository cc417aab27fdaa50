"""Do appends of several threads share records of the metadata log?

One log, `Log.append` of one record a call, by one thread and by eight in turn: on a local disk with fsync, embedded and
through `pylog serve`, and on a store that is as far away as S3.  By hand: an append uploads an object and waits for a
record.  Threads upload at the same time, and all that come while a record is being written share the next one: on S3
eight threads append eight times as much as one at most; on a local disk Python's own work for each append, about 2 ms,
is the limit.
"""

from __future__ import annotations

import statistics
import threading
import time
import uuid

import common
from coordinator import serving

import spark_log
from simulation.harness.slow_store import SlowStore
from spark_log.journal.journal import Journal
from spark_log.store.memory import MemoryStore

THREADS = 8


def main() -> None:
    given = common.arguments(__doc__, rows=400, of="appends of each number of threads", rounds=3, warm=None)
    figures: dict[str, float] = {}
    with common.folder() as folder:
        figures |= compared("embedded", spark_log.connect(folder), given.rows, given.rounds)
    with (
        common.folder() as folder,
        serving(folder) as (_, address),
        spark_log.connect(f"pylog://{address}") as log,
    ):
        figures |= compared("coordinator", log, given.rows, given.rounds)
    far = spark_log.Log(Journal.open(SlowStore(MemoryStore(uuid.uuid4().hex)), create=True))
    figures |= compared("object_store", far, max(THREADS, given.rows // 8), given.rounds)
    common.report("append_threads", threads=THREADS, **figures)


def compared(name: str, log: spark_log.Log, appends: int, rounds: int) -> dict[str, float]:
    """Appends a second of one thread, the ratio of THREADS to it in the same round, and their appends a record."""
    log.create_topic(spark_log.NewTopic("t", 4))
    rate(log, 1, THREADS)
    pairs = [(rate(log, 1, appends), rate(log, THREADS, appends)) for _ in range(rounds)]
    return {
        f"{name}_one_a_second": statistics.median(one for (one, _), _ in pairs),
        f"{name}_ratio": statistics.median(many / one for (one, _), (many, _) in pairs),
        f"{name}_appends_a_record": statistics.median(shared for _, (_, shared) in pairs),
    }


def rate(log: spark_log.Log, threads: int, appends: int) -> tuple[float, float]:
    """Appends a second, and appends a record."""

    def work() -> None:
        for _ in range(appends // threads):
            log.append("t", [{"value": b"x"}])

    workers = [threading.Thread(target=work) for _ in range(threads)]
    before, begun = log.journal.refresh().version, time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds, done = time.perf_counter() - begun, appends // threads * threads
    return done / seconds, done / (log.journal.refresh().version - before)


if __name__ == "__main__":
    main()
