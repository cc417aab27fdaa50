"""A log with brokers or a mirror has lost `meta/format`: it keeps its id, on which they depend."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import spark_log
from spark_log import NewTopic
from spark_log.client.log import Log
from spark_log.errors import InvalidRequest, NoLog, UnsupportedVersion, WrongRoot
from spark_log.journal.storage.log_format import parse_format
from spark_log.maintenance.maintain import checkpoint
from spark_log.monitoring.health_findings import broker_findings
from spark_log.recovery.log_id import NEW_ID
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.repair import RepairReport, repair
from spark_log.replication.broker_prober import Prober
from spark_log.store.local import LocalStore
from spark_log.store.object_names import FORMAT_KEY

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")
ROW = [{"value": b"precious"}]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """The store of a log with two brokers, which alone have the records of the topics t and u, and with a mirror."""
    with spark_log.connect(tmp_path / "log", durability="os") as log:
        for broker in (1, 2):
            log.admin.add_broker(broker, str(tmp_path / f"b{broker}"))
        log.create_topic(NewTopic("t", 1, replica_assignment={0: [1, 2]}))
        log.create_topic(NewTopic("u", 1, replica_assignment={0: [1]}))
        log.append("t", ROW)
        log.append("u", ROW)
        mirror = LocalStore(str(tmp_path / "mirror"), "os")
        begin_mirror(log, mirror)
        Mirror(log, mirror).round()
    return LocalStore(str(tmp_path / "log"), "os")


def opened(store: LocalStore) -> Log:
    return spark_log.connect(store.url, durability="os", create=False)


def repaired(store: LocalStore, cluster_id: str = "") -> RepairReport:
    return repair(store, is_alive=lambda holder: False, cluster_id=cluster_id)


def id_of(store: LocalStore) -> str:
    return parse_format(store.get(FORMAT_KEY), store.url).cluster_id


def give_other_id(store: LocalStore, tmp_path: Path) -> None:
    """Somebody copies the file of another log."""
    with spark_log.connect(tmp_path / "other", durability="os") as other:
        store.put(FORMAT_KEY, [LocalStore(str(tmp_path / "other"), "os").get(FORMAT_KEY)])
        assert other.cluster_id == id_of(store)


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_repair_takes_the_id_from_the_roots_of_brokers(store: LocalStore, tmp_path: Path) -> None:
    """One of them is enough.  Brokers and the mirror continue."""
    identity = id_of(store)
    store.delete([FORMAT_KEY])
    (tmp_path / "b1").rename(tmp_path / "away")
    report = repaired(store)
    (tmp_path / "away").rename(tmp_path / "b1")
    assert (report.cluster_id, report.id_source) == (identity, "broker 2") and id_of(store) == identity
    with opened(store) as log:
        assert Prober(log).until_sure().fenced == ()
        log.append("t", ROW)
        log.append("u", ROW)
        assert log.read("t").num_rows == log.read("u").num_rows == 2
        assert Mirror(log, LocalStore(str(tmp_path / "mirror"), "os")).round().behind == 0


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_an_id_that_is_not_certain_is_asked_for(store: LocalStore, tmp_path: Path) -> None:
    """No root can be read, one belongs to another log, or the id that is given is another one."""
    identity = id_of(store)
    store.delete([FORMAT_KEY])
    for given in (NEW_ID, "another-id"):
        with pytest.raises(InvalidRequest, match=f"is not the id of the log .*: broker 1 has {identity}; broker 2 has"):
            repaired(store, given)
    marks = [tmp_path / f"b{broker}/meta/broker.json" for broker in (1, 2)]
    marks[0].write_text(marks[0].read_text().replace(identity, "another-id"))
    with pytest.raises(
        InvalidRequest, match=f"the id is not certain: broker 1 has another-id; broker 2 has {identity}"
    ):
        repaired(store)
    for mark in marks:
        mark.unlink()
    with pytest.raises(InvalidRequest, match=r"pylog repair --cluster-id ID.*meta/broker.json of a broker's root"):
        repaired(store)
    assert store.size(FORMAT_KEY) is None
    assert repaired(store, identity).lost_format and id_of(store) == identity


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_log_with_another_id_gets_its_own_back(store: LocalStore, tmp_path: Path) -> None:
    """Meanwhile no advice loses records: every message names the command, and brokers are not replaced."""
    identity, mirror = id_of(store), LocalStore(str(tmp_path / "mirror"), "os")
    give_other_id(store, tmp_path)
    cure = f"pylog repair --cluster-id {identity}"
    with opened(store) as log:
        assert len(Prober(log).until_sure().fenced) == 2
        said = " ".join(finding.says for finding in broker_findings(log.journal.refresh()))
        assert cure in said and "Nothing is lost" in said
        assert not [word for word in ("unclean", "lose", "broker replace", "empty disk") if word in said]
        for lose_data in (False, True):
            for root in (None, str(tmp_path / "new")):
                with pytest.raises(WrongRoot, match=cure):
                    log.admin.replace_broker(1, root, lose_data=lose_data)
        with pytest.raises(WrongRoot, match=cure):
            log.admin.unfence_broker(1)
        with pytest.raises(InvalidRequest, match=cure):
            Mirror(log, mirror)
    report = repaired(store, identity)
    assert report.former_id and report.id_source == "broker 1"
    with opened(store) as log:
        assert log.cluster_id == identity
        returned = set[int]()
        for _ in range(100):
            returned |= set(Prober(log).round().returned)
            if returned == {1, 2}:
                break
        log.append("t", ROW)
        log.append("u", ROW)
        assert log.read("t").num_rows == log.read("u").num_rows == 2
        assert Mirror(log, mirror).round().behind == 0
        assert all(finding.healthy for finding in broker_findings(log.journal.refresh()))


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_mirror_that_has_lost_the_file_is_made_a_mirror_again(store: LocalStore, tmp_path: Path) -> None:
    """A repair made a second log with the id of the first one: the mirror could neither follow nor be recovered."""
    mirror = LocalStore(str(tmp_path / "mirror"), "os")
    mirror.delete([FORMAT_KEY])
    with pytest.raises(WrongRoot, match="belongs to the log at .*/log, and .*/mirror is a copy of that .*mirror set"):
        repaired(mirror)
    assert mirror.size(FORMAT_KEY) is None
    with opened(store) as log:
        begin_mirror(log, mirror)
        log.append("t", ROW)
        assert Mirror(log, mirror).round().behind == 0
    recover(mirror, force=True)
    with opened(mirror) as log:
        assert log.read("t").num_rows == 2 and log.read("u").num_rows == 1


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_what_is_no_whole_copy_does_not_become_a_mirror(store: LocalStore, tmp_path: Path) -> None:
    """A mirror that has lost objects, too, or one of another log, or a copy of the log's own root."""
    mirror, copy = LocalStore(str(tmp_path / "mirror"), "os"), LocalStore(str(tmp_path / "copy"), "os")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    mirror.delete([FORMAT_KEY])
    copy.delete([FORMAT_KEY])
    with opened(store) as log, spark_log.connect(tmp_path / "other", durability="os") as other:
        for wrong, root in ((other, mirror), (log, copy)):
            with pytest.raises(InvalidRequest, match="a mirror begins in an empty folder"):
                begin_mirror(wrong, root)
        mirror.delete(mirror.list("data/")[:1])
        with pytest.raises(InvalidRequest, match="a mirror begins in an empty folder"):
            begin_mirror(log, mirror)
    assert mirror.size(FORMAT_KEY) is copy.size(FORMAT_KEY) is None


