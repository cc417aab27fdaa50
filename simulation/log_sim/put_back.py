"""The last versions of the log are lost, clients write again, and somebody puts the lost files back beside theirs.

Those files do not count, and nothing that they name is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from simulation.log_sim.blocking import SimulatedProcess
from simulation.log_sim.content import Row
from simulation.log_sim.mirrored import opened
from simulation.log_sim.restored import (
    AFTER_MS,
    BEFORE_MS,
    Nobody,
    Written,
    keep_up,
    process_of,
    rows_of,
    run_for,
    run_until,
    write_checkpoint,
)
from simulation.log_sim.restored_readers import PAUSES_MS
from simulation.log_sim.setting import COPIED_PARTITIONS, Simulation
from simulation.verdict import Violation
from spark_log.client.log import Log
from spark_log.errors import CorruptObject
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.records import CommitRecord
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG, checkpoint_version, log_version

LOST_MAX = 12
"""The most versions that are lost."""
LATE_MAX = 2
"""The most appends before the lost files are put back."""
BEHIND = 4
"""How many versions are lost before a record that stays; clients write fewer before the others are put back."""
FINISHED_MS = 300_000


def lose_and_put_back(sim: Simulation) -> None:
    """A whole run.  In the end, the log has what was kept, and what was written after the loss."""
    before, after, kept = Written(), Written(), set[Row]()
    sim.world.alone(write_checkpoint(sim))
    _write_for(sim, before, max(BEFORE_MS))
    sim.world.end_all(but=())
    sim.world.take_away(LOG, CHECKPOINTS, DATA)  # what is under way has no effect
    sim.world.take_away()
    sim.world.store.watch(Nobody())
    lost = _lose_last(sim)
    left = [*lost][BEHIND : BEHIND + 1] if sim.leaves_record else []
    sim.world.store.files[LOG].update((name, lost[name]) for name in left)
    sim.oracle.seen["left behind"] += len(left)
    _run(sim, lambda log, process: kept.update(rows_of(log)))
    _run(sim, partial(_write_some, sim, after))
    objects = _put_back(sim.world.store.files[LOG], lost)
    _write_for(sim, after, sim.rng.choice(AFTER_MS))
    sim.world.end_faults()
    sim.world.end_all(but=("maintenance",))
    _run(sim, partial(_check, kept, before, after))
    if gone := sorted(objects - set(sim.world.store.files[DATA])):
        raise Violation(f"kept: {gone[:2]} were deleted, and records that were put back name them")
    sim.oracle.seen["objects put back"] += len(objects)


def _write_for(sim: Simulation, written: Written, milliseconds: int) -> None:
    for number in range(sim.rng.choice((1, 2))):
        sim.world.start(f"writer{number}", partial(process_of, sim, partial(_write, sim, written)), counts=False)
    sim.world.start("maintenance", partial(process_of, sim, partial(_keep_up, sim)), counts=False)
    run_for(sim, milliseconds)


def _write(sim: Simulation, written: Written, log: Log, process: SimulatedProcess) -> None:
    """A writer, in part a new process for each append: the next one of a producer would not follow the lost ones."""
    while True:
        log = opened(sim, process) if sim.rng.random() < 0.5 else log
        rows = [Row(sim.fresh("h"), 0, process.now_ms()) for _ in range(sim.rng.randint(1, 4))]
        written.append(log, rows, sim.rng.randrange(COPIED_PARTITIONS))
        process.sleep_ms(sim.rng.choice(PAUSES_MS))


def _keep_up(sim: Simulation, log: Log, process: SimulatedProcess) -> None:
    """Maintenance, which names the records that were put back."""
    while True:
        try:
            keep_up(sim, log, process)
        except CorruptObject:
            sim.oracle.seen["named"] += 1


def _run(sim: Simulation, use: Callable[[Log, SimulatedProcess], None]) -> None:
    sim.world.start("one", partial(process_of, sim, use), counts=True)
    run_until(sim, FINISHED_MS, "a process is stuck")


def _lose_last(sim: Simulation) -> dict[str, bytes]:
    """Take the newest of two checkpoints away, and the last records, which the other one does not have."""
    records, checkpoints = sim.world.store.files[LOG], sim.world.store.files[CHECKPOINTS]
    if len(checkpoints) > 1:
        del checkpoints[max(checkpoints)]
    newest = max(map(checkpoint_version, checkpoints))
    later = sorted(name for name in records if log_version(name) > newest)[-sim.rng.randint(2, LOST_MAX) :]
    return {name: records.pop(name) for name in later}


def _write_some(sim: Simulation, written: Written, log: Log, process: SimulatedProcess) -> None:
    for _ in range(sim.rng.randint(1, LATE_MAX)):
        rows = [Row(sim.fresh("late"), 0, process.now_ms())]
        written.append(log, rows, sim.rng.randrange(COPIED_PARTITIONS))


def _put_back(records: dict[str, bytes], lost: dict[str, bytes]) -> set[str]:
    """Put lost records back where no client has written another one.  Returns the objects that they name."""
    objects = set[str]()
    for name, data in lost.items():
        if records.setdefault(name, data) is data:  # or it was left there
            commits = [record for record in decode_batch(data, name).records if isinstance(record, CommitRecord)]
            objects.update(made.name for commit in commits for made in commit.objects)
    return objects


def _check(kept: set[Row], before: Written, after: Written, log: Log, process: SimulatedProcess) -> None:
    rows = rows_of(log)
    there = set(rows)
    if len(there) < len(rows):
        raise Violation("twice: a record is in the log twice after records were put back")
    if missing := sorted(kept - there):
        raise Violation(f"kept: {missing[:2]} were in the log before records were put back")
    if mixed := sorted(there & before.all - kept):
        raise Violation(f"one line: {mixed[:2]} are of versions that were lost, and clients have written since")
    after.check(there, log.journal.state)
