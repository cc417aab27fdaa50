"""A copy of a log has each commit whole, with its positions and its identity, or none of it.

Commits with acks=all wait behind commits with acks=1, which one root alone has: their positions and versions count
already, so their records must be in each copy, or their writers skip them for ever.
"""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.client.admin.brokers import add_broker, fence_broker
from spark_log.client.log import Log
from spark_log.client.producer.append import txn_identity, upload_rows
from spark_log.client.producer.upload import join_uploads
from spark_log.errors import CorruptObject, InvalidRequest, NoLog, StorageUnavailable
from spark_log.metadata.commands import Append
from spark_log.metadata.records import CommitRecord, GroupCommit, OffsetEntry
from spark_log.model import ACKS_ALL, ACKS_LEADER
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.verify import verify
from spark_log.replication.replicator import Replicator
from spark_log.store.local import LocalStore
from tests.recovery.dying import Died, Dying
from tests.recovery.test_backup import Interrupted, Killed, Place, values

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """With two brokers, which have the topics "out" and "done"."""
    log = spark_log.connect(tmp_path / "log", create=True, durability="os")
    log.append("orders", [{"value": b"order"}] * 3)
    for broker in (1, 2):
        add_broker(log.journal, broker, str(tmp_path / f"disk{broker}"))
    for topic, partitions in (("out", 2), ("done", 1)):
        log.create_topic(NewTopic(topic, partitions, replica_assignment={key: [1, 2] for key in range(partitions)}))
    return log


def write_pending(log: Log) -> None:
    """Three commits with acks=1, a transaction from "orders" to "out", and a version of an application."""
    commit(log, "pair", [("done", 0, b"pair"), ("orders", 0, b"pair")], held=(1,), acks=ACKS_LEADER)
    commit(log, "one", [("out", 0, b"one")], held=(1,), acks=ACKS_LEADER)
    commit(log, "two", [("out", 0, b"two")], acks=ACKS_LEADER)
    position = OffsetEntry(log.journal.state.names["orders"], 0, 3)
    results = [("out", 0, b"result"), ("out", 1, b"result"), ("out", 1, b"result")]
    commit(log, "txn", results, groups=(GroupCommit("enrich", -1, (position,)),), birth=-1)
    nightly = txn_identity("nightly", 7, "done")
    commit(log, nightly.producer, [("done", 0, b"nightly")], birth=-1, sequence=nightly.sequence, dense=False)
    assert len(log.journal.state.pending) == 5


def commit(
    log: Log, producer: str, rows: list[tuple[str, int, bytes]], held: tuple[int, ...] = (1, 2), **fields: Any
) -> None:
    """A commit by a writer that is killed before its answer; of its brokers, only `held` have the objects.

    rows:  (topic, partition, value).
    """
    journal, state = log.journal, log.journal.refresh()
    uploads = [
        upload_rows(journal, topic, [{"key": b"k", "value": value, "partition": number}], state.version)
        for topic, number, value in rows
    ]
    upload = join_uploads(uploads)
    for broker in {1, 2} - {*held}:
        journal.roots[broker].delete([made.name for made in upload.objects])
    placed = [
        where._replace(held=tuple(one for one in where.held if one[0] in held)) if where.group else where
        for where in upload.placed
    ]
    known = {
        "producer": producer,
        "sequence": 0,
        "birth": state.version,
        "acks": ACKS_ALL,
        "upload_epoch": state.version,
    }
    record = CommitRecord(objects=upload.objects, slices=upload.slices, placed=tuple(placed), **(known | fields))
    journal.propose(Append(commit=record))


def check_whole(copy: Log, *kept: bytes) -> None:
    """Each commit is there or not, and the writers, which run again, see which.

    kept:  values of the commits with acks=1 that the copy has.
    """
    assert not copy.journal.state.pending and verify(copy, deep=True) == []
    out, done = values(copy, "out"), values(copy, "done")
    assert copy.admin.list_consumer_group_offsets("enrich")[ORDERS].offset == 3
    assert out.count(b"result") == 3, "the transaction is not repeated"
    again = copy.append("done", [{"value": b"nightly"}], txn_app_id="nightly", txn_version=7)
    assert len(again) == 1 and values(copy, "done").count(b"nightly") == 1
    found = {value: where.count(value) for value, where in ((b"one", out), (b"two", out), (b"pair", done))}
    assert found == {value: int(value in kept) for value in found}
    assert values(copy, "orders").count(b"pair") == found[b"pair"], "of both topics, or of none"
    copy.append("out", [{"value": b"new", "partition": 0}])
    assert values(copy, "out").count(b"new") == 1


# Promise: tasks/backup.md#restore
def test_a_backup_has_what_waits_behind_records_that_it_lacks(log: Log, tmp_path: Path) -> None:
    """It has no commit with acks=1 that readers do not see; the next backup has those that they see."""
    write_pending(log)
    place = Place(log, tmp_path / "backups")
    first = place.make().backup.id
    Replicator(log).round()
    place.make()
    new, done = place.restored(tmp_path / "new", first)
    assert done.problems == []
    check_whole(new)
    new, done = place.restored(tmp_path / "newer")
    assert done.problems == []
    check_whole(new, b"one", b"two", b"pair")
    assert place.lost() == set()


