"""What does a checkpoint of a large log cost: time to write and to read it, bytes, and memory beside the state?

The state has so many objects, a partition for every ten, and in each partition two pieces and three slices, as between
two seals.  By hand, for 1,000,000 objects: 1 s to build the map of the objects, 1 µs each, and 0.3 s for the
partitions; 160 MB of JSON, 0.5 s to parse and 0.1 s to decompress.  To write: 0.7 s to sort names, 0.7 s for JSON, 0.3
s to compress.  Memory beside the state is the file and a frame of 1 MiB, whatever the size.

`maps_ms` is the part of `decode_ms` that does not depend on the format: the map of the objects alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import common

MAKE = """
import random, sys
from immutables import Map
from spark_log.metadata.checkpoint_format import encode_checkpoint
from spark_log.metadata.records import Piece
from spark_log.metadata.state import ObjectRow, Partition, State, Topic
from spark_log.model import Slice

path, count = sys.argv[1], int(sys.argv[2])
rng = random.Random(1)
names = [f"data/{number:016x}/{rng.getrandbits(64):016x}.seg" for number in range(count)]
objects = {name: ObjectRow(size := rng.randrange(10_000, 10_000_000), size - 4000, 1) for name in names}
partitions, ids = {}, [f"{rng.getrandbits(128):032x}" for _ in range(max(1, count // 1000))]
for topic_id in ids:
    for number in range(100):
        ends = [100_000, 200_000, 200_100, 200_200, 200_300]
        pieces = [
            Piece(end - 100_000, end, rng.choice(names), rng.randrange(10**6), 9_000, rng.getrandbits(32), 100,
                  rng.randrange(10**9), end * 10**6, end * 10**6 + 10**6)
            for end in ends[:2]
        ]
        slices = [
            Slice(end - 100, end, rng.choice(names), rng.randrange(10**6), 9_000, rng.getrandbits(32), 1,
                  end * 10**6, end * 10**6 + 10**6)
            for end in ends[2:]
        ]
        partitions[topic_id, number] = Partition(0, ends[-1], 1, (*pieces, *slices))
topics = {topic_id: Topic(f"topic {topic_id}", 100, Map(), 1) for topic_id in ids}
state = State(
    version=count, names=Map({topic.name: topic_id for topic_id, topic in topics.items()}), topics=Map(topics),
    partitions=Map(partitions), objects=Map(objects),
)
open(path, "wb").write(encode_checkpoint(state))
"""
MEASURE = """
import gc, json, resource, sys, time
from immutables import Map
from spark_log.metadata.checkpoint_format import check_checkpoint, decode_checkpoint, encode_checkpoint

def now_mb():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def timed(run):
    begun = time.process_time()
    return run(), (time.process_time() - begun) * 1000

data, idle = open(sys.argv[1], "rb").read(), now_mb()
_, check_ms = timed(lambda: check_checkpoint(data, "x"))
state, decode_ms = timed(lambda: decode_checkpoint(data, "x"))
grown = now_mb()
decode_extra_mb = peak_mb() - grown
again, encode_ms = timed(lambda: encode_checkpoint(state))
assert again == data
encode_extra_mb = peak_mb() - grown
objects = dict(state.objects.items())
gc.disable()
_, maps_ms = timed(lambda: Map(objects))
print(json.dumps(dict(
    decode_ms=decode_ms, maps_ms=maps_ms, check_ms=check_ms, encode_ms=encode_ms, file_mb=len(data) / 2**20,
    state_mb=grown - idle, decode_extra_mb=decode_extra_mb, encode_extra_mb=encode_extra_mb,
)))
"""


def main() -> None:
    given = common.arguments(__doc__, rows=1_000_000, of="objects", rounds=None, warm=None)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "checkpoint")
        subprocess.run([sys.executable, "-c", MAKE, path, str(given.rows)], check=True)
        done = subprocess.run([sys.executable, "-c", MEASURE, path], check=True, capture_output=True, text=True)
    figures = {name: round(value, 1) for name, value in json.loads(done.stdout).items()}
    common.report("checkpoint", objects=given.rows, decode_target_ms=1000, state_target_mb=300, **figures)


if __name__ == "__main__":
    main()
