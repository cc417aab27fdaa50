"""What do the names of a day's dropped objects cost: in the state, in a checkpoint, and in a garbage collection?

A log with a commit a second to 100 topics of 100 partitions drops about a million objects a day.  Their names are in
the state (a log of level 1), or in lists of 10,000 (level 2).  The collection looks at a listing of all of them and of
a tenth as many live objects, and deletes nothing: the fence has passed none.

By hand, for 1,000,000 names of 42 bytes: 100 bytes for the text and 60 for its entry, so 160 MB in the state; 16 random
hexadecimal digits each are 8 MB or more in a checkpoint.  A row for each list is some 30 KB.  The collection reads 100
lists, 0.1 µs for a byte of names to decompress and decode, and takes each name out of a set, 0.1 µs.
"""

from __future__ import annotations

import gc
import json
import random
import resource
import subprocess
import sys
import time
from dataclasses import replace

import common
from immutables import Map

from spark_log.journal.garbage_collection import garbage
from spark_log.journal.store_operations import Stores, run
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint, folded
from spark_log.metadata.formats.dropped_list_format import encode_list
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.state import DroppedList, ObjectRow, State
from spark_log.runtime.clock import SystemClock
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import data_key

LIST_NAMES = 10_000
DROPS = 100
"""Objects that one version drops."""
FENCE = 1_000_000


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in _MAKE:
        print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
        return
    given = common.arguments(__doc__, rows=1_000_000, of="names", rounds=None, warm=None)
    figures = {}
    for where in _MAKE:
        command = [sys.executable, __file__, where, str(given.rows)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        figures |= {f"{where}_{name}": value for name, value in json.loads(done.stdout).items()}
    common.report("dropped", dropped=given.rows, **figures)


def measured(where: str, count: int) -> dict[str, float]:
    """In this process, so that memory is of this state only."""
    rng, store = random.Random(1), MemoryStore("dropped")
    names = [data_key(number, f"{rng.getrandbits(64):016x}.seg") for number in range(count + count // 10)]
    live = LayeredMap({name: ObjectRow(1, 1, 1) for name in names[count:]})
    state = folded(State(version=FENCE + count, fence=FENCE, objects=live))
    data = encode_checkpoint(_MAKE[where](state, names[:count], store))
    del state, live
    gc.collect()
    before = _now_mb()
    state, decode_ms = _timed(lambda: decode_checkpoint(data, "x"))
    gc.collect()
    grown = _now_mb() - before
    found, collect_ms = _timed(lambda: run(garbage(state, names), Stores.of(store), SystemClock()))
    assert found == []
    again, encode_ms = _timed(lambda: encode_checkpoint(state))
    assert again == data
    return {
        "state_mb": round(grown, 1),
        "checkpoint_mb": round(len(data) / 2**20, 2),
        "decode_ms": round(decode_ms),
        "encode_ms": round(encode_ms),
        "collect_ms": round(collect_ms),
    }


def _in_state(state: State, names: list[str], store: MemoryStore) -> State:
    return replace(state, dropped=Map({name: FENCE + 1 + number // DROPS for number, name in enumerate(names)}))


def _in_lists(state: State, names: list[str], store: MemoryStore) -> State:
    rows = {}
    for at in range(0, len(names), LIST_NAMES):
        upto = FENCE + 1 + (at + LIST_NAMES) // DROPS
        key = data_key(upto, "list.dropped")
        store.put(key, [encode_list(names[at : at + LIST_NAMES], key)])
        rows[key] = DroppedList(upto, LIST_NAMES)
    return replace(state, dropped_lists=Map(rows))


_MAKE = {"names": _in_state, "lists": _in_lists}


def _now_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def _timed(work):
    begun = time.process_time()
    return work(), (time.process_time() - begun) * 1000


if __name__ == "__main__":
    main()
