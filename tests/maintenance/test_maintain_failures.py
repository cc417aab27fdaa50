"""A failure in a round of maintenance stops no other part of it, and no later round."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simulation.harness.clocks import ManualClock
from simulation.harness.stores import Wrapper
from spark_log import Log, NewTopic, connect
from spark_log.errors import AuthorizationFailed, CoordinatorNotAvailable, CorruptObject, ObjectNotFound, StorageError
from spark_log.http.address import Target, this_host
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.sealing import seal
from spark_log.journal.store_operations import (
    Answered,
    Ask,
    Changes,
)
from spark_log.maintenance.maintain import (
    Maintainer,
    collect_garbage,
    expire,
    maintain_every,
    maintain_once,
    maintain_round,
    merge,
)
from spark_log.metadata.maintenance.decide_maintenance import decide_fence
from spark_log.metadata.records import Piece
from spark_log.metadata.topics.decide_topics import decide_delete_topic, decide_trim
from spark_log.model import Slice
from spark_log.recovery.verify import verify
from spark_log.rewriting import merge as merging
from spark_log.rewriting.merge_candidates import plan_merge
from spark_log.rewriting.rewrite import open_spool
from spark_log.rpc.client import HttpLink
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from tests.cli.commands import Pylog
from tests.logged import logged, records_of
from tests.maintenance.logs import HOUR_MS, append_small, maintenance, new_log, rows, slices, tracebacks

DAY_MS = 24 * HOUR_MS
EIGHT_DAYS = {"retention_ms": str(8 * DAY_MS)}
FOR_EVER = {"retention_ms": "-1", "segment_ms": str(10**15)}


def entries(log: Log, topic: str) -> tuple[Slice | Piece, ...]:
    state = log.journal.refresh()
    return state.partitions[state.names[topic], 0].entries


def damage(folder: Path, log: Log, topic: str) -> str:
    """Flip a bit of the last but one slice of a topic.  The name of its object."""
    broken = entries(log, topic)[-2]
    assert isinstance(broken, Slice)
    data = bytearray((folder / broken.object).read_bytes())
    data[broken.position + broken.length // 2] ^= 1
    (folder / broken.object).write_bytes(data)
    return broken.object


def three_topics(folder: Path, **configs: str) -> Log:
    """Topics a, b and t with two old commits and two new ones each; what expires is older than eight days."""
    log = new_log(folder, **configs)
    for topic in ("a", "b"):
        log.create_topic(NewTopic(topic, 1, {name.replace("_", "."): text for name, text in configs.items()}))
    for topic in ("a", "b", "t"):
        for first, age_ms in ((0, 10 * DAY_MS), (3, 10 * DAY_MS), (6, 0), (9, 0)):
            log.append(topic, rows(first, 3, age_ms=age_ms))
    return log


# ---------------------------------------------------------------------------------------------- between two swaps


def delete(log: Log, topic: str) -> None:
    """And prune, so that nothing of the topic is left."""
    log.journal.propose(lambda s, now: decide_delete_topic(s, topic))
    collect_garbage(log)


def trim(log: Log, topic: str) -> None:
    """All but the last slice, and prune."""
    key = log.journal.refresh().names[topic], 0
    log.journal.propose(lambda s, now: decide_trim(s, {key: 9}))
    collect_garbage(log)


def seal_all(log: Log, topic: str) -> None:
    maintenance(log.journal, seal)


def merge_all(log: Log, topic: str) -> None:
    merge(log)


@pytest.mark.parametrize(("action", "merged"), [(delete, 2), (trim, 2), (seal_all, 3), (merge_all, 0)])
def test_what_others_do_between_two_swaps(tmp_path: Path, action: Callable[[Log, str], None], merged: int) -> None:
    """A topic that is deleted, trimmed or merged by another stays as that made it, and the others are merged."""
    log, other = three_topics(tmp_path, **FOR_EVER), connect(str(tmp_path))
    state = log.journal.refresh()
    names = [state.topics[stretch.key[0]].name for stretch in log.journal.run(plan_merge(state))[0]]
    assert sorted(names) == ["a", "b", "t"]
    actions = iter([action])

    def meanwhile(what: str, at: int, total: int) -> None:
        for once in actions:
            once(other, names[-1])

    merge_each = partial(merging.merge, open_spool=open_spool, progress=meanwhile)
    tally = maintenance(log.journal, merge_each, StepLimits(changes_max=1))
    assert tally.segments == merged
    assert [len(entries(log, name)) for name in names[:-1]] == [1, 1]
    assert verify(log, deep=True) == []


# ----------------------------------------------------------------------------------------------------- what is damaged


def test_a_damaged_object_stops_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its partition stays unmerged and is named; retention, garbage collection, other topics and the checkpoint are
    done.
    """
    log = three_topics(tmp_path, **EIGHT_DAYS)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    broken = damage(tmp_path, log, "a")
    report = maintain_round(log)
    assert report.expired_records == 18
    assert (report.merged_slices, report.segments) == (4, 2)
    assert [len(entries(log, name)) for name in ("a", "b", "t")] == [2, 1, 1]
    assert list(tmp_path.glob("meta/ckpt/*"))
    (problem,) = report.problems
    assert problem.startswith("merging a-0 failed: ") and broken in problem
    assert problem in caplog.text and not tracebacks(caplog, log.url)
    collected = maintain_round(log).collected + maintain_round(log).collected + report.collected
    assert collected >= 6
    assert len(list(tmp_path.glob("meta/ckpt/*"))) == 2  # one of them before objects were deleted


