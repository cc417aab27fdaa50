"""`jobs/mirror_pylog.py`: each record is once in the other log, in order, and groups are at the same records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.jobs.mirror_job import settings_of
from pyspark_pylog.jobs.mirror_pylog import LogSource, parse_args, run, source_of
from pyspark_pylog.jobs.typed_mirror import TypedCopy, with_typed_map

from spark_log import Log, NewTopic, OffsetAndMetadata, TopicPartition, connect
from spark_log.client.mirror_map import MirroredTopic, MirrorMap
from spark_log.errors import ConcurrentChange, InvalidRequest
from spark_log.maintenance.maintain import compact
from spark_log.segment.schema import HEADERS, TIMESTAMP

NAN = float("nan")


@pytest.fixture
def source(tmp_path: Path) -> Log:
    """A log with `plain`, `typed`, and `keyed`, which has lost records to compaction and to a trim."""
    log = connect(str(tmp_path / "source"), durability="os")
    log.admin.create_topics(
        [
            NewTopic("plain", 2, {"retention.ms": "-1"}),
            NewTopic("typed", 1, schema="id BIGINT NOT NULL, x DOUBLE, tags ARRAY<STRING>, at TIMESTAMP, raw BINARY"),
            NewTopic("keyed", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}),
        ]
    )
    odd = [{"value": None, "key": b"tombstone"}, {"value": b"", "headers": [("a", b"1"), ("a", None)]}]
    log.append("plain", [{**row, "partition": 1, "timestamp": 1_700_000_000_123} for row in odd])
    for first in (0, 50):
        log.append("plain", [{"value": b"%d" % n, "partition": n % 2} for n in range(first, first + 50)])
    rows = [{"id": 1, "x": NAN, "tags": ["a", None], "at": 1_700_000_000_000_001, "raw": b"\x00\xff"}]
    log.append("typed", pa.Table.from_pylist(rows, schema=log.admin.describe_schema("typed")[-1].columns))
    for n in range(6):
        log.append("keyed", [{"key": b"%d" % (n % 2), "value": b"%d" % n}, {"key": b"k%d" % n, "value": b"x"}])
    compact(log)
    log.admin.delete_records({TopicPartition("keyed", 0): 3})
    return log


def test_the_source_can_have_another_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each coordinator gets its token, also from the tasks that write; a log on storage gets none."""
    places = ["--url", "pylog://there:9550", "--checkpoint", "/c", "--topics", "t"]
    args = parse_args([*places, "--source", "pylog://here:9550"])
    monkeypatch.setenv("PYLOG_TOKEN", "there")
    assert (source_of(args).token, settings_of(args).token) == ("there", "there")
    monkeypatch.setenv("PYLOG_SOURCE_TOKEN", "here")
    assert (source_of(args).token, settings_of(args).token) == ("here", "there")
    assert source_of(parse_args([*places, "--source", "file:///here"])).token is None
    monkeypatch.setenv("PYLOG_SOURCE_TOKEN", "")
    assert source_of(args).token is None, "the token of the copy is for the copy"


def mirrored(spark: SparkSession, tmp_path: Path, *more: str) -> dict[str, Any]:
    """The summary of a job in this process."""
    places = ["--source", str(tmp_path / "source"), "--url", str(tmp_path / "copy")]
    args = [*places, "--checkpoint", str(tmp_path / "checkpoint"), "--pattern", "^[a-z]+$", *more]
    summary, status = run(spark, parse_args(args))
    assert status == 0
    json.dumps(summary)
    return summary


def rows(log: Log, topic: str) -> list[tuple[Any, ...]]:
    """All but the offsets, by partition."""
    table = log.read(topic, value_format="json" if topic == "typed" else None)
    return [(row["partition"], row["key"], row["value"], row["timestamp"], row["headers"]) for row in table.to_pylist()]


