"""One run of the simulation, from its seed."""

from __future__ import annotations

from functools import partial

from simulation.mutation import mutated
from simulation.quorum_sim.calm import Calm
from simulation.quorum_sim.faults import Faults
from simulation.quorum_sim.mutations import DIRECTORY_KEPT, MUTATIONS
from simulation.quorum_sim.world import World
from simulation.verdict import Result, violation_of

FAULTS_MS = 12_000


def simulate(seed: int, mutation: str = "", transcript: bool = False) -> Result:
    """Run a seed; the same one gives the same result."""
    with mutated(MUTATIONS, mutation):
        world = World(seed, keeps_directory=mutation == DIRECTORY_KEPT, transcript=transcript)
        violation = violation_of(partial(_simulate, world))
    at = f"at {world.now_ms} ms: {violation}" if violation else ""
    return Result(seed, at, world.counts, "\n".join(world.transcript or ()))


def _simulate(world: World) -> None:
    faults = Faults(world)
    world.run(FAULTS_MS)
    faults.stop()
    Calm(world).run()
