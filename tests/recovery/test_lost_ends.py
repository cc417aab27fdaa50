"""The last versions of the metadata log are lost: objects show it, and are kept until somebody decides."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from spark_log import Log
from spark_log.errors import ConcurrentChange, CorruptObject, InvalidRequest, LogRestored, UploadFenced
from spark_log.journal.journal import Journal
from spark_log.journal.lost_versions import LATE_MS
from spark_log.maintenance.maintain import checkpoint, collect_garbage, find_garbage, maintain_round
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.state import Leadership
from spark_log.recovery.log_move import move_log
from spark_log.recovery.lost_ends import OLD_MS, lost_text
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.object_repair import repair_objects
from spark_log.recovery.repair import RepairReport, repair
from spark_log.recovery.verify import verify
from spark_log.recovery.verify_repair import verify_and_repair
from spark_log.serve.serve import Running
from spark_log.serve.serve_quorum import RunningNode
from spark_log.store.local import LocalStore
from spark_log.store.object_names import (
    CHECKPOINTS,
    DATA,
    LOG,
    LOST_VERSIONS,
    checkpoint_version,
    data_key,
    log_version,
    upload_epoch,
)
from tests.processes import free_port
from tests.quorum.node.quorum_nodes import one_node, run
from tests.replication.replicated_logs import replicated_log
from tests.server.quorum.test_quorum_folder import leading, url_of
from tests.services import Services

FENCE_MS = 1


def young_log(folder: Path) -> Log:
    """With three records in a checkpoint, and garbage that can be deleted after a millisecond."""
    log = spark_log.connect(str(folder), durability="os")
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": str(FENCE_MS)}})
    for number in range(3):
        log.append("t", [{"value": f"a{number}"}])
    checkpoint(log)
    checkpoint(log)
    return log


def store_of(folder: Path) -> LocalStore:
    return LocalStore(str(folder), durability="os")


def lose_after(folder: Path, version: int) -> None:
    store = store_of(folder)
    store.delete([name for name in store.list(LOG) if log_version(name) > version])


def lose_checkpoints(store: LocalStore) -> None:
    """All of them, of a log that has deleted the records before the older one."""
    oldest, _ = store.list(CHECKPOINTS)
    store.delete([name for name in store.list(LOG) if log_version(name) <= checkpoint_version(oldest)])
    store.delete(store.list(CHECKPOINTS))


def lost_log(
    folder: Path, commits: int = 5, change: Callable[[Log], object] = lambda log: None
) -> tuple[Log, set[str]]:
    """A log that has lost its last commits, and the objects of these.

    change:  in the lost versions, before the commits.
    """
    log = young_log(folder)
    version, before = log.journal.state.version, {*store_of(folder).list(DATA)}
    change(log)
    for number in range(commits):
        log.append("t", [{"value": f"b{number}"}, {"value": "x"}])
    log.close()
    lose_after(folder, version)
    return spark_log.connect(str(folder), create=False), {*store_of(folder).list(DATA)} - before


def pass_the_fence(log: Log, appends: int = 1) -> list[str]:
    """Write, and collect garbage until the fence has passed that; the problems of the last round."""
    problems = list[str]()
    for _ in range(3):
        for _ in range(appends):
            log.append("t", [{"value": "new"}])
        time.sleep(3 * FENCE_MS / 1000)
        problems = [*maintain_round(log).problems]
    return problems


def repaired(folder: Path, *, accept_loss: bool = False) -> RepairReport:
    def is_alive(holder: Leadership) -> bool:
        return False

    return repair(store_of(folder), is_alive=is_alive, accept_loss=accept_loss)


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_lost_versions_are_named_with_their_objects(tmp_path: Path) -> None:
    log, objects = lost_log(tmp_path)
    version = log.journal.state.version
    (problem,) = verify(log)
    assert problem.what == LOG
    assert f"versions {version + 1} to {version + 4} of the log are lost" in problem.message
    assert "No record names 5 objects of these versions, with 10 records" in problem.message
    assert all(name in problem.message for name in objects)
    assert "pylog recover -u MIRROR" in problem.message and "pylog repair --accept-loss" in problem.message
    assert lost_text(log.journal)


# Promise: cli.md#pylog-repair
def test_repair_refuses_to_continue_without_lost_versions(tmp_path: Path) -> None:
    log, objects = lost_log(tmp_path)
    version, files = log.journal.state.version, store_of(tmp_path).list("meta/")
    with pytest.raises(CorruptObject, match=rf"one file of meta/ckpt/, of version {version + 4} or later"):
        repaired(tmp_path)
    assert store_of(tmp_path).list("meta/") == files
    report = repaired(tmp_path, accept_loss=True)
    assert {*report.unnamed} == objects and report.kept_topics == ("t",)
    assert report.left_out == ("topic t lacks 10 records in 5 objects without a reference",)
    log = spark_log.connect(str(tmp_path))
    assert verify(log, deep=True) == [] and lost_text(log.journal) == ""
    assert log.read("t").num_rows == 3


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_maintenance_keeps_the_objects_of_lost_versions_until_they_are_given_up(tmp_path: Path) -> None:
    """Also when the log has long passed these versions."""
    log, objects = lost_log(tmp_path)
    version = log.journal.state.version
    (problem,) = maintain_round(log).problems
    assert f"versions {version + 1} to {version + 4} of the log are lost" in problem
    assert log.journal.refresh().version == version
    assert pass_the_fence(log, appends=4)
    assert log.journal.refresh().fence > max(int(name[5:21], 16) for name in objects)
    assert objects <= {*store_of(tmp_path).list(DATA)} and find_garbage(log) == []
    with pytest.raises(CorruptObject, match="no objects are deleted"):
        collect_garbage(log)
    (found,) = verify(log)
    assert f"versions {version + 1} to {version + 4} were given again, with offsets of lost records" in found.message
    assert all(name in found.message for name in objects) and "--lose-data" in lost_text(log.journal)
    done = verify_and_repair(log, repair=True, lose_data=True)
    assert done.problems == () and done.lost is not None
    assert pass_the_fence(log) == []
    assert not objects & {*store_of(tmp_path).list(DATA)}
    assert store_of(tmp_path).size(LOST_VERSIONS) is None


def test_a_log_with_a_loss_is_not_moved_without_its_objects(tmp_path: Path) -> None:
    """Neither while the versions are ahead, nor after the log has given them again."""
    log, _ = lost_log(tmp_path / "log")
    target = store_of(tmp_path / "target")

    def moved() -> None:
        move_log(Log(Journal.open(store_of(tmp_path / "log"), create=False)), target)

    with pytest.raises(InvalidRequest, match="cannot be moved, because objects that no record names"):
        moved()
    maintain_round(log)
    for number in range(5):
        log.append("t", [{"value": f"c{number}"}])
    with pytest.raises(InvalidRequest, match="were given again"):
        moved()
    verify_and_repair(log, repair=True, lose_data=True)
    moved()
    assert spark_log.connect(target.url).read("t").num_rows == 8


def test_what_is_given_up_at_once_is_not_reported_again(tmp_path: Path) -> None:
    """A log that was set back on purpose, into which a client that was not stopped has put an object."""
    log, _ = lost_log(tmp_path)
    assert verify_and_repair(log, repair=True, lose_data=True).problems == ()
    assert maintain_round(log).problems == () and verify(log) == [] and lost_text(log.journal) == ""
    log.append("t", [{"value": "c"}])
    log.close()
    lose_after(tmp_path, log.journal.state.version - 1)
    again = spark_log.connect(str(tmp_path))
    store_of(tmp_path).put(data_key(again.journal.state.version + 9, "0123456789abcdef.seg"), (b"x",))
    assert maintain_round(again).problems and verify(again)


# Promise: cli.md#pylog-repair
@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_is_given_up_is_not_missed_by_a_repair(tmp_path: Path, is_damaged: bool) -> None:
    """It has nothing to do, or repairs what is damaged, without a loss."""
    log, _ = lost_log(tmp_path)
    verify_and_repair(log, repair=True, lose_data=True)
    log.close()
    store = store_of(tmp_path)
    if is_damaged:
        store.put(store.list(CHECKPOINTS)[-1], (b"x",))
    report = repaired(tmp_path)
    assert report.lost == () and report.needed == is_damaged
    log = spark_log.connect(str(tmp_path))
    assert verify(log) == [] and log.read("t").num_rows == 3


def test_an_accepted_loss_continues_beyond_what_was_given_up(tmp_path: Path) -> None:
    log, _ = lost_log(tmp_path)
    verify_and_repair(log, repair=True, lose_data=True)
    version = log.journal.refresh().version
    log.close()
    store = store_of(tmp_path)
    store.put(store.list(LOG)[0], (b"x",))
    store.delete(store.list(CHECKPOINTS))
    assert repaired(tmp_path, accept_loss=True).lost
    log = spark_log.connect(str(tmp_path))
    assert log.journal.state.version > version + 4
    assert verify(log) == [] and lost_text(log.journal) == "" and maintain_round(log).problems == ()


def test_a_loss_ends_when_the_files_are_restored(tmp_path: Path) -> None:
    log = young_log(tmp_path)
    version, store = log.journal.state.version, store_of(tmp_path)
    for number in range(5):
        log.append("t", [{"value": f"b{number}"}])
    log.close()
    kept = {name: store.get(name) for name in store.list(LOG)}
    lose_after(tmp_path, version)
    assert maintain_round(spark_log.connect(str(tmp_path))).problems and store.size(LOST_VERSIONS)
    for name, data in kept.items():
        store.put(name, (data,))
    log = spark_log.connect(str(tmp_path))
    assert verify(log) == [] and lost_text(log.journal) == ""
    assert pass_the_fence(log) == [] and store.size(LOST_VERSIONS) is None
    assert log.read("t").num_rows == 11


@pytest.mark.parametrize("is_damaged", [False, True])
def test_one_file_of_a_copy_brings_all_back(tmp_path: Path, is_damaged: bool) -> None:
    """A checkpoint of a later version, as the error says, also after both checkpoints of a truncated log are lost."""
    log = young_log(tmp_path / "log")
    store = store_of(tmp_path / "log")
    for number in range(3):
        log.append("t", [{"value": f"b{number}"}])
    checkpoint(log)
    log.close()
    (name,) = store.list(CHECKPOINTS)[-1:]
    data = store.get(name)
    if is_damaged:
        lose_checkpoints(store)
    else:
        store.delete([name])
        lose_after(tmp_path / "log", log.journal.state.version - 3)
    with pytest.raises(CorruptObject, match="Copy one file of meta/ckpt/, of version"):
        repaired(tmp_path / "log")
    store.put(name, (data,))
    repaired(tmp_path / "log")
    assert spark_log.connect(str(tmp_path / "log")).read("t").num_rows == 6


# Promise: storage-failures.md#continue-without-what-is-lost
def test_the_topics_that_are_dropped_are_counted(tmp_path: Path) -> None:
    """Without any checkpoint nothing has their names; the objects have their ids, and their records."""
    log = young_log(tmp_path)
    log.append("u", [{"value": "x"}])
    for _ in range(2):
        checkpoint(log)
        log.append("t", [{"value": "b"}])
    lose_checkpoints(store_of(tmp_path))
    report = repaired(tmp_path, accept_loss=True)
    assert report.kept_topics == () and len(report.left_out) == 2
    assert any("with 5 records in 5 objects" in text for text in report.left_out)
    assert all("a topic is dropped" in text for text in report.left_out)


def test_a_newer_copy_shows_what_the_log_has_lost(tmp_path: Path) -> None:
    """Even the very last record."""
    log = young_log(tmp_path / "log")
    mirror = store_of(tmp_path / "mirror")
    begin_mirror(log, mirror)
    log.append("t", [{"value": "last"}])
    Mirror(log, mirror).round()
    lose_after(tmp_path / "log", log.journal.state.version - 1)
    log.close()
    log, copy = spark_log.connect(str(tmp_path / "log")), Journal.open(mirror, create=False)
    (problem,) = repair_objects(log, copy).problems
    assert f"pylog recover -u {mirror.url}" in problem.message
    assert repair_objects(Log(copy), log.journal).problems == ()


def test_the_last_record_of_all_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An upload that has ended long ago and has no commit is not always a loss, and a young one hardly ever."""
    log, (name,) = lost_log(tmp_path, commits=1)
    caplog.set_level(logging.WARNING, "spark_log")
    assert verify(log) == [] and "is lost" not in caplog.text
    old_s = time.time() - OLD_MS / 1000 - 60
    os.utime(tmp_path / name, (old_s, old_s))
    assert verify(log) == [] and f"with 2 records: {name}" in caplog.text and "is lost" in caplog.text
    assert maintain_round(log).problems == ()


