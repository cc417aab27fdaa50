"""The storage requests of a coordinator's client: the permissions in the docs are sufficient."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from simulation.harness.stores import Wrapper
from spark_log import NewTopic
from spark_log.client.log import Log
from spark_log.http.address import Target
from spark_log.journal.journal import Journal
from spark_log.rpc.client import HttpLink
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store
from tests.services import Services


class Noting(Wrapper):
    """Notes which names are written and deleted."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.written: list[str] = []

    def put(self, key: str, chunks: Iterable[bytes]) -> None:  # type: ignore[override]
        self.written.append(key)
        super().put(key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        self.written.append(key)
        return super().put_new(key, data)

    def delete(self, keys: Iterable[str]) -> None:
        names = list(keys)
        self.written += names
        super().delete(names)


# Promise: security.md#permissions-of-the-storage
def test_a_client_of_a_coordinator_writes_data_alone(services: Services, tmp_path: Path) -> None:
    """Records, positions, groups and topics: of the folder `meta/` it only reads.  A reader writes nothing."""
    running = services.start(tmp_path / "log")
    written: dict[str, list[str]] = {}
    for role in ("writer", "reader"):
        store = Noting(open_store(str(tmp_path / "log"), None, "os"))
        link = HttpLink(Target((running.coordinator.address,)), cluster_id=running.coordinator.cluster_id)
        with Log(Journal.open(store, create=False, link=link, served=True)) as log:
            if role == "writer":
                log.admin.create_topics([NewTopic("t", 2)])
                for number in range(150):  # more than a checkpoint's interval
                    log.append("t", [{"value": b"%d" % number}])
                with log.transaction("x") as txn:
                    txn.send("t", b"1")
            with log.consumer("t", group_id=f"g-{role}", auto_offset_reset="earliest") as consumer:
                assert consumer.poll(5000)
                consumer.commit()
        written[role] = store.written
    assert {name.partition("/")[0] for name in written["writer"]} == {"data"}
    assert written["reader"] == []
    services.stop(running)
