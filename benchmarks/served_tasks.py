"""What do 200 Spark tasks that start together cost a coordinator that serves the metadata, on a log of 100,000
partitions?

Each task is a new client, in one of four processes.  All look for the pin of their query: one makes it, and needs the
whole state for that, and the others wait for it.  For comparison, each of them then opens the log.  Measured: the
snapshots that the coordinator makes, the bytes of snapshots that it sends, and the time until the last task has its
answer.  By hand: one snapshot of about 3 MB for the pin, and 200 of them, 600 MB, if each task opens the log.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request

import common
from coordinator import serving
from topic_client import filled

PROCESSES = 4

CHILD = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from spark_log.client.open_journal import find_claim, open_journal
url, what, tasks, name = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

def pin(_):
    if find_claim(url, known.roots.own, known.cluster_id, name, served=True) is None:
        journal = open_journal(url, create=False)
        ends = [part.end for part in journal.state.partitions.values()]
        value = json.dumps({"version": journal.state.version, "ends": ends, "made_ms": int(time.time() * 1000)}).encode()
        journal.run(journal.metadata_log.claim(name, value))
        return 1
    return 0

def whole(_):
    open_journal(url, create=False)
    return 1

known = open_journal(url, create=False, partial=True)
print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(tasks) as pool:
    print(sum(pool.map({"pin": pin, "whole": whole}[what], range(tasks))))
"""


def metric(address: str, name: str) -> int:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        found = re.search(rf"^{name} (\d+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def together(address: str, what: str, tasks: int) -> dict[str, float]:
    """The figures of tasks that start at the same time."""
    command = [sys.executable, "-c", CHILD, f"pylog://{address}", what, str(tasks // PROCESSES), f"meta/pin/{what}"]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
    names = ("pylog_snapshots_total", "pylog_snapshot_bytes_total")
    before, begun = [metric(address, name) for name in names], time.perf_counter()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    opened = sum(int(child.communicate()[0]) for child in children)
    seconds = time.perf_counter() - begun
    made, sent = (metric(address, name) - known for name, known in zip(names, before, strict=True))
    return {"opened": opened, "snapshots": made, "mb": sent / 1e6, "s": seconds}


def main() -> None:
    given = common.arguments(__doc__, rows=100_000, of="partitions", rounds=200, warm=None)
    figures: dict[str, float] = {}
    with common.folder() as folder:
        filled(folder, given.rows)
        with serving(folder, "--metadata", "served") as (_, address):
            for what in ("pin", "whole"):
                found = together(address, what, given.rounds)
                figures |= {f"{what}_{name}": value for name, value in found.items()}
    common.report("served_tasks", partitions=given.rows, tasks=given.rounds, **figures)


if __name__ == "__main__":
    main()
