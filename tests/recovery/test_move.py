"""A log moves to another storage while clients use it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from pyspark_pylog.log.open_log import kept_journal, planned_log
from pyspark_pylog.options.parse import Location

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.client.log import Log
from spark_log.client.producer.append import upload_rows
from spark_log.display.health import holder_checks
from spark_log.errors import (
    InvalidRequest,
    LogMoved,
    NoSpace,
    SparkLogError,
    StorageError,
    UploadFenced,
)
from spark_log.journal.journal import Journal
from spark_log.journal.storage.disk_reserve import makes_room
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.commands import Append, SetConfigs
from spark_log.metadata.decide_coordinators import decide_take_over, moving_to
from spark_log.metadata.records import CommitRecord, TakeOverPurpose, TakeOverRecord
from spark_log.metadata.state import Leadership, State
from spark_log.recovery.log_move import cancel_move, move_log
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.roots.root_options import RootOptions
from spark_log.serve.serve import start
from spark_log.serve.serve_config import ServeConfig
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.open import open_store
from tests.conftest import Bucket
from tests.recovery.dying import Died, Dying
from tests.spark.driver import Stream


def opened(path: Path) -> Log:
    """The log at a folder, wherever it was moved to."""
    return Log(Journal.open(open_store(str(path)), create=False))


def values(log: Log, topic: str = "t") -> list[str]:
    return [value.as_py().decode() for value in log.read(topic, columns=["value"])["value"]]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = spark_log.connect(tmp_path / "old", create=True)
    for number in range(5):
        log.append("t", [{"value": str(number)}])
    return log


# Promise: copies.md#move-a-log
def test_a_moved_log_has_everything_and_both_urls_lead_to_it(log: Log, tmp_path: Path) -> None:
    """With the same id; nothing in the former place is needed."""
    new = open_store(str(tmp_path / "new"))
    moved = move_log(opened(tmp_path / "old"), new)
    assert moved.url == new.url
    for path in ("old", "new"):
        with spark_log.connect(tmp_path / path) as again:
            assert again.url == new.url and again.journal.cluster_id == log.journal.cluster_id
            again.append("t", [{"value": path}])
    shutil.rmtree(tmp_path / "old")
    with spark_log.connect(tmp_path / "new") as again:
        assert values(again) == [*map(str, range(5)), "old", "new"]
        assert again.journal.state.coordinator.address == ""


# Promise: copies.md#move-a-log
def test_a_client_of_the_former_place_is_told(log: Log, tmp_path: Path) -> None:
    """Each call, so that it neither writes there nor reads old records."""
    consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
    assert consumer.poll(timeout_ms=1000)
    move_log(opened(tmp_path / "old"), open_store(str(tmp_path / "new")))
    for _ in range(2):
        with pytest.raises(LogMoved, match="was moved to file://.*/new .* `spark_log.connect"):
            log.append("t", [{"value": "x"}])
        with pytest.raises(LogMoved):
            log.read("t")
    with pytest.raises(LogMoved):
        consumer.poll(timeout_ms=5000)


# Promise: copies.md#move-a-log
def test_an_upload_that_began_before_is_void(log: Log, tmp_path: Path) -> None:
    """Its objects are in the former place only."""
    state = log.journal.refresh()
    uploaded = upload_rows(log.journal, "t", [{"value": b"x", "partition": 0}], state.version)
    move_log(opened(tmp_path / "old"), open_store(str(tmp_path / "new")))
    with spark_log.connect(tmp_path / "old") as again:
        commit = CommitRecord(
            producer="p",
            epoch=0,
            sequence=0,
            upload_epoch=state.version,
            objects=uploaded.objects,
            slices=uploaded.slices,
        )
        with pytest.raises(UploadFenced):
            again.journal.propose(Append(commit=commit))
        assert len(values(again)) == 5


# Promise: copies.md#move-a-log
def test_nobody_writes_to_the_former_place(log: Log, tmp_path: Path) -> None:
    """Neither a coordinator, nor a process that has the old state and wins the race for the next version."""
    standby = Journal.open(open_store(str(tmp_path / "old")), create=False)
    move_log(opened(tmp_path / "old"), open_store(str(tmp_path / "new")))
    with pytest.raises(LogMoved):
        standby.take_over(standby.refresh().coordinator.epoch, "localhost:9550", "here")
    with pytest.raises(LogMoved):
        standby.propose(SetConfigs(name=None, changes={"num.partitions": "2"}))
    with pytest.raises(InvalidRequest, match="was moved to .*/new: start the coordinator with that URL"):
        asyncio.run(start(ServeConfig(url=str(tmp_path / "old"), listen="127.0.0.1:0")))


def test_a_log_moves_again(log: Log, tmp_path: Path) -> None:
    """All former URLs lead to the last one, and a move that has ended is not repeated."""
    for before, after in (("old", "new"), ("new", "newest"), ("new", "newest")):
        moved = move_log(opened(tmp_path / before), open_store(str(tmp_path / after)))
    for path in ("old", "new", "newest"):
        assert spark_log.connect(tmp_path / path).url == moved.url
    with pytest.raises(InvalidRequest, match="was moved to .*/newest already"):
        move_log(opened(tmp_path / "new"), open_store(str(tmp_path / "other")))
    assert not (tmp_path / "other").exists()


def test_a_log_that_cannot_be_moved(log: Log, tmp_path: Path) -> None:
    """With the reason; it is as before."""
    here, there = opened(tmp_path / "old"), open_store(str(tmp_path / "new"))
    with pytest.warns(UserWarning, match="on the same disk"):
        log.admin.add_broker(1, str(tmp_path / "disk1"))
    with pytest.raises(InvalidRequest, match="a log with brokers cannot be moved"):
        move_log(here, there)
    log.admin.remove_broker(1)
    here.journal.take_over(0, "localhost:9550", "here")
    with pytest.raises(InvalidRequest, match="the coordinator at localhost:9550 has the log: stop it"):
        move_log(opened(tmp_path / "old"), there)
    here.journal.release(1)
    (tmp_path / "other").mkdir()
    spark_log.connect(tmp_path / "other", create=True).append("u", [{"value": "x"}])
    with pytest.raises(InvalidRequest, match="has another log"):
        move_log(opened(tmp_path / "old"), open_store(str(tmp_path / "other")))
    assert not (tmp_path / "new").exists()
    log.append("t", [{"value": "6"}])


# Promise: copies.md#move-a-log
def test_a_move_that_cannot_be_ended_is_cancelled(log: Log, tmp_path: Path) -> None:
    """The log is where it was; it is refused for a log that has arrived."""
    new, here = LocalStore(str(tmp_path / "new")), opened(tmp_path / "old")
    with pytest.raises(Died):
        move_log(here, Closing(new))
    with pytest.raises(LogMoved):
        log.append("t", [{"value": "x"}])
    cancel_move(opened(tmp_path / "old"))
    with spark_log.connect(tmp_path / "old") as again:
        again.append("t", [{"value": "5"}])
    with pytest.raises(InvalidRequest, match="is not being moved"):
        cancel_move(opened(tmp_path / "old"))
    move_log(opened(tmp_path / "old"), new)
    assert values(spark_log.connect(tmp_path / "old")) == [*map(str, range(6))]
    with pytest.raises(InvalidRequest, match="the log is at .*/new already"):
        cancel_move(opened(tmp_path / "old"))


# Promise: copies.md#move-a-log
def test_a_move_that_has_ended_is_not_cancelled_if_the_new_place_cannot_be_seen(log: Log, tmp_path: Path) -> None:
    """Its disk may not be mounted, or the options may be wrong: two logs would have one id."""
    new, away = tmp_path / "new", tmp_path / "away"
    move_log(opened(tmp_path / "old"), open_store(str(new)))
    with pytest.raises(InvalidRequest, match="cannot be read there: storage options"):
        cancel_move(opened(tmp_path / "old"), {"key": "k"})
    new.rename(away)
    with pytest.raises(InvalidRequest, match=r"nothing is there \(is its disk mounted\?\); if it is lost there"):
        cancel_move(opened(tmp_path / "old"))
    away.rename(new)
    with pytest.raises(InvalidRequest, match="the log is at .*/new already"):
        cancel_move(opened(tmp_path / "old"), force=True)
    shutil.rmtree(new)
    cancel_move(opened(tmp_path / "old"), force=True)
    with spark_log.connect(tmp_path / "old") as again:
        again.append("t", [{"value": "5"}])


# Promise: copies.md#move-a-log
def test_a_move_that_is_cancelled_while_it_runs_does_not_end(log: Log, tmp_path: Path) -> None:
    """Whichever of the two is first."""
    new = Meanwhile(LocalStore(str(tmp_path / "new")), b'"arrived"', lambda: cancel_move(opened(tmp_path / "old")))
    with pytest.raises(InvalidRequest, match="the move to .*/new was cancelled meanwhile"):
        move_log(opened(tmp_path / "old"), new)
    with spark_log.connect(tmp_path / "old") as again:
        again.append("t", [{"value": "5"}])
        assert again.url.endswith("/old")
    with pytest.raises(InvalidRequest, match="is a mirror of"):
        opened(tmp_path / "new").append("t", [{"value": "x"}])
    with pytest.raises(InvalidRequest, match="a move that was cancelled: empty the folder, or choose another"):
        move_log(opened(tmp_path / "old"), new.inner)
    moving = opened(tmp_path / "old").journal
    epoch = moving.take_over(moving.refresh().coordinator.epoch, "file:///x", host="", purpose="moving")
    moving.take_over(epoch, "file:///x", host="", purpose="moved")
    assert not opened(tmp_path / "old").journal.release(epoch + 1)  # a cancel that had looked before the last record


class Meanwhile(Wrapper):
    """A storage where something happens before a record is put, once."""

    def __init__(self, inner: ObjectStore, before: bytes, happens: Callable[[], None]) -> None:
        super().__init__(inner)
        self._before, self._happens = before, happens

    def put_new(self, key: str, data: bytes) -> bool:
        if self._before in data:
            self._before = b"(never)"
            self._happens()
        return super().put_new(key, data)


def test_a_mirror_that_has_the_record_of_a_move_is_recovered(log: Log, tmp_path: Path) -> None:
    """Both places may be lost; if one of them is there, this is refused."""
    new = tmp_path / "new"
    here, store = opened(tmp_path / "old"), LocalStore(str(tmp_path / "mirror"))
    begin_mirror(here, store)
    here.journal.take_over(0, new.as_uri(), host="", purpose="moving")
    Mirror(here, store).round()
    with pytest.raises(InvalidRequest, match="cannot be looked for: the log is being moved"):
        recover(store)
    move_log(opened(tmp_path / "old"), _mirrored(here, LocalStore(str(new))))
    shutil.rmtree(tmp_path / "old")
    with pytest.raises(InvalidRequest, match="/new, which .*/mirror mirrors, can be opened"):
        recover(store)
    shutil.rmtree(new)
    recover(store)
    with spark_log.connect(tmp_path / "mirror") as again:
        again.append("t", [{"value": "5"}])
        assert len(values(again)) == 6


# Promise: copies.md#move-a-log
def test_a_mirror_of_the_former_place_stops(log: Log, tmp_path: Path) -> None:
    """It says how to continue, and then continues."""
    store, former = LocalStore(str(tmp_path / "mirror")), spark_log.connect(tmp_path / "old")
    begin_mirror(former, store)
    rounds = Mirror(former, store).rounds(0)
    version = next(rounds).version
    moved = move_log(opened(tmp_path / "old"), LocalStore(str(tmp_path / "new")))
    with pytest.raises(LogMoved, match="/old was moved to .*/new: run `pylog mirror set .*/mirror -u .*/new`"):
        next(rounds)
    new = spark_log.connect(tmp_path / "new")
    begin_mirror(new, store)
    assert Mirror(new, store).round().version > moved.version > version


# Promise: copies.md#move-a-log
def test_a_log_that_is_closed_for_a_move_says_so(log: Log, tmp_path: Path) -> None:
    """To writers, other moves and coordinators; it can be read, and a process that has it open may continue."""
    with pytest.raises(Died):
        move_log(opened(tmp_path / "old"), Closing(LocalStore(str(tmp_path / "new"))))
    says = "is being moved to .*/new, and cannot be changed until then: .*run `pylog move .*/new` again, or `pylog move --c"
    with pytest.raises(LogMoved, match=says):
        log.append("t", [{"value": "x"}])
    with pytest.raises(LogMoved, match=says):
        asyncio.run(start(ServeConfig(url=str(tmp_path / "old"), listen="127.0.0.1:0")))
    with pytest.raises(InvalidRequest, match="/old is being moved to .*/new: run `pylog move .*/new` again"):
        move_log(opened(tmp_path / "old"), LocalStore(str(tmp_path / "other")))
    with spark_log.connect(tmp_path / "old") as again:
        (check,) = holder_checks(again, again.url, [])
        assert not check.healthy and "is being moved to" in check.says
        assert values(again) == values(log) == [*map(str, range(5))]
        assert again.admin.list_consumer_groups() == []
    cancel_move(opened(tmp_path / "old"))
    log.append("t", [{"value": "5"}])


def test_the_own_root_may_have_a_rack(log: Log, tmp_path: Path) -> None:
    """Which is registered as that of broker 0; other brokers are refused by the decision, too."""
    log.admin.alter_broker(0, rack="a")
    move_log(opened(tmp_path / "old"), LocalStore(str(tmp_path / "new")))
    with spark_log.connect(tmp_path / "old") as again:
        state = again.journal.state
        assert state.brokers[0].rack == "a"
        again.append("t", [{"value": "5"}])
    state = replace(state, brokers=state.brokers.set(1, state.brokers[0]))
    with pytest.raises(InvalidRequest, match="a log with brokers cannot be moved"):
        decide_take_over(state, state.coordinator.epoch, "a", "", "c", "moving")


def test_a_folder_gets_no_options_of_the_bucket_from_which_the_log_came() -> None:
    """But for those of brokers, which may be in buckets."""
    options = RootOptions.of({"key": "k", "1.key": "x"}, "disk")
    assert options.at("file:///data/log").storage == (("1.key", "x"),) and options.at("/data/log").own() == {}
    assert options.at("s3://bucket/log") == options


def test_a_log_moves_away_from_a_full_disk() -> None:
    """Its last records may use the reserve, those of a coordinator may not."""
    take = TakeOverRecord(epoch=1, address="a", host="", cluster_id="c", purpose="moving")
    assert makes_room([take]) and makes_room([msgspec.structs.replace(take, purpose="moved")])
    assert not makes_room([msgspec.structs.replace(take, purpose="lead")])


class FillsUp(Wrapper):
    """A disk that is full from some moment on."""

    def __init__(self, inner: ObjectStore, is_full: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._is_full = is_full

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        if self._is_full():
            raise NoSpace(f"{key}: no space left")
        self.inner.put(key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        if self._is_full():
            raise NoSpace(f"{key}: no space left")
        return self.inner.put_new(key, data)


# Promise: copies.md#move-a-log
def test_a_log_does_not_move_to_a_full_disk(log: Log, tmp_path: Path) -> None:
    """Also if it fills up after the log was closed: then the log is opened again where it is."""
    here = opened(tmp_path / "old")
    with pytest.raises(NoSpace):
        move_log(here, FillsUp(LocalStore(str(tmp_path / "full")), lambda: True))
    log.append("t", [{"value": "5"}])
    fills_up = FillsUp(LocalStore(str(tmp_path / "new")), lambda: bool(moving_to(here.journal.state.coordinator)))
    with pytest.raises(
        StorageError, match="the move is cancelled, and the log is open at file://.*/old.*no space left"
    ):
        move_log(here, fills_up)
    log.append("t", [{"value": "6"}])
    moved = move_log(opened(tmp_path / "old"), LocalStore(str(tmp_path / "new")))
    assert moved.url.endswith("/new") and values(opened(tmp_path / "new")) == [*map(str, range(7))]


# Promise: copies.md#move-a-log
def test_a_log_moves_to_a_bucket_and_back(
    log: Log, tmp_path: Path, s3: Callable[[], Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former URL, of a folder, leads there if the machine has the keys; otherwise the error says what to give."""
    bucket = s3()
    url = f"{bucket.url}/log"
    moved = move_log(opened(tmp_path / "old"), open_store(url, bucket.options))
    assert moved.url == url
    with spark_log.connect(url, bucket.options) as there:
        there.append("t", [{"value": "5"}])
        assert values(there) == [*map(str, range(6))]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.options["endpoint_url"])
    with pytest.raises(
        StorageError, match=f"was moved from file://.*/old to {url}, which cannot be opened .* Give the new"
    ):
        spark_log.connect(tmp_path / "old")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with spark_log.connect(tmp_path / "old") as there:
        assert there.url == url and there.read("t").num_rows == 6
    with pytest.raises(LogMoved, match=f"was moved to {url}"):
        log.append("t", [{"value": "x"}])
    back = Log(Journal.open(open_store(url, bucket.options), create=False))
    move_log(back, LocalStore(str(tmp_path / "back")))
    with spark_log.connect(url, bucket.options) as here:
        assert here.url.endswith("/back") and values(here) == [*map(str, range(6))]


