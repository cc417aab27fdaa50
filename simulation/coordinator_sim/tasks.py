"""Tasks of queries: those of one query do not know each other, and agree by a claim on the version that they read."""

from __future__ import annotations

import json

from simulation.coordinator_sim.setting import QuorumSimulation
from spark_log.errors import CoordinatorNotAvailable
from spark_log.journal.store_operations import Sleep, Steps

QUERY_MS = 2_000
"""How often a query begins."""


def task(sim: QuorumSimulation) -> Steps[None]:
    """One task of each query."""
    while True:
        try:
            yield from _read(sim, f"meta/pin/query-{sim.now // QUERY_MS}")
        except CoordinatorNotAvailable:
            sim.oracle.seen["tasks without a leader"] += 1
        yield Sleep(sim.rng.choice((20, 500)))


def _read(sim: QuorumSimulation, name: str) -> Steps[None]:
    value = yield from sim.log.claimed(name)
    if value is None:
        view = yield from sim.load()
        made = {"version": view.state.version, "made_ms": sim.now, "by": sim.fresh("task")}
        value = yield from sim.log.claim(name, json.dumps(made).encode())
    sim.oracle.check_claim(name, value)
    version = json.loads(value)["version"]
    state = yield from sim.log.state_at(version)
    if state is not None:
        sim.oracle.check_version(state, version, f"that of {name}")