# Promise: copies.md#keep-a-mirror
def test_a_mirror_that_has_lost_the_file_is_recovered(store: LocalStore, tmp_path: Path) -> None:
    """The roots of the lost log's brokers have its id and its URL."""
    mirror, known = LocalStore(str(tmp_path / "mirror"), "os"), id_of(store)
    mirror.delete([FORMAT_KEY])
    with pytest.raises(InvalidRequest, match="/log, which .*/mirror mirrors, can be opened"):
        recover(mirror, dry_run=True)
    shutil.rmtree(tmp_path / "log")
    assert recover(mirror, dry_run=True).mirrored == store.url and mirror.size(FORMAT_KEY) is None
    with pytest.raises(InvalidRequest, match=f"not the id of the log .* broker 1 has {known}"):
        recover(mirror, cluster_id="0123456789abcdef" * 2)
    recover(mirror)
    with opened(mirror) as log:
        assert log.cluster_id == known and log.append("t", ROW) and log.read("t").num_rows == 2
        assert len(log.journal.state.restores) == 1


# Promise: copies.md#keep-a-mirror
def test_a_mirror_that_has_lost_the_file_and_all_brokers_is_recovered_with_an_id(
    store: LocalStore, tmp_path: Path
) -> None:
    """That the operator gives.  A broker's root, a folder without metadata and the log itself are refused."""
    mirror, known = LocalStore(str(tmp_path / "mirror"), "os"), id_of(store)
    mirror.delete([FORMAT_KEY])
    store.delete([FORMAT_KEY])
    with pytest.raises(InvalidRequest, match="is the log of its brokers, not a mirror: run `pylog repair -u"):
        recover(store, force=True)
    with pytest.raises(UnsupportedVersion, match="is the root of a broker"):
        recover(LocalStore(str(tmp_path / "b1"), "os"), force=True, cluster_id=known)
    for name in ("log", "b1", "b2"):
        shutil.rmtree(tmp_path / name)
    with pytest.raises(InvalidRequest, match="nothing says of which log this is a mirror.*`pylog recover --force -u"):
        recover(mirror, cluster_id=known)
    with pytest.raises(InvalidRequest, match="`pylog recover --force --cluster-id ID -u"):
        recover(mirror, force=True)
    recover(mirror, force=True, cluster_id=known)
    with opened(mirror) as log:
        assert log.cluster_id == known and log.read("t").num_rows == log.read("u").num_rows == 1
    with pytest.raises(NoLog, match="there is no mirror at"):
        recover(LocalStore(str(tmp_path / "nothing"), "os"), force=True, cluster_id=known)


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_log_without_brokers_has_its_id_in_its_checkpoints(tmp_path: Path) -> None:
    """A wrong id is refused, and none has to be given, as soon as the log has a checkpoint."""
    with spark_log.connect(tmp_path, durability="os") as log:
        log.append("t", ROW)
        identity = log.cluster_id
        checkpoint(log)
    store = LocalStore(str(tmp_path), "os")
    store.delete([FORMAT_KEY])
    for given in (NEW_ID, "0" * 32):
        with pytest.raises(InvalidRequest, match=f"is not the id of the log .*: meta/ckpt/.* has {identity}"):
            repaired(store, given)
    report = repaired(store)
    assert (report.cluster_id, report.id_source[:10]) == (identity, "meta/ckpt/") and id_of(store) == identity


def test_checkpoints_of_a_wrong_id_do_not_refuse_the_right_one(store: LocalStore, tmp_path: Path) -> None:
    """A process that opens the log with the file of another log writes them."""
    with spark_log.connect(tmp_path / "plain", durability="os") as log:
        log.append("t", ROW)
        identity = log.cluster_id
    plain = LocalStore(str(tmp_path / "plain"), "os")
    give_other_id(plain, tmp_path)
    with opened(plain) as log:
        checkpoint(log)
    assert repaired(plain, identity).former_id and id_of(plain) == identity