class TestNothingIsLost:
    """Logs that have objects above their newest version, or unreferenced ones, as they should."""

    def test_a_mirror_gets_objects_first(self, tmp_path: Path) -> None:
        log = young_log(tmp_path / "log")
        mirror = store_of(tmp_path / "mirror")
        begin_mirror(log, mirror)
        copies = Mirror(log, mirror)
        copies.round()
        name = data_key(log.journal.state.version + 99, "0123456789abcdef.seg")
        mirror.put(name, (b"x",))
        assert copies.round().behind == 0
        journal = Journal.open(mirror, create=False)
        assert verify(Log(journal)) == [] and lost_text(journal) == ""
        recover(mirror, force=True)
        recovered = spark_log.connect(mirror.url)
        assert verify(recovered) == [] and lost_text(recovered.journal) == ""
        assert maintain_round(recovered).problems == ()
        late_s = time.time() + LATE_MS / 1000 + 60
        os.utime(tmp_path / "mirror" / name, (late_s, late_s))
        assert verify(recovered) != []

    def test_an_upload_is_pending(self, tmp_path: Path) -> None:
        log = young_log(tmp_path)
        store_of(tmp_path).put(data_key(log.journal.state.version, "0123456789abcdef.seg"), (b"x",))
        assert verify(log) == [] and maintain_round(log).problems == ()

    @pytest.mark.parametrize("epoch", [1 << 62, (1 << 64) - 1])
    def test_a_file_has_a_name_that_no_log_gives(self, tmp_path: Path, epoch: int) -> None:
        """A log that continued beyond it could not be written."""
        log, _ = lost_log(tmp_path)
        store_of(tmp_path).put(data_key(epoch, "0123456789abcdef.seg"), (b"x",))
        version = log.journal.state.version
        assert f"versions {version + 1} to {version + 4} of" in verify(log)[-1].message
        log.close()
        repaired(tmp_path, accept_loss=True)
        log = spark_log.connect(str(tmp_path))
        log.append("t", [{"value": "x"}])
        assert log.read("t").num_rows == 4 and verify(log) == [] and maintain_round(log).problems == ()

    def test_a_stale_view_is_read_again(self, tmp_path: Path) -> None:
        stale = young_log(tmp_path)
        other = spark_log.connect(str(tmp_path), durability="os")
        for number in range(3):
            other.append("t", [{"value": f"b{number}"}])
        assert lost_text(stale.journal) == "" and verify(stale) == []

    def test_a_client_writes_while_garbage_is_counted(self, tmp_path: Path) -> None:
        young_log(tmp_path).append("t", [{"value": "x"}])
        store_of(tmp_path).put(data_key(1, "0123456789abcdef.seg"), (b"x",))
        time.sleep(3 * FENCE_MS / 1000)
        log = Log(Journal.open(BusyStore(str(tmp_path), durability="os"), create=False))
        assert find_garbage(log) == [data_key(1, "0123456789abcdef.seg")]

    def test_a_client_writes_while_repair_looks(self, tmp_path: Path) -> None:
        young_log(tmp_path)
        with pytest.raises(ConcurrentChange, match="stop all clients"):
            repair(BusyStore(str(tmp_path), durability="os"), is_alive=lambda _: False, dry_run=True)


