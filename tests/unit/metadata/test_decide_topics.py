"""Decisions about topics: names, partitions, configs, trims."""

from __future__ import annotations

from typing import cast

import pytest

from spark_log.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    OffsetOutOfRange,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from spark_log.metadata.state import TopicKey
from spark_log.metadata.topics.decide_topics import (
    decide_add_partitions,
    decide_create_topic,
    decide_delete_topic,
    decide_set_configs,
    decide_trim,
)
from tests.unit.metadata.history import History, positions


def test_names_that_differ_only_in_dots_and_underscores_collide(log: History) -> None:
    """As in Kafka, whose metrics cannot tell them apart; the same name twice is another error."""
    log.create("a.b")
    with pytest.raises(InvalidTopic, match=r"collides with 'a\.b'"):
        log.create("a_b")
    with pytest.raises(TopicAlreadyExists):
        log.create("a.b")
    assert log.create("ab")


def test_creating_a_topic_again_under_its_id_is_no_change(log: History) -> None:
    """A retry whose first try was in."""
    for _ in range(2):
        assert log.do(lambda state, now: decide_create_topic(state, "t", 1, {}, "id")) == "id"
    assert log.state.version == 1


# Promise: cli.md#pylog-topic-alter
def test_partitions_can_only_be_added(log: History) -> None:
    """As in Kafka, partitions are never removed."""
    topic = log.create(partitions=2)
    with pytest.raises(InvalidPartitions, match="has 2 partitions already"):
        log.do(lambda state, now: decide_add_partitions(state, "t", 2))
    log.do(lambda state, now: decide_add_partitions(state, "t", 5))
    assert log.commit((topic, 4, 1)).ranges == {(topic, 4): range(1)}


def test_trimming_moves_the_start_forward_and_never_back(log: History) -> None:
    """Up to the end, not beyond; below the start it changes nothing."""
    topic = log.create()
    log.commit((topic, 0, 10))

    def trim(start: int) -> dict[TopicKey, int]:
        return cast(dict[TopicKey, int], log.do(lambda state, now: decide_trim(state, {(topic, 0): start})))

    assert trim(4) == {(topic, 0): 4}
    version = log.state.version
    assert trim(2) == {(topic, 0): 4} and log.state.version == version
    with pytest.raises(
        OffsetOutOfRange, match=r"cannot trim \w+-0 to 11: expected an offset from 4 to its end, 10"
    ) as caught:
        trim(11)
    assert (caught.value.start, caught.value.end) == (4, 10)
    assert trim(10) == {(topic, 0): 10}


def test_deleting_a_topic_frees_its_name_and_forgets_its_positions(log: History) -> None:
    """Its slices stay until they are pruned; then nothing of it is left."""
    topic = log.create()
    log.commit((topic, 0, 1), groups=(positions("g", topic, 1),))
    log.do(lambda state, now: decide_delete_topic(state, "t"))
    assert "t" not in log.state.names and not log.state.groups["g"].offsets
    assert log.counts() == log.recount() != {}
    assert log.prune((topic, 0))
    assert topic not in log.state.topics and not log.state.partitions and log.counts() == {}
    assert len(log.state.dropped) == 1


def test_topics_cannot_be_deleted_where_the_log_says_so(log: History) -> None:
    """delete.topic.enable."""
    log.create()
    log.do(lambda state, now: decide_set_configs(state, None, {"delete.topic.enable": "false"}))
    with pytest.raises(TopicDeletionDisabled):
        log.do(lambda state, now: decide_delete_topic(state, "t"))


def test_a_topic_that_is_not_there_is_named_with_its_neighbours(log: History) -> None:
    """The next thing to try is in the message."""
    log.create("orders")
    with pytest.raises(UnknownTopicOrPartition, match="did you mean orders"):
        log.do(lambda state, now: decide_delete_topic(state, "order"))


def test_configs_are_set_and_go_back_to_their_defaults(log: History) -> None:
    """None takes a config back; what stands already writes nothing."""
    log.create(retention_ms="5")

    def change(value: str | None) -> None:
        log.do(lambda state, now: decide_set_configs(state, "t", {"retention.ms": value}))

    change("7")
    version = log.state.version
    change("7")
    assert log.state.version == version
    change(None)
    assert dict(next(iter(log.state.topics.values())).configs) == {}


def test_only_a_config_that_there_is_goes_back_to_its_default(log: History) -> None:
    """The error names the nearest config."""
    log.create()
    with pytest.raises(InvalidConfig, match="did you mean retention.ms"):
        log.do(lambda state, now: decide_set_configs(state, "t", {"retention.mss": None}))
    with pytest.raises(InvalidConfig, match="unknown cluster config"):
        log.do(lambda state, now: decide_set_configs(state, None, {"num.partition": None}))