# Promise: tasks/backup.md#restore
def test_a_restoration_with_holes_is_killed_and_run_again(log: Log, tmp_path: Path) -> None:
    """Before each of its changes in turn."""
    write_pending(log)
    place = Place(log, tmp_path / "backups")
    place.make()

    def die() -> None:
        raise Killed

    for number in itertools.count(1):
        root = LocalStore(str(tmp_path / f"new{number}"), "os")
        steps = Interrupted(root, number, die, counts_reads=False)
        try:
            place.restored_to(steps)
        except Killed:
            with pytest.raises(NoLog):
                spark_log.connect(root.url, create=False).append("orders", [{"value": b"too early"}])
            place.restored_to(root)
        check_whole(spark_log.connect(root.url, create=False))
        if steps.left > 0:
            break
    assert number > 15


# Promise: tasks/backup.md#restore
def test_what_all_roots_lack_cannot_be_backed_up(log: Log, tmp_path: Path) -> None:
    """Nothing says that half of the transaction is enough."""
    write_pending(log)
    for broker in (1, 2):
        shutil.rmtree(tmp_path / f"disk{broker}")
    with pytest.raises(CorruptObject, match="no backup can be made"):
        Place(log, tmp_path / "backups").make()


# Promise: copies.md#keep-a-mirror
@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("away", [False, True])
def test_a_mirror_has_what_waits_behind_records_that_it_lacks(
    log: Log, tmp_path: Path, *, follows: bool, away: bool
) -> None:
    """It copies the records one by one, or the newest state.  The root with records of acks=1 is away, or not."""
    begin_mirror(log, store := LocalStore(str(tmp_path / "mirror"), "os"))
    if follows:
        Mirror(log, store).round()
    write_pending(log)
    if away:
        lose_disk(log, tmp_path)
    assert Mirror(log, store).round().behind == 0
    recover(store, force=True)
    check_whole(spark_log.connect(store.url), *([b"two"] if away else [b"one", b"two", b"pair"]))


def lose_disk(log: Log, tmp_path: Path) -> None:
    """The disk of broker 1 is away."""
    (tmp_path / "disk1").rename(tmp_path / "away1")
    fence_broker(log.journal, 1, "its disk is away")


# Promise: copies.md#keep-a-mirror
@pytest.mark.parametrize("after", [False, True])
def test_a_recovery_that_makes_holes_is_killed_at_any_write(log: Log, tmp_path: Path, *, after: bool) -> None:
    begin_mirror(log, store := LocalStore(str(tmp_path / "mirror"), "os"))
    write_pending(log)
    lose_disk(log, tmp_path)
    Mirror(log, store).round()
    for writes in itertools.count(1):
        copy = LocalStore(str(shutil.copytree(tmp_path / "mirror", tmp_path / f"mirror{writes}")), "os")
        dying = Dying(copy, writes, after=after)
        try:
            recover(dying, force=True)
        except Died:
            with suppress(InvalidRequest):  # it had ended
                recover(copy, force=True)
            check_whole(spark_log.connect(copy.url), b"two")
        else:
            break
    assert writes > 7


# Promise: copies.md#keep-a-mirror
def test_a_mirror_waits_for_a_transaction_whose_roots_are_away(log: Log, tmp_path: Path) -> None:
    """It has no record of it before it has its objects."""
    begin_mirror(log, store := LocalStore(str(tmp_path / "mirror"), "os"))
    mirror = Mirror(log, store)
    mirror.round()
    write_pending(log)
    for broker in (1, 2):
        (tmp_path / f"disk{broker}").rename(tmp_path / f"away{broker}")
    with pytest.raises(StorageUnavailable, match="when these roots are back"):
        mirror.round()
    for broker in (1, 2):
        (tmp_path / f"away{broker}").rename(tmp_path / f"disk{broker}")
    mirror.round()
    recover(store, force=True)
    check_whole(spark_log.connect(store.url), b"one", b"two", b"pair")


# Promise: copies.md#keep-a-mirror
def test_a_mirror_that_lost_a_part_of_a_transaction_is_not_recovered(log: Log, tmp_path: Path) -> None:
    """The transaction is pending, and its position counts: verify names the object, and a recovery refuses."""
    begin_mirror(log, store := LocalStore(str(tmp_path / "mirror"), "os"))
    write_pending(log)
    Mirror(log, store).round()
    victim = next(one for one in log.journal.state.pending if one.producer == "txn").objects[1]
    store.delete([victim])
    assert victim in [problem.what for problem in verify(spark_log.connect(store.url))]
    with pytest.raises(CorruptObject, match=f"lacks 1 object of version .*{victim}"):
        recover(store, force=True)