class BusyStore(LocalStore):
    """A client writes to the log before each listing of objects."""

    def list(self, prefix: str) -> list[str]:
        if prefix == DATA:
            log = spark_log.connect(self.url)
            for number in range(3):
                log.append("t", [{"value": str(number)}])
        return super().list(prefix)


def _transaction(log: Log) -> None:
    with log.transaction("tx") as transaction:
        transaction.append("t", [{"value": "x"}])


def _compaction(log: Log) -> None:
    log.admin.create_topics([spark_log.NewTopic("c", configs={"cleanup.policy": "compact"})])
    for _ in range(3):
        log.append("c", [{"key": "k", "value": "v"}])
    maintain_round(log)


def _positions(log: Log) -> None:
    consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
    consumer.poll(timeout_ms=5000)
    consumer.commit()
    consumer.close()


def _erase(log: Log) -> None:
    log.append("t", [{"key": "k", "value": "v"}])
    log.admin.erase_records("t", ["k"])


@pytest.mark.parametrize("change", [_transaction, _compaction, _positions, _erase])
def test_whatever_the_lost_versions_did(tmp_path: Path, change: Callable[[Log], object]) -> None:
    log, objects = lost_log(tmp_path, change=change)
    assert any("are lost" in problem.message for problem in verify(log))
    assert maintain_round(log).problems
    assert pass_the_fence(log, appends=10)
    assert objects <= {*store_of(tmp_path).list(DATA)}
    assert log.read("t", end=3).column("value").to_pylist() == [b"a0", b"a1", b"a2"]


