"""What do replicas cost a commit, what does a slow one of them cost, and how fast are copies made?

Appends of one record.  First to one root and to three equal ones in turn, on a local disk with fsync: by hand, three
puts at the same time take as long as the slowest, and three more reads of small files check a root.  Then 100 appends a
second, without fsync, to three roots of which one takes 2 s a put, and to two roots, while a replicator works: by hand,
one append waits for a second, then the slow root is out of the ISR, and no later one waits.

At last, a broker without copies gets those of some objects, and `cp` copies the same files, with an fsync of each as
pylog does.  Two of pylog's copies are under way at a time.  By hand: a checksum takes 0.05 ms for a megabyte, and a
disk some milliseconds, so both are as fast as the disk.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import common
import numpy as np
import pyarrow as pa

import spark_log
from spark_log.node.broker_copies import copies_wanted
from spark_log.node.copy_throttle import Pace
from spark_log.node.object_copying import ObjectCopying
from spark_log.node.replicator import Replicator
from spark_log.testing.broker_roots import ControlledRoots, register_broker

RATE = 100
"""Appends a second."""
THREADS = 8
SLOW_S = 2
SETTLED_S = 30
"""Appends of the first seconds are not counted, in a run that lasts long enough."""
ROW = [{"value": b"x" * 100}]
OBJECTS, OBJECT_ROWS = 8, 32_000
"""Objects that are copied, each of so many records of 1 kB."""
COPYING_ROUNDS = 7


def main() -> None:
    given = common.arguments(__doc__, rows=6000, of="appends at the rate", rounds=300, warm=20)
    figures: dict[str, float] = {}
    with common.folder() as folder:
        with log_on(f"{folder}/one", 1) as one, log_on(f"{folder}/three", 3) as three:
            found = common.pairs(
                lambda: one.append("t", ROW), lambda: three.append("t", ROW), rounds=given.rounds, warm=given.warm
            )
            figures |= {"one_root_ms": 1000 * found.ours, "three_roots_ms": 1000 * found.other}
            figures["three_to_one"] = found.other / found.ours
        with log_on(f"{folder}/two", 2, "os") as two:
            usual = paced(two, given.rows)
        with log_on(f"{folder}/slow", 3, "os") as three:
            (Path(folder) / "orders").mkdir()
            roots = ControlledRoots.of(three, Path(folder) / "orders")
            roots.order(2, f"slow {SLOW_S}")
            with replicating(three, Path(folder) / "orders"):
                slow = paced(three, given.rows)
            roots.order(2, "")
            while any(thread.name == "pylog-put-2" for thread in threading.enumerate()):
                time.sleep(0.1)  # a put that its append did not wait for
            isr = three.journal.refresh().placement_groups[1].isr
        figures |= copying(Path(folder) / "copies", given.rounds)
    figures |= {"two_roots_p99_ms": 1000 * usual, "one_slow_p99_ms": 1000 * slow, "slow_to_two": slow / usual}
    common.report(
        "replicas",
        rate=RATE,
        **figures,
        in_sync_after=len(isr),
        three_to_one_target=1.15,
        slow_to_two_target=1.2,
        copying_to_cp_target=0.8,
    )


@contextmanager
def log_on(folder: str, brokers: int, durability: str = "disk") -> Iterator[spark_log.Log]:
    """A log with a topic "t" of one partition, with a replica on each of so many roots."""
    with spark_log.connect(f"{folder}/log", durability=durability) as log:
        for broker in range(1, brokers):
            register_broker(log, broker, f"{folder}/broker{broker}")
        log.create_topic(spark_log.NewTopic("t", 1, replication_factor=brokers))
        yield log


@contextmanager
def replicating(log: spark_log.Log, orders: Path) -> Iterator[None]:
    """A replicator as in another process, for which the roots are as slow."""
    ended = threading.Event()

    def work() -> None:
        with spark_log.connect(log.url) as other:
            ControlledRoots.of(other, orders)
            replicator = Replicator(other)
            while not ended.wait(1):
                replicator.round(1000)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    ended.set()
    thread.join()


def paced(log: spark_log.Log, appends: int) -> float:
    """The 99th percentile of the time of an append, from when it is due, in seconds."""
    times: list[tuple[float, float]] = []
    due = iter(range(appends))
    lock, began = threading.Lock(), time.perf_counter()

    def work() -> None:
        while True:
            with lock:
                number = next(due, None)
            if number is None:
                return
            at = began + number / RATE
            time.sleep(max(0.0, at - time.perf_counter()))
            log.append("t", ROW)
            times.append((at - began, time.perf_counter() - at))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settled = [took for at, took in times if at >= min(SETTLED_S, appends / RATE / 2)]
    return statistics.quantiles(settled, n=100)[-1]


def copying(folder: Path, rounds: int) -> dict[str, float]:
    """Copy objects to a broker that has none, and by `cp`, in turn."""
    small = rounds < COPYING_ROUNDS
    with log_on(str(folder), 2) as log:
        log.admin.fence_broker(1)
        for _ in range(OBJECTS):
            random = np.random.default_rng(1).bytes(1000 * (100 if small else OBJECT_ROWS))
            values = [random[at : at + 1000] for at in range(0, len(random), 1000)]
            log.append("t", pa.table({"value": values}), compression="none")
        log.admin.unfence_broker(1)
        state = log.journal.refresh()
        files = [folder / "log" / name for name in state.objects]
        target = folder / "broker1" / state.brokers[1].directory / "data"
        wanted = list(copies_wanted(state, 1))

        def ours() -> None:
            run = ObjectCopying(log.journal.roots, 1, Pace(log.journal.context.clock))
            assert len(run.run(wanted).done) == len(files) == OBJECTS

        def cp() -> None:
            (folder / "cp").mkdir()
            for number, file in enumerate(files):
                copy = folder / "cp" / str(number)
                subprocess.run(["cp", str(file), str(copy)], check=True)
                with copy.open("r+b") as opened:
                    os.fsync(opened.fileno())

        times = []
        for _ in range(1 if small else COPYING_ROUNDS):
            times.append((common.clock(ours), common.clock(cp)))
            for done in (target, folder / "cp"):
                shutil.rmtree(done)
            os.sync()
        size = sum(file.stat().st_size for file in files) / 1e6
    return {
        "copying_mb_s": size / statistics.median(ours for ours, _ in times),
        "cp_mb_s": size / statistics.median(cp for _, cp in times),
        "copying_to_cp": statistics.median(cp / ours for ours, cp in times),
    }


if __name__ == "__main__":
    main()
