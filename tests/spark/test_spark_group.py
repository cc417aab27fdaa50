"""The named progress of streams: the owner of a group, its positions, and queries that end, die and restart.

Most tests run a query that makes Spark's calls in Spark's order over a checkpoint.  At the end, real Spark shows that
it makes them so.
"""

from __future__ import annotations

import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.progress.group_publisher import SESSION_MS, GroupProgress
from pyspark_pylog.progress.offset_format import Offset, offset_at

import spark_log
from simulation.harness.clocks import ManualClock, SkewedClock
from simulation.harness.stores import ClockedStore, Faults
from spark_log import NewTopic, TopicPartition
from spark_log.cli.main import pylog
from spark_log.errors import DataLoss, GroupInUse, IllegalGeneration, InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.runtime.clock import SystemClock
from spark_log.store.local import LocalStore
from tests.client.logs import Flaky
from tests.spark.builders import (
    DEADLINE_S,
    Batches,
    as_bytes,
    copy,
    load_stream,
    script,
    texts,
    to_sink,
    values,
    wait_until,
)
from tests.spark.driver import Stream, rows

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Query(Stream):
    """A query of group g, over the checkpoint of an earlier one if there is one."""

    def __init__(self, url: str, before: Query | None = None, /, topics: str | None = "t", **options: Any) -> None:
        super().__init__(url, topics, **{"group.id": "g", **options})
        self.offsets = [] if before is None else list(before.offsets)


def committed(log: spark_log.Log, group: str = "g") -> dict[tuple[str, int], int]:
    """Where a group stands."""
    state = log.journal.refresh()
    if group not in state.groups:
        return {}
    return {
        (state.topics[topic_id].name, number): at.offset
        for (topic_id, number), at in state.groups[group].offsets.items()
    }


def soon(log: spark_log.Log, offset: int) -> bool:
    """Whether group g gets to an offset of t-0."""
    return wait_until(lambda: committed(log).get(P0) == offset)


def holder(log: spark_log.Log) -> str:
    """The owner of group g."""
    session = log.journal.refresh().groups["g"].session
    return "" if session is None else session.owner


@pytest.fixture
def filled(log: spark_log.Log) -> spark_log.Log:
    """Topic t with two partitions of 5 records."""
    log.admin.create_topics([NewTopic("t", 2)])
    log.append("t", [{"value": str(n), "partition": n % 2} for n in range(10)])
    return log


# -------------------------------------------------------------------------------------------------------- where it starts


# Promise: spark-streams.md#named-progress
def test_a_query_without_a_checkpoint_starts_where_its_group_stands(url: str, filled: spark_log.Log) -> None:
    """Where the group has no position, startingOffsets says, and only there."""
    filled.admin.alter_consumer_group_offsets("g", {P0: 3})
    for options, other in (
        ({}, 0),
        ({"startingOffsets": "latest"}, 5),
        ({"startingOffsets": '{"t":{"0":1,"1":4}}'}, 4),
    ):
        query = Query(url, **options)
        assert query.reader.initialOffset()["t"] == {"0": 3, "1": other}
        query.reader.stop()
        filled.admin.delete_consumer_group_offsets("g", [P1])
        assert committed(filled) == {P0: 3}


# Promise: spark-streams.md#named-progress
def test_the_checkpoint_goes_before_the_group(url: str, filled: spark_log.Log) -> None:
    """A group that was moved does not move a query that has a checkpoint; the query publishes where it is."""
    query = Query(url)
    query.restart("available-now").run()
    filled.admin.alter_consumer_group_offsets("g", {P0: 1})
    again = Query(url, query)
    assert not again.batch()
    assert committed(filled) == {P0: 5, P1: 5}


def test_records_that_the_group_has_not_read_and_that_are_gone_are_a_loss(url: str, filled: spark_log.Log) -> None:
    """As with a checkpoint: an error that names them, or a warning."""
    filled.admin.alter_consumer_group_offsets("g", {P0: 1, P1: 1})
    filled.admin.delete_records({P0: 4})
    query = Query(url)
    with pytest.raises(DataLoss, match=r"offsets \[1, 4\) of t-0 are gone.*failOnDataLoss=false"):
        query.reader.initialOffset()
    query.reader.stop()
    assert Query(url, failOnDataLoss="false").reader.initialOffset()["t"] == {"0": 4, "1": 1}


