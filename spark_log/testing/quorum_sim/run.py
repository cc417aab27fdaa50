"""One run of the simulation, from its seed."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field

from spark_log.testing.quorum_sim.calm import Calm
from spark_log.testing.quorum_sim.faults import Faults
from spark_log.testing.quorum_sim.mutations import DIRECTORY_KEPT, MUTATIONS
from spark_log.testing.quorum_sim.oracle import Violation
from spark_log.testing.quorum_sim.world import World
from spark_log.testing.sim.constants import patched

FAULTS_MS = 12_000


@dataclass(frozen=True)
class Result:
    seed: int
    violation: str
    """Empty if all promises were kept."""
    counts: Counter[str] = field(default_factory=Counter)
    transcript: tuple[str, ...] = ()


def simulate(seed: int, mutation: str = "", transcript: bool = False) -> Result:
    """Run a seed; the same one gives the same result."""
    violation = ""
    with ExitStack() as stack:
        if mutation:
            stack.enter_context(patched(MUTATIONS[mutation].patches))
        world = World(seed, keeps_directory=mutation == DIRECTORY_KEPT, transcript=transcript)
        try:
            faults = Faults(world)
            world.run(FAULTS_MS)
            faults.stop()
            Calm(world).run()
        except Violation as error:
            violation = f"at {world.now_ms} ms: {error}"
        except AssertionError as error:
            violation = f"at {world.now_ms} ms a replica stopped: {error}"
    return Result(seed, violation, world.counts, tuple(world.transcript or ()))