def _mirrored(log: Log, store: ObjectStore) -> ObjectStore:
    """A mirror of a log whose move has begun without it."""
    begin_mirror(log, store)
    return store


@pytest.mark.parametrize(
    ("before", "purpose", "address", "error"),
    [
        ("moving", "arrived", "b", ""),
        ("moving", "recovered", "b", ""),
        ("moved", "arrived", "b", ""),
        ("moved", "recovered", "b", ""),
        ("moving", "moved", "a", ""),
        ("moving", "moved", "b", "is being moved to a"),
        ("moving", "moving", "a", "is being moved to a"),
        ("moving", "lead", "localhost:9550", "is being moved to a"),
        ("moved", "moved", "a", "was moved to a"),
        ("moved", "lead", "localhost:9550", "was moved to a"),
        ("lead", "moved", "a", "the move to a was cancelled"),
    ],
)
def test_what_may_follow_a_move(before: TakeOverPurpose, purpose: TakeOverPurpose, address: str, error: str) -> None:
    """In the former place, only its end; in another root, also a recovery."""
    state = State(coordinator=Leadership(3, "" if before == "lead" else "a", purpose=before))
    with pytest.raises((InvalidRequest, LogMoved), match=error) if error else nullcontext():
        assert decide_take_over(state, 3, address, "", "c", purpose).reply == 4


