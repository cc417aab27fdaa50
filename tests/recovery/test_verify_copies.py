"""`pylog verify` looks at every copy on every active root; --repair restores bad ones from good ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simulation.harness.broker_roots import ControlledRoots, register_broker
from simulation.harness.stores import Wrapper
from spark_log import Log, connect
from spark_log.client.admin.brokers import return_broker
from spark_log.errors import InvalidRequest, ObjectNotFound, SparkLogError, StorageUnavailable, WrongRoot
from spark_log.metadata.commands import Report
from spark_log.metadata.records import Copy, MissingRecord
from spark_log.metadata.replicas.replica_commands import FenceBroker
from spark_log.metadata.replicas.replicas import epoch_of
from spark_log.monitoring.health_findings import broker_findings
from spark_log.recovery.lost_records import GivenUp, give_up, give_up_lost
from spark_log.recovery.verify import verify
from spark_log.recovery.verify_copies import UNREADABLE_MAX, CopyRepair, repair_copies
from spark_log.roots.broker_roots import Roots
from spark_log.store.base import Bytes, ObjectStore
from tests.replication.replicated_logs import brokers_of, folder_of, move_away, put, replicated_log
from tests.replication.test_replicator import cut, flip, pad
from tests.thinning import seal_all

DAMAGES = [(Path.unlink, False), (cut, False), (flip(0.3), True), (pad, True)]
"""With whether --deep is needed to find it."""


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return replicated_log(tmp_path, replica_lag_time_max_ms="1")


def file_of(log: Log, tmp_path: Path, broker: int, name: str) -> Path:
    return folder_of(log, tmp_path, broker) / name


def test_nothing_is_wrong_with_good_copies(log: Log) -> None:
    put(log, [0, 1, 2])
    put(log, [0])
    assert verify(log, deep=True) == []
    assert repair_copies(log, deep=True) == CopyRepair()


# Promise: cli.md#pylog-verify, replicas.md#when-a-disk-fails
@pytest.mark.parametrize("broker", [0, 2])
@pytest.mark.parametrize(("damage", "deep"), DAMAGES)
def test_a_bad_copy_is_named_and_repaired(
    log: Log, tmp_path: Path, damage: Callable[[Path], None], deep: bool, broker: int
) -> None:
    name = put(log, [0, 1, 2])
    file = file_of(log, tmp_path, broker, name)
    good = file.read_bytes()
    damage(file)
    assert (verify(log) == []) == deep
    (problem,) = verify(log, deep)
    assert problem.what == name
    assert problem.message.startswith(f"broker {broker}: ")
    assert problem.message.endswith("has a good one")
    assert repair_copies(log, deep).repaired == (f"broker {broker}: {name}",)
    assert file.read_bytes() == good
    assert verify(log, deep=True) == []


# Promise: cli.md#pylog-verify
def test_a_copy_that_cannot_be_restored_is_recorded_as_missing(log: Log, tmp_path: Path) -> None:
    name = put(log, [0, 1])
    for broker in (0, 1):
        flip(0.3)(file_of(log, tmp_path, broker, name))
    assert "no active broker has a good copy: offsets 0 to 9 of t-0" in verify(log, deep=True)[-1].message
    assert set(repair_copies(log, deep=True).removed) == {f"broker 0: {name}", f"broker 1: {name}"}
    assert brokers_of(log.journal.refresh(), name) == ()
    (problem,) = verify(log)
    assert "no active broker has a good copy" in problem.message


class BadSectors(ControlledRoots):
    """Roots on which some files cannot be read until they are written again."""

    bad: dict[str, SparkLogError]
    """By object, the error."""
    after: Callable[[], object]
    """Called before a read fails."""

    def _controlled(self, broker: int, store: ObjectStore) -> ObjectStore:
        return _BadSectors(getattr(store, "inner", store), self) if broker == 1 else store


class _BadSectors(Wrapper):
    def __init__(self, inner: ObjectStore, roots: BadSectors) -> None:
        super().__init__(inner)
        self.roots = roots

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key in self.roots.bad:
            self.roots.after()
            raise self.roots.bad[key]
        return super().get(key, start, end)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        super().put(key, chunks)
        self.roots.bad.pop(key, None)


def with_bad_sectors(log: Log, tmp_path: Path, *names: str) -> BadSectors:
    roots = BadSectors.of(log, tmp_path)
    assert isinstance(roots, BadSectors)
    roots.bad, roots.after = {name: StorageUnavailable("Input/output error") for name in names}, lambda: None
    return roots


# Promise: replicas.md#when-a-disk-fails
def test_a_copy_with_a_bad_sector_is_replaced(log: Log, tmp_path: Path) -> None:
    """The other copies of the disk are checked as well."""
    names = [put(log, [0, 1, 2]) for _ in range(3)]
    flip(0.3)(file_of(log, tmp_path, 1, names[2]))
    with_bad_sectors(log, tmp_path, names[0])
    assert [problem.what for problem in verify(log, deep=True)] == [names[0], names[2]]
    assert repair_copies(log, deep=True).repaired == (f"broker 1: {names[0]}", f"broker 1: {names[2]}")
    assert verify(log, deep=True) == []


# Promise: replicas.md#when-a-disk-fails
def test_the_only_copy_with_a_bad_sector_stays(log: Log, tmp_path: Path) -> None:
    """A later read may succeed, so it is not recorded as missing."""
    name = put(log, [1])
    with_bad_sectors(log, tmp_path, name)
    assert repair_copies(log, deep=True) == CopyRepair()
    assert brokers_of(log.journal.refresh(), name) == (1,)


def test_a_root_with_many_copies_that_cannot_be_read_is_left_alone(log: Log, tmp_path: Path) -> None:
    names = [put(log, [0, 1, 2], 1) for _ in range(UNREADABLE_MAX + 2)]
    with_bad_sectors(log, tmp_path, *names)
    said = verify(log, deep=True)
    assert said[0].what == "broker 1" and len(said) == UNREADABLE_MAX + 1
    assert len(repair_copies(log, deep=True).repaired) == UNREADABLE_MAX
    assert len(repair_copies(log, deep=True).repaired) == 2


def test_a_disk_that_goes_during_a_repair_has_lost_nothing(log: Log, tmp_path: Path) -> None:
    names = [put(log, [1]) for _ in range(2)]
    roots = with_bad_sectors(log, tmp_path, names[0])
    roots.bad[names[0]] = ObjectNotFound("not there", key=names[0])
    roots.after = lambda: move_away(tmp_path, 1)
    assert repair_copies(log, deep=True) == CopyRepair()
    assert brokers_of(log.journal.refresh(), names[0]) == (1,)


def lose(log: Log, tmp_path: Path, broker: int) -> None:
    """The disk of a broker is lost for good."""
    register_broker(log, broker, str(tmp_path / f"new-{broker}"), replaces=True, lose_data=True)


# Promise: replicas.md#when-a-disk-fails
def test_records_on_no_root_any_more_are_given_up(log: Log, tmp_path: Path) -> None:
    """Readers pass over their offsets, which the log names; other records of the partition stay."""
    put(log, [0, 1, 2], 3)
    put(log, [1], 4)
    put(log, [1], 2)
    put(log, [0, 1, 2], 5)
    assert give_up_lost(log) == [], "broker 1 has them"
    lose(log, tmp_path, 1)
    with pytest.raises(ObjectNotFound):
        log.read("t")
    assert give_up_lost(log) == [GivenUp("t", 0, 3, 9)]
    assert log.read("t")["offset"].to_pylist() == [0, 1, 2, *range(9, 14)]
    assert log.admin.describe_topics(["t"])["t"].partitions[0].lost == ((3, 9),)
    assert any("6 records were lost" in finding.says for finding in broker_findings(log.journal.refresh()))
    assert verify(log, deep=True) == [] and give_up_lost(log) == []


# Promise: replicas.md#when-a-disk-fails
def test_nothing_is_given_up_that_a_root_may_have(log: Log, tmp_path: Path) -> None:
    name = put(log, [1], 4)
    log.journal.propose(Report(record=MissingRecord(copies=(Copy(name, 1, epoch_of(log.journal.refresh(), 1) or 0),))))
    log.journal.propose(FenceBroker(broker=2, reason="by hand"))
    with pytest.raises(InvalidRequest, match="broker 2 is fenced, and may have records"):
        give_up_lost(log)
    return_broker(log.journal, 2)
    away = move_away(tmp_path, 2)
    with pytest.raises(WrongRoot, match="is its disk mounted?"):
        give_up_lost(log)
    away.rename(tmp_path / "broker-2")
    assert give_up_lost(log) == [] and brokers_of(log.journal.refresh(), name) == (1,), "it was there after all"
    assert log.read("t").num_rows == 4


def test_a_root_that_is_away_for_a_moment_of_the_look_gives_nothing_up(log: Log, tmp_path: Path) -> None:
    """Its disk is unmounted and mounted again while somebody looks for the last copy there."""
    name, roots = put(log, [1], 4), ControlledRoots.of(log, tmp_path)
    log.journal.propose(Report(record=MissingRecord(copies=(Copy(name, 1, epoch_of(log.journal.refresh(), 1) or 0),))))
    store = Roots.__getitem__(roots, 1)
    inner = store.inner  # type: ignore[attr-defined]
    store.inner = _AwayForARead(inner, tmp_path, roots)  # type: ignore[attr-defined]
    with pytest.raises(StorageUnavailable, match="broker 1 was mounted again meanwhile"):
        give_up_lost(log)
    store.inner = inner  # type: ignore[attr-defined]
    assert give_up_lost(log) == [] and brokers_of(log.journal.refresh(), name) == (1,)
    assert log.read("t").num_rows == 4


class _AwayForARead(Wrapper):
    """The disk of broker 1, which is not mounted during each read."""

    def __init__(self, inner: ObjectStore, folder: Path, roots: ControlledRoots) -> None:
        super().__init__(inner)
        self._folder, self._roots = folder, roots

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        away = move_away(self._folder, 1)
        try:
            return self.inner.get(key, start, end)
        finally:
            away.rename(self._folder / "broker-1")
            self._roots.mount_again(1)


def test_what_is_lost_after_the_look_is_not_given_up(log: Log, tmp_path: Path) -> None:
    """Another process may record a copy as missing meanwhile: nobody has looked for that object."""
    put(log, [1], 4)
    lose(log, tmp_path, 1)
    journal = log.journal
    assert journal.run(give_up(journal.refresh(), journal.context, frozenset())) == []
    assert give_up_lost(log) == [GivenUp("t", 0, 0, 4)]


def test_records_in_a_slice_index_are_given_up(log: Log, tmp_path: Path) -> None:
    """Beside others of the same index."""
    for held in ([0, 1, 2], [1], [0, 1, 2]):
        put(log, held, 2)
    seal_all(log)
    lose(log, tmp_path, 1)
    assert give_up_lost(log) == [GivenUp("t", 0, 2, 4)]
    assert log.read("t")["offset"].to_pylist() == [0, 1, 4, 5] and verify(log, deep=True) == []


def test_a_root_that_is_gone_is_one_problem(log: Log, tmp_path: Path) -> None:
    for _ in range(3):
        put(log, [0, 1, 2])
    move_away(tmp_path, 1)
    (problem,) = verify(log, deep=True)
    assert problem.what == "broker 1"
    assert "is its disk mounted?" in problem.message
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    assert verify(log, deep=True) == []


def test_a_log_without_brokers_has_nothing_to_repair_from(tmp_path: Path) -> None:
    log = connect(str(tmp_path / "log"), durability="os")
    with pytest.raises(InvalidRequest, match="--repair-from"):
        repair_copies(log)


def test_a_disk_that_is_not_mounted_where_a_task_runs(log: Log, tmp_path: Path) -> None:
    """Its copies are not missing, and none is recorded as missing, although the driver can read it."""
    put(log, [0, 1, 2])
    root = tmp_path / "broker-2"

    def elsewhere(work: Callable[[Roots, Any], Any], shares: Iterable[Any]) -> Iterator[Any]:
        for share in shares:
            root.rename(tmp_path / "away")
            root.mkdir()
            result = work(log.journal.roots, share)
            root.rmdir()
            (tmp_path / "away").rename(root)
            yield result

    assert repair_copies(log, spread=elsewhere) == CopyRepair()
    assert [one.what for one in verify(log, spread=elsewhere)] == ["broker 2"] and verify(log) == []