def test_objects_on_the_roots_of_brokers_are_kept(tmp_path: Path) -> None:
    log = replicated_log(tmp_path, gc_fence_age_ms=str(FENCE_MS))
    log.append("t", [{"value": "a"}])
    checkpoint(log)
    checkpoint(log)
    version = log.journal.state.version
    for number in range(4):
        log.append("t", [{"value": f"b{number}"}])
    before = {broker: {*log.journal.roots[broker].list(DATA)} for broker in log.journal.roots.brokers}
    log.close()
    lose_after(tmp_path / "log", version)
    log = spark_log.connect(str(tmp_path / "log"))
    assert log.journal.state.version == version and OWN_BROKER not in before
    assert "are lost" in verify(log)[-1].message
    assert maintain_round(log).problems and log.journal.refresh().version == version
    assert pass_the_fence(log, appends=6)
    for broker, names in before.items():
        assert names <= {*log.journal.roots[broker].list(DATA)}


def test_a_quorum_that_has_lost_versions_keeps_the_objects(tmp_path: Path) -> None:
    """Its nodes were set back, and the records were not; a client does the maintenance."""
    store, config = store_of(tmp_path / "records"), one_node(tmp_path)

    def check(url: str) -> None:
        log = spark_log.connect(url)
        log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": str(FENCE_MS)}})
        log.append("t", [{"value": "a"}])
        version = log.journal.refresh().version
        name = data_key(version + 2, "0123456789abcdef.seg")
        store.put(name, (b"x",))
        assert f"versions {version + 1} to {version + 2} of the log are lost" in maintain_round(log).problems[0]
        assert verify(log) and log.journal.refresh().version == version
        assert "pylog quorum restore" in lost_text(log.journal) and "--accept-loss" not in lost_text(log.journal)
        assert pass_the_fence(log, appends=4) and store.size(name)
        assert verify_and_repair(log, repair=True, lose_data=True).lost is not None
        assert verify(log) == [] and lost_text(log.journal) == ""

    async def scenario() -> None:
        async with leading(config) as node:
            await asyncio.to_thread(check, url_of(node))

    run(scenario)


