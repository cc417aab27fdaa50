"""Configs that are in force and have no test beside what they steer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import spark_log
from spark_log import NewTopic
from spark_log.errors import TopicDeletionDisabled
from spark_log.maintenance.maintain import merge
from spark_log.metadata.formats.batch_format import encode_batch
from spark_log.metadata.records import Batch, SetConfigsRecord
from spark_log.store.object_names import log_key
from tests.client.logs import log_url, new_log

LINES = [{"value": b"x" * 1000}] * 100


def stored(log: spark_log.Log, topic: str) -> int:
    return sum(part.bytes for part in log.admin.describe_topics([topic])[topic].partitions)


# Promise: topic-configs.md#topics
@pytest.mark.parametrize(("config", "writer", "packed"), [("none", "zstd", False), ("lz4", "none", True)])
def test_the_compression_of_a_topic_goes_before_its_writers(
    tmp_path: Path, config: str, writer: str, packed: bool
) -> None:
    """Of appends and of producers; `producer` leaves it to them."""
    log = new_log(tmp_path)
    log.admin.create_topics([NewTopic("kept", 1, {"compression.type": config}), NewTopic("free", 1)])
    with log.producer(compression_type=writer) as producer:
        for topic in ("kept", "free"):
            log.append(topic, LINES, compression=writer)
            for line in LINES:
                producer.send(topic, line["value"])
    assert (stored(log, "kept") < 50_000) == packed
    assert (stored(log, "free") < 50_000) != packed


# Promise: topic-configs.md#topics
def test_the_levels_of_a_topic_hold_for_writers_and_merges(tmp_path: Path) -> None:
    """Of appends and producers, whether the topic or the writer chooses the codec; the records are the same."""
    log = new_log(tmp_path)
    dense = {"compression.zstd.level": "22"}
    topics = {"usual": {}, "dense": dense, "denser": {**dense, "compression.type": "zstd"}}
    log.admin.create_topics([NewTopic(name, 1, configs) for name, configs in topics.items()])
    words = random.Random(3).choices(Path(__file__).read_text().split(), k=20_000)
    lines = [{"value": " ".join(words[at : at + 20]).encode()} for at in range(0, len(words), 20)]
    with log.producer(linger_ms=60_000, batch_size=1 << 24) as producer:
        for topic in topics:
            log.append(topic, lines)
            for line in lines:
                producer.send(topic, line["value"])
    assert max(stored(log, "dense"), stored(log, "denser")) < 0.95 * stored(log, "usual")
    merge(log)
    found = {name: log.admin.describe_topics([name])[name] for name in topics}
    assert {name: one.objects for name, one in found.items()} == dict.fromkeys(topics, 1)
    assert max(stored(log, "dense"), stored(log, "denser")) < 0.95 * stored(log, "usual")
    for topic in topics:
        assert log.read(topic, columns=["value"]).column("value").to_pylist() == 2 * [one["value"] for one in lines]


# Promise: topic-configs.md#the-log
def test_checkpoints_come_as_often_as_the_log_wants(tmp_path: Path) -> None:
    """metadata.checkpoint.interval holds for every writer."""
    log = new_log(tmp_path, orders=1)
    log.admin.incremental_alter_configs({None: {"metadata.checkpoint.interval": "3"}})
    for _ in range(5):
        log.append("orders", LINES)
    log.close()
    assert list(tmp_path.glob("log/meta/ckpt/*"))


# Promise: topic-configs.md#the-log
def test_topics_stay_where_deleting_is_switched_off(tmp_path: Path) -> None:
    """delete.topic.enable=false, until it is switched on again."""
    log = new_log(tmp_path, orders=1)
    log.admin.incremental_alter_configs({None: {"delete.topic.enable": "false"}})
    with pytest.raises(TopicDeletionDisabled, match=r"delete\.topic\.enable"):
        log.admin.delete_topics(["orders"])
    log.admin.incremental_alter_configs({None: {"delete.topic.enable": None}})
    log.admin.delete_topics(["orders"])
    assert spark_log.connect(log_url(tmp_path)).admin.list_topics() == []


def test_a_value_that_an_earlier_pylog_accepted_is_shown_and_does_no_harm(tmp_path: Path) -> None:
    """It is in the log, and this version refuses to set it on a topic with one replica: the topic is written and
    altered, and it can be unset."""
    log = new_log(tmp_path, t=1)
    state = log.journal.refresh()
    record = SetConfigsRecord(topic_id=state.names["t"], configs={"min.insync.replicas": "2"})
    batch = Batch(id="earlier", time=state.time, records=(record,))
    assert log.journal.metadata.put_new(log_key(state.version + 1), encode_batch(batch))
    assert log.admin.describe_configs(["t"])["t"]["min.insync.replicas"].value == "2"
    log.append("t", LINES)
    log.admin.incremental_alter_configs({"t": {"retention.ms": "5000"}})
    log.admin.incremental_alter_configs({"t": {"min.insync.replicas": None}})
    assert log.admin.describe_configs(["t"])["t"]["min.insync.replicas"].is_default
    assert log.read("t").num_rows == len(LINES)
