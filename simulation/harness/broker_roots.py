"""Logs with brokers for tests and benchmarks: registration, and roots that follow orders in files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from simulation.harness.stores import ControlledStore
from spark_log.client.log import Log
from spark_log.client.producer.append import upload_rows
from spark_log.metadata.commands import Append
from spark_log.metadata.records import CommitRecord
from spark_log.metadata.replicas.replica_commands import RegisterBroker
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.replicas.replicas import holders
from spark_log.model import ACKS_LEADER
from spark_log.roots.broker_roots import BROKER_KEY, BrokerFile, Roots, encode_broker_file
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store
from spark_log.store.retry import with_retries


def write_broker_file(root: ObjectStore, file: BrokerFile) -> None:
    """Describe a root, in place of the description that it has."""
    root.put(BROKER_KEY, [encode_broker_file(file)])


def register_broker(
    log: Log,
    broker: int,
    url: str,
    *,
    is_async: bool = False,
    keep_ms: int = 0,
    replaces: bool = False,
    lose_data: bool = False,
) -> str:
    """Register a root with a new, empty directory; returns the name of the directory."""
    directory = f"{random.getrandbits(64):016x}"
    write_broker_file(open_store(url), BrokerFile(cluster_id=log.cluster_id, broker=broker, directory=directory))
    log.journal.propose(
        RegisterBroker(
            broker=broker,
            directory=directory,
            url=url,
            is_async=is_async,
            keep_ms=keep_ms,
            replaces=replaces,
            lose_data=lose_data,
        )
    )
    return directory


def commit_on_leader(log: Log, topic: str, rows: Sequence[dict[str, bytes]]) -> None:
    """Records with acks=1 of a process that has died since."""
    state = log.journal.refresh()
    uploaded = upload_rows(log.journal, topic, rows, state.version, acks=ACKS_LEADER)
    commit = CommitRecord(
        producer=log.journal.context.unique(),
        sequence=0,
        birth=state.version,
        upload_epoch=state.version,
        objects=uploaded.objects,
        slices=uploaded.slices,
        placed=uploaded.placed,
        acks=ACKS_LEADER,
    )
    log.journal.propose(Append(commit=commit))


class ControlledRoots(Roots):
    """The roots of a log; before each request to that of a broker, the order in the file `<folder>/<broker>` is obeyed.

    The orders are those of `ControlledStore`.
    """

    folder: Path
    mounts: dict[int, int]
    """By broker, how often this process has mounted its root again."""

    @classmethod
    def of(cls, log: Log, folder: Path) -> ControlledRoots:
        """Let a log use its roots in this way."""
        journal = log.journal

        def held_by(name: str) -> Sequence[int]:
            row = journal.newest.objects.get(name)
            return (OWN_BROKER,) if row is None else holders(journal.newest, row)

        clock = journal.context.clock
        options = journal.roots.options
        roots = cls(journal.roots.own, journal.cluster_id, lambda: journal.newest.brokers, held_by, options, clock)
        roots.folder, roots.mounts = folder, {}
        journal.stores = journal.stores._replace(objects=roots)
        return roots

    def __getitem__(self, broker: int) -> ObjectStore:
        return self._controlled(broker, super().__getitem__(broker))

    def root(self, broker: int) -> ObjectStore:
        return self._controlled(broker, super().root(broker))

    def _controlled(self, broker: int, store: ObjectStore) -> ObjectStore:
        if broker <= OWN_BROKER:
            return store
        inner = getattr(store, "inner", store)
        return with_retries(ControlledStore(inner, self._orders(broker)), self.clock)

    def mount(self, broker: int) -> int:
        return self.mounts.get(broker, 0)

    def mount_again(self, broker: int) -> None:
        """The root of a broker is mounted again, without an order.  Requests to the former mount still obey those that
        it has."""
        self.mounts[broker] = self.mount(broker) + 1

    def _orders(self, broker: int) -> Path:
        mount = self.mount(broker)
        return self.folder / (f"{broker}-{mount}" if mount else f"{broker}")

    def order(self, broker: int, text: str) -> None:
        """The behaviour of the root of a broker from now on; empty: as always."""
        self._orders(broker).write_text(text)