def test_a_group_that_moves_until_the_query_has_it_is_followed(url: str, filled: spark_log.Log) -> None:
    """Where it stands is settled when nobody else can move it any more: what others read last is not read again."""
    filled.admin.alter_consumer_group_offsets("g", {P0: 1})
    query = Query(url, maxOffsetsPerTrigger=4)
    assert query.reader.initialOffset()["t"] == {"0": 1, "1": 0}
    filled.admin.alter_consumer_group_offsets("g", {P0: 3, P1: 2})
    assert query.plan() and sorted(query.read()) == [*rows("t-0", 3, 5), *rows("t-1", 2, 4)]
    assert soon(filled, 3)
    query = Query(url, query)
    assert sorted(query.read()) == [*rows("t-0", 3, 5), *rows("t-1", 2, 4)]
    assert query.batch() == rows("t-1", 4, 5)
    query.reader.stop()


def test_records_trimmed_after_the_group_was_asked_are_a_loss(url: str, filled: spark_log.Log) -> None:
    """Between the first offset and the first batch, and between its plan and its next run; once each."""
    filled.admin.alter_consumer_group_offsets("g", {P0: 1, P1: 1})
    strict, lenient = Query(url), Query(url, failOnDataLoss="false", **{"group.id": "h"}, startingOffsets="1")
    for query in (strict, lenient):
        assert query.reader.initialOffset()["t"] == {"0": 1, "1": 1}
    filled.admin.delete_records({P0: 3})
    with pytest.raises(DataLoss, match=r"offsets \[1, 3\) of t-0 are gone"):
        strict.plan()
    assert lenient.plan()
    filled.admin.delete_records({P0: 4})
    lenient.restart()
    assert sorted(lenient.read()) == [*rows("t-0", 4, 5), *rows("t-1", 1, 5)]
    assert not lenient.plan() and committed(filled, "h") == {P0: 5, P1: 5}


# ------------------------------------------------------------------------------------------------------ what is published


# Promise: spark-streams.md#named-progress
def test_what_is_done_is_published_and_no_more(url: str, filled: spark_log.Log) -> None:
    """While a batch is at work the group stands at its start; when the next one is planned, at its end."""
    query = Query(url, maxOffsetsPerTrigger="4")
    query.plan()
    assert soon(filled, 0) and committed(filled)[P1] == 0
    for offset in (2, 4):
        assert query.batch()
        assert soon(filled, offset) and committed(filled)[P1] == offset
    assert not query.batch()
    assert committed(filled) == {P0: 5, P1: 5}


# Promise: spark-streams.md#named-progress
def test_an_idle_query_has_published_everything(url: str, filled: spark_log.Log) -> None:
    """Before Spark hears that there is nothing new, so also at the end of an available-now run."""
    query = Query(url)
    assert query.batch() and not query.batch()
    assert committed(filled) == {P0: 5, P1: 5}
    query.reader.stop()
    filled.append("t", texts(1), partitioner="round-robin")
    Query(url, query).restart("available-now").run()
    assert sum(committed(filled).values()) == 11


def test_the_last_batch_of_a_run_that_ended_is_published_by_the_next_start(url: str, filled: spark_log.Log) -> None:
    """Spark tells nobody of the last batch of trigger(once=True); its checkpoint does."""
    query = Query(url)
    query.batch()
    query.reader.stop()
    assert committed(filled) == {P0: 0, P1: 0}
    assert not Query(url, query).batch()
    assert committed(filled) == {P0: 5, P1: 5}


def test_a_batch_that_is_read_again_is_not_published_as_done(url: str, filled: spark_log.Log) -> None:
    """Spark starts with the partitions of a batch that was planned and not done."""
    query = Query(url, maxOffsetsPerTrigger="4")
    query.batch()
    query.plan()
    query.reader.stop()
    again = Query(url, query, maxOffsetsPerTrigger="4")
    assert len(again.read()) == 4
    again.reader.stop()
    assert committed(filled) == {P0: 2, P1: 2}


def test_spark_that_does_not_say_where_it_stands_is_understood(url: str, filled: spark_log.Log) -> None:
    """4.0 and 4.1 ask for an empty range up to the planned offset, done or not, and then for the latest offset of
    nowhere.
    """
    query = Query(url, maxOffsetsPerTrigger="4")
    query.batch()
    query.plan()
    query.reader.stop()
    again = Query(url, query, maxOffsetsPerTrigger="4").restart("4.0")
    assert committed(filled) == {P0: 2, P1: 2}
    again.read()
    assert len(again.run()) == 2
    assert committed(filled) == {P0: 5, P1: 5}


