"""Resources of processes, from /proc: CPU seconds of a process tree, peak memory, and files on disk."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.beside_kafka.figures import Round

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_S = 0.25
PROC = Path("/proc")


def tree(root: int) -> list[int]:
    """A process and all its descendants."""
    children = defaultdict(list)
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                children[int(_stat(int(folder.name))[1])].append(int(folder.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def _stat(pid: int) -> list[str]:
    """The fields from the state on: the name before it may have any character."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def cpu_seconds(roots: Sequence[int]) -> float:
    """User and system time of the trees so far; a parent includes the children that it has waited for."""
    total = 0
    for pid in {pid for root in roots for pid in tree(root)}:
        with suppress(OSError):
            total += sum(map(int, _stat(pid)[11:15]))
    return total / TICKS


def measured(run: Callable[[], object], roots: Sequence[int]) -> Round:
    """Time one run."""
    cpu, begun = cpu_seconds(roots), time.perf_counter()
    run()
    seconds = time.perf_counter() - begun
    return Round(seconds, cpu_seconds(roots) - cpu)


@contextmanager
def peak_memory(roots: Sequence[int]) -> Iterator[dict[str, float]]:
    """Measure the peak by kind of process in MB during the block; pages that processes share are counted once."""
    peak: dict[str, float] = {}
    done = threading.Event()

    def watch() -> None:
        over = False
        while not over:  # at least once, however short the block is
            for kind, size in _memory(roots).items():
                peak[kind] = max(peak.get(kind, 0.0), size)
            over = done.wait(SAMPLE_S)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _memory(roots: Sequence[int]) -> dict[str, float]:
    sizes: dict[str, float] = defaultdict(float)
    for root in roots:
        for pid in tree(root):
            sizes[_kind(pid, root)] += _proportional(pid) / 1e6
    return dict(sizes)


def _kind(pid: int, root: int) -> str:
    if root != os.getpid():
        return "the broker"
    with suppress(OSError):
        if (PROC / str(pid) / "comm").read_text().strip() == "java":
            return "Spark's JVM"
    return "Python"


def _proportional(pid: int) -> int:
    with suppress(OSError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def bytes_sent(pid: int) -> int:
    """Bytes that a process has written so far, to files and sockets."""
    lines = (PROC / str(pid) / "io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def bytes_on_disk(folders: Sequence[Path]) -> int:
    """Allocated blocks of the files: a preallocated index that is mostly empty has few."""
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return sum(file.stat().st_blocks * 512 for file in files)
