"""What do replicas cost a commit, what does a slow one of them cost, and how fast are copies made?

Appends of one record, first to one root and to three equal ones in turn.  "Equal roots" means three disks: there, three
puts at the same time take as long as the slowest, so all that three roots cost is CPU.  That is measured on a file
system in memory, where nothing waits (`memory_…`).  Here, all roots are folders on one disk (`one_root_ms`, …), whose
syncs they share.  Plain threads write, sync and rename as many files of the same sizes in the same run, and show the
limit of this disk (`plain_…`); `three_to_plain` is pylog's ratio by theirs.

Then 100 appends a second, without fsync, to three roots of which one takes 2 s a put, and to two roots, in turn, while
another process has a replicator of each log: by hand, one append waits for a second, then the slow root is out of the
ISR, and no later one waits.  `isr_changes` counts how often it left.  `slow_to_two` is the median of the ratios of p99
by groups of turns.

Then a root fails for 15 s while three processes append, and as many others compute as make a load of 8.  `back_s` is
the time from its return until its replica is in the ISR again, at most `back_s_target`: three times the absence, and
`replica.lag.time.max.ms`.  `small_copies_s` is the number of small objects that are copied in a second.

At last, a broker without copies gets those of some objects, and `cp` copies the same files, with an fsync of each as
pylog does.  Two of pylog's copies are under way at a time.  By hand: a checksum takes 0.05 ms for a megabyte, and a
disk some milliseconds, so both are as fast as the disk.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, count
from multiprocessing.synchronize import Event
from pathlib import Path

import common
import numpy as np
import pyarrow as pa

import spark_log
from simulation.harness.broker_roots import ControlledRoots, register_broker
from spark_log.maintenance.replicate import replicate_every
from spark_log.metadata.replicas.replicas import deficit
from spark_log.replication.copy_throttle import Pace
from spark_log.replication.copy_to_broker import ObjectCopying
from spark_log.replication.missing_copies import copies_wanted
from spark_log.replication.replicator import Replicator

RATE = 100
"""Appends a second."""
THREADS = 8
SLOW_S = 2
SETTLED_S = 30
"""Appends of the first seconds are not counted, in a run that lasts long enough."""
TURN_S = 1
"""The two logs get appends in turn, each for so long, so that both meet what else the machine does."""
GROUP = 5
"""Turns of a log whose appends have one 99th percentile.  It is that of a few stalls by checkpoints, and differs much
from group to group."""
OBJECT_BYTES, RECORD_BYTES = 1200, 600
"""The object of an append, and its record in the metadata log."""
MEMORY = Path("/dev/shm")
ROW = [{"value": b"x" * 100}]
OBJECTS, OBJECT_ROWS = 8, 32_000
"""Objects that are copied, each of so many records of 1 kB."""
COPYING_ROUNDS = 7
AWAY_S, LAG_MS = 15, 10_000
"""How long a root fails, and `replica.lag.time.max.ms` meanwhile."""
WRITERS, WRITER_RATE = 3, 17
"""Processes that append beside it, and the appends of each a second."""
LOAD = 8
"""Processes that want a processor all the time, with the writers and the replicator."""
GIVEN_UP_S = 240
SMALL = 256
"""Small objects that are copied together."""


def main() -> None:
    given = common.arguments(__doc__, rows=12_000, of="appends at the rate", rounds=300, warm=20)
    figures: dict[str, object] = {}
    with common.folder() as folder:
        figures |= beside_plain(Path(folder) / "plain", given.rounds, given.warm)
        figures |= in_memory(given.rounds, given.warm)
        figures |= one_slow(Path(folder) / "slow", given.rows)
        figures |= returning(Path(folder) / "away", *((1, 100, 0) if given.rounds == 1 else (AWAY_S, LAG_MS, LOAD)))
        figures |= copying_small(Path(folder) / "small", min(given.rounds, SMALL))
        figures |= copying(Path(folder) / "copies", given.rounds)
    common.report(
        "replicas",
        rate=RATE,
        **figures,
        three_to_plain_target=1.15,
        slow_to_two_target=1.2,
        back_s_target=3 * AWAY_S + LAG_MS / 1000,
        copying_to_cp_target=0.8,
    )


def beside_plain(folder: Path, rounds: int, warm: int) -> dict[str, object]:
    """Appends to one root and to three on one disk, and plain writes of as many files."""
    with (
        log_on(f"{folder}/one", 1) as one,
        log_on(f"{folder}/three", 3) as three,
        plain(folder / "plain1", 1) as plain_one,
        plain(folder / "plain3", 3) as plain_three,
    ):
        runs = {
            "one_root": lambda: one.append("t", ROW),
            "plain_one": plain_one,
            "three_roots": lambda: three.append("t", ROW),
            "plain_three": plain_three,
        }
        times = in_turn(runs, rounds, warm)
    ratio, possible = ratio_of(times, "three_roots", "one_root"), ratio_of(times, "plain_three", "plain_one")
    return {
        **{f"{name}_ms": 1000 * statistics.median(its) for name, its in times.items()},
        "three_to_one": ratio,
        "plain_three_to_one": possible,
        "three_to_plain": ratio / possible,
    }


def in_memory(rounds: int, warm: int) -> dict[str, object]:
    """The CPU of this process for appends to one root and to three."""
    if not MEMORY.is_dir():
        return {}
    with (
        common.folder(MEMORY) as folder,
        log_on(f"{folder}/one", 1) as one,
        log_on(f"{folder}/three", 3) as three,
    ):
        runs = {"one": lambda: one.append("t", ROW), "three": lambda: three.append("t", ROW)}
        times = in_turn(runs, rounds, warm, time.process_time)
    return {
        **{f"memory_{name}_cpu_ms": 1000 * statistics.median(its) for name, its in times.items()},
        "memory_three_to_one": ratio_of(times, "three", "one"),
    }


def in_turn(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    warm: int,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """The times of each in all rounds, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(warm + rounds):
        for name, run in runs.items():
            took = common.clock(run, now)
            if number >= warm:
                times[name].append(took)
    return times


