"""How long does a small commit take, and does it grow with the log?

One record per append, on a local disk with fsync: an object, a record and a listing.  By hand: 3 synced operations of
about 0.35 ms, and 1 ms of Python.  The 10,000th commit is compared with the 100th: medians of 101 around each,
maintenance included.  Then a fresh process opens the log and reads one record.

`--objects 1000000` gives the log that many objects of other topics before.  `--rate 20` appends so many times a second,
as writers do, instead of one after the other: at full speed the maintenance of a large log never ends.

`maintenance_share_ms` is the mean of all commits minus their median: what maintenance adds to a commit, since the
median commit meets none.  On a busy machine that is mostly the time of other programs, so `maintenance_share_cpu_ms`
says the same of the CPU time of the thread that commits.  `maintenance_thread_cpu_ms` is the CPU time of the other
threads, for each commit.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time

import common
from immutables import Map

import spark_log
from spark_log.metadata.formats.checkpoint_format import encode_checkpoint, folded
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.state import ObjectRow, Partition, State, Topic
from spark_log.model import Slice

READ_ONE = """
import sys, time
import spark_log, spark_log.client.log
begun = time.perf_counter()
table = spark_log.connect(sys.argv[1]).read("t", partition=0, start=int(sys.argv[2]), end=int(sys.argv[2]) + 1)
assert table.num_rows == 1
print((time.perf_counter() - begun) * 1000)
"""


def main() -> None:
    given = _arguments()
    around = min(50, given.rows // 10)
    early = min(100, given.rows // 2)
    with common.folder() as url:
        log = spark_log.connect(url)
        if given.objects:
            log.journal.metadata.put(f"meta/ckpt/{1000:020}-0", (encode_checkpoint(folded(_large(given.objects))),))
            log = spark_log.connect(url)
        log.create_topic(spark_log.NewTopic("t", 1))
        log.append("t", [{"value": b"imports modules"}])
        times, cpu, process_begun = [], [], time.process_time()
        for number in range(given.rows):
            begun, cpu_begun = time.perf_counter(), time.thread_time()
            log.append("t", [{"key": b"k", "value": b"%d" % number}])
            cpu.append((time.thread_time() - cpu_begun) * 1000)
            times.append((time.perf_counter() - begun) * 1000)
            time.sleep(max(0, 1 / given.rate - times[-1] / 1000) if given.rate else 0)
        log.journal.finish_maintenance()
        others_ms = (time.process_time() - process_begun) * 1000 - sum(cpu)
        opened = [
            float(
                subprocess.run(
                    [sys.executable, "-c", READ_ONE, url, str(given.rows // 2)],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
            )
            for _ in range(given.rounds)
        ]
        state = log.journal.state
        checkpoints = log.journal.metadata.list("meta/ckpt/")
        size = log.journal.metadata.size(checkpoints[-1]) if checkpoints else 0
    first = statistics.median(times[early - around : early + around])
    last = statistics.median(times[-2 * around :])
    common.report(
        "commit",
        commits=given.rows,
        rate=given.rate,
        p50_ms=statistics.median(times),
        p99_ms=sorted(times)[len(times) * 99 // 100],
        max_ms=max(times),
        mean_ms=statistics.mean(times),
        maintenance_share_ms=statistics.mean(times) - statistics.median(times),
        maintenance_share_cpu_ms=statistics.mean(cpu) - statistics.median(cpu),
        maintenance_share_target_ms=2,
        cpu_p50_ms=statistics.median(cpu),
        cpu_max_ms=max(cpu),
        maintenance_thread_cpu_ms=others_ms / given.rows,
        growth=last / first,
        growth_target=1.2,
        open_and_read_one_ms=statistics.median(opened),
        open_target_ms=300,
        checkpoint_bytes=size,
        live_objects=len(state.objects),
    )


def _large(objects: int) -> State:
    """A tenth of the objects has a partition each, in topics of 100, with a slice in the state."""
    rng = random.Random(1)
    names = [f"data/{number % 1000:016x}/{rng.getrandbits(64):016x}.seg" for number in range(objects)]
    ids = [f"{rng.getrandbits(128):032x}" for _ in range(max(1, objects // 1000))]
    partitions = {
        (topic_id, number): Partition(0, 100, 0, (Slice(0, 100, rng.choice(names), 0, 9000, 1, 1, 0, 10**6),))
        for topic_id in ids
        for number in range(100)
    }
    topics = {topic_id: Topic(f"topic {topic_id}", 100, Map(), 1) for topic_id in ids}
    return State(
        version=1000,
        names=Map({topic.name: topic_id for topic_id, topic in topics.items()}),
        topics=Map(topics),
        partitions=LayeredMap(partitions),
        objects=LayeredMap({name: ObjectRow(10_000, 9_000, 1) for name in names}),
    )


def _arguments():
    """Those of the other benchmarks, and two."""
    extra = {"--objects": 0, "--rate": 0}
    for name in extra:
        if name in sys.argv:
            at = sys.argv.index(name)
            extra[name] = int(sys.argv[at + 1])
            del sys.argv[at : at + 2]
    given = common.arguments(__doc__, rows=10_000, of="commits", warm=None)
    given.objects, given.rate = extra.values()
    return given


if __name__ == "__main__":
    main()
