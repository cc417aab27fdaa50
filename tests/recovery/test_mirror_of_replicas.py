"""A mirror of a log with brokers has all objects in its one root, and recovered, it has no brokers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import ControlledStore
from spark_log.client.admin.brokers import fence_broker
from spark_log.client.log import Log
from spark_log.errors import CorruptObject, NoSpace, StorageUnavailable
from spark_log.maintenance.maintain import maintain_once
from spark_log.model import ACKS_LEADER
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.object_repair import repair_objects
from spark_log.recovery.verify import verify
from spark_log.replication.replicator import Replicator
from spark_log.store.local import LocalStore
from tests.client.replicated import commit_copies, create_replicated, with_copies
from tests.replication.test_replicator import flip, pad

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")

VALUES = [b"a", b"b", b"c", b"d"]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """With three roots: each object but the first lacks a copy on one of them."""
    log = spark_log.connect(tmp_path / "log", create=True)
    with_copies(log, [tmp_path / "disk1", tmp_path / "disk2"])
    for value, held in zip(VALUES, [(0, 1, 2), (0, 2), (1, 2), (2,)], strict=True):
        commit_copies(log, "t", [value], held=held)
    return log


@pytest.fixture
def mirror(log: Log, tmp_path: Path) -> Mirror:
    store = LocalStore(str(tmp_path / "mirror"))
    begin_mirror(log, store)
    return Mirror(log, store)


def _values(log: Log, topic: str = "t") -> list[bytes]:
    found: list[bytes] = log.read(topic).column("value").to_pylist()
    return found


def test_a_mirror_copies_from_any_root_and_is_read_alone(log: Log, mirror: Mirror, tmp_path: Path) -> None:
    """The log's own root has lost its objects, and the roots of brokers are lost after the copy."""
    shutil.rmtree(tmp_path / "log" / "data")
    assert mirror.round().objects == 4
    for name in ("disk1", "disk2"):
        shutil.rmtree(tmp_path / name)
    copy = spark_log.connect(tmp_path / "mirror")
    assert _values(copy) == VALUES
    assert copy.journal.objects is copy.journal.roots.own
    assert verify(copy, deep=True) == []
    assert mirror.round().versions == 0


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"x"), flip(0.3), flip(0.6), pad])
def test_a_damaged_copy_is_not_mirrored(
    log: Log, mirror: Mirror, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Whatever its size, it is passed over."""
    for path in (tmp_path / "log" / "data").rglob("*.seg"):
        damage(path)
    mirror.round()
    copy = spark_log.connect(tmp_path / "mirror")
    assert _values(copy) == VALUES and verify(copy, deep=True) == []


def test_a_full_disk_of_the_mirror_is_not_taken_for_failing_roots(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log's roots are good, and no message names them."""
    orders = tmp_path / "orders"
    store = ControlledStore(LocalStore(str(tmp_path / "mirror")), orders)
    begin_mirror(log, store)
    orders.write_text("full")
    with pytest.raises(NoSpace, match="no space left"):
        Mirror(log, store).round()
    assert "another copy" not in caplog.text


def test_a_mirror_continues_after_an_object_whose_copies_are_all_damaged(
    log: Log, mirror: Mirror, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is copied as it is, with a warning: later commits are needed after a disaster."""
    (file,) = (tmp_path / "disk2").glob(f"*/{commit_copies(log, 't', [b'e'], held=(2,))}")
    flip(0.3)(file)
    commit_copies(log, "t", [b"f"])
    assert mirror.round().behind == 0
    assert f"{file.name} is mirrored as it is, because it is damaged: run `pylog verify --deep`" in caplog.text
    copy = spark_log.connect(tmp_path / "mirror")
    assert [file.name in problem.what for problem in verify(copy, deep=True)] == [True]


# Promise: replicas.md#what-an-acknowledged-record-survives
def test_what_was_acknowledged_before_the_last_copy_is_recovered(log: Log, mirror: Mirror, tmp_path: Path) -> None:
    """The own root is lost, and with it the metadata.  The recovered log is written to and maintained."""
    fence_broker(log.journal, 1, "test")
    log.admin.incremental_alter_configs({None: {"default.replication.factor": "3"}})
    mirror.round()
    shutil.rmtree(tmp_path / "log")
    url = str(tmp_path / "mirror")
    found = recover(LocalStore(url))
    recovered = spark_log.connect(url)
    state = recovered.journal.state
    assert found.version < state.version
    assert not (state.brokers or state.placement_groups or state.assignments or state.copies)
    assert _values(recovered) == VALUES
    recovered.append("t", [{"key": "k", "value": "e", "partition": 0}])
    recovered.append("new", [{"value": "a topic can be created"}])
    maintain_once(recovered)
    assert _values(recovered) == [*VALUES, b"e"]
    assert verify(recovered, deep=True) == []


def test_a_mirror_does_not_wait_for_pending_records(log: Log, mirror: Mirror, tmp_path: Path) -> None:
    """Their only root is away.  They are copied when readers see them, and lost with the log before."""
    create_replicated(log.journal, "u", (1, 2))
    Replicator(log).round()
    mirror.round()
    commit_copies(log, "u", [b"first"], held=(2,), acks=ACKS_LEADER)
    assert mirror.round().objects == 1, "copied ahead: its root is there"
    commit_copies(log, "u", [b"second"], held=(2,), acks=ACKS_LEADER)
    (tmp_path / "disk2").rename(tmp_path / "away")
    fence_broker(log.journal, 2, "it is away")
    log.append("u", [{"value": b"third"}], acks=1)
    assert mirror.round().objects == 1 and mirror.status().behind == 0
    shutil.copytree(tmp_path / "mirror", tmp_path / "early")
    begin_mirror(log, again := LocalStore(str(tmp_path / "again")))
    assert Mirror(log, again).round().behind == 0, "a first copy does not wait either"
    assert verify(spark_log.connect(tmp_path / "again"), deep=True) == []
    (tmp_path / "away").rename(tmp_path / "disk2")
    assert log.admin.unfence_broker(2)
    Replicator(log).round()
    shutil.rmtree(tmp_path / "disk1")
    assert mirror.round().objects == 1, "only the one that it lacks"
    assert _values(spark_log.connect(tmp_path / "mirror"), "u") == [b"first", b"second", b"third"]
    recover(LocalStore(str(tmp_path / "early")), force=True)
    recovered = spark_log.connect(tmp_path / "early")
    assert _values(recovered, "u") == [b"first", b"third"]
    assert recovered.admin.describe_topics(["u"])["u"].partitions[0].lost == ((1, 2),)
    assert verify(recovered, deep=True) == []


def test_the_only_root_of_a_visible_record_is_away(log: Log, mirror: Mirror, tmp_path: Path) -> None:
    """A later round copies it: it is not missing, so nothing is repaired or begun again."""
    (tmp_path / "disk2").rename(tmp_path / "away")
    with pytest.raises(StorageUnavailable, match="when this root is back"):
        mirror.round()
    (tmp_path / "away").rename(tmp_path / "disk2")
    assert mirror.round().objects == 1, "the others were copied before"
    commit_copies(log, "t", [b"e"], held=(2,))
    (tmp_path / "disk2").rename(tmp_path / "away")
    with pytest.raises(StorageUnavailable, match="when this root is back"):
        mirror.round()


def test_objects_are_repaired_where_readers_look_for_them(log: Log, mirror: Mirror, tmp_path: Path) -> None:
    mirror.round()
    for path in (tmp_path / "disk2").rglob("*.seg"):
        path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(CorruptObject):
        _values(log)
    done = repair_objects(log, spark_log.connect(tmp_path / "mirror").journal, deep=True)
    assert len(done.repaired) == 4 and done.problems == ()
    assert _values(log) == VALUES