def ratio_of(times: Mapping[str, list[float]], name: str, other: str) -> float:
    """The median of the ratios round by round."""
    return statistics.median(a / b for a, b in zip(times[name], times[other], strict=True))


@contextmanager
def plain(folder: Path, roots: int) -> Iterator[Callable[[], None]]:
    """A function that writes a file to each of so many folders together, then one more, and syncs files and folders."""
    targets = [folder / str(root) for root in range(roots)]
    for target in (*targets, folder / "log"):
        target.mkdir(parents=True)
    number = iter(range(1 << 30))
    with ThreadPoolExecutor(2 * roots) as threads:

        def put(new: Path) -> None:
            new.mkdir()
            synced = threads.submit(sync, new.parent)
            write(new / "object", OBJECT_BYTES)
            synced.result()

        def run() -> None:
            name = str(next(number))
            list(threads.map(put, [target / name for target in targets]))
            write(folder / "log" / name, RECORD_BYTES)

        yield run


def write(path: Path, size: int) -> None:
    """Write a file under another name, sync it, and rename it."""
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb", buffering=0) as file:
        file.write(b"x" * size)
        os.fsync(file.fileno())
    temporary.rename(path)
    sync(path.parent)


def sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


@contextmanager
def log_on(folder: str, brokers: int, durability: str = "disk") -> Iterator[spark_log.Log]:
    """A log with a topic "t" of one partition, with a replica on each of so many roots."""
    with spark_log.connect(f"{folder}/log", durability=durability) as log:
        for broker in range(1, brokers):
            register_broker(log, broker, f"{folder}/broker{broker}")
        log.create_topic(spark_log.NewTopic("t", 1, replication_factor=brokers))
        yield log