def test_topics_and_partitions_that_come_and_go_are_followed(url: str, log: spark_log.Log) -> None:
    """Positions belong to topics by their ids: one that is created again has no old position."""
    log.append("t", texts(3))
    query = Query(url, topics=None, subscribePattern="t|u", failOnDataLoss="false")
    assert query.batch() and not query.batch()
    log.append("u", texts(2))
    log.admin.create_partitions({"t": 2})
    query.run()
    assert committed(log) == {P0: 3, P1: 0, ("u", 0): 2}
    log.admin.delete_topics(["t"])
    log.append("t", texts(1))
    query.run()
    assert committed(log) == {P0: 1, ("u", 0): 2}


def test_another_group_over_one_checkpoint_is_published_to(url: str, filled: spark_log.Log) -> None:
    """From where the checkpoint is; the old group keeps what it has."""
    query = Query(url)
    query.restart("available-now").run()
    filled.append("t", [{"value": "x", "partition": 0}])
    Query(url, query, **{"group.id": "h"}).run()
    assert committed(filled, "h") == {P0: 6, P1: 5}
    assert committed(filled) == {P0: 5, P1: 5}


# ---------------------------------------------------------------------------------------------------------- who holds it


# Promise: spark-streams.md#named-progress
def test_a_second_query_on_a_group_is_refused(url: str, filled: spark_log.Log) -> None:
    """With who has it, since when, and what to do."""
    first = Query(url)
    first.plan()
    text = (
        rf"group 'g' is held by a stream on {re.escape(os.uname().nodename)} \(process {os.getpid()}\) since \S+Z, last "
        r"heartbeat at \S+Z: stop that consumer, or use another group; if it died, the group is free in \d+ s\. Two loads in one "
        r"query need a group each"
    )
    with pytest.raises(GroupInUse, match=text):
        Query(url).plan()
    first.reader.stop()
    assert holder(filled) == ""
    assert Query(url).plan()


# Promise: spark-streams.md#named-progress
def test_a_query_whose_holder_is_silent_takes_the_group_over(url: str, filled: spark_log.Log) -> None:
    """After the session's timeout, on any machine; the old one ends at its next check, and publishes nothing more."""
    first = Query(url)
    first.plan()
    second = Query(url)
    second.reader._journal = Journal.open(
        LocalStore(url, "os"), create=False, clock=SkewedClock(SystemClock(), SESSION_MS)
    )
    second.plan()
    assert holder(filled).startswith("a stream on")
    with pytest.raises(
        IllegalGeneration, match="group 'g' was taken by a stream on .* so this query ends; .*another gro"
    ):
        first.batch()
    first.reader.stop()
    assert holder(filled).startswith("a stream on")


def test_a_query_that_died_before_its_checkpoint_knew_it_waits_for_the_session(url: str, filled: spark_log.Log) -> None:
    """It is refused at each start, with how long that is; what starts it again may do so, or remove the member."""
    Query(url).plan()  # and Spark did not get to write where the batch ends
    again = Query(url)
    with pytest.raises(GroupInUse, match=r"if it died, the group is free in (4[0-5]|3\d) s"):
        again.plan()
    again.reader._journal = Journal.open(
        LocalStore(url, "os"), create=False, clock=SkewedClock(SystemClock(), SESSION_MS)
    )
    assert again.plan()
    filled.admin.remove_members_from_consumer_group("g")
    assert Query(url).plan()


def test_a_query_that_died_has_its_group_again_at_once(url: str, filled: spark_log.Log) -> None:
    """Its token is in the checkpoint; what may be left of its old process is fenced."""
    died = Query(url, maxOffsetsPerTrigger="4")
    died.batch()
    again = Query(url, died)
    again.run()
    assert committed(filled) == {P0: 5, P1: 5}
    with pytest.raises(IllegalGeneration):
        died.batch()
    assert committed(filled) == {P0: 5, P1: 5}


