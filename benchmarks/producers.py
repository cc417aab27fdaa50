"""What does a day of plain writers cost in the state, and in a checkpoint?

A batch job that runs once a second makes this many writers in a day.  Each has a separate id and one commit of 100
ranges.  The log remembers each id for a day, to recognise a retry, and the offsets of those of the last minutes.  By
hand: 300 bytes for an id and its entry, and 1 kB for each of some 1,600 with offsets, so 28 MB for 86,400 writers.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from dataclasses import replace

import common

from spark_log.metadata import records as r
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.replay import replay
from spark_log.metadata.state import State

RANGES = 100
FENCE_STEP = 675
"""Seconds between two steps of the fence."""
TOPIC = "f" * 32


def main() -> None:
    given = common.arguments(__doc__, rows=86_400, of="writers", rounds=None, warm=None)
    made = r.CreateTopicRecord(topic_id=TOPIC, name="t", partitions=RANGES)
    state = replay(State(), r.Batch(id="b", time=1, records=(made,)))
    gc.collect()
    idle = _now_mb()
    state = _with_writers(state, given.rows)
    gc.collect()
    grown = _now_mb() - idle
    data, encode_ms = _timed(lambda: encode_checkpoint(state))
    decoded, decode_ms = _timed(lambda: decode_checkpoint(data, "x"))
    assert decoded.producers == state.producers
    common.report(
        "producers",
        writers=given.rows,
        state_mb=round(grown, 1),
        state_bytes_each=round(grown * 2**20 / given.rows),
        state_target_mb=50,
        checkpoint_kb=len(data) // 1024,
        encode_ms=round(encode_ms),
        decode_ms=round(decode_ms),
    )


def _with_writers(state: State, count: int) -> State:
    """Records go through their bytes, as in a log; slices are left out, they are not what is measured."""
    rng = random.Random(1)
    piece = r.Piece(0, 1000, "data/0000000000000000/x.idx", 0, 1, 1, 1, 1, 1, 1)
    pieces = tuple((TOPIC, number, piece) for number in range(RANGES))
    for second in range(count):
        producer, birth = f"{rng.getrandbits(64):016x}", state.version
        commit = r.CommitRecord(producer=producer, sequence=0, birth=birth, upload_epoch=birth, pieces=pieces)
        fences = (r.FenceRecord(upto=state.fence + 1),) if second % FENCE_STEP == FENCE_STEP - 1 else ()
        batch = encode_batch(r.Batch(id=f"{second:x}", time=1000 * second, records=(commit, *fences)))
        state = replay(state, decode_batch(batch, "x"))
        bare = {key: part._replace(entries=()) for key, part in state.partitions.items()}
        state = replace(state, partitions=state.partitions.update(bare), times=state.times[-1:])
    return state


def _now_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def _timed(run):
    begun = time.process_time()
    return run(), (time.process_time() - begun) * 1000


if __name__ == "__main__":
    main()
