"""`pylog repair` of a disk that was set back to a snapshot, beside what has read and written more than that has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark_pylog.export.manifest import Manifest

from spark_log import Log
from spark_log.client.consumer.consumer import Consumer
from spark_log.errors import InvalidRequest, UploadFenced
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.verify import verify
from spark_log.store.local import LocalStore
from tests.recovery.test_repair_loss import accept, lose_first, open_log, set_interval, topic_id, values
from tests.unit.exported_tables import case_of
from tests.unit.test_exports_of_restored_logs import export, planner_of

OLD = [b"old%d" % number for number in range(17)]
LOST = [b"lost%d" % number for number in range(5)]
NEW = [b"new%d" % number for number in range(12)]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Two checkpoints, and records behind them; `snapshot` is a copy of its folder."""
    store = LocalStore(str(tmp_path / "log"), durability="os")
    with open_log(store) as log:
        set_interval(log, 5)
        append(log, OLD)
        set_interval(log, 1000)
        append(log, OLD)
    shutil.copytree(tmp_path / "log", tmp_path / "snapshot")
    return store


def append(log: Log, some: list[bytes]) -> None:
    for value in some:
        log.append("t", [{"value": value}])


def set_back_and_repaired(store: LocalStore, folder: Path) -> Log:
    """The log as the snapshot has it without a lost record, with other records at the offsets of lost ones."""
    shutil.rmtree(folder / "log")
    shutil.copytree(folder / "snapshot", folder / "log")
    lose_first(store)
    assert accept(store).continues_at
    log = open_log(store)
    append(log, NEW * 4)
    return log


def polled(consumer: Consumer) -> Iterator[bytes]:
    for _ in range(6):
        for records in consumer.poll(timeout_ms=200).values():
            yield from (record.value for record in records)


def test_clients_that_were_ahead_of_the_snapshot_skip_and_write_nothing(store: LocalStore, tmp_path: Path) -> None:
    """Each topic has another id: a consumer begins with the new topic, and a transaction is refused."""
    with open_log(store) as ahead, ahead.consumer("t", auto_offset_reset="earliest") as consumer:
        append(ahead, LOST)
        assert list(polled(consumer))[-1:] == LOST[-1:]
        transaction = ahead.transaction("etl")
        transaction.__enter__().append("t", [{"value": b"late"}])
        log = set_back_and_repaired(store, tmp_path)
        with pytest.raises(UploadFenced):
            transaction.__exit__(None, None, None)
        wanted = values(log)
        assert not {*LOST, b"late"} & {*wanted} and wanted[-48:] == NEW * 4
        assert list(polled(consumer)) == wanted
        assert not verify(log)


def test_an_export_and_a_mirror_that_were_ahead_of_the_snapshot_are_refused(store: LocalStore, tmp_path: Path) -> None:
    with open_log(store) as ahead:
        append(ahead, LOST)
        mirror = LocalStore(tmp_path / "mirror")
        begin_mirror(ahead, mirror)
        Mirror(ahead, mirror).round()
        export(ahead, tmp_path)
        before = topic_id(ahead)
    with set_back_and_repaired(store, tmp_path) as log:
        with pytest.raises(InvalidRequest, match="Do not run it if an older copy of the log was restored"):
            Mirror(log, mirror).round()
        assert topic_id(log) != before
        with pytest.raises(InvalidRequest, match="'t' was deleted and created again"):
            planner_of(log, tmp_path, before).ends()
        assert Manifest(case_of("delta", tmp_path).url, {}).last() == 1