def test_a_log_that_was_set_back_names_no_object_from_beyond_it(tmp_path: Path) -> None:
    """A transaction that was open is refused.  Its object shows the loss until somebody gives the lost versions up."""
    services, folder, port = Services(), tmp_path / "log", free_port()

    def started() -> Running:
        return services.start(folder, listen=f"127.0.0.1:{port}")

    try:
        running = started()
        log = spark_log.connect(services.url(folder))
        log.append("t", [{"value": "a"}])
        services.stop(running)
        shutil.copytree(folder, tmp_path / "copy")
        running = started()
        for _ in range(5):
            log.append("t", [{"value": "lost"}])
        transaction = log.transaction("x").__enter__()
        transaction.append("t", [{"value": "staged"}])
        services.stop(running)
        shutil.rmtree(folder)
        (tmp_path / "copy").rename(folder)
        started()
        with pytest.raises((UploadFenced, LogRestored), match="older copy"):  # the latter if it has noticed before
            transaction.__exit__(None, None, None)
        other = spark_log.connect(services.url(folder))
        assert not any(upload_epoch(name) >= other.journal.refresh().version for name in other.journal.state.objects)
        [problem] = verify(other)
        assert "are lost" in problem.message and maintain_round(other).problems
        assert verify_and_repair(other, repair=True, lose_data=True).problems == ()
        assert maintain_round(other).problems == () and other.read("t").column("value").to_pylist() == [b"a"]
    finally:
        services.close()


def test_a_page_of_a_node_that_is_behind_reports_no_loss(tmp_path: Path) -> None:
    """Clients of the leader put objects beyond the state that the node knows."""
    store, config = store_of(tmp_path / "records"), one_node(tmp_path)

    def check(node: RunningNode) -> None:
        log = spark_log.connect(url_of(node))
        log.append("t", [{"value": "a"}])
        store.put(data_key(log.journal.refresh().version + 2, "0123456789abcdef.seg"), (b"x",))
        assert lost_text(log.journal) != "" and lost_text(node.coordinator.open_log().journal) != ""
        assert lost_text(node.coordinator.open_final().journal) == ""
        assert maintain_round(log).problems
        assert lost_text(node.coordinator.open_final().journal) != ""

    async def scenario() -> None:
        async with leading(config) as node:
            await asyncio.to_thread(check, node)

    run(scenario)


def test_a_coordinator_notes_a_loss_before_it_writes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its clients would soon have written as many versions as are lost."""
    log, objects = lost_log(tmp_path, commits=2)
    version = log.journal.state.version
    log.close()
    services = Services()
    try:
        client = spark_log.connect(services.url(tmp_path))
        assert f"version {version + 1} of the log is lost" in caplog.text
        for _ in range(3):
            client.append("t", [{"value": "new"}])
        assert pass_the_fence(client) and objects <= {*store_of(tmp_path).list(DATA)}
        client.close()
    finally:
        services.stop_all()
        services.close()