def one_slow(folder: Path, appends: int) -> dict[str, object]:
    """Appends at the rate to two roots, and to three of which one is slow, in turn."""
    names = {"two": 2, "slow": 3}
    orders = {name: folder / f"orders-{name}" for name in names}
    for each in orders.values():
        each.mkdir(parents=True)
    with log_on(f"{folder}/two", 2, "os") as two, log_on(f"{folder}/slow", 3, "os") as slow:
        logs = {"two": two, "slow": slow}
        roots = {name: ControlledRoots.of(log, orders[name]) for name, log in logs.items()}
        roots["slow"].order(2, f"slow {SLOW_S}")
        turns = max(1, appends // (TURN_S * RATE))
        with replicating({log.url: orders[name] for name, log in logs.items()}):
            for log in logs.values():  # both: the time of a checkpoint grows with the log
                paced(log, min(SETTLED_S * RATE, appends // 2))
            times = [{name: paced(log, appends // turns) for name, log in logs.items()} for _ in range(turns)]
        groups = [times[at : at + GROUP] for at in range(0, max(1, turns - GROUP + 1), GROUP)]
        p99 = [{name: late(one[name] for one in group) for name in names} for group in groups]
        ratios = sorted(each["slow"] / each["two"] for each in p99)
        roots["slow"].order(2, "")
        while any(thread.name == "pylog-put-2" for thread in threading.enumerate()):
            time.sleep(0.1)  # a put that its append did not wait for
        member = next(one for one in slow.journal.refresh().placement_groups[1].members if one.broker == 2)
    return {
        "two_roots_p99_ms": 1000 * statistics.median(each["two"] for each in p99),
        "one_slow_p99_ms": 1000 * statistics.median(each["slow"] for each in p99),
        "slow_to_two": statistics.median(ratios),
        "slow_to_two_of_groups": [round(ratio, 2) for ratio in ratios],
        "isr_changes": member.misses,
        "in_sync_after": member.role == "isr",
    }


@contextmanager
def replicating(logs: Mapping[str, Path]) -> Iterator[None]:
    """Another process with replicators, for which the roots are as slow.

    logs:  by URL, the folder of orders.
    """
    processes = multiprocessing.get_context("spawn")
    ready = processes.Event()
    process = processes.Process(target=replicate, args=(dict(logs), ready), daemon=True)
    process.start()
    assert ready.wait(600), "the replicators do not begin"
    yield
    process.kill()
    process.join()


def replicate(logs: Mapping[str, Path], ready: Event) -> None:
    """Never returns."""
    replicators = []
    for url, orders in logs.items():
        log = spark_log.connect(url, durability="os")
        ControlledRoots.of(log, orders)
        replicators.append(Replicator(log))
    ready.set()
    while True:
        time.sleep(1)
        for one in replicators:
            one.round(1000)


def late(turns: Iterable[list[float]]) -> float:
    """The 99th percentile of the times of some turns."""
    return statistics.quantiles(chain.from_iterable(turns), n=100)[-1]


def paced(log: spark_log.Log, appends: int) -> list[float]:
    """The times of appends, each from when it is due, in seconds."""
    times: list[float] = []
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
            times.append(time.perf_counter() - at)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def returning(folder: Path, away_s: float, lag_ms: int, load: int) -> dict[str, object]:
    """How long it takes until a replica is in the ISR again whose root has failed for so long, beside a load."""
    orders = folder / "orders"
    orders.mkdir(parents=True)
    with log_on(str(folder), 2) as log:
        log.admin.incremental_alter_configs({None: {"replica.lag.time.max.ms": str(lag_ms)}})
        roots = ControlledRoots.of(log, orders)
        more = max(0, load - WRITERS - 1 - int(os.getloadavg()[0]))
        with (
            running([(compute, ())] * more + [(append_at_rate, (log.url, orders))] * WRITERS),
            running([(catch_up, (log.url, orders))]),
        ):
            await_that(lambda: end_of(log) > WRITERS)
            roots.order(1, "fail")
            time.sleep(away_s)
            await_that(lambda: not is_in_sync(log))
            lacking, before = lag_of(log), end_of(log)
            roots.order(1, "")
            took = common.clock(lambda: await_that(lambda: is_in_sync(log)))
            appends = end_of(log) - before
    return {
        "back_s": took,
        "back_lacking": lacking,
        "back_appends_s": appends / took,
        "back_load": os.getloadavg()[0],
    }


def await_that(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GIVEN_UP_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)


def end_of(log: spark_log.Log) -> int:
    """Number of records."""
    return sum(part.end for part in log.journal.refresh().partitions.values())


def is_in_sync(log: spark_log.Log) -> bool:
    group = log.journal.refresh().placement_groups[1]
    return 1 in group.isr


def lag_of(log: spark_log.Log) -> int:
    """Number of objects that broker 1 lacks."""
    return deficit(log.journal.refresh(), 1, 1).objects


@contextmanager
def running(tasks: Iterable[tuple[Callable[..., None], tuple[object, ...]]]) -> Iterator[None]:
    """Processes that never return, until the end of the block."""
    processes = multiprocessing.get_context("spawn")
    some = [processes.Process(target=target, args=given, daemon=True) for target, given in tasks]
    for process in some:
        process.start()
    try:
        yield
    finally:
        for process in some:
            process.kill()
            process.join()


def append_at_rate(url: str, orders: Path) -> None:
    with spark_log.connect(url, durability="disk") as log:
        ControlledRoots.of(log, orders)
        began = time.monotonic()
        for number in count():
            time.sleep(max(0.0, began + number / WRITER_RATE - time.monotonic()))
            log.append("t", ROW)


def catch_up(url: str, orders: Path) -> None:
    """Copy in rounds, like `pylog replicate --every`."""
    with spark_log.connect(url, durability="disk") as log:
        ControlledRoots.of(log, orders)
        for _ in replicate_every(log, 1000, probes=False):
            pass


def compute() -> None:
    while True:
        sum(range(10_000))


def copying_small(folder: Path, objects: int) -> dict[str, object]:
    """Copy objects of one record to a broker that has none."""
    with log_on(str(folder), 2) as log:
        log.admin.fence_broker(1)
        for _ in range(objects):
            log.append("t", ROW)
        log.admin.unfence_broker(1)
        wanted = list(copies_wanted(log.journal.refresh(), 1))
        run = ObjectCopying(log.journal.roots, 1, Pace(log.journal.context.clock))
        cpu_s = time.process_time()
        took = common.clock(lambda: run.run(wanted))
    return {
        "small_copies_s": len(wanted) / took,
        "small_copy_cpu_ms": 1000 * (time.process_time() - cpu_s) / len(wanted),
    }


def copying(folder: Path, rounds: int) -> dict[str, object]:
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
