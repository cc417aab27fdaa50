"""The partitions of a subscription."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import spark_log
from spark_log.client.consumer.subscribed_topics import SubscribedTopics
from spark_log.model import TopicPartition
from tests.client.logs import new_log
from tests.unit.metadata.test_replay import carry_out, commands

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_partitions_are_matched_again_only_when_topics_change(tmp_path: Path) -> None:
    """Versions with records give the same object, so a consumer of many partitions need not compare them."""
    log, subscribed = new_log(tmp_path, orders=2), SubscribedTopics((), "ord.*", None)
    wanted = subscribed.wanted(log.journal.state)
    assert set(wanted) == {FIRST, SECOND}
    log.append("orders", [{"value": "x"}])
    assert subscribed.wanted(log.journal.state) is wanted
    assert subscribed.names(wanted) == {"orders"}
    log.create_topic(spark_log.NewTopic("ordinary", 1))
    new = TopicPartition("ordinary", 0)
    assert set(subscribed.wanted(log.journal.state)) == {FIRST, SECOND, new}
    assert subscribed.names(subscribed.wanted(log.journal.state)) == {"orders", "ordinary"}
    assert [subscribed.is_new(tp) for tp in (FIRST, new)] == [False, True]


def test_a_topic_created_again_is_new_in_the_partitions_that_it_has(tmp_path: Path) -> None:
    """Its partitions have the names of earlier ones; those that it lacks are not new."""
    log, subscribed = new_log(tmp_path, orders=2), SubscribedTopics(("orders",), None, None)
    subscribed.wanted(log.journal.state)
    assert not subscribed.is_new(FIRST)
    log.admin.delete_topics(["orders"])
    log.create_topic(spark_log.NewTopic("orders", 1))
    assert set(subscribed.wanted(log.journal.refresh())) == {FIRST}
    assert [subscribed.is_new(tp) for tp in (FIRST, SECOND)] == [True, False]


def test_owned_partitions_are_those_of_the_share_that_exist(tmp_path: Path) -> None:
    """The same object until the share or the topics change; without a share, all partitions."""
    log, subscribed = new_log(tmp_path, orders=2), SubscribedTopics((), "ord.*", None)
    state = log.journal.state
    assert subscribed.owned(state, None) is subscribed.wanted(state)
    owned = subscribed.owned(state, frozenset({SECOND, TopicPartition("gone", 0)}))
    assert set(owned) == {SECOND}
    assert subscribed.owned(state, frozenset({SECOND, TopicPartition("gone", 0)})) is owned
    assert set(subscribed.owned(state, frozenset({FIRST}))) == {FIRST}
    log.admin.delete_topics(["orders"])
    assert subscribed.owned(log.journal.refresh(), frozenset({FIRST})) == {}


@given(commands, st.lists(st.booleans(), min_size=30, max_size=30), st.sampled_from(["t[01]", ".*", "t2"]))
def test_partitions_follow_the_topics_of_any_log(
    command: list[tuple[str, int, int]], visited: list[bool], pattern: str
) -> None:
    """After any number of versions, the partitions and the names are those of a new subscription."""
    subscribed, share = (
        SubscribedTopics((), pattern, None),
        frozenset({TopicPartition("t0", 0), TopicPartition("t1", 1)}),
    )
    before: dict[TopicPartition, tuple[str, int]] | None = None
    at_first: set[TopicPartition] | None = None
    for state, is_visited in zip(carry_out(command).states, visited * 3, strict=False):
        if not is_visited:
            continue
        wanted = subscribed.wanted(state)
        assert wanted == {
            TopicPartition(name, number): (topic_id, number)
            for name, topic_id in state.names.items()
            if re.fullmatch(pattern, name)
            for number in range(state.topics[topic_id].partitions)
        }
        assert subscribed.names(wanted) == {tp.topic for tp in wanted}
        assert subscribed.owned(state, share) == {tp: key for tp, key in wanted.items() if tp in share}
        differing = subscribed.differing(before, wanted)
        if before is not None and differing is not None:
            assert differing == {tp for tp in {*before, *wanted} if before.get(tp) != wanted.get(tp)}
        if before is not None and before != wanted:
            assert differing is not None
        before = wanted
        at_first = set(wanted) if at_first is None else at_first
        assert not any(subscribed.is_new(tp) for tp in wanted if tp in at_first and tp.topic not in recreated(command))
        assert all(subscribed.is_new(tp) for tp in wanted if tp not in at_first)


def recreated(command: list[tuple[str, int, int]]) -> set[str]:
    """Topics that may have been deleted."""
    return {f"t{which}" for kind, which, _ in command if kind == "delete"}
