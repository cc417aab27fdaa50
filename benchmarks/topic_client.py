"""What does a client of one topic cost, on a log of 100,000 partitions that a coordinator serves?

One client holds its topic, another the whole state, each in its own process.  Measured: the time until it has appended
a record and read it, its memory at the peak, and its CPU for a version with a record of another topic, and of this one;
then the coordinator's CPU for the changes of one slice.  By hand: the first gets 1 KB from the coordinator, where the
second reads a checkpoint of a few MB and makes a row for each partition; a reply is a few numbers in JSON, below 50 µs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import common
import msgspec
from coordinator import serving

import spark_log
from spark_log.metadata.commands import CreateTopic
from spark_log.metadata.projection import HeldPartition, HeldTopic, Holdings, delta

WIDE = 100
"""Partitions of a topic."""
MINE = 4
"""Partitions of the client's topic."""

CHILD = """
import json, pathlib, re, statistics, sys, time
import spark_log
url, what, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024

writer = spark_log.connect(url)
writer.append("warm", [{"value": b"x"}])
writer.read("warm")
before, begun = peak(), time.perf_counter()
log = spark_log.connect(url)
journal = log.journal if what == "whole" else log._journal
log.append("mine", [{"value": b"x"}])
log.read("mine")
found = {"open_s": time.perf_counter() - begun, "mb": peak() - before}
for topic, name in (("in0", "other_version_ms"), ("mine", "own_version_ms")):
    times = []
    for _ in range(rounds):
        writer.append(topic, [{"value": b"x"}])
        begun = time.thread_time()
        journal.poll()
        times.append((time.thread_time() - begun) * 1000)
    found[name] = statistics.median(times)
print(json.dumps(found))
"""


def filled(folder: str, partitions: int) -> None:
    """A log of topics with a record in each partition, and a checkpoint."""
    with spark_log.connect(folder, durability="os") as log:
        fill(log, partitions)
        log.create_topic(spark_log.NewTopic("mine", MINE))
        log.create_topic(spark_log.NewTopic("warm"))
        log.journal.run(log.journal.metadata_log.checkpoint(log.journal.view))


def fill(log: spark_log.Log, partitions: int) -> None:
    """Topics with a record in each partition."""
    rows = [{"value": b"x", "partition": number} for number in range(WIDE)]
    for number in range(partitions // WIDE):
        log.journal.propose(CreateTopic(name=f"in{number}", partitions=WIDE, topic_id=f"in{number}"))
        log.append(f"in{number}", rows)


def client(url: str, what: str, rounds: int) -> dict[str, float]:
    """The figures of one client, in its own process."""
    command = [sys.executable, "-c", CHILD, url, what, str(rounds)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def reply_us(folder: str, rounds: int) -> float:
    """CPU of a reply to a client that lacks one slice."""
    with spark_log.connect(folder, durability="os") as log:
        state = log.journal.state
    topic_id = state.names["mine"]
    parts = [
        HeldPartition(part.start, part.end, part.edition, part.readable_end)
        for _, part in state.topic_partitions(topic_id)
    ]
    grown = max(range(MINE), key=lambda number: parts[number].end)
    parts[grown] = parts[grown]._replace(end=state.partitions[topic_id, grown].entries[-1].start)
    held = Holdings(state.version - 1, "before", {"mine": HeldTopic(topic_id, tuple(parts))}, ())
    begun = time.thread_time()
    for _ in range(rounds):
        msgspec.json.encode(delta(state, "now", held, "before"))
    return (time.thread_time() - begun) / rounds * 1e6


def main() -> None:
    given = common.arguments(__doc__, rows=100_000, of="partitions", rounds=15, warm=None)
    figures: dict[str, float] = {}
    with common.folder() as folder:
        filled(folder, given.rows)
        with serving(folder) as (_, address):
            for what in ("topic", "whole"):
                found = client(f"pylog://{address}", what, given.rounds)
                figures |= {f"{what}_{name}": value for name, value in found.items()}
        figures["reply_us"] = reply_us(folder, 100 * given.rounds)
    common.report("topic_client", partitions=given.rows, **figures)


if __name__ == "__main__":
    main()
