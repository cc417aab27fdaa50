"""`pylog repair --accept-loss`: the log continues without lost versions, and no offset that they gave means another
record.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Faults, FaultyStore, Wrapper
from simulation.levels import TOMORROW, supporting
from spark_log import NewTopic
from spark_log.errors import (
    ConcurrentChange,
    CorruptObject,
    IllegalGeneration,
    InvalidRecord,
    InvalidRequest,
    ProducerFenced,
    SparkLogError,
    StorageError,
    UnknownTopicOrPartition,
    UploadFenced,
)
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import LIMITS
from spark_log.journal.sealing import seal
from spark_log.journal.storage.opening import state_in
from spark_log.maintenance.maintain import collect_garbage, maintain_once, merge
from spark_log.metadata import records as r
from spark_log.metadata.decide_coordinators import decide_take_over
from spark_log.metadata.features import METADATA_VERSION, SUPPORTED
from spark_log.metadata.maintenance.accepted_loss import RAISED, replay_after_loss
from spark_log.metadata.renewed_ids import VERSIONS
from spark_log.metadata.replay import replay
from spark_log.metadata.state import Leadership, State
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.model import OffsetAndMetadata, TopicPartition
from spark_log.recovery.repair import RepairReport, repair
from spark_log.recovery.verify import verify
from spark_log.store.base import Chunks, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS, DAMAGED, DATA, LOG, checkpoint_version, log_key
from tests.maintenance.logs import maintenance, pass_the_fence, slices

P0 = TopicPartition("t", 0)
VALUES = [b"%d" % number for number in range(17)]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """With two checkpoints, a few versions behind the newest, and no more checkpoints for long."""
    store = LocalStore(str(tmp_path / "log"), durability="os")
    log = open_log(store)
    set_interval(log, 5)
    for value in VALUES:
        log.append("t", [{"value": value}])
        log.close()
    set_interval(log, 1000)
    return store


def set_interval(log: spark_log.Log, versions: int) -> None:
    configs: dict[str, str | None] = {"metadata.checkpoint.interval": str(versions)}
    log.journal.propose(lambda state, now: decide_set_configs(state, None, configs))


def open_log(store: ObjectStore) -> spark_log.Log:
    return spark_log.Log(Journal.open(store, create=True))


def values(log: spark_log.Log, topic: str = "t") -> list[bytes]:
    return [value.as_py() for value in log.read(topic)["value"]]


def first_after_checkpoints(store: LocalStore) -> int:
    return checkpoint_version(store.list(CHECKPOINTS)[-1]) + 1


def lose_first(store: LocalStore) -> int:
    """The first version behind the newest checkpoint: one record, which is not the last.  How many records are before
    it.
    """
    version = first_after_checkpoints(store)
    store.delete([log_key(version)])
    return version - 3  # one version set the configs, one created the topic


def accept(store: ObjectStore, *, dry_run: bool = False, alive: bool = False) -> RepairReport:
    def is_alive(holder: Leadership) -> bool:
        return alive and bool(holder.address)

    return repair(store, is_alive=is_alive, dry_run=dry_run, accept_loss=True)


def topic_id(log: spark_log.Log) -> str:
    return log.admin.describe_topics(["t"])["t"].topic_id


# Promise: cli.md#pylog-repair, storage-failures.md#continue-without-what-is-lost
def test_what_is_certain_and_what_can_be_read_is_kept(store: LocalStore) -> None:
    """Without the flag nothing changes; with it the lost record alone is missing, and the log takes records again."""
    before = lose_first(store)
    files = {key: store.get(key) for key in store.list("meta/")}
    report = accept(store, dry_run=True)
    assert {key: store.get(key) for key in store.list("meta/")} == files
    with pytest.raises(CorruptObject, match=r"nothing was changed.*--accept-loss"):
        repair(store, is_alive=lambda holder: False)
    assert {key: store.get(key) for key in store.list("meta/")} == files
    later = len(VALUES) - before - 1
    assert report.kept == (
        f"t-0: offsets 0 to {before - 1} are kept; {later} records of later versions get the offsets from {before} on",
    )
    assert len(report.unnamed) == 1 and report.missing == ()
    assert accept(store) == report
    log = open_log(store)
    assert values(log) == [*VALUES[:before], *VALUES[before + 1 :]]
    assert log.append("t", [{"value": b"x"}])[P0] == range(before + later, before + later + 1)
    assert verify(log, deep=True) == []


def test_a_partition_without_records_has_nothing_that_could_be_uncertain(store: LocalStore) -> None:
    with open_log(store) as log:
        log.create_topic(spark_log.NewTopic("empty", 1))
    lose_first(store)
    assert accept(store, dry_run=True).kept[0] == "empty-0: no records up to the loss"


# Promise: storage-failures.md#continue-without-what-is-lost
def test_offsets_of_before_mean_nothing_any_more(store: LocalStore) -> None:
    """The topic has another id, and the version is beyond any that was lost."""
    old = open_log(store)
    version, before = old.journal.state.version, topic_id(old)
    lose_first(store)
    report = accept(store)
    log = open_log(store)
    assert version < report.continues_at == log.journal.state.version == VERSIONS
    assert topic_id(log) != before


# Promise: storage-failures.md#continue-without-what-is-lost
def test_a_client_that_knew_the_lost_versions_writes_nothing_under_them(store: LocalStore) -> None:
    """An upload that began before is void; its records for the topic that it knew are refused."""
    client = open_log(store)
    writing = client.transaction("etl")
    writing.__enter__()
    writing.append("t", [{"value": b"zombie"}])
    lose_first(store)
    accept(store)
    before = values(open_log(store))
    with pytest.raises((ProducerFenced, UploadFenced, UnknownTopicOrPartition)):
        writing.__exit__(None, None, None)
    assert values(open_log(store)) == before


# Promise: storage-failures.md#continue-without-what-is-lost
def test_a_transaction_that_was_open_can_commit_no_more(store: LocalStore) -> None:
    """Neither by its holder, nor by one whom a lost version let take the id over."""
    log = open_log(store)
    with log.transaction("etl") as transaction:
        transaction.append("t", [{"value": b"first"}])
    log.append("t", [{"value": b"between"}])
    holder = log.transaction("etl")
    holder.__enter__()
    log.append("t", [{"value": b"last"}])
    store.delete([log_key(log.journal.refresh().version - 1)])
    accept(store)
    new = open_log(store)
    assert [one.state for one in new.admin.list_transactions()] == ["CompleteAbort"]
    holder.append("t", [{"value": b"zombie"}])
    with pytest.raises(SparkLogError):
        holder.__exit__(None, None, None)
    assert b"zombie" not in values(open_log(store))
    with new.transaction("etl") as transaction:
        transaction.append("t", [{"value": b"next"}])
    assert values(new)[-1] == b"next"


# Promise: storage-failures.md#continue-without-what-is-lost
def test_members_of_groups_are_fenced_and_positions_stay(store: LocalStore) -> None:
    """At most at the end of what is certain: records are read twice rather than missed."""
    log = open_log(store)
    consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    assert len(consumer.poll(0, max_records=3)[P0]) == 3
    consumer.commit()
    log.admin.alter_consumer_group_offsets("far", {P0: OffsetAndMetadata(len(VALUES), "")})
    log.append("t", [{"value": b"lost"}])
    log.append("t", [{"value": b"later"}])
    log.admin.alter_consumer_group_offsets("last", {P0: OffsetAndMetadata(len(VALUES) + 2, "")})
    lost = next(v for v in range(log.journal.refresh().version, 0, -1) if b'"commit"' in store.get(log_key(v))) - 1
    store.delete([log_key(lost)])
    accept(store)
    with pytest.raises(IllegalGeneration):
        consumer.commit({P0: OffsetAndMetadata(5, "")})
    admin = open_log(store).admin
    assert admin.list_consumer_group_offsets("g") == {P0: OffsetAndMetadata(3)}
    assert admin.list_consumer_group_offsets("far") == {P0: OffsetAndMetadata(len(VALUES))}
    assert admin.list_consumer_group_offsets("last") == {P0: OffsetAndMetadata(len(VALUES))}
    assert values(open_log(store)) == [*VALUES, b"later"]


# Promise: storage-failures.md#continue-without-what-is-lost
def test_objects_of_lost_versions_are_not_collected_at_once(store: LocalStore) -> None:
    """They go when `gc.fence.age.ms` has passed, as if they had been dropped."""
    lose_first(store)
    (lost,) = accept(store).unnamed
    log = open_log(store)
    maintain_once(log)
    assert lost in store.list(DATA)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for _ in range(2):
        log.append("t", [{"value": b"x"}])
        pass_the_fence(log)
    assert lost not in store.list(DATA)


@pytest.mark.parametrize("inline", [3, 1000], ids=["names in a list", "names in the state"])
def test_objects_that_were_dropped_before_the_loss_are_not_named(store: LocalStore, inline: int) -> None:
    """They are garbage, and stay as long as the one with lost records."""
    log = spark_log.Log(Journal.open(store, create=False, limits=replace(LIMITS, dropped_inline=inline)))
    maintain_once(log)
    state, before = log.journal.refresh(), set(store.list(DATA))
    assert len(state.dropped_lists) == (inline == 3) and len(before - {*state.objects}) > 3
    log.append("t", [{"value": b"lost"}])
    (lost,) = set(store.list(DATA)) - before
    log.append("t", [{"value": b"later"}])
    store.delete([log_key(state.version + 1)])
    assert accept(store).unnamed == (lost,)
    state = open_log(store).journal.state
    assert {*state.dropped} == set(store.list(DATA)) - {*state.objects} > {lost}


# Promise: storage-failures.md#continue-without-what-is-lost
def test_moved_files_are_kept(store: LocalStore) -> None:
    """All records from the first lost version on, as they were."""
    version = first_after_checkpoints(store)
    damaged = store.get(log_key(version))[:-3]
    store.put(log_key(version), [damaged])
    aside = {
        key.removeprefix("meta/").replace("/", "-"): store.get(key)
        for key in store.list(LOG)
        if key >= log_key(version)
    }
    accept(store)
    assert {key.removeprefix(DAMAGED): store.get(key) for key in store.list(DAMAGED)} == aside


# Promise: storage-failures.md#continue-without-what-is-lost
def test_it_can_be_killed_anywhere_and_run_again(store: LocalStore) -> None:
    """It is either as before, or done."""
    before = lose_first(store)
    expected = [*VALUES[:before], *VALUES[before + 1 :]]
    for full_after in range(0, 6000, 200):
        broken = FaultyStore(store, random.Random(0), Faults(full_after=full_after))
        with suppress(StorageError):
            accept(broken)
        with suppress(CorruptObject):
            assert values(open_log(store)) == expected
    accept(store)
    assert values(open_log(store)) == expected
    assert verify(open_log(store)) == []
    assert open_log(store).journal.state.version == VERSIONS


def test_a_coordinator_that_only_a_later_version_names_is_asked(store: LocalStore) -> None:
    """It may have the log."""
    journal = open_log(store).journal
    journal.propose(lambda state, now: decide_take_over(state, 0, "127.0.0.1:1", "host", journal.cluster_id))
    lose_first(store)
    with pytest.raises(InvalidRequest, match=r"coordinator at 127\.0\.0\.1:1 serves"):
        accept(store, alive=True)
    accept(store)
    assert open_log(store).journal.state.coordinator == Leadership(1 + RAISED)


def test_a_second_loss_is_accepted_as_the_first(store: LocalStore) -> None:
    """Each loss has separate versions."""
    lose_first(store)
    accept(store)
    log = open_log(store)
    kept = values(log)
    for number in range(3):
        log.append("t", [{"value": b"%d" % number}])
    store.delete([log_key(log.journal.state.version - 1)])
    assert accept(store).continues_at == 2 * VERSIONS
    assert values(open_log(store)) == [*kept, b"0", b"2"]


def test_maintenance_goes_on_after_a_loss(store: LocalStore) -> None:
    """Checkpoints, truncation and merging: versions that there never were are not gone through one by one."""
    lose_first(store)
    accept(store)
    log = open_log(store)
    kept = values(log)
    for number in range(30):
        log.append("t", [{"value": b"%d" % number}])
    maintain_once(log)
    assert values(open_log(store)) == [*kept, *(b"%d" % number for number in range(30))]
    assert verify(open_log(store), deep=True) == []
    assert all(int(key[len(LOG) :][:20]) > VERSIONS for key in store.list(LOG))


def test_records_of_a_topic_that_a_lost_version_created_are_named(store: LocalStore) -> None:
    """Its name is not known."""
    log = open_log(store)
    log.append("new", [{"value": b"1"}])
    log.append("new", [{"value": b"2"}])
    created = next(v for v in range(log.journal.refresh().version, 0, -1) if b'"create_topic"' in store.get(log_key(v)))
    store.delete([log_key(created)])
    report = accept(store, dry_run=True)
    assert any("not all of which can be kept" in line for line in report.lost)
    accept(store)
    assert values(open_log(store)) == VALUES


def test_a_log_without_a_checkpoint_or_first_record_starts_empty(store: LocalStore) -> None:
    """The report shows that no topic is known."""
    for key in [*store.list(CHECKPOINTS), log_key(1), log_key(2)]:
        store.delete([key])
    report = accept(store)
    assert (report.version, report.kept) == (0, ()) and len(report.unnamed) == len(store.list(DATA))
    log = open_log(store)
    assert log.admin.list_topics() == []
    assert log.append("t", [{"value": b"x"}])[P0] == range(1)


# Promise: storage-failures.md#continue-without-what-is-lost
def test_a_typed_topic_stays_typed(store: LocalStore) -> None:
    """Its rows are read as columns, and bytes are refused.  A schema that is lost is set again."""
    log = open_log(store)
    log.create_topic(NewTopic("orders", 1, schema="id BIGINT NOT NULL"))
    log.append("orders", [{"value": {"id": 1}}])
    lost = log.journal.refresh().version + 1
    log.admin.alter_schema("orders", "id BIGINT NOT NULL, name STRING")
    log.append("orders", [{"value": {"id": 2, "name": "b"}}])
    store.delete([log_key(lost)])
    accept(store)
    log = open_log(store)
    assert log.read("orders").column("id").to_pylist() == [1, 2]
    with pytest.raises(InvalidRecord, match="expected a dict"):
        log.append("orders", [{"value": b"not a row"}])
    assert log.admin.alter_schema("orders", "id BIGINT NOT NULL, name STRING") == 2
    log.append("orders", [{"value": {"id": 3, "name": "c"}}])
    assert log.read("orders").column("name").to_pylist() == [None, "b", "c"]
    assert verify(log, deep=True) == []


# Promise: storage-failures.md#continue-without-what-is-lost
@pytest.mark.parametrize("sealed", [False, True])
def test_records_whose_objects_are_missing_are_named(store: LocalStore, sealed: bool) -> None:
    """By their offsets, whether the state has their slices or an index object does.  A damaged index is named."""
    log = open_log(store)
    objects = [one.object for one in slices(log)]
    if sealed:
        maintenance(log.journal, seal)
    log.append("other", [{"value": b"lost"}])
    lost = log.journal.refresh().version
    log.append("other", [{"value": b"later"}])
    store.delete([log_key(lost), *objects[2:5], objects[7]])
    assert accept(store, dry_run=True).gone == (
        "t-0: the objects with offsets 2 to 4 are missing",
        "t-0: the objects with offsets 7 to 7 are missing",
    )
    if sealed:
        (index,) = (name for name in store.list(DATA) if name.endswith(".idx"))
        store.put(index, [b"x" * (store.size(index) or 0)])
        assert "it is not known which objects are missing: " in accept(store, dry_run=True).gone[0]
        store.delete([index])
        assert accept(store, dry_run=True).gone == ("t-0: the objects with offsets 0 to 16 are missing",)


def test_what_was_merged_after_a_loss_is_kept(store: LocalStore) -> None:
    """The merged object has the records of before the loss, and their own objects are deleted by then."""
    log = open_log(store)
    lost = log.journal.refresh().version + 1
    log.append("other", [{"value": b"lost"}])
    assert merge(log).segments
    store.delete([log_key(lost), *log.journal.refresh().dropped])
    report = accept(store)
    assert report.missing == ()
    assert values(open_log(store)) == VALUES
    assert verify(open_log(store), deep=True) == []


class Deletes(Wrapper):
    """Notes which deleted objects one of the newest two checkpoints names."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.deleted, self.named = set[str](), set[str]()

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        self.deleted.update(keys)
        for name in self.inner.list(CHECKPOINTS)[-2:]:
            self.named.update(state_in(self.inner.get(name), name).objects.keys() & set(keys))
        self.inner.delete(keys)


