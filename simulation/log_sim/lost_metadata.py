"""An end of a run: the metadata is lost, wholly or in part, and a process that may create a log opens the folder."""

from __future__ import annotations

from simulation.log_sim.blocking import SimulatedProcess, SimulatedStore, blocking
from simulation.log_sim.setting import Simulation
from simulation.log_sim.threads import SimulatedThreads
from simulation.mutation import Patch, patched
from simulation.verdict import Violation
from spark_log.client.log import Log
from spark_log.errors import SparkLogError
from spark_log.journal.journal import Journal
from spark_log.journal.storage import storage_log
from spark_log.journal.store_operations import Steps
from spark_log.maintenance.maintain import Maintainer
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import CHECKPOINTS, DATA, FORMAT_KEY, LOG, META


def lose_metadata(sim: Simulation) -> Steps[None]:
    """Lose `meta/format`, or all of `meta/`, at the end of a run.  No other log may begin beside the objects."""
    files = sim.world.store.files
    if not files[DATA]:
        return
    if sim.rng.random() < 0.5:
        files[META].pop(FORMAT_KEY, None)
    else:
        for folder in (META, LOG, CHECKPOINTS):
            files[folder].clear()
    left = {folder: set(names) for folder, names in files.items()}
    with patched((Patch(storage_log, "probe_once", _passes),)):
        yield from blocking(sim.world, lambda process: _begin(sim, process))
    sim.oracle.seen["lost metadata"] += 1
    if gone := sorted(name for folder, names in left.items() for name in names - files[folder].keys()):
        raise Violation(f"begun: {gone[0]} was deleted by a process that found no log")
    if new := sorted(name for folder in (LOG, CHECKPOINTS, DATA) for name in files[folder].keys() - left[folder]):
        raise Violation(f"begun: {new[0]} was written by a process that found no log")


def _passes(store: ObjectStore, **_: object) -> None:
    """The probe of a store, which has threads that the world does not know."""


def _begin(sim: Simulation, process: SimulatedProcess) -> None:
    """A producer creates a log where there is none; then maintenance runs."""
    store, threads = SimulatedStore(process), SimulatedThreads(process)
    try:
        journal = Journal.open(store, create=True, clock=process, rng=sim.rng, threads=threads)
        Maintainer(Log(journal), saves_memory=True).round_or_raise()
    except SparkLogError:
        sim.oracle.seen["not begun"] += 1
        return
    raise Violation(f"begun: {journal.cluster_id} is a second log, where objects of another one are")