def test_one_round_alone_raises_when_everything_was_tried(tmp_path: Path) -> None:
    """So do merging and retention alone: their caller must learn of the failure."""
    log = three_topics(tmp_path, **EIGHT_DAYS)
    damage(tmp_path, log, "a")
    with pytest.raises(CorruptObject):
        maintain_once(log)
    assert [len(entries(log, name)) for name in ("a", "b", "t")] == [2, 1, 1]
    with pytest.raises(CorruptObject):
        merge(log)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def three_partitions(folder: Path, count: int) -> Log:
    """Some partitions with three slices each, in an object each."""
    log = new_log(folder, partitions=count)
    for first in range(0, 9, 3):
        for number in range(count):
            log.append("t", rows(first, 3, partition=number))
    return log


# Promise: cli.md#pylog-maintain
@pytest.mark.parametrize("count", [1, 3])
def test_a_missing_object_stops_nothing_else(tmp_path: Path, count: int) -> None:
    """Whether its slices would share an object with others or not: each process names it."""
    log = three_partitions(tmp_path, count)
    lost = slices(log)[1].object
    data = (tmp_path / lost).read_bytes()
    (tmp_path / lost).unlink()
    maintainer = Maintainer(log)
    (problem,) = maintainer.round().problems
    assert problem.startswith(f"merging t-0 failed: {lost} is missing, but has the offsets 3 to 5 of topic 't'")
    assert [len(slices(log, number)) for number in range(count)] == [3, 1, 1][:count]
    with pytest.raises(ObjectNotFound, match="is missing"):
        merge(log)
    result = Pylog(tmp_path).run("maintain")
    assert result.exit_code == 1 and "pylog: 1 problem, logged above" in result.stderr
    (tmp_path / lost).write_bytes(data)
    assert maintainer.round_or_raise().merged_slices == 3
    assert verify(log, deep=True) == []