# Promise: storage-failures.md#continue-without-what-is-lost
@pytest.mark.parametrize("collect", [collect_garbage, maintain_once])
def test_maintenance_deletes_nothing_that_a_kept_checkpoint_names(
    store: LocalStore, collect: Callable[[spark_log.Log], object]
) -> None:
    """However few versions are behind it, and however short `gc.fence.age.ms` is: they may all be lost.

    The older one counts if the newest is damaged, too.
    """
    deletes = Deletes(store)
    log = open_log(deletes)
    objects = set(log.journal.refresh().objects)
    configs: dict[str, str | None] = {"gc.fence.age.ms": "1"}
    log.journal.propose(lambda state, now: decide_set_configs(state, None, configs))
    assert merge(log).segments
    for _ in range(3):
        time.sleep(0.002)
        log.append("other", [{"value": b"y"}])
        collect(log)
    assert objects <= deletes.deleted and not deletes.named
    older, newest = store.list(CHECKPOINTS)[-2:]
    versions = range(checkpoint_version(older) + 1, log.journal.state.version + 1)
    store.delete([log_key(version) for version in versions])
    assert values(open_log(store)) == VALUES
    store.put(newest, [b"damaged"])
    assert accept(store).missing == ()
    assert values(open_log(store)) == VALUES


