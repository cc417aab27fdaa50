"""Damaged, truncated and missing files of a log's metadata: every acknowledged record is read, or an error names the
file.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.errors import (
    CorruptObject,
    LogRestored,
    ObjectNotFound,
    OutOfOrderSequence,
    SparkLogError,
    UnknownProducerId,
)
from spark_log.journal.journal import Journal
from spark_log.journal.storage.checkpointing import checkpoint, checkpoint_and_truncate, truncate
from spark_log.journal.storage.opening import open_view
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS, LOG, checkpoint_version, log_key
from tests.logged import logged

INTERVAL = 5
COMMITS = 17
EVERY = 11
"""Of so many bytes, one is damaged in one run."""
VALUES = [b"%d" % number for number in range(COMMITS)]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """With two checkpoints and records behind them."""
    store = LocalStore(str(tmp_path / "log"), durability="os")
    log = open_log(store)
    configs: dict[str, str | None] = {"metadata.checkpoint.interval": str(INTERVAL)}
    log.journal.propose(lambda state, now: decide_set_configs(state, None, configs))
    for value in VALUES:
        log.append("t", [{"value": value}])
        log.close()
    older, newest = store.list(CHECKPOINTS)
    assert checkpoint_version(older) < checkpoint_version(newest) < log.journal.state.version
    return store


def open_log(store: LocalStore) -> spark_log.Log:
    return spark_log.Log(Journal.open(store, create=True))


def values(store: LocalStore) -> list[bytes]:
    return [value.as_py() for value in open_log(store).read("t", partition=0, start=0)["value"]]


def path_of(store: LocalStore, key: str) -> Path:
    return Path(store.url.removeprefix("file://")) / key


def outcome(store: LocalStore, key: str) -> str:
    """Whether all is there, or the error that names the damaged file and the next step."""
    try:
        found = values(store)
    except SparkLogError as error:
        message = str(error)
    else:
        assert found == VALUES
        return "read"
    assert key in message and "pylog repair" in message
    return "refused"


def metadata(store: LocalStore) -> list[str]:
    return [*store.list(CHECKPOINTS), *store.list(LOG)]


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_flipped_bit_is_passed_by_or_named(store: LocalStore) -> None:
    """At positions all over each file.  The newest checkpoint is never missed; of the older one nobody takes notice."""
    rng = random.Random(1)
    older, newest = store.list(CHECKPOINTS)
    for key in metadata(store):
        path, found = path_of(store, key), set()
        data = path.read_bytes()
        for at in range(rng.randrange(EVERY), len(data), EVERY):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
            found.add(outcome(store, key))
        path.write_bytes(data)
        if key in (older, newest):
            assert "read" in found
        else:
            assert found == {"refused" if int(key[len(LOG) :][:20]) > checkpoint_version(newest) else "read"}


# Promise: format/metadata.md#checkpoints, storage-failures.md#when-the-metadata-is-damaged
def test_a_newest_checkpoint_that_is_damaged_is_passed_by(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning that names it."""
    newest = store.list(CHECKPOINTS)[-1]
    data = path_of(store, newest).read_bytes()
    for length in range(0, len(data), 16):
        path_of(store, newest).write_bytes(data[:length])
        caplog.clear()
        with caplog.at_level(logging.WARNING, "spark_log"):
            assert values(store) == VALUES
        assert logged(caplog, newest)