class Overtaken(Wrapper):
    """Something happens once, before a segment is read or written."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.before_get: Callable[[], None] | None = None
        self.before_put: Callable[[], None] | None = None

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key.endswith(".seg") and (happens := self.before_get):
            self.before_get = None
            happens()
        return self.inner.get(key, start, end)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        if key.endswith(".seg") and (happens := self.before_put):
            self.before_put = None
            happens()
        self.inner.put(key, chunks)


@pytest.mark.parametrize("count", [1, 3])
def test_an_object_that_another_maintainer_has_replaced_is_not_missing(tmp_path: Path, count: int) -> None:
    """It is deleted after the plan of a merge and before its read: the newest state does not name it."""
    other = three_partitions(tmp_path, count)
    other.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    store = Overtaken(LocalStore(str(tmp_path), "os"))
    log = Log(Journal.open(store, create=False))

    def replace_all() -> None:
        merge(other)
        for number in range(3):
            other.append("t", rows(9 + number, 1))
            time.sleep(0.005)
            collect_garbage(other)

    store.before_get = replace_all
    old = slices(log)[0].object
    assert merge(log) == merging.Tally(planned=3 * count)
    assert not (tmp_path / old).exists()
    assert verify(other, deep=True) == []


def test_a_swap_below_the_fence_is_repeated_in_the_next_round() -> None:
    """A process whose clock is ahead moves the fence beyond a segment that is being written; nothing else changes."""
    clock, store = ManualClock(), Overtaken(MemoryStore(uuid.uuid4().hex))
    log = Log(Journal.open(store, create=True, clock=clock))
    log.create_topic(NewTopic("t", 1, {"retention.ms": "-1"}))
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": str(HOUR_MS)}})
    append_small(log, 4)
    other, maintainer = Log(Journal.open(store.inner, create=False, clock=clock)), Maintainer(log)

    def move_the_fence() -> None:
        for _ in range(3):
            clock.sleep_ms(HOUR_MS // 64)
            other.journal.propose(lambda s, now: decide_fence(s, now + 2 * HOUR_MS))

    store.before_put = move_the_fence
    version = log.journal.state.version
    first, second = maintainer.round_or_raise(), maintainer.round_or_raise()
    assert first.merged_slices == 0 and other.journal.refresh().fence >= version
    assert second.merged_slices == 4
    assert verify(log, deep=True) == []


@pytest.mark.parametrize(("break_it", "words"), [(cut, "is damaged"), (Path.unlink, "is missing")])
def test_a_broken_slice_index_stops_nothing_else(tmp_path: Path, break_it: Callable[[Path], None], words: str) -> None:
    """Its partition stays as it is and is named; the others lose what is old and are merged."""
    log = new_log(tmp_path)
    for topic in ("a", "b"):
        log.create_topic(NewTopic(topic, 1, {"retention.ms": str(8 * DAY_MS)}))
        for number in range(6):
            log.append(topic, rows(3 * number, 3, age_ms=10 * DAY_MS if number < 3 else 0))
        seal_all(log, topic)
    (sealed,) = entries(log, "a")
    break_it(tmp_path / sealed.object)
    report = maintain_round(log)
    assert (report.expired_records, report.merged_slices) == (9, 3)
    assert entries(log, "a") == (sealed,)
    assert [entry.start for entry in entries(log, "b") if entry.start >= 9] == [9]
    assert len(report.problems) == 1, "retention and merging read it, and it is set aside once"
    for problem in report.problems:
        assert problem.startswith("reading the slice index of a-0 failed: ")
        assert sealed.object in problem and words in problem
    with pytest.raises((CorruptObject, ObjectNotFound), match=words):
        expire(log)


# -------------------------------------------------------------------------------------------------------- round by round


class Breaking(Wrapper):
    """Raises an error once, at the next listing of a prefix."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.error: BaseException | None = None
        self.prefix = ""

    def list(self, prefix: str) -> list[str]:
        if self.error is not None and prefix.startswith(self.prefix):
            error, self.error = self.error, None
            raise error
        return self.inner.list(prefix)


@pytest.fixture
def store(tmp_path: Path) -> Breaking:
    new_log(tmp_path)
    return Breaking(LocalStore(str(tmp_path), "os"))


