"""Files of another history beside later writes, of a log with brokers or a coordinator; `tests/servers` has buckets."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spark_log
from spark_log import Log
from spark_log.journal.other_lines import records_of_other_lines
from spark_log.maintenance.maintain import checkpoint, maintain_round
from spark_log.recovery.lost_ends import lost_text
from spark_log.recovery.repair import repair
from spark_log.recovery.verify import verify
from spark_log.recovery.verify_repair import verify_and_repair
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import DATA, LOG, log_key, log_version
from tests.recovery.test_lost_ends import FENCE_MS, pass_the_fence
from tests.replication.replicated_logs import add_broker, create_topic
from tests.services import Services

LOST = [f"b{number}" for number in range(5)]


class Mixed:
    """A log that has lost five versions.  A client has written since, and then the lost records were copied back."""

    def __init__(self, opened: Callable[[], Log], store: ObjectStore) -> None:
        self.opened, self.store = opened, store

    def begin(self, log: Log) -> None:
        log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": str(FENCE_MS)}})
        for number in range(3):
            log.append("t", [{"value": f"a{number}"}])
        checkpoint(log)
        checkpoint(log)
        self.version = log.journal.refresh().version
        for value in LOST:
            log.append("t", [{"value": value}])

    def lose(self) -> None:
        later = [name for name in self.store.list(LOG) if log_version(name) > self.version]
        self.records = {name: self.store.get(name) for name in later}
        self.store.delete(later)

    def copy_back(self) -> None:
        for name, data in self.records.items():
            self.store.put_new(name, data)

    @property
    def others(self) -> list[str]:
        return [log_key(self.version + number) for number in range(2, 6)]


def values(log: Log) -> list[str]:
    return [one.decode() for one in log.read("t").column("value").to_pylist()][3:]


def named(log: Log) -> list[str]:
    return [one.what for one in verify(log) if "the log has another version" in one.message]


def check_is_kept_until_given_up(mixed: Mixed, objects_at: Callable[[Log], list[set[str]]]) -> None:
    """The one line, what is named, and what maintenance and repair do with the rest."""
    with mixed.opened() as log:
        assert values(log) == ["LATE"] and named(log) == mixed.others
        others = log.journal.run(records_of_other_lines(log.journal.state))
        objects = {name for one in others for name in one.objects}
        assert len(objects) == 4 and pass_the_fence(log)
        assert all(objects <= there for there in objects_at(log))
    report = repair(mixed.store, is_alive=lambda _: False)
    assert [one.key for one in report.others] == mixed.others and {*mixed.others} <= {*report.moved}
    with mixed.opened() as log:
        assert values(log)[0] == "LATE" and named(log) == [] and "given again" in lost_text(log.journal)
        assert pass_the_fence(log) and all(objects <= there for there in objects_at(log))
        assert verify_and_repair(log, repair=True, lose_data=True).problems == ()
        assert pass_the_fence(log) == [] and not any(objects & there for there in objects_at(log))
        assert verify(log) == []


def mixed_log(opened: Callable[[], Log], store: ObjectStore) -> Mixed:
    mixed = Mixed(opened, store)
    with opened() as log:
        mixed.begin(log)
    mixed.lose()
    with opened() as late:
        late.append("t", [{"value": "LATE"}])
    mixed.copy_back()
    return mixed


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_objects_on_the_roots_of_brokers(tmp_path: Path) -> None:
    """The log's own root has none of them."""
    folder = tmp_path / "log"
    with spark_log.connect(str(folder), durability="os") as log:
        for broker in (1, 2):
            add_broker(log, broker, str(tmp_path / f"broker-{broker}"))
        create_topic(log, "t", (1, 2))

    def objects_at(log: Log) -> list[set[str]]:
        return [{*log.journal.roots[broker].list(DATA)} for broker in (1, 2)]

    mixed = mixed_log(lambda: spark_log.connect(str(folder), create=False), LocalStore(str(folder), durability="os"))
    check_is_kept_until_given_up(mixed, objects_at)


@pytest.fixture
def services() -> Iterator[Services]:
    services = Services()
    yield services
    services.close()


def test_while_a_coordinator_leads(services: Services, tmp_path: Path) -> None:
    """Its clients wrote, and it continues in its line; so does the next one."""
    folder = tmp_path / "log"
    store = LocalStore(str(folder), durability="os")
    mixed = Mixed(lambda: spark_log.connect(services.url(folder)), store)
    with mixed.opened() as log:
        mixed.begin(log)
    services.stop_all()
    mixed.lose()
    with mixed.opened() as late:
        late.append("t", [{"value": "LATE"}])
        mixed.copy_back()
        late.append("t", [{"value": "NEXT"}])
        assert values(late) == ["LATE", "NEXT"]
    with spark_log.connect(str(folder), create=False) as reader:
        assert values(reader) == ["LATE", "NEXT"]
    services.stop_all()
    with mixed.opened() as log:
        assert values(log) == ["LATE", "NEXT"]
        (problem, *_) = maintain_round(log).problems
        assert "nothing is deleted" in problem and "`pylog repair` moves the file away" in problem


def test_the_disk_of_a_broker_that_is_set_back(tmp_path: Path) -> None:
    """Readers get what the other broker has; verify names what is missing, and a repair copies it."""
    folder = tmp_path / "log"
    with spark_log.connect(str(folder), durability="os") as log:
        for broker in (1, 2):
            add_broker(log, broker, str(tmp_path / f"broker-{broker}"))
        create_topic(log, "t", (1, 2))
        log.append("t", [{"value": "a"}])
        shutil.copytree(tmp_path / "broker-1", tmp_path / "snapshot")
        log.append("t", [{"value": "b"}])
        shutil.rmtree(tmp_path / "broker-1")
        (tmp_path / "snapshot").rename(tmp_path / "broker-1")
        log.append("t", [{"value": "c"}])
        assert log.read("t").column("value").to_pylist() == [b"a", b"b", b"c"]
        found = verify(log)
        assert found and all("broker 1" in one.message for one in found), found
        assert verify_and_repair(log, repair=True).problems == ()
        assert verify(log, deep=True) == []
