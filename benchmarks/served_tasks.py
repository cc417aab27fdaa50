"""What do 200 Spark tasks that start together cost a coordinator that serves the metadata, on a log of 100,000
partitions?

Each task is a new client, in one of four processes.  All look for the pin of their query: one makes it, and needs the
whole state for that, and the others wait for it.  For comparison, each of them then opens the log.  Measured: the
snapshots that the coordinator makes, the bytes of snapshots that it sends, and the time until the last task has its
answer.  By hand: one snapshot of about 3 MB for the pin, and 200 of them, 600 MB, if each task opens the log.

`--nodes 3` measures a quorum of three instead: the metadata is on the disks of three processes, and any of them may
make and send a snapshot.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import common
from coordinator import serving
from quorum import free_ports
from topic_client import fill, filled

import spark_log
from simulation.harness.serving_nodes import ServingNodes

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


def together(addresses: Sequence[str], what: str, tasks: int) -> dict[str, float]:
    """The figures of tasks that start at the same time."""
    url, count = "pylog://" + ",".join(addresses), min(PROCESSES, tasks)
    command = [sys.executable, "-c", CHILD, url, what, str(tasks // count), f"meta/pin/{what}"]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
    before, begun = snapshots_of(addresses), time.perf_counter()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    opened = sum(int(child.communicate()[0]) for child in children)
    seconds = time.perf_counter() - begun
    made, sent = (now - known for now, known in zip(snapshots_of(addresses), before, strict=True))
    return {"opened": opened, "snapshots": made, "mb": sent / 1e6, "s": seconds}


def snapshots_of(addresses: Sequence[str]) -> list[int]:
    """How many were made, and the bytes that were sent, by all nodes."""
    names = ("pylog_snapshots_total", "pylog_snapshot_bytes_total")
    return [sum(metric(address, name) for address in addresses) for name in names]


@contextmanager
def coordinator(folder: str, partitions: int) -> Iterator[list[str]]:
    """The address of one that has a log of so many partitions."""
    filled(folder, partitions)
    with serving(folder, "--metadata", "served") as (_, address):
        yield [address]


@contextmanager
def quorum(folder: str, partitions: int, count: int) -> Iterator[list[str]]:
    """The addresses of its nodes, which have a log of so many partitions."""
    nodes = ServingNodes(Path(folder), free_ports(2 * count))
    try:
        nodes.start()
        with spark_log.connect(nodes.url) as log:
            fill(log, partitions)
        yield list(nodes.addresses.values())
    finally:
        nodes.kill_all()


def main() -> None:
    given = arguments()
    figures: dict[str, float] = {}
    with common.folder() as folder:
        served = quorum(folder, given.rows, given.nodes) if given.nodes else coordinator(folder, given.rows)
        with served as addresses:
            for what in ("pin", "whole"):
                found = together(addresses, what, given.rounds)
                figures |= {f"{what}_{name}": value for name, value in found.items()}
    common.report("served_tasks", nodes=given.nodes, partitions=given.rows, tasks=given.rounds, **figures)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="partitions (100,000)")
    parser.add_argument("--rounds", type=int, default=200, help="tasks (200)")
    parser.add_argument("--nodes", type=int, default=0, help="of a quorum; 0: a coordinator without one (0)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