class Closing(Wrapper):
    """A storage that fails when the record that closes the log is copied."""

    def put_new(self, key: str, data: bytes) -> bool:
        if b'"purpose":"moving"' in data:
            raise Died
        return super().put_new(key, data)


# Promise: copies.md#move-a-log
def test_a_driver_opens_the_log_in_its_new_place(log: Log, tmp_path: Path) -> None:
    """It keeps the journals of its logs."""
    location = Location(url=str(tmp_path / "old"), storage={}, durability="os")
    before = kept_journal(location)
    assert kept_journal(location) is before
    move_log(opened(tmp_path / "old"), LocalStore(str(tmp_path / "new")))
    for _ in range(2):
        after = kept_journal(location)
        assert after.metadata.url.endswith("/new") and after.state.version > before.state.version
        assert planned_log(location, after).roots.urls[0][1].endswith("/new")


# Promise: copies.md#move-a-log
def test_a_streaming_query_follows_between_two_batches(log: Log, tmp_path: Path) -> None:
    """Each record is read once."""
    stream = Stream(str(tmp_path / "old"))
    assert stream.batch() == [("t-0", offset) for offset in range(5)]
    move_log(opened(tmp_path / "old"), LocalStore(str(tmp_path / "new")))
    assert stream.batch() is None
    spark_log.connect(tmp_path / "old").append("t", [{"value": "5"}])
    assert stream.batch() == [("t-0", 5)]