# Promise: tasks/mirror-topics.md#mirror-topics-to-another-log
def test_topics_are_copied_with_groups(classic: SparkSession, source: Log, tmp_path: Path) -> None:
    """Configs and schemas, too; offsets are the same where none is missing, and otherwise by the map.  Values from
    before a schema become columns, or dead letters if they do not fit."""
    source.admin.create_topics([NewTopic("late", 1)])
    source.append("late", [{"value": b'{"id": 7}'}, {"value": b"not JSON"}])
    source.admin.alter_schema("late", "id BIGINT NOT NULL")
    source.append("late", [{"id": 8}])
    keyed = TopicPartition("keyed", 0)
    offsets = [row["offset"] for row in source.read("keyed", columns=["offset"]).to_pylist()]
    source.admin.alter_consumer_group_offsets(
        "g", {TopicPartition("plain", 1): OffsetAndMetadata(9), keyed: OffsetAndMetadata(offsets[1])}
    )
    assert mirrored(classic, tmp_path, "--dry-run")["offsets"]["plain"] == 102
    done = mirrored(classic, tmp_path, "--groups", "*", "--max-offsets", "40", "--bad-records", "dead-letters")
    copy = connect(str(tmp_path / "copy"), create=False)
    assert done == {"records": {"keyed": len(offsets), "late": 2, "plain": 102, "typed": 1}, "groups_set": True}
    assert copy.read("late").column("id").to_pylist() == [7, 8]
    (letter,) = copy.read("dead-letters").to_pylist()
    assert letter["value"] == b"not JSON" and {"key": "pylog.offset", "value": b"1"} in letter["headers"]
    for topic in ("plain", "typed", "keyed"):
        assert rows(copy, topic) == rows(source, topic)
        assert (
            copy.admin.describe_topics([topic])[topic].configs == source.admin.describe_topics([topic])[topic].configs
        )
    assert copy.admin.describe_schema("typed")[-1].columns == source.admin.describe_schema("typed")[-1].columns
    assert copy.read("typed").column("x").to_pylist()[0] != copy.read("typed").column("x").to_pylist()[0], "NaN"
    wanted = {TopicPartition("plain", 1): OffsetAndMetadata(9, "mirror:9")}
    assert copy.admin.list_consumer_group_offsets("g") == {
        **wanted,
        keyed: OffsetAndMetadata(1, f"mirror:{offsets[1]}"),
    }
    found = MirrorMap(copy, "mirror-map").translate([(keyed, offset) for offset in offsets])
    assert list(found.values()) == list(range(len(offsets)))

    source.append("plain", [{"value": b"later"}])
    source.admin.alter_schema(
        "typed", "id BIGINT NOT NULL, x DOUBLE, tags ARRAY<STRING>, at TIMESTAMP, raw BINARY, y INT"
    )
    source.append("typed", [{"id": 2, "y": 7}])
    assert mirrored(classic, tmp_path)["records"] == {"keyed": 0, "late": 0, "plain": 1, "typed": 1}
    assert rows(copy, "typed") == rows(source, "typed")
    (noted,) = (tmp_path / "checkpoint").glob("reached-mirror-map-*.json")
    assert json.loads(noted.read_text())["end"] == len(copy.read("mirror-map"))


# Promise: tasks/mirror-topics.md#mirror-topics-to-another-log
def test_what_is_refused(classic: SparkSession, source: Log, tmp_path: Path) -> None:
    """A topic to which others have written, a log to itself, and a missing topic."""
    with pytest.raises(InvalidRequest, match="have the same id"):
        mirrored(classic, tmp_path, "--url", str(tmp_path / "source"))
    args = ["--source", source.url, "--url", str(tmp_path / "copy"), "--checkpoint", "c", "--topics", "none"]
    with pytest.raises(InvalidRequest, match="has no topic 'none'; it has keyed, plain, typed"):
        run(classic, parse_args(args))
    copy = connect(str(tmp_path / "copy"))
    copy.append("plain", [{"value": b"not a copy"}])
    with pytest.raises(InvalidRequest, match="only the mirror may write to 'plain'"):
        mirrored(classic, tmp_path)


# Promise: tasks/mirror-topics.md#mirror-topics-to-another-log
@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (NewTopic("dead", 1, schema="id INT"), "topic 'dead' has a schema, and bad records are bytes: name another"),
        (
            NewTopic("dead", 1, {"cleanup.policy": "compact,delete"}),
            "topic 'dead' is compacted, .*: name another topic, or run `pylog topic alter dead -c cleanup.policy=delete`",
        ),
    ],
)
def test_a_topic_that_cannot_keep_bad_records(
    classic: SparkSession, source: Log, tmp_path: Path, topic: NewTopic, said: str
) -> None:
    """Is refused before anything is written, also by a dry run."""
    copy = connect(str(tmp_path / "copy"))
    copy.admin.create_topics([topic])
    version = copy.journal.refresh().version
    for more in ([], ["--dry-run"]):
        with pytest.raises(InvalidRequest, match=f"--bad-records: {said}"):
            mirrored(classic, tmp_path, "--bad-records", "dead", *more)
    assert copy.journal.refresh().version == version


# Promise: tasks/mirror-topics.md#mirror-topics-to-another-log
def test_a_schema_that_changes_while_a_topic_is_copied(log: Log) -> None:
    """The fields that the copy lacks are not left out, and the records are no dead letters: nothing is written."""
    log.admin.create_topics([NewTopic("t", schema="id INT")])
    args = parse_args(["--source", log.url, "--url", "u", "--checkpoint", "c", "--topics", "t"])
    one = LogSource(None, args, log).topics()["t"]
    copy = MirroredTopic("t", "there", one.id, "map")
    typed = TypedCopy(copy, log.admin.describe_schema("t")[-1], "bad", True, check=one.check_schema)
    batch = pa.record_batch(
        {"partition": pa.array([0], pa.int32()), "offset": [0], "key": pa.array([None], pa.binary()), "value": [b"{}"],
         "timestamp": pa.array([0], TIMESTAMP), "headers": pa.array([None], HEADERS)}
    )  # fmt: skip
    assert len(list(with_typed_map(typed, [batch]))) == 2
    log.admin.alter_schema("t", "id INT, note STRING")
    for some in (typed, typed._replace(dead_letters="", drop_fields=False)):
        with pytest.raises(ConcurrentChange, match="topic 't' got a newer schema in .*: run the mirror again"):
            list(with_typed_map(some, [batch.set_column(3, "value", pa.array([b'{"note": "x"}']))]))