def test_a_query_that_died_in_its_first_batch_has_its_group_again_at_once(url: str, filled: spark_log.Log) -> None:
    """Spark then asks again for the first offset, which is in no checkpoint; the batch begins at the same offset."""
    died = Query(url, startingOffsets="latest-2")
    died.plan()
    assert soon(filled, 3)
    filled.append("t", [{"value": "x", "partition": 0}] * 4)
    again = Query(url, died, startingOffsets="latest-2")
    assert again.read() == [*rows("t-0", 3, 5), *rows("t-1", 3, 5)]
    assert committed(filled) == {P0: 3, P1: 3}
    again.run()
    assert committed(filled) == {P0: 9, P1: 5}


def test_a_query_that_has_seen_no_record_yet_is_known_again(url: str, log: spark_log.Log) -> None:
    """A first batch of nothing has its token in the checkpoint, and where it began."""
    log.append("t", texts(3))
    died = Query(url, startingOffsets="latest")
    assert died.plan() and not died.plan()
    log.append("t", texts(2))
    again = Query(url, died, startingOffsets="latest")
    assert again.read() == [] and again.plan()
    assert again.read() == rows("t-0", 3, 5) and soon(log, 3)


def test_a_checkpoint_of_before_the_group_is_known_again(url: str, filled: spark_log.Log) -> None:
    """The first offset after group.id was given says who the query is, without waiting for records."""
    before = Stream(url)
    before.run()
    joined = Query(url)
    joined.offsets = before.offsets
    assert joined.batch() == [] and joined.batch() is None
    assert committed(filled) == {P0: 5, P1: 5}
    assert Query(url, joined).batch() is None


def test_an_available_now_run_leaves_the_group_at_its_end(url: str, filled: spark_log.Log) -> None:
    """Spark does not stop the source there, and the next one should not wait for a session to run out."""
    query = Query(url)
    query.restart("available-now").run()
    assert holder(filled) == ""
    assert not query.plan()
    assert holder(filled) == ""
    assert Query(url).plan()


def test_a_consumer_and_a_stream_exclude_each_other(url: str, filled: spark_log.Log) -> None:
    """A stream keeps the group; a consumer, which gives no sign of life, gives way to it, as to a newer consumer."""
    consumer = filled.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    assert sum(map(len, consumer.poll(timeout_ms=2000, max_records=4).values())) == 4
    consumer.commit()
    query = Query(url)
    assert sum(query.reader.initialOffset()["t"].values()) == 4
    query.plan()
    with pytest.raises(IllegalGeneration):
        consumer.commit({P0: 5})
    with pytest.raises(GroupInUse, match="held by a stream"):
        filled.consumer("t", group_id="g").poll()
    query.reader.stop()
    filled.consumer("t", group_id="g").poll()


def test_a_consumer_may_take_the_group_of_a_query_that_is_silent(url: str, filled: spark_log.Log) -> None:
    """And the query hears who it was."""
    query = Query(url)
    query.batch()
    later = spark_log.Log(Journal.open(LocalStore(url), create=False, clock=SkewedClock(SystemClock(), SESSION_MS)))
    later.consumer("t", group_id="g").poll()
    with pytest.raises(IllegalGeneration, match="group 'g' was taken by a consumer at"):
        query.batch()


def test_a_long_batch_does_not_lose_the_group(url: str, filled: spark_log.Log) -> None:
    """Signs of life do not wait for Spark's next call."""
    progress = GroupProgress("g", session_ms=2000, sign_s=0.05)
    progress.join(filled.journal, Offset(ends={}, ids={}))
    since = filled.journal.state.groups["g"].seen
    assert wait_until(lambda: filled.journal.refresh().groups["g"].seen >= since + 200)
    progress.leave()
    version = filled.journal.refresh().version
    assert not wait_until(lambda: filled.journal.refresh().version > version, 0.3)


def test_a_group_that_a_query_publishes_to_is_not_moved(url: str, filled: spark_log.Log) -> None:
    """It would be where it was at the next batch; nor is it deleted, nor used as a bookmark."""
    query = Query(url)
    query.run()
    with pytest.raises(GroupInUse, match="held by a stream"):
        filled.admin.alter_consumer_group_offsets("g", {P0: 1})
    with pytest.raises(GroupInUse, match="held by a stream"):
        filled.admin.delete_consumer_group_offsets("g", [P0])
    with pytest.raises(GroupInUse, match="held by a stream"):
        filled.admin.delete_consumer_groups(["g"])
    with pytest.raises(GroupInUse, match="held by a stream"), filled.bookmark("g", "t"):
        pass
    assert committed(filled) == {P0: 5, P1: 5}
    query.reader.stop()
    filled.admin.alter_consumer_group_offsets("g", {P0: 1})
    assert committed(filled) == {P0: 1, P1: 5}


