"""A process writes to a topic that others have deleted and created again since it was idle."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from spark_log.errors import UnknownTopicOrPartition
from spark_log.model import TopicPartition
from tests.client.logs import new_log


def test_an_append_goes_to_the_topic_that_has_the_name_now(tmp_path: Path) -> None:
    """Another client has deleted the topic since this one was idle; without a topic of the name, nothing is written."""
    log = new_log(tmp_path, a=1)
    log.admin.incremental_alter_configs({None: {"auto.create.topics.enable": "false"}})
    log.append("a", [{"value": "old"}])
    other = spark_log.connect(log.url)
    other.admin.delete_topics(["a"])
    other.create_topic(spark_log.NewTopic("a", 1))
    assert log.append("a", [{"value": "new"}]) == {TopicPartition("a", 0): range(1)}
    assert log.append("a", [{"value": "newer"}], txn_app_id="job", txn_version=1) == {
        TopicPartition("a", 0): range(1, 2)
    }
    other.admin.delete_topics(["a"])
    with pytest.raises(UnknownTopicOrPartition):
        log.append("a", [{"value": "gone"}])