# Promise: cli.md#pylog-maintain
@pytest.mark.parametrize("error", [KeyError("a bug"), OSError(5, "no such disk"), MemoryError()])
def test_a_bug_ends_neither_a_round_nor_the_rounds(
    store: Breaking, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """It is logged with its traceback; the other duties of its round are done, and the next round comes."""
    log = Log(Journal.open(store, create=False))
    rounds = maintain_every(log, 1)
    next(rounds)
    append_small(log, 3)
    store.error, store.prefix = error, "meta/pin"
    report = next(rounds)
    assert report.problems == (f"deleting pins failed: {error!r}",)
    assert report.merged_slices == 3
    assert tracebacks(caplog, log.url)
    append_small(log, 3, first=3)
    caplog.clear()
    store.error, store.prefix = error, ""
    assert next(rounds).merged_slices == 4
    assert "failed, retrying in its next run" in caplog.text and tracebacks(caplog, log.url)


@pytest.mark.parametrize("prefix", ["", "meta/pin"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_whoever_stops_it_is_obeyed(store: Breaking, prefix: str, error: type[BaseException]) -> None:
    """Ctrl-C and an exit end the rounds, whatever is being done."""
    rounds = maintain_every(Log(Journal.open(store, create=False)), 1)
    next(rounds)
    store.error, store.prefix = error(), prefix
    with pytest.raises(error):
        next(rounds)


def test_a_log_of_which_an_older_copy_was_restored_is_maintained(caplog: pytest.LogCaptureFixture) -> None:
    """Each round of a maintainer that has seen a later version works on the log as it is."""
    clock, store = ManualClock(), MemoryStore(uuid.uuid4().hex)
    log = Log(Journal.open(store, create=True, clock=clock))
    log.create_topic(NewTopic("t", 1, {"retention.ms": "-1"}))
    copy = {key: store.get(key) for key in store.list("meta/")}
    rounds = maintain_every(log, 1)
    append_small(log, 5)
    next(rounds)
    store.delete([*store.list("meta/"), *store.list("data/")])
    for key, data in copy.items():
        store.put(key, [data])
    other = Log(Journal.open(store, create=False, clock=clock))
    for number in range(1, 4):
        append_small(other, 2)
        assert next(rounds).version == other.journal.refresh().version, number
    assert len(slices(other)) == 1
    assert not logged(caplog, f"maintenance of {log.url}", "restored")


def test_the_storage_fails_for_all_duties(store: Breaking, caplog: pytest.LogCaptureFixture) -> None:
    """A sentence each, no traceback."""
    log = Log(Journal.open(store, create=False))
    store.error, store.prefix = StorageError("data/: access denied"), "data"
    assert maintain_round(log).problems == ("looking for lost versions failed: data/: access denied",)
    assert "access denied" in caplog.text and not tracebacks(caplog, log.url)
    assert {record.levelno for record in records_of(caplog, log.url)} == {logging.WARNING}


# ------------------------------------------------------------------------------------------------------------ the command


# Promise: cli.md#pylog-maintain, storage-failures.md#when-an-object-is-lost-or-damaged
def test_the_command_says_what_failed(tmp_path: Path) -> None:
    """The report has the problem, and the exit status is 1.  The next run lists the object, and has no problem."""
    log = three_topics(tmp_path, **FOR_EVER)
    broken = damage(tmp_path, log, "a")
    result = Pylog(tmp_path).run("maintain", "--output", "json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["segments"] == 3
    assert "merging a-0 failed" in report["problems"][0] and report["set_aside"] == [broken]
    assert result.stderr.endswith("pylog: 1 problem, logged above; the other duties were completed\n")
    again = Pylog(tmp_path).run("maintain")
    assert again.exit_code == 0 and "WARNING" not in again.stderr
    assert f"; 1 object is set aside, because it cannot be read: {broken}" in again.stdout


def test_the_command_goes_on_for_ever(tmp_path: Path) -> None:
    """A process that has set a damaged object aside merges what is new elsewhere, until Ctrl-C."""
    log = three_topics(tmp_path, **FOR_EVER)
    broken = damage(tmp_path, log, "a")
    command = [
        sys.executable,
        "-m",
        "spark_log.cli",
        "-u",
        str(tmp_path),
        "maintain",
        "--every",
        "50ms",
        "--output",
        "json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            reports = map(json.loads, process.stdout)
            assert next(reports)["segments"] == 3
            log.append("b", rows(12, 12))
            later = next(report for report in reports if report["segments"])
            assert later["problems"] == [] and later["set_aside"] == [broken]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


# ------------------------------------------------------------------------------------------------- without a coordinator


# Promise: cli.md#pylog-maintain
@pytest.mark.parametrize("duties", [maintain_once, maintain_round], ids=["once", "round"])
def test_a_coordinator_that_is_gone_is_waited_for_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, duties: Callable[[Log], object]
) -> None:
    """Although retention, merging and other duties have changes to make; one error says what to do."""
    three_topics(tmp_path, **EIGHT_DAYS).journal.take_over(0, "127.0.0.1:1", this_host())
    clock = ManualClock(SystemClock().now_ms())
    log = Log(Journal.open(LocalStore(str(tmp_path), "os"), create=False, clock=clock, link=HttpLink(Target(()))))
    before = clock.ms
    with (
        caplog.at_level(logging.WARNING, "spark_log"),
        pytest.raises(CoordinatorNotAvailable, match=r"127\.0\.0\.1:1.*pylog serve.*pylog cluster release --force"),
    ):
        duties(log)
    assert clock.ms - before < 2 * log.journal.context.coordinator_wait_ms
    assert not logged(caplog, f"maintenance of {log.url}")


class RefusingLink:
    """A link to a coordinator that takes no commands of this client."""

    def ask(self, asked: Ask) -> Answered:
        return Answered([AuthorizationFailed("the token may not do this") for _ in asked.commands])

    def changes(self, *_: Any) -> Changes:
        return Changes(0)

    def close(self) -> None:
        """Nothing is open."""


def test_every_duty_that_a_coordinator_refuses_is_reported(tmp_path: Path) -> None:
    """Also the fence, without which nothing is deleted."""
    written = three_topics(tmp_path, **EIGHT_DAYS)
    written.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    written.append("t", rows(12, 3))
    written.journal.take_over(0, "127.0.0.1:1", this_host())
    log = Log(Journal.open(LocalStore(str(tmp_path), "os"), create=False, link=RefusingLink()))
    problems = maintain_round(log).problems
    for duty in ("retention", "advancing the fence", "merging"):
        assert any(problem.startswith(f"{duty} failed: the token may not do this") for problem in problems), duty
