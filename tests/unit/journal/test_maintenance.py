"""Maintenance and commits run side by side: if maintenance fails, the commit still succeeds."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Iterable

import pytest

import spark_log
from simulation.harness.clocks import ManualClock
from simulation.harness.stores import Wrapper
from spark_log.configs.settings import cluster_config
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance import fence_and_expire, seal_and_expire
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.sealing import prune
from spark_log.journal.store_operations import Decide
from spark_log.metadata.commands import Expire, Fence
from spark_log.metadata.formats.checkpoint_format import CHANGES_MIN
from spark_log.metadata.groups.decide_groups import decide_commit_offsets
from spark_log.metadata.maintenance.decide_maintenance import STREAM_RETENTION
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import CHECKPOINTS
from tests.logged import logged, records_of
from tests.maintenance.logs import maintenance
from tests.unit.metadata.history import History, positions

ONE_CHANGE = StepLimits(inline_slices=0, inline_per_partition=0, changes_max=1)


class Interrupted(Wrapper):
    """Calls `then` once, after the first put of a name that contains `of`."""

    def __init__(self, inner: ObjectStore, of: str, then: Callable[[], None]) -> None:
        super().__init__(inner)
        self._of, self._then = of, then

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        super().put(key, chunks)
        if self._of and self._of in key:
            self._of = ""
            self._then()


class Defective(Wrapper):
    """Puts of names that begin with `prefix` raise an error that no store should raise."""

    def __init__(self, inner: ObjectStore, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = prefix

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        if key.startswith(self._prefix):
            raise ZeroDivisionError(f"a bug of the store's library, at {key}")
        super().put(key, chunks)


def memory() -> ObjectStore:
    return MemoryStore(f"maintenance-{uuid.uuid4().hex}")


def open_log(store: ObjectStore, limits: StepLimits = StepLimits()) -> spark_log.Log:  # noqa: B008  it is frozen
    return spark_log.Log(Journal.open(store, create=True, limits=limits))


def set_interval(log: spark_log.Log, interval: int) -> None:
    configs: dict[str, str | None] = {"metadata.checkpoint.interval": str(interval)}
    log.journal.propose(lambda state, now: decide_set_configs(state, None, configs))


def prune_all(log: spark_log.Log) -> None:
    maintenance(log.journal, prune, log.journal.context.limits)


def trim(log: spark_log.Log, partition: int) -> None:
    log.admin.delete_records({spark_log.TopicPartition("t", partition): 6})


@pytest.mark.parametrize(
    "change",
    [lambda log: trim(log, 2), lambda log: log.admin.delete_topics(["u"])],
    ids=["slices that were trimmed", "a topic that was deleted"],
)
def test_an_append_returns_while_another_process_prunes(
    change: Callable[[spark_log.Log], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Each chunk of a seal is prepared on the state that it is written to: another process may have pruned the next
    one.
    """
    store = memory()
    other = open_log(store)
    for topic in ("t", "u"):
        other.create_topic(spark_log.NewTopic(topic, 3))

    def meanwhile() -> None:
        change(other)
        prune_all(other)

    log = open_log(Interrupted(store, ".idx", meanwhile), ONE_CHANGE)
    rows = [{"value": b"x", "partition": number} for number in range(3)]
    for _ in range(5):
        log.append("t", rows)
        log.append("u", rows)
    set_interval(other, 1)
    log.journal.refresh()
    assert log.append("t", rows)[spark_log.TopicPartition("t", 0)] == range(5, 6)
    assert not logged(caplog, store.url)
    assert log.read("t", partition=1).num_rows == 6


def test_a_bug_in_maintenance_is_logged_and_the_append_returns(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the error is: the records are in the log."""
    log = open_log(Defective(memory(), CHECKPOINTS))
    set_interval(log, 1)
    with caplog.at_level(logging.WARNING, "spark_log"):
        log.append("t", [{"value": b"x"}])
        with log.producer(linger_ms=1) as producer:
            assert producer.send("t", b"y").result(30).offset == 1
        with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
            assert [record.value for records in consumer.poll(30_000).values() for record in records] == [b"x", b"y"]
            consumer.commit()
        log.journal.finish_maintenance()
    found = records_of(caplog, log.journal.metadata.url)
    assert found and all("ZeroDivisionError" in str(record.exc_info) for record in found)
    assert {record.levelname for record in found} == {"ERROR"}


def test_rows_that_a_checkpoint_moved_to_columns_stay_there_when_commits_go_on() -> None:
    """In the process that wrote it, too: otherwise each checkpoint would move them again."""
    inner = memory()
    log = open_log(Interrupted(inner, CHECKPOINTS, lambda: append(log)))
    log.create_topic(spark_log.NewTopic("t", CHANGES_MIN + 1))
    set_interval(log, 5)
    while not log.journal.state.partitions.base:
        append(log)
        log.journal.finish_maintenance()
        assert log.journal.state.version < 20
    partitions = log.journal.state.partitions
    assert len(partitions) == CHANGES_MIN + 1 and 0 < len(partitions.changes) < 20
    append(log)
    log.create_topic(spark_log.NewTopic("u", 2))
    assert open_log(inner).journal.state == log.journal.state
    assert open_log(inner).read("t").num_rows == log.read("t").num_rows >= 5


def append(log: spark_log.Log) -> None:
    log.append("t", [{"value": b"x", "partition": 7}])


def test_a_coordinator_is_asked_only_about_groups_that_have_expired() -> None:
    """It decides beside the commits, which would wait while it visits a million positions."""
    history = History()
    topic = history.create()
    history.do(lambda state, now: decide_set_configs(state, None, {"offsets.retention.minutes": "1"}))
    for group, after_ms in (("old", 100_000), ("new", 0)):
        commit = positions(group, topic, 1)
        history.do(lambda state, now, commit=commit: decide_commit_offsets(state, (commit,), now))
        history.now += after_ms
    retention_ms = cluster_config(history.state.configs, STREAM_RETENTION)
    now_ms = history.now - 50_000 + retention_ms
    context = Context(ManualClock(now_ms), random.Random(0), served=True)
    asked = next(fence_and_expire(history.state, context, looks=False))
    assert isinstance(asked, Decide)
    fence, expire = (one.decide for one in asked.commands)
    assert isinstance(fence, Fence)
    assert isinstance(expire, Expire) and expire.only_groups == ("old",)


def test_maintenance_looks_for_what_has_expired_when_the_fence_advances() -> None:
    """Not after each hundred commits: a million positions take a while."""
    history = History()
    topic = history.create()
    context = Context(
        ManualClock(history.now + 10 * cluster_config(history.state.configs, STREAM_RETENTION)), random.Random(0)
    )
    for age_ms, asks in ((1, True), (10**15, False)):
        configs: dict[str, str | None] = {"gc.fence.age.ms": str(age_ms)}
        history.do(lambda state, now, configs=configs: decide_set_configs(state, None, configs))
        history.do(
            lambda state, now, age_ms=age_ms: decide_commit_offsets(state, (positions("g", topic, age_ms),), now)
        )
        assert (next(seal_and_expire(history.state, context), None) is not None) is asks
