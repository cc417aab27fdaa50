"""jobs/mirror_kafka.py as far as it needs no Kafka; the rest is in tests/kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from jobs.mirror_kafka import KafkaTopic, carried, explained, left, parse_args, read_positions, seed_groups
from spark_log import NewTopic, OffsetAndMetadata, TopicPartition
from spark_log.client.mirror_map import Copied, Copy, MirrorMap, entry_rows
from spark_log.errors import InvalidRequest

ORDERS = [TopicPartition("orders", number) for number in (0, 1)]


@pytest.fixture
def offsets(log: spark_log.Log) -> MirrorMap:
    """A map of ten records, every other offset of partition 0."""
    log.admin.create_topics([NewTopic("orders", 2)])
    made = MirrorMap(log, "map")
    made.create()
    topic_id = log.journal.refresh().names["orders"]
    log.append("map", entry_rows(Copy("orders", topic_id, "there", "map"), {0: [(n, 1) for n in range(0, 20, 2)]}))
    return made


def source(*ends: int) -> KafkaTopic:
    return KafkaTopic("there", len(ends), {}, (0,) * len(ends), ends)


def test_configs_keep_their_meaning_or_are_told() -> None:
    """Configs that pylog lacks, configs that would change the records, and unknown ones."""
    configs = {
        "retention.ms": "5000",
        "compression.type": "gzip",
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": "2",
        "x.y": "1",
    }
    taken, notes = carried(configs)
    assert taken == {"retention.ms": "5000"}
    assert [note.partition(" ")[0] for note in notes] == [
        "compression.type=gzip",
        "message.timestamp.type=LogAppendTime",
        "min.insync.replicas=2",
        "x.y=1",
    ]


def test_what_is_left_counts_from_the_first_record_that_is_there() -> None:
    """Neither what was copied nor what retention took is copied again."""
    one = KafkaTopic("there", 3, {}, (0, 50, 0), (30, 80, 0))
    assert left("orders", one, {ORDERS[0]: Copied(20, 25, "there")}) == 5 + 30


def test_a_group_stands_at_the_same_record(log: spark_log.Log, offsets: MirrorMap) -> None:
    """In a gap, at the first record after it; the note has Kafka's offset."""
    assert seed_groups(log, offsets, {"orders": source(20, 0)}, {"g": {ORDERS[0]: 7, TopicPartition("other", 0): 1}})
    assert log.admin.list_consumer_group_offsets("g") == {ORDERS[0]: OffsetAndMetadata(4, "kafka:7")}


def test_a_group_that_went_on_in_kafka_is_not_guessed_at(
    log: spark_log.Log, offsets: MirrorMap, capsys: pytest.CaptureFixture[str]
) -> None:
    """The records in between were not copied yet; its other positions are set."""
    assert not seed_groups(log, offsets, {"orders": source(20, 0)}, {"g": {ORDERS[0]: 21, ORDERS[1]: 0}})
    assert log.admin.list_consumer_group_offsets("g") == {ORDERS[1]: OffsetAndMetadata(0, "kafka:0")}
    assert "orders-0 is at 21 in Kafka, beyond what was copied" in capsys.readouterr().out


def test_a_position_in_a_partition_that_was_not_there_waits_for_the_next_run(
    log: spark_log.Log, offsets: MirrorMap, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was added meanwhile, or a file names it by mistake."""
    new = TopicPartition("orders", 2)
    assert not seed_groups(log, offsets, {"orders": source(20, 0)}, {"g": {ORDERS[0]: 7, new: 5}})
    assert log.admin.list_consumer_group_offsets("g") == {ORDERS[0]: OffsetAndMetadata(4, "kafka:7")}
    assert "orders-2 is at 5 in Kafka, beyond what was copied" in capsys.readouterr().out


def test_a_group_that_went_on_here_is_left_alone(log: spark_log.Log, offsets: MirrorMap) -> None:
    """A run after the cut-over must not take consumers back."""
    log.admin.alter_consumer_group_offsets("g", {ORDERS[0]: OffsetAndMetadata(9)})
    assert seed_groups(log, offsets, {"orders": source(20, 0)}, {"g": {ORDERS[0]: 7}})
    assert log.admin.list_consumer_group_offsets("g")[ORDERS[0]].offset == 9


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"g": 1}', '{"g": {"orders": {"x": 1}}}', '{"g": {"orders": {"0": null}}}']
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    """With the file's name and the shape."""
    file = tmp_path / "groups.json"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=r"groups\.json: .*the shape is"):
        read_positions(file)


def test_a_checkpoint_behind_the_log_comes_with_the_jobs_own_way_out() -> None:
    """The map has what the checkpoint has not; any other error is left as it is."""
    error = "terminated with exception: spark_log.errors.SequenceConflict: query q: this is batch 1"
    assert explained(error, "/c").startswith(error) and "delete the topic's folder in /c" in explained(error, "/c")
    assert explained("terminated with exception: DataLoss", "/c") == "terminated with exception: DataLoss"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (["--pattern", "(a"], "is not a Python regular expression"),
        (["--topics", " , "], "no names given"),
        (["--topics", "a", "--kafka-option", "x"], "is not of the form NAME=VALUE"),
        (["--topics", "a", "--every", "soon"], "soon"),
        (["--topics", "a", "--pattern", "b"], "not allowed with"),
    ],
)
def test_a_wrong_argument_says_what_is_wrong(
    argument: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Spark starts."""
    with pytest.raises(SystemExit):
        parse_args(["--bootstrap-servers", "b:1", "--url", "u", "--checkpoint", "c", *argument])
    assert said in capsys.readouterr().err