# Promise: copies.md#move-a-log
@pytest.mark.parametrize("after", [False, True])
def test_a_move_that_dies_at_any_write_is_run_again(tmp_path: Path, *, after: bool) -> None:
    """Until then, nothing is lost and no record is written twice: the log is here, there, or closed."""
    for writes in range(2 if after else 1, 40, 3):
        old, new = tmp_path / f"old{writes}", tmp_path / f"new{writes}"
        log = spark_log.connect(old, create=True, durability="os")
        log.append("t", [{"value": "0"}])
        try:
            dying = Dying(LocalStore(str(new), "os"), writes, after=after)
            dying.probed = dying.inner.fingerprint()
            move_log(opened(old), dying)
        except Died:
            pass
        else:
            break
        with suppress(LogMoved, InvalidRequest):
            spark_log.connect(old).append("t", [{"value": "1"}])
        move_log(opened(old), LocalStore(str(new), "os"))
        moved = spark_log.connect(old)
        moved.append("t", [{"value": "2"}])
        assert moved.url.endswith(f"new{writes}") and values(moved) in (["0", "2"], ["0", "1", "2"])
    else:
        raise AssertionError("it never ended")


class Sleeping(Dying):
    """Something happens before a write, as while its process is stopped."""

    def __init__(self, inner: ObjectStore, writes: int, happens: Callable[[], None]) -> None:
        super().__init__(inner, writes, after=False)
        self.probed, self._happens = inner.fingerprint(), happens

    @contextmanager
    def _dies(self) -> Iterator[None]:
        self._left -= 1
        if self._left == 0:
            self._happens()
        yield


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_move_that_sleeps_while_another_one_ends_changes_nothing(tmp_path: Path, *, goes_on: bool) -> None:
    """Wherever it sleeps; the log may even have moved on when it wakes up."""
    for writes in (2, 6, 9, 11, 13):
        old, new, third = (tmp_path / f"{name}{writes}" for name in ("old", "new", "third"))
        spark_log.connect(old, create=True, durability="os").append("t", [{"value": "0"}])

        def ends(old: Path = old, new: Path = new, third: Path = third) -> None:
            move_log(opened(old), LocalStore(str(new), "os"))
            if goes_on:
                move_log(opened(new), LocalStore(str(third), "os"))
            spark_log.connect(old).append("t", [{"value": "1"}])

        with suppress(SparkLogError):
            move_log(opened(old), Sleeping(LocalStore(str(new), "os"), writes, ends))
        moved = spark_log.connect(old)
        moved.append("t", [{"value": "2"}])
        assert moved.url.endswith(f"{'third' if goes_on else 'new'}{writes}") and values(moved) == ["0", "1", "2"]