def test_a_group_that_was_taken_away_ends_its_query(url: str, filled: spark_log.Log) -> None:
    """Its members were removed; and what comes after may move it or delete it."""
    query = Query(url)
    query.batch()
    filled.admin.remove_members_from_consumer_group("g")
    with pytest.raises(IllegalGeneration, match="group 'g' was taken away from this query at"):
        query.batch()
    filled.admin.delete_consumer_groups(["g"])
    with pytest.raises(IllegalGeneration, match="group 'g' was deleted"):
        query.batch()
    query.reader.stop()
    assert committed(filled) == {}


def test_progress_that_cannot_be_published_is_late_and_no_more(url: str, filled: spark_log.Log) -> None:
    """The query continues, and publishes the rest when the storage is back."""
    clock = ManualClock()
    store = Flaky(ClockedStore(LocalStore(url), clock), random.Random(3), Faults())
    progress = GroupProgress("g", sign_s=0.05)
    progress.join(Journal.open(store, create=False, clock=clock), Offset(ends={}, ids={}))
    at = offset_at(filled.journal.refresh(), {P0: 3, P1: 3})
    store.turn(Faults(lost_request=1.0))
    progress.reached(filled.journal, at)
    progress.flush()
    assert committed(filled) == {}
    store.turn(Faults())
    assert soon(filled, 3)
    progress.leave()


def test_what_goes_to_the_tasks_holds_no_group(url: str, filled: spark_log.Log) -> None:
    """A reader is pickled for them, before and after it joined."""
    query = Query(url)
    query.plan()
    copy = pickle.loads(pickle.dumps(query.reader))
    copy.stop()
    assert holder(filled).startswith("a stream on")


@pytest.mark.parametrize(
    ("options", "streaming", "sentence"),
    [
        (
            {"group.id": "g"},
            False,
            "group.id is for streams; for a batch use log.bookmark, or startingOffsets=group:NAME",
        ),
        ({"group.id": " "}, True, "option group.id: is empty"),
    ],
)
def test_a_group_where_it_means_nothing_is_refused(options: dict[str, str], streaming: bool, sentence: str) -> None:
    """With what to use instead."""
    with pytest.raises(InvalidRequest, match=sentence):
        read_options({"path": "/log", "subscribe": "t", **options}, streaming=streaming)


def test_kafkas_group_has_no_effect_and_ours_is_named() -> None:
    """Kafka's connector takes it with a warning, and commits nothing to it either."""
    options = read_options({"path": "/log", "subscribe": "t", "kafka.group.id": "g"}, streaming=True)
    assert options.group is None
    assert options.notes == (
        "kafka.group.id: without effect, a query's progress is in its checkpoint, and with the option group.id also in a consumer group",
    )


# ---------------------------------------------------------------------------------------------------------- Spark itself


def test_spark_runs_publish_to_the_group(spark: SparkSession, url: str, filled: spark_log.Log, tmp_path: Path) -> None:
    """An available-now run at its end, trigger(once) at the next start; a new checkpoint continues from there."""
    one, two = Batches(), Batches()
    frame = load_stream(spark, url, **{"group.id": "g"})
    to_sink(frame, one, tmp_path / "first")
    assert committed(filled) == {P0: 5, P1: 5}
    assert holder(filled) == ""
    filled.append("t", [{"value": str(n), "partition": n % 2} for n in range(10, 14)])
    once = one.writer(frame).option("checkpointLocation", str(tmp_path / "first"))
    once.trigger(once=True).start().awaitTermination(DEADLINE_S)
    assert committed(filled) == {P0: 5, P1: 5}
    to_sink(frame, one, tmp_path / "first")
    assert committed(filled) == {P0: 7, P1: 7}
    filled.append("t", [{"value": "14", "partition": 0}])
    to_sink(load_stream(spark, url, **{"group.id": "g"}), two, tmp_path / "second")
    assert sorted(one.rows + two.rows) == list(range(15))
    assert CliRunner().invoke(pylog, ["-u", url, "--output", "json", "group", "lag", "g"]).output.count('"lag": 0') == 2


