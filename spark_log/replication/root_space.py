"""The space on the disks of brokers that lack objects.

A full disk may have a place for the small marks of its checks: then its broker is active, and gets no copies.
"""

from __future__ import annotations

from contextlib import suppress

from spark_log.errors import SparkLogError
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.replicas.replicas import is_active
from spark_log.metadata.state import State
from spark_log.replication.replicator import lag_of
from spark_log.roots.broker_roots import Roots
from spark_log.store.bounded_waits import Slot, Unfinished
from spark_log.store.open import free_of_url

ANSWER_S = 2.0
"""How long each root may take."""


def free_where_behind(roots: Roots, state: State) -> dict[int, int]:
    """The free bytes of the disks of active brokers that lack objects, as far as these are mounted here and answer."""
    found = dict[int, int]()
    for broker in sorted({OWN_BROKER, *state.brokers}):
        if is_active(state, broker) and lag_of(state, broker).objects:
            with suppress(SparkLogError, OSError, KeyError, Unfinished):
                free = Slot[int | None]().answer(lambda broker=broker: _free(roots, broker), ANSWER_S)  # type: ignore[misc]
                if free is not None:
                    found[broker] = free
    return found


def _free(roots: Roots, broker: int) -> int | None:
    roots.check(broker, again=True)
    return free_of_url(roots.own.url if broker == OWN_BROKER else roots.brokers[broker].url)