def test_a_move_that_sleeps_while_it_is_cancelled_does_not_end(tmp_path: Path) -> None:
    for writes in (9, 11):
        old, new = tmp_path / f"old{writes}", tmp_path / f"new{writes}"
        spark_log.connect(old, create=True, durability="os").append("t", [{"value": "0"}])

        def cancelled(old: Path = old) -> None:
            cancel_move(opened(old))
            spark_log.connect(old).append("t", [{"value": "1"}])

        with suppress(SparkLogError):
            move_log(opened(old), Sleeping(LocalStore(str(new), "os"), writes, cancelled))
        log = spark_log.connect(old)
        assert log.url.endswith(f"old{writes}") and values(log) == ["0", "1"]
        with pytest.raises(InvalidRequest, match="is a mirror of"):
            opened(new).append("t", [{"value": "x"}])


def test_an_erasure_waits_for_the_former_place(log: Log, tmp_path: Path) -> None:
    """Nobody deletes anything there, so it is named until somebody has."""
    log.append("t", [{"key": b"person", "value": b"secret"}])
    log.admin.erase_records("t", [b"person"])
    log.close()
    move_log(opened(tmp_path / "old"), open_store(str(tmp_path / "new")))
    with opened(tmp_path / "new") as there:
        there.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
        for _ in range(3):
            there.append("t", [{"value": b"more"}])
            maintain_once(there)
        (listed,) = there.admin.list_erasures()
        assert str(tmp_path / "old") in listed.unreached[0]
        assert listed.waits_for == listed.unreached
        (directory,) = there.journal.state.former_roots
        there.admin.forget_root(directory)
        assert there.admin.list_erasures() == []
