"""The log as the driver saw it: what it sends to its tasks, so that they need not look for the log themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from spark_log.journal.broker_roots import Roots as BrokerRoots
from spark_log.journal.root_options import RootOptions
from spark_log.metadata.replica_state import Broker
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store
from spark_log.store.retry import with_retries


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the objects of a log are stored."""

    urls: tuple[tuple[int, str], ...]
    """Each root by the id of its broker; 0 is the log's own root."""
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Storage options."""
    durability: str = "disk"

    def store(self, broker: int = 0) -> ObjectStore:
        """The objects in the root of a broker."""
        return with_retries(open_store(dict(self.urls)[broker], self.options.own(), self.durability))

    @property
    def options(self) -> RootOptions:
        """How roots are opened."""
        return RootOptions.of(dict(self.storage), self.durability)


@dataclass(frozen=True, slots=True)
class PlannedLog:
    """A log, and the version of it that the driver planned by."""

    url: str
    """Of the metadata log: a coordinator, or the log's own root."""
    token: str | None = field(repr=False)
    """For a coordinator."""
    roots: Roots
    cluster_id: str
    version: int
    brokers: tuple[tuple[int, Broker], ...] = ()
    """The registered brokers by id."""

    def broker_roots(self) -> BrokerRoots:
        """The roots of all brokers, which a process opens and checks once."""
        return _broker_roots(self.roots, self.cluster_id, self.brokers)


@lru_cache(maxsize=8)
def _broker_roots(roots: Roots, cluster_id: str, brokers: tuple[tuple[int, Broker], ...]) -> BrokerRoots:
    known = dict(brokers)
    return BrokerRoots(roots.store(), cluster_id, lambda: known, lambda name: (0,), roots.options)
