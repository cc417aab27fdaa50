"""How far a micro-batch goes, and when: limits, minimum and delay, by Spark's call order but mostly without Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.source.rate_limits import byte_budgets, end_within, share

import spark_log
from simulation.harness.clocks import ManualClock
from simulation.harness.slow_store import SlowStore
from simulation.harness.stores import Wrapper
from spark_log import NewTopic, TopicPartition
from spark_log.client.reader.plan import Chunk
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.store.local import LocalStore
from tests.logged import logged
from tests.spark.builders import DEADLINE_S, Batches, last_commit, load_stream, texts, to_sink
from tests.spark.driver import Row, Stream, rows

Sizes = dict[TopicPartition, int]


def backlog(*sizes: int) -> Sizes:
    return {TopicPartition("t", number): size for number, size in enumerate(sizes)}


def filled(log: spark_log.Log, *sizes: int) -> None:
    """Topic t with so many records in each partition."""
    log.admin.create_topics([NewTopic("t", len(sizes))])
    more(log, *sizes)


def more(log: spark_log.Log, *sizes: int) -> None:
    given_ = [{"value": b"x" * 100, "partition": number} for number, size in enumerate(sizes) for _ in range(size)]
    log.append("t", given_, compression="none")


class Looked(Wrapper):
    """A store that counts how often it is asked for an object, there or not."""

    gets = 0

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets += 1
        return super().get(key, start, end)


def counts(batch: list[Row] | None) -> list[int]:
    """Records of each partition of t, 0 to the last that has some."""
    names = [name for name, _ in batch or ()]
    return [names.count(f"t-{number}") for number in range(1 + max((int(name[2:]) for name in names), default=-1))]


# ----------------------------------------------------------------------------------------------------- maxOffsetsPerTrigger

# (backlogs, limit, what Kafka's connector takes, what we take)
WORKED = [
    ((101, 11, 1), 10, (8, 1, 1), (8, 1, 1)),
    ((93, 10, 0), 10, (9, 1, 0), (9, 1, 0)),
    ((84, 9, 0), 10, (9, 1, 0), (9, 1, 0)),
    ((21, 11, 1), 20, (12, 6, 1), (12, 7, 1)),  # 12.7, 6.7 and 0.6: Kafka's falls short of the limit by one
    ((17, 15, 1), 20, (10, 9, 1), (10, 9, 1)),
    ((7, 6, 0), 20, (7, 6, 0), (7, 6, 0)),
    ((5, 5, 5, 5), 2, (1, 1, 1, 1), (1, 1, 0, 0)),  # Kafka's goes beyond the limit
]


@pytest.mark.parametrize(("sizes", "limit", "kafkas", "ours"), WORKED)
def test_shares_are_kafkas_where_those_keep_the_limit(
    sizes: tuple[int, ...], limit: int, kafkas: tuple[int, ...], ours: tuple[int, ...]
) -> None:
    """The worked examples of its tests: in proportion, one at least; and we read as many as the limit says."""
    found = tuple(share(limit, backlog(*sizes), turn=0).values())
    assert found == ours and sum(ours) == min(limit, sum(sizes))
    assert found == kafkas or sum(kafkas) != limit


sizes_ = st.lists(st.integers(0, 1000), max_size=12)


# Promise: spark-streams.md#how-much-a-micro-batch-reads
@given(sizes_, st.integers(1, 3000), st.integers(0, 10**6))
def test_max_offsets_per_trigger_is_exact(sizes: list[int], limit: int, turn: int) -> None:
    """As many records as allowed, or all that there are, and no partition beyond its backlog."""
    waiting = backlog(*sizes)
    shares = share(limit, waiting, turn)
    assert shares.keys() == waiting.keys() and sum(shares.values()) == min(limit, sum(sizes))
    assert all(0 <= shares[tp] <= size for tp, size in waiting.items())


@given(sizes_, st.integers(12, 3000))
def test_shares_are_in_proportion(sizes: list[int], limit: int) -> None:
    """A partition with the larger backlog never gets less, and none with a backlog gets nothing."""
    waiting = backlog(*sizes)
    shares = share(limit, waiting, turn=0)
    for one in waiting:
        assert shares[one] > 0 or waiting[one] == 0
        assert all(shares[one] >= shares[other] for other in waiting if waiting[one] > waiting[other])


# Promise: spark-streams.md#how-much-a-micro-batch-reads
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 8), st.randoms(use_true_random=False))
def test_no_partition_starves_while_others_keep_growing(sizes: list[int], limit: int, rng: random.Random) -> None:
    """In a long run with more records than are read, every waiting partition advances within one turn of all
    partitions.

    Shares by largest remainder alone would starve one: one record beside a partition that gets a million a minute waits
    for ever.
    """
    waiting, read = backlog(*sizes), 0
    last = dict.fromkeys(waiting, 0)
    for batch in range(1, 200):
        shares = share(limit, waiting, turn=read)
        assert sum(shares.values()) == min(limit, sum(waiting.values()))
        read += sum(shares.values())
        for tp, size in waiting.items():
            if shares[tp] or not size:
                last[tp] = batch
            assert batch - last[tp] <= -(-len(waiting) // limit) + 1
        waiting = {tp: size - shares[tp] + rng.choice((0, 0, 1, 50)) for tp, size in waiting.items()}


@given(sizes_.filter(any), st.integers(1, 50))
def test_a_backlog_is_read_in_as_few_batches_as_can_be(sizes: list[int], limit: int) -> None:
    """Every batch but the last one is full."""
    waiting, batches, read = backlog(*sizes), 0, 0
    while any(waiting.values()):
        shares = share(limit, waiting, turn=read)
        waiting = {tp: size - shares[tp] for tp, size in waiting.items()}
        batches, read = batches + 1, read + sum(shares.values())
    assert batches == -(-sum(sizes) // limit)


# Promise: from-kafka.md#what-differs
def test_batches_of_a_stream_hold_max_offsets(url: str, log: spark_log.Log) -> None:
    """Exactly, and every partition moves."""
    filled(log, 101, 11, 1)
    stream = Stream(url, maxOffsetsPerTrigger=10)
    assert counts(stream.batch()) == [8, 1, 1] and counts(stream.batch()) == [9, 1] and counts(stream.batch()) == [9, 1]
    assert len(stream.run()) == 113 - 30


def test_more_partitions_than_max_offsets_take_turns(url: str, log: spark_log.Log) -> None:
    """Also over a restart, since the turn is where the checkpoint stands."""
    filled(log, 9, 9, 9, 9, 9)
    stream = Stream(url, maxOffsetsPerTrigger=2)
    assert [counts(stream.restart().batch()) for _ in range(3)] == [[1, 1], [0, 0, 1, 1], [1, 0, 0, 0, 1]]


# ------------------------------------------------------------------------------------------------------- maxBytesPerTrigger

parts_ = st.lists(st.tuples(st.integers(1, 100), st.integers(1, 10_000)), min_size=1, max_size=8)


def chunked(parts: list[tuple[int, int]]) -> list[Chunk]:
    found, start = [], 0
    for count, size in parts:
        found.append(Chunk(start, start + count, size))
        start += count
    return found


# Promise: spark-streams.md#how-much-a-micro-batch-reads
@given(parts_, st.integers(1, 100_000))
def test_a_budget_of_bytes_always_moves_and_never_goes_beyond_it_by_more_than_a_record(
    parts: list[tuple[int, int]], budget: int
) -> None:
    """So no partition starves, whatever its records weigh."""
    found = chunked(parts)
    end = end_within(budget, found, cut=True)
    taken = sum(size * (min(end, last) - first) / (last - first) for first, last, size in found if first < end)
    heaviest = max(size / (last - first) for first, last, size in found)
    assert 0 < end <= found[-1].end and taken <= max(budget, heaviest) + 1e-6
    assert end_within(budget, found, cut=False) >= end


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 10**6), min_size=1), st.integers(21, 10**6))
def test_budgets_of_bytes_come_to_the_limit(sizes: dict[int, int], limit: int) -> None:
    """Shared by backlog in bytes."""
    budgets = byte_budgets(limit, backlog(*sizes.values()))
    assert sum(budgets.values()) <= min(limit, sum(sizes.values())) + len(sizes)
    assert all(budgets.values())


def test_batches_of_a_stream_hold_about_max_bytes(url: str, log: spark_log.Log) -> None:
    """Shared by partitions, and all is read in the end."""
    filled(log, 60, 20)
    whole = sum(path.stat().st_size for path in Path(url).rglob("*.seg"))
    stream = Stream(url, maxBytesPerTrigger=whole // 4)
    first = counts(stream.batch())
    assert 12 <= first[0] <= 18 and 4 <= first[1] <= 6
    assert sum(first) + len(stream.run()) == 80 and 4 <= len(stream.batches) <= 6


def test_both_max_limits_hold_at_once(url: str, log: spark_log.Log) -> None:
    """The tighter one decides."""
    filled(log, 40)
    whole = sum(path.stat().st_size for path in Path(url).rglob("*.seg"))
    assert counts(Stream(url, maxOffsetsPerTrigger=5, maxBytesPerTrigger=whole).batch()) == [5]
    (found,) = counts(Stream(url, maxOffsetsPerTrigger=30, maxBytesPerTrigger=whole // 4).batch())
    assert 9 <= found <= 14


def test_the_default_limit_of_bytes_is_said_once(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """1g, and how to turn it off; not where it is set or turned off."""
    filled(log, 3)
    caplog.set_level("INFO", "spark_log")
    Stream(url, maxBytesPerTrigger="none").run()
    Stream(url, maxBytesPerTrigger="2g").run()
    assert not logged(caplog, "maxBytesPerTrigger")
    stream = Stream(url)
    stream.run()
    more(log, 1)
    stream.run()
    (message,) = logged(caplog, "maxBytesPerTrigger")
    assert "is 1g by default" in message and "none" in message


# ----------------------------------------------------------------------------------------------------- minOffsetsPerTrigger


def test_a_batch_waits_for_min_offsets(url: str, log: spark_log.Log) -> None:
    """The first one of a query does not; then below the minimum the offset stays what it is."""
    filled(log, 3, 0)
    stream = Stream(url, minOffsetsPerTrigger=10)
    assert counts(stream.batch()) == [3]
    more(log, 4, 5)
    assert stream.batch() is None and stream.batch() is None
    more(log, 0, 1)
    assert counts(stream.batch()) == [4, 6]


def test_a_source_that_waits_for_min_offsets_does_not_spin(url: str, log: spark_log.Log) -> None:
    """It holds a call of latestOffset for as long as an idle one."""
    filled(log, 1)
    clock = ManualClock()
    stream = Stream(url, clock=clock, minOffsetsPerTrigger=10)
    stream.batch()
    more(log, 1)
    before = clock.ms
    assert stream.batch() is None and clock.ms - before >= 200


def test_an_idle_query_looks_at_a_disk_twenty_times_a_second(url: str, log: spark_log.Log) -> None:
    """More often where there was something a moment ago.  Each look is for the next record and the last known one,
    because a folder may be replaced.
    """
    filled(log, 1)
    stream = Stream(url, clock=(clock := ManualClock()))
    stream.reader._journal = Journal.open(store := Looked(LocalStore(url)), create=False, clock=clock)
    stream.batch()
    begun, looks = clock.ms, []
    for _ in range(50):
        before = store.gets
        assert stream.batch() is None
        looks.append(store.gets - before)
    assert clock.ms - begun == 50 * 200
    assert 2 * 40 < looks[0] < 2 * 100 and looks[15:] == [2 * 4] * 35, looks


def test_an_idle_query_looks_at_a_bucket_five_times_a_second(url: str, log: spark_log.Log) -> None:
    """Each is billed.  It looks at the end of a call of Spark, and not again at the start of the next."""
    filled(log, 1)
    stream = Stream(url, clock=(clock := ManualClock()))
    store = SlowStore(LocalStore(url), get_ms=0, put_ms=0)
    stream.reader._journal = Journal.open(store, create=False, clock=clock)
    stream.batch()
    clock.ms += 10_000
    stream.batch()
    begun = clock.ms
    with store.watched() as requests:
        assert [stream.batch() for _ in range(50)] == [None] * 50
    assert clock.ms - begun == 10_000 and len(requests) == 50
    more(log, 1)
    assert counts(stream.batch()) == [1]


def test_max_trigger_delay_ends_the_wait(url: str, log: spark_log.Log) -> None:
    """Counted from the last batch that was let go, 15 minutes unless it is said."""
    filled(log, 1)
    clock = ManualClock()
    stream = Stream(url, clock=clock, minOffsetsPerTrigger=10)
    stream.batch()
    more(log, 1)
    clock.ms += 899_000
    assert stream.batch() is None
    clock.ms += 1_000
    assert counts(stream.batch()) == [1]
    more(log, 1)
    assert stream.batch() is None
    stream.restart(maxTriggerDelay="5s")
    clock.ms += 5_000
    assert counts(stream.batch()) == [1]


# Promise: spark-streams.md#how-much-a-micro-batch-reads
def test_the_delay_goes_on_over_a_restart(url: str, log: spark_log.Log) -> None:
    """The time of the last batch is in the checkpoint: a restart neither starts a batch early nor counts again."""
    filled(log, 1)
    clock = ManualClock()
    stream = Stream(url, clock=clock, minOffsetsPerTrigger=10, maxTriggerDelay="1 minute")
    stream.batch()
    more(log, 1)
    clock.ms += 40_000
    assert stream.restart().batch() is None
    clock.ms += 20_000
    assert counts(stream.restart().batch()) == [1]


def test_a_quiet_topic_does_not_wait_for_the_delay_again(url: str, log: spark_log.Log) -> None:
    """A record that arrives after the delay is read immediately; without records no batch starts."""
    filled(log, 1)
    clock = ManualClock()
    stream = Stream(url, clock=clock, minOffsetsPerTrigger=10, maxTriggerDelay="1m")
    stream.batch()
    clock.ms += 600_000
    assert stream.batch() is None
    more(log, 1)
    assert counts(stream.batch()) == [1]


def test_a_clock_that_was_set_back_does_not_hold_batches(url: str, log: spark_log.Log) -> None:
    """Or a query would wait for hours."""
    filled(log, 1)
    clock = ManualClock()
    stream = Stream(url, clock=clock, minOffsetsPerTrigger=10)
    stream.batch()
    more(log, 1)
    clock.ms -= 7_200_000
    assert counts(stream.batch()) == [1]


def test_min_offsets_counts_new_partitions_from_their_first_record(url: str, log: spark_log.Log) -> None:
    """Their trimmed records do not count."""
    filled(log, 1)
    stream = Stream(url, minOffsetsPerTrigger=10, failOnDataLoss="false")
    stream.batch()
    log.admin.create_partitions({"t": 2})
    more(log, 0, 12)
    log.admin.delete_records({TopicPartition("t", 1): 5})
    assert stream.batch() is None
    more(log, 0, 3)
    assert stream.batch() == rows("t-1", 5, 15)


def test_min_and_max_offsets_go_together(url: str, log: spark_log.Log) -> None:
    """A batch is let go by the one and cut by the other."""
    filled(log, 8)
    stream = Stream(url, minOffsetsPerTrigger=3, maxOffsetsPerTrigger=5)
    assert counts(stream.batch()) == [5] and counts(stream.batch()) == [3]
    more(log, 2)
    assert stream.batch() is None


# Promise: spark-streams.md#how-much-a-micro-batch-reads
def test_min_above_max_is_refused() -> None:
    """At load."""
    options = {"path": "/log", "subscribe": "t", "minoffsetspertrigger": "11", "maxoffsetspertrigger": "10"}
    with pytest.raises(InvalidRequest, match="minOffsetsPerTrigger: 11 is more than maxOffsetsPerTrigger, 10"):
        read_options(options, streaming=None)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("5s", 5_000), ("15m", 900_000), ("1 minute", 60_000), ("1min", 60_000), ("250", 250), ("3 HOURS", 10_800_000)],
)
def test_a_delay_is_read_as_spark_reads_durations(text: str, ms: int) -> None:
    """A bare number is milliseconds."""
    options = {"path": "/log", "subscribe": "t", "maxtriggerdelay": text}
    assert read_options(options, streaming=True).max_delay_ms == ms


@pytest.mark.parametrize("text", ["soon", "5 fortnights", "-1s", "1.5m", ""])
def test_a_delay_that_is_none_is_refused(text: str) -> None:
    """With what is possible."""
    options = {"path": "/log", "subscribe": "t", "maxtriggerdelay": text}
    with pytest.raises(InvalidRequest, match="option maxTriggerDelay: .* is not a duration; expected for example 5s"):
        read_options(options, streaming=True)


# ----------------------------------------------------------------------------------------------------------------- triggers


# Promise: spark-streams.md#how-much-a-micro-batch-reads
def test_an_available_now_run_ends_where_the_log_ended_when_it_began(url: str, log: spark_log.Log) -> None:
    """Records, partitions and topics that come later wait for the next run."""
    filled(log, 7)
    stream = Stream(url, None, subscribePattern="^t", maxOffsetsPerTrigger=3).restart("available-now")
    assert counts(stream.batch()) == [3]
    more(log, 5)
    log.admin.create_partitions({"t": 2})
    log.append("tt", texts(1))
    assert stream.run() == rows("t-0", 3, 7)
    assert sorted(stream.restart("available-now").run()) == [*rows("t-0", 7, 12), ("tt-0", 0)]


@pytest.mark.parametrize("least", [5, 6])
def test_an_available_now_run_leaves_no_remainder(url: str, log: spark_log.Log, least: int) -> None:
    """A rest below minOffsetsPerTrigger is read, too: nothing else would arrive in that run."""
    filled(log, 13)
    stream = Stream(url, minOffsetsPerTrigger=least, maxOffsetsPerTrigger=6).restart("available-now")
    assert stream.run() == rows("t-0", 0, 13) and [len(batch) for batch in stream.batches] == [6, 6, 1]
    more(log, 1)
    assert len(stream.restart("available-now").run()) == 1


def test_an_available_now_run_holds_max_bytes(url: str, log: spark_log.Log) -> None:
    """In several batches, to the end."""
    filled(log, 40)
    whole = sum(path.stat().st_size for path in Path(url).rglob("*.seg"))
    stream = Stream(url, maxBytesPerTrigger=whole // 4).restart("available-now")
    assert stream.run() == rows("t-0", 0, 40) and 4 <= len(stream.batches) <= 6


# Promise: spark-streams.md#how-much-a-micro-batch-reads
def test_once_ignores_all_limits(url: str, log: spark_log.Log) -> None:
    """As with Kafka's connector."""
    filled(log, 1)
    limits: dict[str, Any] = {"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 6, "maxBytesPerTrigger": 1}
    stream = Stream(url, **limits).restart("once")
    assert len(stream.run()) == 1
    more(log, 3)
    assert len(stream.restart("once").run()) == 3
    more(log, 30)
    assert len(stream.restart("once").run()) == 30


# Promise: spark-streams.md#how-much-a-micro-batch-reads
def test_pyspark_4_0_is_held_to_the_limits_by_the_source(url: str, log: spark_log.Log) -> None:
    """It hands over neither where it stands nor a limit, and says the first at a restart in its own way."""
    filled(log, 7)
    stream = Stream(url, maxOffsetsPerTrigger=3).restart("4.0")
    assert stream.batch() == rows("t-0", 0, 3)
    assert stream.restart("4.0").run() == rows("t-0", 3, 7)
    more(log, 2)
    assert stream.restart("4.0", minOffsetsPerTrigger=3).batch() == rows("t-0", 7, 9)
    more(log, 2)
    assert stream.restart("4.0").batch() is None


def test_the_first_batch_begins_where_the_stream_was_said_to_begin(url: str, log: spark_log.Log) -> None:
    """Spark asks for the first offset again when it has planned the batch, and records may have come in between."""
    filled(log, 2)
    stream = Stream(url, startingOffsets="latest")
    stream.plan()
    more(log, 3)
    assert stream.read() == [] and stream.batch() == rows("t-0", 2, 5)


# Promise: spark-streams.md#when-the-log-changes
def test_the_first_batch_is_the_same_when_it_is_read_again(url: str, log: spark_log.Log) -> None:
    """After a crash, when the options that say where to begin come to other offsets."""
    filled(log, 9, 9)
    stream = Stream(url, startingOffsets="latest-2", maxOffsetsPerTrigger=3)
    first = stream.batch()
    assert counts(first) == [2, 1]
    more(log, 5, 0)
    assert stream.restart().read() == first
    assert sorted(stream.run()) == [*rows("t-0", 9, 14), ("t-1", 8)]


def test_the_newest_offset_of_the_log_is_reported(url: str, log: spark_log.Log) -> None:
    """Whatever the limits: lag is what is between it and where the query stands."""
    filled(log, 7)
    stream = Stream(url, maxOffsetsPerTrigger=3)
    stream.batch()
    reported = stream.reader.reportLatestOffset()
    assert reported is not None and reported["t"] == {"0": 7} and stream.offsets[-1]["t"] == {"0": 3}


def test_spark_runs_batches_within_all_limits(
    spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """Available-now: minimum and both maxima, to the end."""
    filled(log, 9, 4)
    batches = Batches()
    limits = {"maxOffsetsPerTrigger": 5, "minOffsetsPerTrigger": 4, "maxBytesPerTrigger": "1m", "maxTriggerDelay": "1h"}
    frame = load_stream(spark, url, **limits).selectExpr("offset as value")
    to_sink(frame, batches, tmp_path / "checkpoint")
    more(log, 2)
    to_sink(frame, batches, tmp_path / "checkpoint")
    assert [len(batch) for batch in batches.seen] == [5, 5, 3, 2]


def test_spark_ignores_all_limits_with_once(spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """One batch, with what there is."""
    filled(log, 9, 4)
    frame = load_stream(spark, url, maxOffsetsPerTrigger=5, minOffsetsPerTrigger=5, maxBytesPerTrigger="1")
    batches = Batches()
    writer = batches.writer(frame.selectExpr("offset as value")).trigger(once=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(DEADLINE_S)
    assert [len(batch) for batch in batches.seen] == [13]


def test_spark_runs_the_first_batch_again_as_it_was(
    spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """Though "the last two records" are others by now."""
    filled(log, 9)
    first, again = Batches(), Batches()
    frame = load_stream(spark, url, startingOffsets="latest-2").selectExpr("offset as value")
    to_sink(frame, first, tmp_path / "checkpoint")
    last_commit(tmp_path / "checkpoint").unlink()
    more(log, 3)
    to_sink(frame, again, tmp_path / "checkpoint")
    assert (first.seen, again.seen) == ([[7, 8]], [[7, 8], [9, 10, 11]])
