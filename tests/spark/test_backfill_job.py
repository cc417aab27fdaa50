"""`jobs/backfill.py`: each row of a table becomes one record, with its key and time, once."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark_pylog.jobs import backfill as job

from spark_log import Log, NewTopic
from spark_log.errors import InvalidRecord, InvalidRequest, SparkLogError
from spark_log.metadata.commits.last_commit import last_commit
from spark_log.schema.ddl import to_ddl

FOREVER = {"retention.ms": "-1"}
START = datetime.datetime(2024, 5, 1, tzinfo=datetime.timezone.utc)
MINUTE = datetime.timedelta(minutes=1)


def rows(count: int) -> pa.Table:
    """A row each minute, in an order that is not that of time."""
    numbers = [n * 7 % count for n in range(count)]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "customer": [f"c{n % 5}" for n in numbers],
            "at": pa.array([START + n * MINUTE for n in numbers], pa.timestamp("us", "UTC")),
            "part": pa.array([n % 2 for n in numbers], pa.int32()),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """300 rows of five hours, in two files."""
    found = tmp_path / "table"
    found.mkdir()
    every = rows(300)
    pq.write_table(every.slice(0, 150), found / "a.parquet")
    pq.write_table(every.slice(150), found / "b.parquet")
    return found


@pytest.fixture
def topic(log: Log) -> Log:
    log.admin.create_topics([NewTopic("t", 2, {"retention.ms": "-1"})])
    return log


def arguments(log: Log, table: Path | str, *more: str) -> list[str]:
    given = ["--url", log.url, "--from", str(table), "--timestamp", "at", "--chunk-rows", "100", *more]
    return given if "--topic" in more else ["--topic", "t", *given]


BY_ID = ("--value", "id", "--key", "customer")


def run(spark: SparkSession, log: Log, table: Path | str, *more: str) -> dict[str, Any]:
    summary, status = job.backfill(spark, job.parse_args(arguments(log, table, *more)))
    assert status == 0
    return summary


def written(log: Log) -> list[tuple[int, str, datetime.datetime]]:
    """(id, key, time), by id."""
    found = log.read("t", columns=["value", "key", "timestamp"]).to_pylist()
    return sorted((int(row["value"]), row["key"].decode(), row["timestamp"]) for row in found)


def expected(count: int = 300) -> list[tuple[int, str, datetime.datetime]]:
    return [(n, f"c{n % 5}", START + n * MINUTE) for n in range(count)]


# Promise: tasks/backfill.md#a-large-table
def test_each_row_is_a_record_with_its_key_and_time(classic: SparkSession, topic: Log, table: Path) -> None:
    """In chunks of whole hours; in the order of time within each partition; a second run writes nothing."""
    summary = run(classic, topic, table, *BY_ID)
    assert (summary["rows"], summary["chunks"], summary["written_before"]) == (300, 3, 0)
    assert summary["up_to"] == "2024-05-01T05:00:00.000Z"
    assert written(topic) == expected()
    for partition in (0, 1):
        times = topic.read("t", partition, columns=["timestamp"]).column(0).to_pylist()
        assert times == sorted(times) and times
    version = topic.journal.refresh().version
    summary = run(classic, topic, table, *BY_ID)
    assert (summary["rows"], summary["written_before"]) == (0, 300)
    assert topic.journal.refresh().version == version


# Promise: tasks/backfill.md#a-large-table
def test_a_run_continues_after_the_last_chunk(classic: SparkSession, topic: Log, table: Path) -> None:
    """With chunks of another size, too, and rows that were added at the end of the table."""
    run(classic, topic, table, *BY_ID, "--where", "at < '2024-05-01 02:00'")
    assert written(topic) == expected(120)
    every = rows(400)
    pq.write_table(every.filter(pa.compute.greater_equal(every["id"], 300)), table / "c.parquet")
    summary = run(classic, topic, table, *BY_ID, "--chunk-rows", "30")
    assert (summary["written_before"], summary["chunks"]) == (120, 5)
    assert written(topic) == expected(400)


# Promise: tasks/backfill.md#a-large-table
def test_of_two_runs_that_planned_other_chunks_one_ends(classic: SparkSession, topic: Log, table: Path) -> None:
    """Its chunk has rows that the other run has written meanwhile.  A run after that continues."""
    args = job.parse_args(arguments(topic, table, *BY_ID, "--name", "b"))
    records, target = job.read_table(classic, args), job.TargetTopic(topic, "t", "b")
    hour = int(START.timestamp()) // 3600
    run(classic, topic, table, *BY_ID, "--name", "b", "--where", "id < 60")
    for end in (hour + 1, hour + 2):
        stale = [job.HourRange(hour, end, 60 * (end - hour))]
        if end == hour + 1:  # as the other run: it is a repeat
            job.write_chunks(records, args, "b", target, stale)
        else:
            with pytest.raises(
                SparkLogError, match="another run of the backfill 'b' has written .* chunk 1 of 1 is not"
            ):
                job.write_chunks(records, args, "b", target, stale)
    assert written(topic) == expected(60)
    assert run(classic, topic, table, *BY_ID, "--name", "b")["written_before"] == 60
    assert written(topic) == expected()


# Promise: tasks/backfill.md#a-large-table
def test_a_topic_that_was_created_again_is_refused(classic: SparkSession, topic: Log, table: Path) -> None:
    """The log still knows that the backfill is done, and the new topic has no rows.  In the middle of a run, too."""
    run(classic, topic, table, *BY_ID)
    target = job.TargetTopic(topic, "t", "other")
    target.check_there()
    topic.admin.delete_topics(["t"])
    with pytest.raises(InvalidRequest, match="topic 't' was deleted while this job wrote to it"):
        target.check_there()
    topic.admin.create_topics([NewTopic("t", 2, FOREVER)])
    with pytest.raises(InvalidRequest, match="topic 't' was deleted and created again since .* another --name"):
        run(classic, topic, table, *BY_ID)
    run(classic, topic, table, *BY_ID, "--name", "again")
    assert written(topic) == expected()


def test_a_last_commit_that_was_lost_with_its_disks_is_not_taken_for_another_topic() -> None:
    """Another name would have written all rows again, beside those of earlier commits."""
    job.check_same_topic(last_commit(7, 3, {("id", 0): (0, 9)}, ""), "id", "topic 't'", "the backfill 'b'")
    with pytest.raises(
        InvalidRequest, match="the last commit of the backfill 'b' was lost with .* --where only the rows"
    ):
        job.check_same_topic(last_commit(6, 4, {}, ""), "id", "topic 't'", "the backfill 'b'")


# Promise: tasks/backfill.md#rows-as-json
def test_the_row_as_json_to_a_partition(classic: SparkSession, topic: Log, table: Path) -> None:
    """From a table of the catalog.  Times keep microseconds, also in a nested key; nulls are left out; NaN is text."""
    late = "named_struct('at', at + INTERVAL '1' MICROSECOND, 'none', null, 'here', TIMESTAMP_NTZ '2024-05-01 00:00')"
    odd = "array(double('NaN'), double('Infinity'), double('-Infinity'))"
    nested = classic.read.parquet(str(table)).selectExpr("id", "at", "part", f"{late} AS late", f"{odd} AS odd")
    nested.createOrReplaceTempView("orders")
    more = ("--format", "table", "--value", "json", "--key", "late", "--partition", "part", "--where", "id < 4")
    classic.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        run(classic, topic, "orders", *more)
    finally:
        classic.conf.set("spark.sql.session.timeZone", "UTC")
        classic.catalog.dropTempView("orders")
    found = topic.read("t", 1, columns=["key", "value"]).to_pylist()
    for n, row in zip((1, 3), found, strict=True):
        at = f"2024-05-01T00:0{n}:00.00000"
        late = f'{{"at":"{at}1Z","here":"2024-05-01T00:00:00.000000"}}'
        assert row["key"].decode() == late
        odd = '["NaN","Infinity","-Infinity"]'
        assert row["value"].decode() == f'{{"id":{n},"at":"{at}0Z","part":1,"late":{late},"odd":{odd}}}'


# Promise: tasks/backfill.md#into-a-topic-with-a-schema
def test_the_columns_of_a_table_in_a_topic_with_a_schema(classic: SparkSession, log: Log, table: Path) -> None:
    """The job creates it; the second run continues; a table that does not fit is refused before the first commit."""
    columns = ("--value", "columns", "--key", "customer", "--partition", "part", "--create", "2")
    run(classic, log, table, *columns, "--where", "id < 60")
    assert to_ddl(log.admin.describe_schema("t")[0].columns) == "id BIGINT, customer STRING, at TIMESTAMP, part INT"
    assert run(classic, log, table, *columns)["written_before"] == 60
    found = log.read("t", columns=["id", "key", "timestamp", "at", "customer"]).sort_by("id").to_pylist()
    names = [f"c{n % 5}" for n in range(300)]
    times = [START + n * MINUTE for n in range(300)]
    assert [tuple(row.values()) for row in found] == [
        (n, name.encode(), at, at, name) for n, (name, at) in enumerate(zip(names, times, strict=True))
    ]
    log.admin.create_topics([NewTopic("u", 1, FOREVER, schema="id BIGINT, customer STRING")])
    wrong = ("--topic", "u", "--value", "columns", "--dry-run")
    with pytest.raises(InvalidRecord, match="column 'at' is not in the schema of topic 'u'"):
        run(classic, log, table, *wrong)
    log.admin.create_topics([NewTopic("v", 1, FOREVER)])
    with pytest.raises(InvalidRecord, match=r"pylog topic alter v --schema 'id BIGINT, customer STRING, at TIMESTAMP"):
        run(classic, log, table, "--topic", "v", *wrong[2:])
    log.admin.incremental_alter_configs({"v": {"schema.auto": "true"}})
    run(classic, log, table, "--topic", "v", *wrong[2:])
    assert not log.admin.describe_schema("v")
    run(classic, log, table, "--topic", "v", *wrong[2:4], "--where", "id = 7")
    assert log.read("v", columns=["id", "part"]).to_pylist() == [{"id": 7, "part": 1}]


# Promise: tasks/backfill.md#a-large-table
def test_records_that_retention_would_remove_are_named(
    classic: SparkSession, log: Log, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before they are written; a dry run writes nothing."""
    log.admin.create_topics([NewTopic("t", 2, {"message.timestamp.type": "LogAppendTime"})])
    summary = run(classic, log, table, *BY_ID, "--dry-run")
    said = capsys.readouterr().err
    assert summary["older_than_retention"] == summary["rows"] == 300
    assert "warning: 300 rows are older than the topic's retention.ms" in said
    assert "message.timestamp.type=LogAppendTime" in said
    assert log.read("t").num_rows == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--topic", "none", "--value", "id"], "topic 'none' does not exist: create it with `pylog topic create none"),
        (["--value", "idd"], "--value: there is no column 'idd'; the table has id, customer, at, part"),
        (["--value", "id", "--key", "k"], "--key: there is no column 'k'"),
        (["--value", "id", "--partition", "p"], "--partition: there is no column 'p'"),
        (["--value", "id", "--timestamp", "t"], "--timestamp: there is no column 't'"),
    ],
)
def test_wrong_input_is_refused(classic: SparkSession, topic: Log, table: Path, more: Sequence[str], said: str) -> None:
    """With the columns that the table has."""
    with pytest.raises(SparkLogError) as raised:
        run(classic, topic, table, *more)
    assert said in str(raised.value)
    assert topic.read("t").num_rows == 0


# Promise: tasks/backfill.md#a-large-table
def test_rows_without_a_time_or_of_the_future_are_refused(classic: SparkSession, topic: Log, tmp_path: Path) -> None:
    """Nothing is written; the error says how to leave them out, or which limit to raise."""
    future = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(3650)).replace(microsecond=0)
    at = int(future.timestamp()) * 1000
    (tmp_path / "rows.json").write_text(f'{{"id": 1, "at": 1714521600000}}\n{{"id": 2}}\n{{"id": 3, "at": {at}}}\n')
    more = ("--format", "json", "--value", "id")
    with pytest.raises(InvalidRequest, match="1 row without a time: leave them out with --where"):
        run(classic, topic, tmp_path / "rows.json", *more)
    timed = (*more, "--where", "at is not null")
    said = f"the time of 1 row is more than .* hour from {future:%Y-%m-%dT%H}:00:00.000Z: .* --where, or run "
    with pytest.raises(InvalidRequest, match=said) as raised:
        run(classic, topic, tmp_path / "rows.json", *timed, "--dry-run")
    command = re.search(r"`pylog topic alter t -c (\S+)=(\d+)` first", str(raised.value))
    assert command and topic.read("t").num_rows == 0
    topic.admin.incremental_alter_configs({"t": dict([command.groups()])})
    run(classic, topic, tmp_path / "rows.json", *timed)
    times = topic.read("t", columns=["timestamp"]).column(0).to_pylist()
    assert sorted(times) == [START, future]


def test_rows_are_late_by_whole_hours(log: Log) -> None:
    """A row of the hour in which the limit lies may be in time.  LogAppendTime ignores the times of rows."""
    log.admin.create_topics([NewTopic("t", 1), NewTopic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})])
    now_ms = 1000 * job.HOUR_MS + 1
    target = job.TargetTopic(log, "t", "b")
    target.check_not_late([(0, 5), (1001, 1)], now_ms)
    with pytest.raises(InvalidRequest, match=r"the time of 5 rows .* 1970-02-12T00:00:00.000Z: .*ms=36000000`"):
        target.check_not_late([(0, 5), (1001, 1), (1002, 2), (1008, 3)], now_ms)
    job.TargetTopic(log, "stamped", "b").check_not_late([(2000, 3)], now_ms)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "--value"),
        (["--value", "v", "--chunk-rows", "0"], "give 1 or more"),
        (["--value", "json", "--create", "3"], "--create is for --value columns"),
    ],
)
def test_wrong_arguments(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and a sentence."""
    with pytest.raises(SystemExit) as ended:
        job.parse_args(["--url", "file:///x", "--topic", "t", "--from", "/y", "--timestamp", "at", *more])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@given(
    hours=st.dictionaries(st.integers(-50, 50), st.integers(1, 20), max_size=20).map(lambda d: sorted(d.items())),
    rows_min=st.integers(1, 50),
)
def test_chunks_have_each_hour_once(hours: list[tuple[int, int]], rows_min: int) -> None:
    """In order, and none but the last has fewer rows than asked for; versions grow."""
    chunks = list(job.chunks_of(hours, rows_min))
    assert [hour for chunk in chunks for hour, _ in hours if chunk.start <= hour < chunk.end] == [h for h, _ in hours]
    assert sum(chunk.rows for chunk in chunks) == sum(count for _, count in hours)
    assert all(chunk.rows >= rows_min for chunk in chunks[:-1])
    versions = [chunk.version for chunk in chunks]
    assert versions == sorted(set(versions)) and all(version >= 0 for version in versions)