# Promise: spark-streams.md#named-progress
def test_spark_ends_a_second_query_on_a_group(spark: SparkSession, url: str, filled: spark_log.Log) -> None:
    """With an error; the first one continues, and when it is stopped the group is free immediately."""
    frame = load_stream(spark, url, **{"group.id": "g"})
    first = frame.writeStream.format("noop").start()
    assert soon(filled, 5)
    second = frame.writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="GroupInUse: group 'g' is held by a stream on .* since "):
        second.awaitTermination(DEADLINE_S)
    filled.append("t", [{"value": "x", "partition": 0}])
    assert soon(filled, 6) and first.isActive
    first.stop()
    assert wait_until(lambda: holder(filled) == "", 10)


def test_spark_reads_one_load_once_and_two_loads_need_two_groups(
    spark: SparkSession, url: str, filled: spark_log.Log, tmp_path: Path
) -> None:
    """A union of a frame with itself is one source to Spark; two loads are two, of which one has the group."""
    sink = Batches()
    frame = load_stream(spark, url, **{"group.id": "g"})
    to_sink(frame.union(frame), sink, tmp_path / "one")
    assert sink.rows == sorted([*range(10), *range(10)]) and committed(filled) == {P0: 5, P1: 5}
    two = load_stream(spark, url, **{"group.id": "h"}).union(load_stream(spark, url, **{"group.id": "h"}))
    with pytest.raises(StreamingQueryException, match=r"group 'h' is held .* Two loads in one query need a group each"):
        to_sink(two, Batches(), tmp_path / "two")


KILLED = """
import sys
url, checkpoint = sys.argv[1:]
frame = session("local[2]").readStream.format("pylog").option("subscribe", "t").option("startingOffsets", "earliest")
frame = frame.option("maxOffsetsPerTrigger", "10").option("group.id", "g").load(url).select("value")
writer = frame.writeStream.format("pylog").option("topic", "copy").option("checkpointLocation", checkpoint)
writer.start(url).awaitTermination()
"""


# Promise: spark-streams.md#exactly-once, spark-streams.md#named-progress
@pytest.mark.slow
def test_a_query_that_is_killed_goes_on_at_once_from_its_checkpoint(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """SIGKILL of its driver and of its source while batches commit, then a run to the end in another driver.  It does
    not wait for a session timeout; nothing is lost or copied twice.
    """
    log.append("t", texts(150))
    checkpoint = tmp_path / "checkpoint"
    job = subprocess.Popen(
        [sys.executable, str(script(tmp_path / "job.py", KILLED)), url, str(checkpoint)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until(lambda: committed(log).get(P0, 0) >= 20)
        time.sleep(0.1)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    died_at = committed(log)[P0]
    assert holder(log).startswith("a stream on")
    assert log.read("copy").num_rows < 150
    copy(load_stream(classic, url, **{"group.id": "g"}).select("value"), url, "copy", checkpoint)
    assert 20 <= died_at < 150 and committed(log)[P0] == 150
    assert sorted(log.read("copy").column("value").to_pylist()) == as_bytes(range(150))


# Promise: spark-streams.md#named-progress
def test_a_bookmarked_batch_reads_each_record_once(spark: SparkSession, url: str, filled: spark_log.Log) -> None:
    """In Spark: up to the pinned end; records in a new partition only in the next run; trimmed records are reported."""
    with filled.bookmark("nightly", "t") as b:
        filled.admin.create_partitions({"t": 3})
        filled.append("t", [{"value": str(n), "partition": 2} for n in range(10, 13)])
        first = spark.read.format("pylog").options(**b.options).load(url)
        assert values(first) == as_bytes(range(10))
    assert committed(filled, "nightly") == {P0: 5, P1: 5}
    with pytest.raises(ZeroDivisionError), filled.bookmark("nightly", "t") as b:
        raise ZeroDivisionError
    filled.append("t", [{"value": "13", "partition": 0}, {"value": "14", "partition": 0}])
    filled.admin.delete_records({P0: 6})
    with filled.bookmark("nightly", "t") as b:
        second = spark.read.format("pylog").options(**b.options)
        with pytest.raises(Exception, match=r"offsets \[5, 6\) of t-0 are gone"):
            second.load(url).count()
        assert values(second.option("failOnDataLoss", "false").load(url)) == as_bytes([10, 11, 12, 14])
    assert committed(filled, "nightly") == {P0: 7, P1: 5, ("t", 2): 3}
