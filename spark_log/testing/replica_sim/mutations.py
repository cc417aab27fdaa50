"""The rules of replicas, each removed in turn: the simulation has to notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_log.testing.sim.constants import Mutation, patched

MUTATIONS: dict[str, Mutation] = {}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Run without one rule; the empty name runs with all rules."""
    with patched(MUTATIONS[name].patches if name else ()):
        yield
