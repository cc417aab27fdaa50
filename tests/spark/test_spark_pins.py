"""Files that queries leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from pyspark_pylog.source.growth import PinnedTopic
from pyspark_pylog.source.query_pins import check_gone, doubtful_reads, encode, names_of, pin_of

from spark_log.client.reader.plan import OffsetRange, plan_reads
from spark_log.errors import ConcurrentChange, InvalidRequest
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.state import State
from spark_log.model import TopicPartition
from spark_log.server.shared_claims import check_topics
from tests.maintenance.logs import new_log


def all_of(state: State) -> OffsetRange:
    """All records of the topic "t"."""
    topic_id = state.names["t"]
    return OffsetRange("t", topic_id, 0, 0, state.partitions[topic_id, 0].end)


# Promise: spark-read.md#options-of-a-read
def test_pins_of_queries_of_a_log_that_nobody_writes_go(tmp_path: Path) -> None:
    """Nothing moves the fence there: a pin goes when it is as old as an upload may become."""
    log = new_log(tmp_path)
    store, hour_ms = log.journal.metadata, 3_600_000
    pin = msgspec.json.decode(encode(pin_of(log.journal.state)))
    for hours in (1, 23, 25):
        made_ms = pin["made_ms"] - hours * hour_ms
        store.put_new(f"meta/pin/{hours}", msgspec.json.encode({**pin, "made_ms": made_ms}))
        os.utime(f"{tmp_path}/meta/pin/{hours}", (made_ms / 1000, made_ms / 1000))
    assert maintain_once(log).pins == 1
    assert store.list("meta/pin/") == ["meta/pin/1", "meta/pin/23"]


# Promise: security.md#what-a-token-protects, security.md#who-may-use-a-name
def test_names_of_pins_cannot_be_guessed() -> None:
    """They are made of ids that everybody sees in Spark's UI, and of the token of the query's log."""
    mine = names_of("application-1-2-3", "scan", "token-of-the-tests")
    assert mine == names_of("application-1-2-3", "scan", "token-of-the-tests")
    others = [names_of("application-1-2-3", "scan", token) for token in ("another-token-of-the-tests", None, "")]
    assert not {*mine} & {name for names in others for name in names}
    assert "application" not in "".join(mine) and mine.pin not in mine.growth


# Promise: security.md#what-a-token-protects
@pytest.mark.parametrize("lie", ["trimmed", "deleted", "created again", "shorter", "fewer partitions"])
def test_a_pin_that_hides_records_fails_the_query(tmp_path: Path, lie: str) -> None:
    """It says that planned records are gone, and the log has them."""
    log = new_log(tmp_path)
    log.append("t", [{"value": b"1"}, {"value": b"2"}])
    state = log.journal.refresh()
    (read,) = plan_reads(log.journal, [all_of(state)])
    pin = pin_of(state)
    topic = pin.topics["t"]
    lies = {
        "trimmed": PinnedTopic(topic.topic_id, [2], [2]),
        "created again": PinnedTopic("other", [0], [2]),
        "shorter": PinnedTopic(topic.topic_id, [0], [1]),
        "fewer partitions": PinnedTopic(topic.topic_id, [], []),
    }
    false = replace(pin, topics={"t": lies[lie]} if lie in lies else {})
    assert not doubtful_reads(pin, [read], state.version)
    assert doubtful_reads(false, [read], state.version) == [read]
    with pytest.raises(ConcurrentChange, match="another process has claimed"):
        check_gone(false, [read], state, state.version)


def test_a_pin_of_records_that_were_trimmed_is_right(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.append("t", [{"value": b"1"}, {"value": b"2"}])
    before = log.journal.refresh()
    (read,) = plan_reads(log.journal, [all_of(before)])
    log.admin.delete_records({TopicPartition("t", 0): 2})
    now = log.journal.refresh()
    pin = pin_of(now)
    assert doubtful_reads(pin, [read], before.version) == [read]
    check_gone(pin, [read], now, before.version)


# Promise: security.md#what-a-token-protects
def test_a_coordinator_refuses_a_claim_that_hides_records(tmp_path: Path) -> None:
    """A partition's start never decreases, so the newest state shows that it is false."""
    log = new_log(tmp_path)
    log.append("t", [{"value": b"1"}, {"value": b"2"}])
    state = log.journal.refresh()
    pin = pin_of(state)
    check_topics(encode(pin), state)
    for starts, ends in (([2], [2]), ([0], [3])):
        with pytest.raises(InvalidRequest, match="has the offsets 0 to 2"):
            check_topics(encode(replace(pin, topics={"t": PinnedTopic(pin.topics["t"].topic_id, starts, ends)})), state)
    check_topics(b'{"version": 1, "made_ms": 1, "tasks": []}', state)
