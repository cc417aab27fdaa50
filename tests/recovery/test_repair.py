"""`pylog repair`: a log that does not open is restored whole, or what is lost is named and nothing changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.errors import CorruptObject, InvalidRequest, NoLog, StorageUnavailable, UnsupportedVersion
from spark_log.journal.journal import Journal
from spark_log.metadata.decide_coordinators import decide_take_over
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.state import Leadership
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.recovery.log_id import NEW_ID
from spark_log.recovery.mirror import begin_mirror
from spark_log.recovery.repair import RepairReport
from spark_log.recovery.repair import repair as run_repair
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS, DAMAGED, FORMAT_KEY, LOG, checkpoint_version, log_key

VALUES = [b"%d" % number for number in range(17)]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """With two checkpoints, all records, and some behind the newest checkpoint."""
    store = LocalStore(str(tmp_path / "log"), durability="os")
    log = open_log(store)
    configs: dict[str, str | None] = {"metadata.checkpoint.interval": "5"}
    log.journal.propose(lambda state, now: decide_set_configs(state, None, configs))
    for value in VALUES:
        log.append("t", [{"value": value}])
        log.close()
    assert len(store.list(CHECKPOINTS)) == 2 and log_key(1) in store.list(LOG)
    return store


class LosingStore(Wrapper):
    """The first put-if-absent does not arrive."""

    lost = ""

    def put_new(self, key: str, data: bytes) -> bool:
        if not self.lost:
            self.lost = key
            raise StorageUnavailable(f"put of {key}: connection reset")
        return super().put_new(key, data)


def open_log(store: LocalStore) -> spark_log.Log:
    return spark_log.Log(Journal.open(store, create=True))


def values(store: LocalStore) -> list[bytes]:
    return [value.as_py() for value in open_log(store).read("t", partition=0, start=0)["value"]]


def contents(store: LocalStore) -> dict[str, bytes]:
    return {key: store.get(key) for key in store.list("meta/")}


def repair(
    store: ObjectStore,
    *,
    dry_run: bool = False,
    accept_loss: bool = False,
    alive: bool = False,
    cluster_id: str = "",
) -> RepairReport:
    def is_alive(holder: Leadership) -> bool:
        return alive and bool(holder.address)

    return run_repair(store, is_alive=is_alive, dry_run=dry_run, accept_loss=accept_loss, cluster_id=cluster_id)


def damage(store: LocalStore, *keys: str) -> None:
    for key in keys:
        store.put(key, [store.get(key)[:-3]])


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_two_damaged_checkpoints_are_rebuilt_from_records(store: LocalStore) -> None:
    """The damaged files are kept aside, and the log continues."""
    damaged = store.list(CHECKPOINTS)
    damage(store, *damaged)
    with pytest.raises(CorruptObject, match=rf"{damaged[1]} .*{damaged[0]} .*pylog repair"):
        open_log(store)
    before = contents(store)
    report = repair(store, dry_run=True)
    assert contents(store) == before
    assert (report.damaged, report.base, report.lost) == (tuple(damaged), "", ())
    assert repair(store) == report
    assert values(store) == VALUES
    assert sorted(store.get(key) for key in store.list(DAMAGED)) == sorted(before[key] for key in damaged)
    assert not set(damaged) & set(store.list(CHECKPOINTS)) and len(store.list(CHECKPOINTS)) >= 2
    assert open_log(store).append("t", [{"value": b"x"}])[spark_log.TopicPartition("t", 0)] == range(17, 18)
    assert not repair(store).needed


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_one_damaged_checkpoint_is_replaced(store: LocalStore) -> None:
    """Though the log opens."""
    newest = store.list(CHECKPOINTS)[-1]
    damage(store, newest)
    report = repair(store)
    assert report.base == store.list(CHECKPOINTS)[0]
    assert newest not in store.list(CHECKPOINTS)
    assert values(store) == VALUES


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize("gone", [True, False])
def test_a_record_between_the_checkpoints_is_made_up_for(store: LocalStore, gone: bool) -> None:
    """Two new checkpoints do without it."""
    newest = store.list(CHECKPOINTS)[-1]
    lost = log_key(checkpoint_version(newest))
    if gone:
        store.delete([lost])
    else:
        damage(store, lost)
    report = repair(store)
    assert (report.absent, report.damaged) == (((lost,), ()) if gone else ((), (lost,)))
    for damaged in store.list(CHECKPOINTS)[-2:]:
        data = store.get(damaged)
        store.put(damaged, [b""])
        assert values(store) == VALUES
        store.put(damaged, [data])
    assert not repair(store).needed


# Promise: cli.md#pylog-repair, storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize("gone", [True, False])
def test_a_lost_version_is_named_and_nothing_changes(store: LocalStore, gone: bool) -> None:
    """Its offsets are not given to other records; once the file is back the log opens."""
    version = checkpoint_version(store.list(CHECKPOINTS)[-1]) + 1
    end = open_log(store).journal.state.version
    key = log_key(version)
    data = store.get(key)
    if gone:
        store.delete([key])
    else:
        damage(store, key)
    before = contents(store)
    report = repair(store, dry_run=True)
    assert report.version == version - 1 and len(report.lost) == end - version + 1
    assert report.lost[0] == f"{key} is {'missing' if gone else 'damaged'}"
    assert report.lost[1] == f"{log_key(version + 1)} can be read, but follows a lost one: 1 record of t-0"
    with pytest.raises(CorruptObject, match=rf"up to version {version - 1}, and nothing was changed.*{key}"):
        repair(store)
    assert contents(store) == before
    store.put(key, [data])
    assert values(store) == VALUES


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_healthy_log_is_not_changed_and_no_log_is_refused(store: LocalStore, tmp_path: Path) -> None:
    """There is nothing to do."""
    before = contents(store)
    report = repair(store)
    assert not report.needed and report.version == open_log(store).journal.state.version
    assert contents(store) == before
    with pytest.raises(NoLog):
        repair(LocalStore(str(tmp_path / "none")))


@pytest.mark.parametrize(("found", "damaged"), [(b'"pylog"', b'#pylog"'), (b"cluster_id", b"cluster_ie")])
def test_a_damaged_format_file_is_named(store: LocalStore, found: bytes, damaged: bytes) -> None:
    """It is not said that the log opens: no client can open it."""
    store.put(FORMAT_KEY, [store.get(FORMAT_KEY).replace(found, damaged)])
    for use in (open_log, repair):
        with pytest.raises(
            UnsupportedVersion, match=r"meta/format is not pylog's, or damaged: .*restore it from a copy"
        ):
            use(store)


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize("led", [True, False])
def test_a_lost_format_file_is_made_again(store: LocalStore, led: bool) -> None:
    """With the id that a coordinator recorded, or with that of the checkpoints."""
    journal = open_log(store).journal
    if led:
        journal.release(journal.take_over(0, "127.0.0.1:1", "here"))
    identity, state = journal.cluster_id, journal.refresh()
    store.delete([FORMAT_KEY])
    assert repair(store, dry_run=True).cluster_id == identity and FORMAT_KEY not in store.list("meta/")
    assert repair(store).lost_format
    again = open_log(store)
    assert again.cluster_id == identity and again.journal.state == state and values(store) == VALUES
    again.append("t", [{"value": b"more"}])
    assert values(store) == [*VALUES, b"more"] and not repair(store).needed


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_log_gets_another_id_only_if_that_is_asked_for(store: LocalStore) -> None:
    """Not while it has one, nor if a record has it."""
    identity = open_log(store).cluster_id
    with pytest.raises(InvalidRequest, match=f"has the id {identity} in meta/format"):
        repair(store, cluster_id=NEW_ID)
    with pytest.raises(InvalidRequest, match="invalid id of a log: 'no such'"):
        repair(store, cluster_id="no such")
    store.delete([FORMAT_KEY])
    with pytest.raises(InvalidRequest, match=f"is not the id of the log .*: meta/ckpt/.* has {identity}"):
        repair(store, cluster_id=NEW_ID)
    for name in store.list(CHECKPOINTS):
        store.put(name, (encode_checkpoint(decode_checkpoint(store.get(name), name)),))
    with pytest.raises(
        InvalidRequest, match=r"no record, no checkpoint and no root of a broker has the id .* --cluster-id ID"
    ):
        repair(store, dry_run=True)
    assert repair(store, cluster_id=NEW_ID).cluster_id == ""
    assert open_log(store).cluster_id != identity
    report = repair(store, cluster_id=identity)
    assert report.former_id and open_log(store).cluster_id == identity and values(store) == VALUES
    journal = open_log(store).journal
    journal.release(journal.take_over(0, "127.0.0.1:1", "here"))
    store.delete([FORMAT_KEY])
    for given in (NEW_ID, "another-id"):
        with pytest.raises(InvalidRequest, match=f"a record of a coordinator has {identity}"):
            repair(store, cluster_id=given)


def test_a_format_file_whose_put_is_not_answered_is_put_again(store: LocalStore) -> None:
    """A repair that ends has made it."""
    store.delete([FORMAT_KEY])
    assert repair(LosingStore(store)).lost_format
    assert FORMAT_KEY in store.list("meta/") and values(store) == VALUES


@pytest.mark.parametrize("folder", [CHECKPOINTS, LOG])
def test_a_file_of_a_newer_format_is_not_moved_away(store: LocalStore, folder: str) -> None:
    """Its number may be damaged, but only the user knows: the message does not lead back to the repair."""
    name = store.list(folder)[-1]
    line, newline, rest = store.get(name).partition(b"\n")
    magic, number, *others = line.split(b" ")
    store.put(name, [b" ".join([magic, b"%d" % (int(number) + 1), *others]), newline, rest])
    for use in (open_log, repair):
        with pytest.raises(UnsupportedVersion, match="the file is damaged: restore it from a copy of the log "):
            use(store)
    assert name in store.list(folder)


def test_a_lost_format_file_is_not_made_again_if_records_are_lost_too(store: LocalStore) -> None:
    """Unless the loss is accepted."""
    (*_, lost, _) = store.list(LOG)
    store.delete([FORMAT_KEY, lost])
    with pytest.raises(CorruptObject, match=lost):
        repair(store)
    assert FORMAT_KEY not in store.list("meta/")
    assert repair(store, accept_loss=True).lost_format
    assert len(values(store)) >= len(VALUES) - 2


# Promise: format/metadata.md#the-metadata-log-format-version-1
def test_a_flipped_bit_in_the_format_file_never_gives_a_log_another_identity(store: LocalStore) -> None:
    """Nor any other of its fields another value: it is named, or nothing of it was needed."""
    data, identity = store.get(FORMAT_KEY), open_log(store).cluster_id
    refused = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        store.put(FORMAT_KEY, [bytes(flipped)])
        try:
            assert open_log(store).cluster_id == identity
        except UnsupportedVersion:
            refused += 1
    assert refused > 7 * len(data)


# Promise: format/metadata.md#the-metadata-log-format-version-1
def test_a_format_file_without_a_checksum_is_read(store: LocalStore) -> None:
    """As earlier versions wrote it."""
    form = json.loads(store.get(FORMAT_KEY))
    del form["crc"]
    store.put(FORMAT_KEY, [json.dumps(form).encode()])
    assert open_log(store).cluster_id == form["cluster_id"]
    assert values(store) == VALUES


def test_a_log_that_a_coordinator_serves_is_refused(store: LocalStore) -> None:
    """While the coordinator answers; one that died is in nobody's way."""
    journal = open_log(store).journal
    journal.propose(lambda state, now: decide_take_over(state, 0, "127.0.0.1:1", "host", journal.cluster_id))
    damage(store, *store.list(CHECKPOINTS))
    with pytest.raises(InvalidRequest, match=r"coordinator at 127\.0\.0\.1:1 serves"):
        repair(store, alive=True)
    assert not repair(store).lost


def test_a_mirror_is_not_repaired(store: LocalStore, tmp_path: Path) -> None:
    """A new one costs a copy."""
    mirror = LocalStore(str(tmp_path / "mirror"))
    begin_mirror(spark_log.connect(store.url), mirror)
    with pytest.raises(InvalidRequest, match="give the log a new mirror in an empty folder"):
        run_repair(mirror, is_alive=lambda holder: False)