def test_two_repairs_at_the_same_time_come_to_one_log(store: LocalStore) -> None:
    """A client that has opened the log after the first is not left behind by the second, which had looked before."""
    lose_first(store)
    late = Late(store)
    late.before_the_first_put = lambda: accept(store)
    with suppress(ConcurrentChange):
        accept(late)
    client = open_log(store)
    client.append("t", [{"value": b"acknowledged"}])
    assert values(open_log(store)) == values(client)
    assert values(client)[-1] == b"acknowledged"


class Late(Wrapper):
    """A store before whose first put something else happens."""

    before_the_first_put: Callable[[], object] | None = None

    def put(self, key: str, data: Chunks | bytes) -> None:
        happens, self.before_the_first_put = self.before_the_first_put, None
        if happens is not None:
            happens()
        self.inner.put(key, data)


# Promise: format/metadata.md#levels
def test_a_lost_version_may_have_raised_the_level(tmp_path: Path) -> None:
    """So the log continues at the newest: an older pylog could not read what was written at the lost level."""
    store = LocalStore(str(tmp_path / "log"), durability="os")
    log = open_log(store)
    log.create_topic(spark_log.NewTopic("t", 1))
    with supporting(TOMORROW):
        log.admin.update_features(SUPPORTED)
        raised = log.journal.refresh().version
        log.append("t", [{"value": b"x"}])
        log.close()
        store.delete([log_key(raised)])
        accept(store)
        log = open_log(store)
        assert log.journal.refresh().levels == {METADATA_VERSION: TOMORROW} and values(log) == [b"x"]


def test_a_coordinator_that_was_fenced_changes_nothing() -> None:
    """Its batches are void, also if what came before them is lost."""
    create = r.CreateTopicRecord(topic_id="f" * 32, name="t", partitions=1)
    take = [r.TakeOverRecord(epoch=epoch, address=f"{epoch}:1", host="h", cluster_id="c") for epoch in (1, 2)]
    known = State()
    for record in (create, take[0]):
        known = replay(known, r.Batch(id="a", time=1, records=(record,)))
    state = replay_after_loss(known, 4, r.Batch(id="b", time=2, epoch=1, records=(take[1],)), known, ())
    late = r.Batch(id="c", time=3, epoch=1, records=(r.DeleteTopicRecord(topic_id="f" * 32),))
    assert "t" in replay_after_loss(state, 5, late, known, ()).names
