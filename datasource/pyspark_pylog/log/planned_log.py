"""The log as the driver saw it: what it sends to its tasks, so that they need not look for the log themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from spark_log.client.reader.plan import SliceRead
from spark_log.metadata.replicas.replica_state import OWN_BROKER, Broker
from spark_log.roots.broker_roots import ReplicatedStore
from spark_log.roots.broker_roots import Roots as BrokerRoots
from spark_log.roots.root_options import RootOptions
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store
from spark_log.store.retry import with_retries


@dataclass(frozen=True, slots=True)
class PlannedRoots:
    """Where the objects of a log are stored."""

    urls: tuple[tuple[int, str], ...]
    """Each root by the id of its broker; 0 is the log's own root."""
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Storage options."""
    durability: str = "disk"

    def store(self, broker: int = 0) -> ObjectStore:
        """The objects in the root of a broker."""
        return with_retries(open_store(dict(self.urls)[broker], self.options.own(), self.durability, has_begun=True))

    @property
    def options(self) -> RootOptions:
        """How roots are opened."""
        return RootOptions.of(dict(self.storage), self.durability)


class HoldersByState(Mapping[str, tuple[int, ...]]):
    """For the driver: the brokers that have an object, as its roots know them.  None of it is sent to tasks."""

    def __init__(self, roots: BrokerRoots) -> None:
        self._roots = roots

    def __getitem__(self, name: str) -> tuple[int, ...]:
        return tuple(self._roots.brokers_of(name))

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ()


@dataclass(frozen=True, slots=True)
class PlannedLog:
    """A log, and the version of it that the driver planned by."""

    url: str
    """The URL of the metadata log: a coordinator, or the log's own root."""
    token: str | None = field(repr=False)
    """For a coordinator."""
    roots: PlannedRoots
    cluster_id: str
    version: int
    time_ms: int = 0
    """When it was planned, by the driver's clock."""
    history: str = ""
    """The history of the log at that time, or when the tasks of the query agreed on a version."""
    served: bool = False
    """A coordinator serves the metadata: tasks must not use it on the storage."""
    brokers: tuple[tuple[int, Broker], ...] = ()
    """The registered brokers by id."""
    rack: str = ""
    """Where the tasks are (`client.rack`)."""
    holders: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)
    """By object, the brokers from which it can be read, in order; others may be on any root."""

    def of_reads(self, *reads: SliceRead) -> PlannedLog:
        """The log for a task with these reads."""
        return self.of_objects(read.slice.object for read in reads)

    def of_objects(self, names: Iterable[str]) -> PlannedLog:
        """The log for a task that reads these objects."""
        if not self.brokers:
            return self
        kept: dict[tuple[int, ...], tuple[int, ...]] = {}
        found: dict[str, tuple[int, ...]] = {}
        for name in names:
            order = None if name in found else self.holders.get(name)
            if order is not None:
                found[name] = kept.setdefault(order, order)
        return replace(self, holders=found)

    def objects(self) -> ObjectStore:
        """The objects of the log, from any of its roots."""
        if not self.brokers:
            return self.roots.store()
        return ReplicatedStore(self.broker_roots(), self.holders, self.rack)

    def broker_roots(self) -> BrokerRoots:
        """The roots of all brokers, which a process opens and checks once."""
        return _broker_roots(self.roots, self.cluster_id, self.brokers)


@lru_cache(maxsize=8)
def _broker_roots(roots: PlannedRoots, cluster_id: str, brokers: tuple[tuple[int, Broker], ...]) -> BrokerRoots:
    known = dict(brokers)
    anywhere = (OWN_BROKER, *sorted(known, key=lambda broker: (known[broker].fenced, broker)))
    return BrokerRoots(roots.store(), cluster_id, lambda: known, lambda name: anywhere, roots.options)
