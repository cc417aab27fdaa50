"""The loss of the log, and its readers, which continue in the mirror that is recovered in its place.

The recovered log gets other records at the offsets after its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from simulation.log_sim.blocking import SimulatedProcess, blocking
from simulation.log_sim.clients import REFUSED
from simulation.log_sim.content import Row
from simulation.log_sim.mirrored import FOLDERS, MIRRORS, add_mirrors, check_whole, opened
from simulation.log_sim.readers_and_maintenance import maintainer, persistent
from simulation.log_sim.restored_readers import PAUSES_MS, READERS, read_parts
from simulation.log_sim.setting import COPIED, COPIED_ID, COPIED_PARTITIONS, Copied, Simulation
from simulation.log_sim.world import Simulated
from simulation.verdict import Violation
from spark_log.client.log import Log
from spark_log.errors import (
    ClockSkewed,
    ConcurrentChange,
    DataLoss,
    LogRestored,
    ObjectNotFound,
    OffsetOutOfRange,
    SparkLogError,
    StorageUnavailable,
    UnknownTopicOrPartition,
)
from spark_log.journal.storage import checkpointing
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.maintenance.maintain import Maintainer
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import State
from spark_log.recovery.mirror_recovery import become_log
from spark_log.store.object_names import CHECKPOINTS

EXPECTED = (*REFUSED, ConcurrentChange, LogRestored, ObjectNotFound, OffsetOutOfRange, StorageUnavailable)
"""Errors after which a process begins again."""
CALM_MS = 300_000
"""Within this time, readers have read all."""
RECOVERY_MS = 300_000
BEFORE_MS, AFTER_MS = (2000, 6000, 12_000), (500, 3000, 8000)
"""How long the log is used before it is lost, and after that, with faults."""
OUTAGE_MS = 60_000
"""Between the loss of a log and the return of its mirror under its URL: longer than requests are repeated."""


def lose_and_restore(sim: Simulation) -> None:
    """A whole run: readers, writers and maintenance are not stopped when the log is lost, and continue in its mirror.

    In the end, readers have read all that the log has.
    """
    written = Written()
    sim.world.alone(write_checkpoint(sim))
    _add_actors(sim, written)
    run_for(sim, sim.rng.choice(BEFORE_MS))
    for _ in range(sim.rng.choice((2, 3))):
        _lose_log(sim)
        run_for(sim, sim.rng.choice(AFTER_MS))
    sim.world.end_faults()
    sim.world.end_all(but=("reader ", "copier ", "maintenance"))
    sim.world.start("last", partial(process_of, sim, partial(_await_readers, sim, written)), counts=True)
    run_until(sim, 2 * CALM_MS, "a process is stuck")


def write_checkpoint(sim: Simulation) -> Steps[None]:
    """The first one: a process that knows none does not notice the loss by the checkpoints."""
    yield from checkpointing.checkpoint((yield from sim.load()), sim.context)


def _add_actors(sim: Simulation, written: Written) -> None:
    add_mirrors(sim)
    sim.readers = [kind(sim) for kind in READERS]
    for reader in sim.readers:
        start = partial(process_of, sim, reader.use, reader.refused)
        sim.world.start(f"reader {type(reader).__name__}", start, counts=False)
    for number in range(sim.rng.choice((1, 2))):
        sim.world.start(f"writer{number}", partial(process_of, sim, partial(_write, sim, written)), counts=False)
    for number in range(sim.rng.choice((1, 2))):
        sim.world.start(f"maintenance{number}", partial(process_of, sim, partial(keep_up, sim)), counts=False)
    sim.world.start("maintainer", persistent(partial(maintainer, sim)), counts=False)


def run_for(sim: Simulated, milliseconds: int) -> None:
    def wait() -> Steps[None]:
        yield Sleep(milliseconds)

    sim.world.start("wait", wait, counts=True)
    run_until(sim, 10 * milliseconds + 60_000, "a sleep does not end")


def run_until(sim: Simulated, milliseconds: int, stuck: str) -> None:
    if not sim.world.run(milliseconds):
        raise Violation(f"progress: {stuck}")


class Written:
    """The records of the copied topic that were acknowledged or refused."""

    def __init__(self) -> None:
        self.acked: dict[str, list[Row]] = {}
        """By history."""
        self.refused = set[Row]()
        self.all = set[Row]()

    def append(self, log: Log, rows: list[Row], partition: int) -> None:
        """Append rows.  Raises what `log.append` raises."""
        self.all.update(rows)
        try:
            log.append(COPIED, [{"value": json.dumps(row).encode(), "partition": partition} for row in rows])
        except SparkLogError as error:
            self.refused.update([] if error.maybe_applied else rows)
            raise
        self.acked.setdefault(history_of(log.journal.state), []).extend(rows)

    def check(self, there: set[Row], state: State) -> None:
        """Raises Violation if one of these records of the log was refused, or another one was acknowledged."""
        if wrong := sorted(self.refused & there):
            raise Violation(f"failed: {wrong[:2]} were refused, and are in the restored log")
        if lost := sorted(set(self.acked.get(history_of(state), [])) - there):
            raise Violation(f"acked: {lost[:2]} are not in the log in whose history they were acknowledged")


def _write(sim: Simulation, written: Written, log: Log, process: SimulatedProcess) -> None:
    while True:
        rows = [Row(sim.fresh("h"), 0, process.now_ms()) for _ in range(sim.rng.randint(1, 4))]
        written.append(log, rows, sim.rng.randrange(COPIED_PARTITIONS))
        process.sleep_ms(sim.rng.choice(PAUSES_MS))


def keep_up(sim: Simulation, log: Log, process: SimulatedProcess) -> None:
    maintenance = Maintainer(log, saves_memory=True)
    while True:
        maintenance.round_or_raise()
        process.sleep_ms(sim.rng.choice((5, 500, 2 * sim.age)))


def process_of(
    sim: Simulation, use: Callable[[Log, SimulatedProcess], None], refused: Callable[[DataLoss], None] | None = None
) -> Steps[None]:
    """A process that begins again after errors that other actors may cause."""

    def run(process: SimulatedProcess) -> None:
        while True:
            try:
                use(opened(sim, process), process)
                return
            except DataLoss as error:
                if refused is None:
                    raise
                refused(error)
            except SparkLogError as error:
                if not (error.maybe_applied or error.retriable or isinstance(error, EXPECTED)):
                    raise
            process.sleep_ms(sim.rng.choice(PAUSES_MS))

    return _again(partial(blocking, sim.world, run))


def _again(make: Callable[[], Steps[None]]) -> Steps[None]:
    while True:
        try:
            return (yield from make())
        except (ClockSkewed, ConcurrentChange, StorageUnavailable, UnknownTopicOrPartition):
            yield Sleep(10)


class Nobody:
    """The oracle has seen the lost log, and does not know the one in its place."""

    def written(self, key: str, content: Any, decided: State | None, now: int) -> None:
        """Not compared."""

    def deleted(self, key: str, now: int) -> None:
        """Not compared."""


def _await_readers(sim: Simulation, written: Written, log: Log, process: SimulatedProcess) -> None:
    deadline = process.monotonic_ms() + CALM_MS
    while late := _late(sim, ends := _ends(log.journal.refresh())):
        if process.monotonic_ms() > deadline:
            raise Violation(f"progress: {late} do not read all up to {ends}, after {sim.losses} losses")
        process.sleep_ms(100)
    state = log.journal.state
    rows = _read(log, ends)
    written.check({row for found in rows.values() for row in found}, state)
    for reader in sim.readers:
        reader.check({number: rows.get(number, []) for number in ends}, state)
    sim.oracle.seen["histories"] += 1


def _ends(state: State) -> dict[int, int]:
    return {number: part.readable_end for number, part in state.topic_partitions(COPIED_ID)}


def _read(log: Log, ends: dict[int, int]) -> dict[int, list[Row]]:
    return read_parts(log, [(number, 0, end) for number, end in ends.items()])


def rows_of(log: Log) -> list[Row]:
    """All records of the copied topic."""
    return [row for rows in _read(log, _ends(log.journal.refresh())).values() for row in rows]


def _late(sim: Simulation, ends: dict[int, int]) -> list[str]:
    return [type(reader).__name__ for reader in sim.readers if not reader.is_at(ends)]


# ------------------------------------------------------------------------------------------------- the loss of the log


def _lose_log(sim: Simulation) -> None:
    """Lose the log, and recover a mirror in its place, if one has anything of it."""
    files, losses = sim.world.store.files, sim.losses
    usable = [one for one in MIRRORS if files[one + CHECKPOINTS] and sim.mirrored.get(one) == losses]
    if not usable:
        return
    prefix = sim.rng.choice(usable)
    if not losses:
        check_whole(sim, prefix)
    sim.world.end_all(but=("reader ", "copier ", "writer", "maintenance"))
    sim.world.store.watch(Nobody())
    sim.world.take_away(*FOLDERS)
    sim.world.end_named(f"copier of {prefix}")
    sim.losses += 1
    run_for(sim, OUTAGE_MS)
    found: list[Copied] = []
    recovery = partial(blocking, sim.world, partial(_recover, sim, prefix, found))
    sim.world.start("recovery", partial(_again, recovery), counts=True)
    run_until(sim, RECOVERY_MS, f"{prefix} is not recovered")
    for folder in FOLDERS:
        files[folder] = {name.removeprefix(prefix): data for name, data in files[prefix + folder].items()}
        files[prefix + folder] = {}
    sim.world.take_away()
    sim.recovered.append(found[-1])
    sim.oracle.seen["recovered"] += 1


def _recover(sim: Simulation, prefix: str, found: list[Copied], process: SimulatedProcess) -> None:
    mirror = opened(sim, process, prefix).journal
    ends = _ends(mirror.state)
    become_log(mirror, (), mirror.state.version)
    found.append(Copied(history_of(opened(sim, process, prefix).journal.state), ends))
