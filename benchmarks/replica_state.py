"""What do replicas cost in the state: memory, a fence, and the replay of what follows?

A log of 1,000,000 objects and 100,000 partitions, each on three of ten brokers, whose placement groups are those of the
ring; and the same log without brokers.  Rows are in columns, as after a checkpoint.

By hand: the key of its copies is 8 bytes for each object, so 8 MB; the group of each partition is a number in a tuple,
another 8 bytes, so under 1 MB.  A fence is a record of 100 bytes, and looks at three groups and ten rows of copies:
well under 1 ms, whatever the number of objects.  A commit, `held` and the return of a broker without 100 objects cost
what they name.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import common
import pyarrow as pa
from immutables import Map

from spark_log.metadata import records as r
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint, folded
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.replay import replay
from spark_log.metadata.replicas.placement import place, topic_shift, usable_brokers
from spark_log.metadata.replicas.replay_replicas import with_replicas
from spark_log.metadata.replicas.replica_commands import FenceBroker, RegisterBroker
from spark_log.metadata.replicas.replica_state import Copies
from spark_log.metadata.state import ObjectRow, Partition, State, Topic
from spark_log.model import DataObject, Placed, Run
from spark_log.store.object_names import data_key

BROKERS = 9
"""Beside broker 0."""
FACTOR = 3
TOPIC_PARTITIONS = 100
OBJECTS_PER_PARTITION = 10
SOME = 100
"""Objects of a `held` record, and that a returned broker lacks."""
TIMES = 20


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in _STEPS:
        _STEPS[sys.argv[1]](*sys.argv[2:])
        return
    given = common.arguments(__doc__, rows=1_000_000, of="objects", rounds=None, warm=None)
    found = {}
    with common.folder() as folder:
        for kind in ("plain", "replicated"):
            _child("make", f"{folder}/{kind}", str(given.rows), kind)
            found[kind] = json.loads(_child("measure", f"{folder}/{kind}", kind))
    both = {f"{kind}_{name}": found[kind].pop(name) for kind in found for name in ("state_mb", "checkpoint_mb")}
    extra = round(both["replicated_state_mb"] - both["plain_state_mb"], 1)
    common.report("replica_state", objects=given.rows, extra_mb=extra, **both, **found["replicated"])


def _child(*arguments: str) -> str:
    """In another process, so that memory is of one state only."""
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _make(path: str, count: str, kind: str) -> None:
    Path(path).write_bytes(encode_checkpoint(folded(_state(int(count), replicated=kind == "replicated"))))


def _measure(path: str, kind: str) -> None:
    data = Path(path).read_bytes()
    tracemalloc.start()
    before = _live_mb()
    state = decode_checkpoint(data, "x")
    gc.collect()
    figures = {"state_mb": round(_live_mb() - before, 1), "checkpoint_mb": round(len(data) / 2**20, 2)}
    tracemalloc.stop()
    print(json.dumps(figures | _records(state) if kind == "replicated" else figures))


def _records(state: State) -> dict[str, float]:
    """Sizes of records, and the time that their replay takes."""
    names = _objects_on(state, broker=1)[:SOME]
    epoch = state.brokers[1].epoch
    fence, decide_ms = _timed(lambda: FenceBroker(broker=1, reason="no answer")(state, state.time).records)
    fenced, fence_ms = _timed(lambda: _after(state, *fence))
    assert fenced.brokers[1].fenced and all(1 not in group.isr for group in fenced.placement_groups.values())
    back = r.ReturnBrokerRecord(broker=1, epoch=epoch, missing=tuple(names))
    _, return_ms = _timed(lambda: _after(fenced, back))
    copies = tuple(r.Copy(name, 1, epoch) for name in names)
    without = _after(state, r.MissingRecord(copies=copies))
    again, held_ms = _timed(lambda: _after(without, r.HeldRecord(copies=copies)))
    assert len(_objects_on(again, broker=1)) == len(_objects_on(state, broker=1))
    _, commit_ms = _timed(lambda: _after(state, _commit(state)))
    return {
        "groups": len(state.placement_groups),
        "rows_of_copies": len(state.copies),
        "fence_bytes": len(encode_batch(_batch(*fence))),
        "fence_decide_ms": decide_ms,
        "fence_replay_ms": fence_ms,
        "return_replay_ms": return_ms,
        "held_replay_ms": held_ms,
        "commit_replay_ms": commit_ms,
    }


def _state(count: int, *, replicated: bool) -> State:
    """A log without brokers, or with them."""
    rng = random.Random(1)
    names = [data_key(number + 1, f"{rng.getrandbits(64):016x}.seg") for number in range(count)]
    objects = LayeredMap({name: ObjectRow(1 << 20, 1 << 19, 1) for name in names})
    topics = max(1, count // OBJECTS_PER_PARTITION // TOPIC_PARTITIONS)
    keys = [(f"{number:016x}", part) for number in range(topics) for part in range(TOPIC_PARTITIONS)]
    state = State(
        version=count + 1,
        time=1_000,
        objects=objects,
        partitions=LayeredMap({key: Partition(end=1) for key in keys}),
        topics=Map({key: Topic(f"t{key}", TOPIC_PARTITIONS, Map(), 0) for key, _ in keys}),
        names=Map({f"t{key}": key for key, _ in keys}),
    )
    return _with_brokers(state) if replicated else state


def _with_brokers(state: State) -> State:
    for broker in range(1, BROKERS + 1):
        register = RegisterBroker(broker=broker, directory=f"d{broker}", url=f"/b{broker}")
        state = _after(state, *register(state, state.time).records)
    for topic_id in state.topics:
        shift = topic_shift(topic_id)
        lists = place(usable_brokers(state), FACTOR, range(shift, shift + TOPIC_PARTITIONS))
        state = with_replicas(state, topic_id, lists)
    groups = sorted(state.placement_groups.items())
    held = [(number, tuple(sorted(group.replicas))) for number, group in groups]
    share = len(state.objects) // len(held) + 1
    rows = {
        name: ObjectRow(row.size, row.index_position, row.live, 1 + at // share)
        for at, (name, row) in enumerate(state.objects.items())
    }
    counts = [0] * (len(held) + 1)
    for row in rows.values():
        counts[row.copies] += 1
    copies = {key: Copies(*where, counts[key], counts[key] << 20) for key, where in enumerate(held, 1) if counts[key]}
    return replace(state, objects=LayeredMap(rows), copies=Map(copies), copies_made=len(held))


def _objects_on(state: State, broker: int) -> list[str]:
    keys = {key for key, copies in state.copies.items() if broker in copies.brokers}
    return [name for name, row in state.objects.items() if row.copies in keys]


def _commit(state: State) -> r.CommitRecord:
    """A record in one partition."""
    topic_id = next(iter(state.topics))
    number = state.assignments[topic_id][0]
    held = tuple(
        (broker, state.brokers[broker].epoch if broker else 0) for broker in state.placement_groups[number].isr
    )
    return r.CommitRecord(
        producer="p",
        sequence=0,
        birth=state.version,
        upload_epoch=state.version,
        objects=(DataObject(data_key(state.version, "new.seg"), 1, 1),),
        slices=((0, Run(topic_id, 0, 0, 1, 1, 1, 1, 1, 1)),),
        placed=(Placed(number, held),),
    )


def _batch(*records: r.AnyRecord) -> r.Batch:
    return r.Batch(id="b", time=1_000, records=records)


def _after(state: State, *records: r.AnyRecord) -> State:
    """From the bytes of the records, as a reader replays them."""
    return replay(state, decode_batch(encode_batch(_batch(*records)), "x"))


def _live_mb() -> float:
    """Memory in use, Arrow's and Python's, without the waste of allocators: that varies by more than replicas cost."""
    return (tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()) / 2**20


def _timed(work):
    """The result, and the best of some times in ms."""
    times = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        result = work()
        times.append((time.perf_counter() - begun) * 1000)
    return result, round(min(times), 3)


_STEPS = {"make": _make, "measure": _measure}

if __name__ == "__main__":
    main()
