"""How far is a mirror behind its log, and how long does `pylog recover` take?

Appends of one record at a rate, on a disk with fsync, while `pylog mirror run --every 1s` copies in another process.  A
version lags from the time when its append has returned until a reader of the mirror sees it.  By hand: a second at
most until the next round, which copies up to 100 objects of a kilobyte with fsync, so up to two seconds.

Then the recovery of a mirror with 1,000,000 objects, each in a separate folder, as after single appends.  The files
are empty, because a recovery looks for their names only.  By hand: it lists a million folders, 10 µs for each if they
are in memory, and opens and writes a state of a million objects, some seconds.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import common

import spark_log
from spark_log.journal.journal import Journal
from spark_log.journal.storage.checkpointing import checkpoint
from spark_log.journal.storage.opening import KEPT_CHECKPOINTS, View
from spark_log.journal.store_operations import Steps, Stores, run
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.state import ObjectRow, State
from spark_log.model import Slice
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.store.local import LocalStore
from spark_log.store.object_names import data_key

RATE = 100
"""Appends a second."""
SIZE = 1000
"""Bytes of an object that is only there to be counted."""
LOOK_S = 0.02
"""How often the mirror is looked at."""
ROW = [{"value": b"x" * 100}]


def main() -> None:
    given = common.arguments(__doc__, rows=1_000_000, of="objects to recover", rounds=6000, warm=500)
    with common.folder() as folder:
        lags = lags_of(Path(folder) / "lag", given.rounds + given.warm)[given.warm :]
        recovery = recovery_of(Path(folder) / "recovery", given.rows)
        common.report(  # before the files are deleted, which takes minutes
            "mirror",
            rate=RATE,
            lag_p50_s=statistics.median(lags),
            lag_p99_s=sorted(lags)[len(lags) * 99 // 100],
            lag_p99_target_s=5,
            objects=given.rows,
            **recovery,
            recover_target_s=60,
        )


def lags_of(folder: Path, appends: int) -> list[float]:
    """How long after its append each version was in the mirror, in seconds."""
    url, mirror = str(folder / "log"), str(folder / "mirror")
    acknowledged, seen = dict[int, float](), dict[int, float]()
    with spark_log.connect(url) as log:
        log.create_topic(spark_log.NewTopic("t"))
        begin_mirror(log, LocalStore(mirror))
        Mirror(log, LocalStore(mirror)).round()
        first, ended = log.journal.state.version, threading.Event()
        command = [sys.executable, "-m", "spark_log.cli", "-u", url, "mirror", "run", mirror, "--every", "1s"]
        copier = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        watching = threading.Thread(target=watch, args=(mirror, first, seen, ended))
        watching.start()
        began = time.perf_counter()
        for number in range(appends):
            time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            log.append("t", ROW)
            acknowledged[log.journal.state.version] = time.perf_counter()
        while max(seen, default=first) < max(acknowledged):
            assert copier.poll() is None, "the process that copies has ended"
            time.sleep(LOOK_S)
        ended.set()
        watching.join()
        copier.kill()
        copier.wait()
    return [max(0.0, seen[version] - at) for version, at in sorted(acknowledged.items())]


def watch(mirror: str, version: int, seen: dict[int, float], ended: threading.Event) -> None:
    """Note when versions above one appear in a mirror."""
    journal = Journal.open(LocalStore(mirror), create=False)
    while not ended.wait(LOOK_S):
        newest = journal.refresh().version
        seen.update(dict.fromkeys(range(version + 1, newest + 1), time.perf_counter()))
        version = newest


def recovery_of(folder: Path, objects: int) -> dict[str, object]:
    """Recover a mirror of a log that is lost."""
    store = LocalStore(str(folder / "mirror"), "os")
    with spark_log.connect(str(folder / "log"), durability="os") as log:
        log.create_topic(spark_log.NewTopic("t", 100))
        log.append("t", ROW)
        begin_mirror(log, store)
        Mirror(log, store).round()
    fill(store, folder / "mirror", objects)
    (folder / "log").rename(folder / "lost")
    took = common.clock(lambda: recover(store))
    with spark_log.connect(str(folder / "mirror")) as recovered:
        assert len(recovered.journal.state.objects) == objects + 1
        recovered.append("t", ROW)
    return {"recover_s": took}


def fill(store: LocalStore, root: Path, objects: int) -> None:
    """Write checkpoints of a mirror with so many more objects, each with a slice, and make their files."""
    journal = Journal.open(store, create=False)
    view, ids = journal.view, random.Random(1)
    names = [data_key(number + 1, f"{ids.getrandbits(64):016x}.seg") for number in range(1 << 40, (1 << 40) + objects)]
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True)
        with file.open("wb") as out:
            out.truncate(SIZE)
    filled = View("", with_objects(view.state, names), head=view.head)
    run(written(filled, journal), Stores.of(store), journal.context.clock)


def with_objects(state: State, names: list[str]) -> State:
    rows = {name: ObjectRow(SIZE, 500, 1) for name in names}
    partitions = dict(state.partitions.items())
    for number, (key, part) in enumerate(sorted(partitions.items())):
        mine = names[number :: len(partitions)]
        new = [Slice(part.end + at, part.end + at + 1, name, 0, 500, 1, 1, at, at, 0) for at, name in enumerate(mine)]
        partitions[key] = part._replace(end=part.end + len(mine), entries=(*part.entries, *new))
    objects = dict(state.objects.items()) | rows
    return replace(state, objects=LayeredMap(objects), partitions=LayeredMap(partitions))


def written(view: View, journal: Journal) -> Steps[None]:
    for _ in range(KEPT_CHECKPOINTS):
        view, _ = yield from checkpoint(view, journal.metadata_log.context)


if __name__ == "__main__":
    main()
