"""The partitions of a subscription."""

from __future__ import annotations

from pathlib import Path

import spark_log
from spark_log.client.consuming.subscribed_topics import SubscribedTopics
from spark_log.model import TopicPartition
from tests.client.logs import new_log

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
