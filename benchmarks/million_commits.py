"""Is a log still as fast after a million commits?

Four threads of one process append a record each, as fast as they can, to a log on a local disk with fsync.  Beside them
`pylog maintain` runs in a separate process.  All times of the log are short (retention, fence, expiry of producers: a
minute; a round of maintenance each 10 s), so that the log lives through many of its days.  After each twentieth of the
commits the threads pause, and the log is opened afresh, to plan a read of all of it.

By hand: 2 ms of Python and an fsync for each commit, about 500 to 1,000 commits a second of four threads; half an hour.
The log has two minutes of commits at most: one until retention, one more until the fence.  So its files and bytes are
in proportion to the commits a second, which other work on the machine changes.

Exits 1 if a figure of the last quarter is more than 1.5 times what it was in the second quarter (medians; files and
bytes by the commits a second of their part).  A run of less than eight windows is not judged, because then the log
still fills in the second quarter.

    --rows N      commits (1,000,000)
    --window N    seconds of retention and of the fence (60)
    --json FILE   the tables, for the page
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import common
from coordinator import percentile, resident_mb

import spark_log

THREADS = 4
PARTS = 20
OPENS = 5
"""The shortest of these counts, because other work on the machine can only add time."""
ROUNDS = 6
"""Rounds of maintenance in a window."""
SPREAD = 1.5
WINDOWS = 8
"""A run of fewer windows is not judged."""
OF_ALL = "of all threads, ms a commit"
IN_PROPORTION = ("files in meta/", "files in data/", "on disk, MB")
"""To the commits a second."""
TABLES = {
    "times": ("a commit (p50), ms", "a commit (p99), ms", OF_ALL, "open and plan, ms"),
    "sizes": (*IN_PROPORTION, "writer, MB", "maintainer, MB"),
}


class Parts:
    """Runs the commits part by part, and measures after each."""

    def __init__(self, url: str, maintainer: int) -> None:
        self._url, self._maintainer = url, maintainer
        self._log = spark_log.connect(url)

    def run(self, commits: int) -> dict[str, float]:
        """All figures by name."""
        times: list[list[float]] = [[] for _ in range(THREADS)]
        workers = [
            threading.Thread(target=self._append, args=(n, commits // THREADS, times[n])) for n in range(THREADS)
        ]
        seconds = common.clock(lambda: _run_all(workers))
        every = [each for few in times for each in few]
        assert len(every) == commits // THREADS * THREADS, "a thread has failed"
        files = {kind: list(_files(Path(self._url) / kind)) for kind in ("meta", "data")}
        values = (
            percentile(every, 50),
            percentile(every, 99),
            1000 * seconds / len(every),
            1000 * min(common.clock(lambda: spark_log.connect(self._url).plan("t")) for _ in range(OPENS)),
            *(len(found) for found in files.values()),
            sum(map(sum, files.values())) / 2**20,
            resident_mb(os.getpid()),
            resident_mb(self._maintainer),
        )
        return dict(zip((name for names in TABLES.values() for name in names), map(float, values), strict=True))

    def _append(self, partition: int, commits: int, times: list[float]) -> None:
        rows = [{"value": b"a record of a hundred bytes" + b"." * 73, "partition": partition}]
        for _ in range(commits):
            times.append(common.clock(lambda: self._log.append("t", rows)))


def _run_all(workers: Sequence[threading.Thread]) -> None:
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _files(folder: Path) -> Iterator[int]:
    """Bytes on disk of each file; other processes add and delete some meanwhile."""
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.stat(f"{path}/{name}").st_blocks * 512
            except FileNotFoundError:
                continue


@contextmanager
def maintaining(url: str, every_s: float) -> Iterator[int]:
    """`pylog maintain` beside the block; its process id."""
    command = [sys.executable, "-m", "spark_log.cli", "-u", url, "maintain", "--every", f"{1000 * every_s:.0f}ms"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield process.pid
            assert process.poll() is None, "`pylog maintain` has ended"
        finally:
            process.terminate()


def create(url: str, window_s: float) -> None:
    ms = str(int(1000 * window_s))
    log = spark_log.connect(url)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": ms, "producer.id.expiration.ms": ms}})
    log.create_topic(spark_log.NewTopic("t", THREADS, {"retention.ms": ms}))


def growing(parts: Sequence[Mapping[str, float]]) -> list[str]:
    """Figures that were larger in the last quarter than in the second."""
    quarter, found = len(parts) // 4, []
    for name in parts[0]:
        values = [part[name] * (part[OF_ALL] if name in IN_PROPORTION else 1) for part in parts]
        early, late = statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])
        if late > SPREAD * early:
            found.append(f"{name} grew to {late / early:.1f} times")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="commits (1,000,000)")
    parser.add_argument("--window", type=float, default=60, help="seconds of retention and of the fence (60)")
    parser.add_argument("--json", type=Path, help="a file of results, in which what else it holds stays")
    given = parser.parse_args()
    parts: list[dict[str, float]] = []
    begun, each = time.perf_counter(), given.rows // PARTS
    with common.folder() as url:
        create(url, given.window)
        with maintaining(url, given.window / ROUNDS) as maintainer:
            log = Parts(url, maintainer)
            for _ in range(PARTS):
                parts.append(log.run(each))
                figures = ", ".join(f"{name} {value:,.4g}" for name, value in parts[-1].items())
                print(f"{len(parts) * each:,}: {figures}", flush=True)
    seconds = time.perf_counter() - begun
    found = growing(parts) if seconds > WINDOWS * given.window else []
    for line in found:
        print(line)
    x = [number * each for number in range(1, PARTS + 1)]
    tables = {
        table: {"varied": "commits", "x": x, "costs": {name: [part[name] for part in parts] for name in names}}
        for table, names in TABLES.items()
    }
    if given.json:
        table = {"window_s": given.window, "machine": common.machine(), "tables": tables}
        common.keep(given.json, {"million_commits": table})
    common.report("million_commits", commits=PARTS * each, seconds=seconds, grows=found, **parts[-1])
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