def test_both_checkpoints_damaged_is_one_error(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    """It says what to run; no warning says before that the log was opened."""
    older, newest = store.list(CHECKPOINTS)
    for key in (older, newest):
        path_of(store, key).write_bytes(b"")
    pattern = rf"^{newest} .*; {older} .*; stop all writers and run `pylog repair"
    with caplog.at_level(logging.WARNING, "spark_log"), pytest.raises(CorruptObject, match=pattern):
        open_log(store)
    assert not logged(caplog, older, newest)


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize("cut", [lambda data: data[:-1], lambda data: b"", lambda data: data + b"\n"])
def test_a_truncated_file_is_passed_by_or_named(store: LocalStore, cut: Callable[[bytes], bytes]) -> None:
    """Or one that has more at its end."""
    for key in metadata(store):
        path = path_of(store, key)
        data = path.read_bytes()
        path.write_bytes(cut(data))
        outcome(store, key)
        path.write_bytes(data)
    assert values(store) == VALUES


# Promise: format/metadata.md#what-a-reader-refuses, storage-failures.md#when-the-metadata-is-damaged
def test_a_file_that_is_gone_is_passed_by_or_named(store: LocalStore) -> None:
    """Nothing in the storage tells of the very last record, so that one is left out."""
    last = open_log(store).journal.state.version
    for key in metadata(store):
        if key != log_key(last):
            path = path_of(store, key)
            data = path.read_bytes()
            path.unlink()
            outcome(store, key)
            path.write_bytes(data)


def test_a_log_whose_checkpoints_are_gone_is_not_taken_for_a_new_one(store: LocalStore) -> None:
    """Its first records are gone, too: they were in the checkpoints."""
    for key in [*store.list(CHECKPOINTS), log_key(1), log_key(2)]:
        path_of(store, key).unlink()
    with pytest.raises(CorruptObject, match=r"meta/log/0+3\.rec.*pylog repair"):
        open_log(store)


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_damaged_checkpoint_is_replaced_by_the_next_commit(store: LocalStore) -> None:
    """The newest two are intact then, and it is gone."""
    damaged = store.list(CHECKPOINTS)[-1]
    path_of(store, damaged).write_bytes(b"")
    log = open_log(store)
    log.append("t", [{"value": b"more"}])
    log.close()
    names = store.list(CHECKPOINTS)
    assert damaged not in names and len(names) == 2
    for name in names:
        before = path_of(store, name).read_bytes()
        path_of(store, name).write_bytes(b"")
        assert values(store) == [*VALUES, b"more"]
        path_of(store, name).write_bytes(before)


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_damaged_checkpoint_of_an_idle_log_is_replaced_by_maintain(store: LocalStore) -> None:
    """Though the log has not moved since."""
    from spark_log.maintenance.maintain import maintain_once

    log = open_log(store)
    maintain_once(log)
    damaged = store.list(CHECKPOINTS)[-1]
    assert checkpoint_version(damaged) == log.journal.refresh().version
    path_of(store, damaged).write_bytes(b"")
    maintain_once(open_log(store))
    assert damaged not in store.list(CHECKPOINTS)
    assert values(store) == VALUES


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("commits", [1, 2, 2 * INTERVAL])
def test_a_client_of_a_log_that_was_restored_from_an_older_copy_says_so(
    store: LocalStore, tmp_path: Path, commits: int
) -> None:
    """Its next commit and its next look at the log fail, and it leaves nothing behind, though no checkpoint was written
    since.
    """
    folder, copy = path_of(store, ""), tmp_path / "copy"
    shutil.copytree(folder, copy)
    log = open_log(store)
    for _ in range(commits):
        log.append("t", [{"value": b"newer"}])
    log.journal.finish_maintenance()
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    with pytest.raises(LogRestored, match="an older copy of the log was restored"):
        log.journal.refresh()
    with pytest.raises(LogRestored, match="an older copy of the log was restored") as raised:
        log.append("t", [{"value": b"lost"}])
    assert not raised.value.maybe_applied
    assert values(store) == VALUES
    for number in range(commits + 2):
        open_log(store).append("t", [{"value": b"%d" % number}])
    assert values(store) == [*VALUES, *(b"%d" % number for number in range(commits + 2))]


def test_a_commit_of_unchanged_positions_on_a_restored_log_changes_nothing(store: LocalStore, tmp_path: Path) -> None:
    """It sends no request.  The next one with a change raises; a new consumer continues from the copy's position."""
    folder, copy, tp = path_of(store, ""), tmp_path / "copy", spark_log.TopicPartition("t", 0)
    log = open_log(store)
    consumer = log.consumer("t", group_id="g")
    consumer.commit({tp: 5})
    log.journal.finish_maintenance()
    shutil.copytree(folder, copy)
    consumer.commit({tp: 10})
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    before = sorted(path.name for path in folder.rglob("*"))
    consumer.commit({tp: 10})
    assert sorted(path.name for path in folder.rglob("*")) == before
    with pytest.raises(LogRestored) as raised:
        consumer.commit({tp: 11})
    assert not raised.value.maybe_applied
    later = open_log(store).consumer("t", group_id="g")
    assert (later.committed(tp), next(later).value) == (5, VALUES[5])


@pytest.mark.parametrize(("misses", "maybe_applied"), [(1, True), (5, False)])
def test_a_record_that_a_restored_log_has_taken_for_its_own_is_not_deleted(
    store: LocalStore, tmp_path: Path, misses: int, maybe_applied: bool
) -> None:
    """The restored log comes as far as a client of before while that one finds out that its version is gone.

    If it comes so far only after the client has deleted its record, the error says that nothing was applied.
    """
    folder, copy = path_of(store, ""), tmp_path / "copy"
    configs: dict[str, str | None] = {"metadata.checkpoint.interval": "1000"}
    open_log(store).journal.propose(lambda state, now: decide_set_configs(state, None, configs))
    shutil.copytree(folder, copy)
    between = Between(store)
    late = open_log(between)
    late.append("t", [{"value": b"newer"}])
    last = log_key(late.journal.state.version)
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    other, new = open_log(store), [b"new 0", b"new 1"]

    def overtake() -> None:
        for value in new:
            other.append("t", [{"value": value}])

    between.after_misses(last, misses, overtake)
    with pytest.raises(LogRestored, match="an older copy of the log was restored") as raised:
        late.append("t", [{"value": b"late"}])
    assert raised.value.maybe_applied == maybe_applied
    assert set(new) <= set(values(store)) <= {*VALUES, *new, *([b"late"] if maybe_applied else [])}


class Between(Wrapper):
    """A store in which something happens once an object was found absent."""

    def after_misses(self, key: str, misses: int, happens: Callable[[], None]) -> None:
        self._key, self._left, self._happens = key, misses, happens

    _key = ""
    _left = 0

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        try:
            return self.inner.get(key, start, end)
        except ObjectNotFound:
            if key == self._key:
                self._left -= 1
                if self._left == 0:
                    self._happens()
            raise


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("more", [0, 1, 3])
def test_a_client_that_a_restored_log_has_overtaken_takes_note(
    store: LocalStore, tmp_path: Path, more: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its version exists again, with another record, and no checkpoint: it continues with the log as it is."""
    folder, copy = path_of(store, ""), tmp_path / "copy"
    configs: dict[str, str | None] = {"metadata.checkpoint.interval": "1000"}
    open_log(store).journal.propose(lambda state, now: decide_set_configs(state, None, configs))
    shutil.copytree(folder, copy)
    writer, reader = open_log(store), open_log(store)
    writer.append("t", [{"value": b"lost"}])
    reader.journal.refresh()
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    new = [b"new %d" % number for number in range(1 + more)]
    for value in new:
        open_log(store).append("t", [{"value": value}])
    with caplog.at_level(logging.WARNING, "spark_log"):
        assert reader.journal.refresh() == open_log(store).journal.state
        assert [value.as_py() for value in reader.read("t")["value"]] == [*VALUES, *new]
        writer.append("t", [{"value": b"later"}])
    assert values(store) == [*VALUES, *new, b"later"]
    assert len(logged(caplog, "an older copy of the log was restored")) == 2


def test_a_client_that_a_restored_log_has_overtaken_writes_nothing_of_what_it_knew(
    store: LocalStore, tmp_path: Path
) -> None:
    """Its version exists again, with other records; a checkpoint of its state would replace those."""
    folder, copy = path_of(store, ""), tmp_path / "copy"
    shutil.copytree(folder, copy)
    log = open_log(store)
    for _ in range(2 * INTERVAL):
        log.append("t", [{"value": b"lost"}])
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    other, new = open_log(store), []
    while other.journal.state.version < log.journal.state.version:
        new.append(b"new %d" % len(new))
        other.append("t", [{"value": new[-1]}])
    for _ in range(2 * INTERVAL):
        with suppress(OutOfOrderSequence, UnknownProducerId):  # what it has committed is not in this log
            log.append("t", [{"value": b"stale"}])
    assert values(store)[: len(VALUES) + len(new)] == [*VALUES, *new]
    assert log.journal.refresh() == open_log(store).journal.state


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_client_that_opened_a_restored_log_anew_says_so_once(
    store: LocalStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint that it knew is forgotten: later looks at the log find nothing strange."""
    folder, copy = path_of(store, ""), tmp_path / "copy"
    shutil.copytree(folder, copy)
    log = open_log(store)
    journal = log.journal
    journal.run(checkpoint(journal.run(open_view()), journal.context))
    log.journal.refresh()
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    with caplog.at_level(logging.WARNING, "spark_log"):
        log.journal.refresh()
        assert len(logged(caplog, "an older copy of the log was restored")) == 1
        log.journal.refresh()
        log.append("t", [{"value": b"more"}])
        log.journal.refresh()
    assert len(logged(caplog, "an older copy of the log was restored")) == 1
    assert values(store) == [*VALUES, b"more"]


# Promise: format/metadata.md#checkpoints, storage-failures.md#when-the-metadata-is-damaged
def test_nothing_goes_while_one_of_the_newest_two_is_damaged(store: LocalStore) -> None:
    """Neither records nor older checkpoints, however old."""
    log = open_log(store)
    journal = log.journal
    before = store.list(LOG)
    for key in store.list(CHECKPOINTS):
        data = path_of(store, key).read_bytes()
        path_of(store, key).write_bytes(data[:-1])
        view = journal.run(open_view())
        view = view._replace(state=view.state.__class__(version=view.state.version, fence=view.state.version))
        assert journal.run(truncate(view, journal.context)) == 0
        path_of(store, key).write_bytes(data)
    assert store.list(LOG) == before
    journal.run(checkpoint_and_truncate(journal.run(open_view()), journal.context, -1))
    assert values(store) == VALUES
