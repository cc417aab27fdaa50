"""A log whose metadata and whose objects are in different stores: each operation goes to the right one."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from spark_log import Log, NewTopic
from spark_log.client.producer.append import upload_rows
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.maintenance.maintain import checkpoint, collect_garbage, maintain_once, plan_round
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.recovery.verify import verify
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import FORMAT_KEY
from tests.maintenance.logs import HOUR_MS, SEAL_ALL, append_small, pass_the_fence, rows

Pair = tuple[ObjectStore, ObjectStore]
"""For the metadata, for the objects."""
INDEXED = 1001
"""A commit with so many slices puts them into a slice index."""


@pytest.fixture(params=["memory", "local"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    """Two stores of one kind."""
    if request.param == "local":
        return LocalStore(str(tmp_path / "metadata"), "os"), LocalStore(str(tmp_path / "objects"), "os")
    return MemoryStore(f"metadata-{uuid.uuid4().hex}"), MemoryStore(f"objects-{uuid.uuid4().hex}")


def open_log(stores: Pair, limits: StepLimits = StepLimits()) -> Log:  # noqa: B008  it is frozen
    journal = Journal.open(*stores, create=True, limits=limits)
    metadata, objects = stores
    objects.put_new(
        FORMAT_KEY, metadata.get(FORMAT_KEY)
    )  # as a root has it, so that it is not taken for another folder
    return Log(journal)


def objects_of(stores: Pair) -> list[str]:
    """All objects, after a check that each store has only its own keys."""
    metadata, objects = stores
    assert metadata.list("data/") == [] and objects.list("meta/") == [FORMAT_KEY]
    assert metadata.list("meta/log/") or metadata.list("meta/ckpt/")
    return objects.list("data/")


def test_records_go_to_one_store_and_metadata_to_the_other(stores: Pair) -> None:
    """Appended, committed with a slice index, scanned, and opened again by another process."""
    log = open_log(stores)
    log.create_topic(NewTopic("t", INDEXED))
    log.append("t", pa.concat_tables([rows(number, 1, partition=number) for number in range(INDEXED)]))
    with log.transaction("job") as transaction:
        transaction.append("t", rows(0, 2))
    with log.producer() as producer:
        producer.send("t", b"one", partition=0)
    names = objects_of(stores)
    assert {name.rpartition(".")[2] for name in names} == {"seg", "idx"}
    again = open_log(stores)
    assert again.read("t").num_rows == INDEXED + 3
    assert (log.url, log.journal.objects.url) == (stores[0].url, stores[1].url)
    assert verify(again, deep=True) == []


def test_maintenance_of_two_stores(stores: Pair) -> None:
    """Sealing, merging, retention and garbage collection find their objects, and leave none that is not needed."""
    log = open_log(stores, SEAL_ALL)
    log.create_topic(NewTopic("t", 1, {"retention.ms": str(HOUR_MS)}))
    log.journal.propose(lambda state, now: decide_set_configs(state, None, {"gc.fence.age.ms": "1"}))
    append_small(log, 2, age_ms=2 * HOUR_MS)
    append_small(log, 20)
    upload_rows(log.journal, "t", [{"value": b"never committed"}], log.journal.state.version)
    checkpoint(log)
    assert any(name.endswith(".idx") for name in objects_of(stores))
    assert plan_round(log).expired_records == 6
    report = maintain_once(log)
    assert (report.expired_records, report.merged_slices, report.segments) == (6, 20, 1)
    append_small(log, 1, first=20)
    pass_the_fence(log)
    collect_garbage(log)
    state = log.journal.refresh()
    assert set(objects_of(stores)) == {*state.objects, *state.dropped}
    assert log.read("t").num_rows == 63 and verify(log, deep=True) == []


def test_a_missing_object_is_looked_for_in_its_own_store(stores: Pair) -> None:
    """Another object of its name beside the metadata does not help."""
    log = open_log(stores)
    log.create_topic(NewTopic("t", 1))
    append_small(log, 1)
    (name,) = objects_of(stores)
    stores[0].put(name, [stores[1].get(name)])
    stores[1].delete([name])
    assert [problem.what for problem in verify(log)] == [name]
