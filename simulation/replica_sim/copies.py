"""An actor that makes backups, as `jobs/backup.py` does, and restores each of them in another place.

The files of the backups are real.  The process that makes them is simulated: it reads the simulated roots, and may be
killed at any of its operations.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulation.harness.clocks import ManualClock
from simulation.harness.stores import ClockedStore
from simulation.log_sim.blocking import SimulatedProcess, SimulatedStore, blocking
from simulation.log_sim.threads import SimulatedThreads
from simulation.replica_sim.copying import is_damaged
from simulation.replica_sim.oracle import directory_of, key_in
from simulation.replica_sim.setting import ReplicaSimulation
from simulation.verdict import Violation
from spark_log.client.log import Log
from spark_log.errors import SparkLogError
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.store_operations import Get, Sleep, Steps
from spark_log.metadata.replicas.replicas import holders
from spark_log.metadata.state import State
from spark_log.recovery.backup import back_up, begin_place
from spark_log.recovery.backup_copies import BackupShare, CopiedShare
from spark_log.recovery.backup_files import Backup, BackupFiles
from spark_log.recovery.restore_backup import restore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import DATA

BACKUPS = 10
"""About so many are made in a run."""


class Backups:
    """The folder of the backups, which outlives the process that makes them."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        """root:  an empty folder."""
        self._rng = rng
        self._restored = root / "restored"
        self.files = BackupFiles(
            LocalStore(str(root / "backups"), "os"), lambda folder: LocalStore(str(root / "backups" / folder), "os")
        )

    def restored(self, backup: Backup) -> tuple[State, set[str]]:
        """The log that a backup becomes: its state, and the objects that are there."""
        clock = ManualClock()
        store = ClockedStore(LocalStore(str(self._restored / backup.id), "os"), clock)

        def copy(shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
            for share in shares:
                folder = self.files.folder(share.folder)
                for one in share.objects:
                    store.put(one.name, (folder.get(one.name),))
                yield CopiedShare(len(share.objects), share.bytes, {})

        report = restore(self.files, backup, store, Context(clock, self._rng), copy)
        if report.problems:
            raise Violation(f"whole: the log of {backup.id} has problems: {report.problems[0]}")
        journal = Journal.open(store, create=False, clock=clock, rng=self._rng)
        return journal.state, set(store.list(DATA))


def backup_job(sim: ReplicaSimulation, backups: Backups) -> Steps[None]:
    """Make a backup now and then, restore it, and compare."""
    for _ in range(BACKUPS):
        yield Sleep(sim.rng.choice((20, 300, 1000)))
        yield from blocking(sim.world, lambda process: _back_up(sim, backups, process))


def _back_up(sim: ReplicaSimulation, backups: Backups, process: SimulatedProcess) -> None:
    store, threads = SimulatedStore(process), SimulatedThreads(process)
    log = Log(Journal.open(store, create=False, clock=process, rng=sim.rng, threads=threads))
    try:
        begin_place(log, backups.files, create=True)
        made = back_up(log, backups.files, lambda shares: _copied(backups.files, log, process, shares)).backup
    except SparkLogError:  # such as the only root with an object is away
        sim.oracle.seen["backups put off"] += 1
        return
    sim.oracle.check_copy(made.end.version, *backups.restored(made))
    sim.oracle.seen["backups"] += 1


def _copied(
    files: BackupFiles, log: Log, process: SimulatedProcess, shares: Sequence[BackupShare]
) -> Iterator[CopiedShare]:
    """Copy objects of which some root has a good copy.  Only their sizes are put: what they have is known by name."""
    for share in shares:
        absent = dict[str, str]()
        for one in share.objects:
            if one.row is None or _is_there(process, log.journal.state, one.name):
                size = 1 if one.row is None else one.row.size
                files.folder(share.folder).put(one.name, (bytes(size),))
            else:
                absent[one.name] = f"{one.name} is on no root that answers"
        yield CopiedShare(len(share.objects) - len(absent), share.bytes, absent)


def _is_there(process: SimulatedProcess, state: State, name: str) -> bool:
    row = state.objects.get(name)
    for broker in holders(state, row) if row is not None else ():
        try:
            found = process.ask(Get(key_in(directory_of(state, broker), name), 0, None, broker))
        except SparkLogError:
            continue
        if found is not None and not is_damaged(found):
            return True
    return False
