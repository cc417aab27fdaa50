"""What does a checkpoint of a large log cost: CPU to open a log from it and to write the next one, bytes and memory?

The state has so many objects, a partition for every ten, and in each partition two pieces and three slices, as between
two seals.  By hand, for 1,000,000 objects: 55 bytes for an object and 115 for an entry of a partition are 110 MB of
columns, 0.1 s to decompress and as much for the pages of memory.  To write: blocks without changes are copied, 30 MB,
and what changed is 1 µs a row.  To read it back: the same blocks are compared.  Making all rows, as for a scan of the
objects, takes 1 µs for each.

`peak` figures are the whole process, with `idle_mb` before the checkpoint is read.
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
from spark_log.metadata.formats.checkpoint_format import encode_checkpoint, folded
from spark_log.metadata.maps.layered_map import LayeredMap
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
    partitions=LayeredMap(partitions), objects=LayeredMap(objects),
)
open(path, "wb").write(encode_checkpoint(folded(state)))
"""
MEASURE = """
import gc, json, resource, sys, time
from spark_log.metadata.formats.checkpoint_format import check_checkpoint, decode_checkpoint, encode_checkpoint, folded
from spark_log.metadata.state import ObjectRow, State
from dataclasses import replace

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def timed(run):
    begun = time.process_time()
    return run(), (time.process_time() - begun) * 1000

idle_mb = peak_mb()
data = open(sys.argv[1], "rb").read()
state, decode_ms = timed(lambda: decode_checkpoint(data, "x"))
decode_peak_mb = peak_mb()
_, check_ms = timed(lambda: check_checkpoint(data, "x"))
again, encode_ms = timed(lambda: encode_checkpoint(state))
assert again == data
encode_peak_mb = peak_mb()

names = list(state.objects)
step = max(1, len(names) // CHANGES)
changed = {name: ObjectRow(1, 1, 1) for name in names[::step]}
parts = dict(list(state.partitions.items())[::step])
state, replay_ms = timed(lambda: replace(
    state, objects=state.objects.update(changed), partitions=state.partitions.update(parts)))
data, changed_encode_ms = timed(lambda: encode_checkpoint(folded(state)))
again, read_back_ms = timed(lambda: decode_checkpoint(data, "x", folded(state)))
assert again == state
some = names[::max(1, len(names) // 10_000)]
_, get_ms = timed(lambda: [state.objects[name] for name in some])
_, iterate_ms = timed(lambda: sum(row.size for row in state.objects.values()))
_, partitions_ms = timed(lambda: sum(part.end for part in state.partitions.values()))
print(json.dumps(dict(
    decode_ms=decode_ms, decode_peak_mb=decode_peak_mb, idle_mb=idle_mb, check_ms=check_ms, encode_ms=encode_ms,
    encode_peak_mb=encode_peak_mb, file_mb=len(data) / 2**20, changed_encode_ms=changed_encode_ms,
    read_back_ms=read_back_ms,
    get_us=get_ms / len(some) * 1000, iterate_objects_ms=iterate_ms, iterate_partitions_ms=partitions_ms,
)))
"""
CHANGES = 1000
"""Objects that changed between two checkpoints."""


def measured(objects: int) -> dict[str, float]:
    """The figures of a state with this many objects, measured in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "checkpoint")
        subprocess.run([sys.executable, "-c", MAKE, path, str(objects)], check=True)
        done = subprocess.run(
            [sys.executable, "-c", f"CHANGES = {CHANGES}{MEASURE}", path], check=True, capture_output=True, text=True
        )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    given = common.arguments(__doc__, rows=1_000_000, of="objects", rounds=None, warm=None)
    figures = {name: round(value, 1) for name, value in measured(given.rows).items()}
    common.report("checkpoint", objects=given.rows, decode_target_ms=1000, state_target_mb=300, **figures)


if __name__ == "__main__":
    main()
