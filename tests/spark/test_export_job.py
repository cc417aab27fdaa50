"""`jobs/export.py`: each record is once in the table, also if jobs are repeated or run at the same time."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark_pylog.export.manifest import ExportRun, ExportSettings, Found, Manifest, Part, Result
from pyspark_pylog.export.parquet_files import ParquetFile, WrittenFile, by_folder
from pyspark_pylog.export.planning import divide
from pyspark_pylog.export.task import Written, result_of, write_files
from pyspark_pylog.jobs import export as job
from pyspark_pylog.jobs.job_support import NO_JAVA, PYTHON_LATE, sentence, storage_beside
from pyspark_pylog.log.open_log import planned_log
from pyspark_pylog.options.parse import Location

from spark_log import Log, NewTopic, TopicPartition
from spark_log.client.reader.plan import Chunk
from spark_log.errors import DataLoss, InvalidRequest, OffsetOutOfRange, SparkLogError, UnknownTopicOrPartition
from spark_log.maintenance.maintain import merge
from spark_log.schema.ddl import to_ddl
from tests.conftest import Bucket
from tests.processes import eventually

DAY_MS = 86_400_000
FOREVER = {"retention.ms": "-1"}


def records(count: int, first: int = 0, days: int = 3) -> pa.Table:
    """Records of several days, with a tombstone and records without key or headers among them."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": pa.array([None if n % 5 == 0 else b"k%d" % (n % 7) for n in numbers], pa.binary()),
            "value": pa.array([None if n % 11 == 0 else b"v%d" % n for n in numbers], pa.binary()),
            "timestamp": pa.array([1_700_000_000_123 + (n % days) * DAY_MS for n in numbers], pa.int64()),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % n}] if n % 2 else None for n in numbers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )


@pytest.fixture
def topic(log: Log) -> Log:
    """`t`, with 200 records in two partitions."""
    log.admin.create_topics([NewTopic("t", 2, FOREVER)])
    log.append("t", records(200))
    return log


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "table"


def run(spark: SparkSession, log: Log, to: Path | str, *more: str) -> dict[str, Any]:
    """The summary of a job in this process."""
    args = ["--url", log.url, "--topic", "t", "--to", str(to), "--task-bytes", "1k", *more]
    summary, status = job.export(spark, job.parse_args(args))
    assert status == 0
    return summary


def exported(to: Path) -> list[dict[str, Any]]:
    """The rows of the table, without its folders, by partition and offset."""
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    table = ds.dataset(to, partitioning="hive").to_table(columns=columns)
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()


def in_log(log: Log) -> list[dict[str, Any]]:
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    return log.read("t", columns=columns).to_pylist()


def files(to: Path) -> dict[str, bytes]:
    """The files of the table, without those that describe the export."""
    return {str(path.relative_to(to)): path.read_bytes() for path in sorted(to.rglob("*.parquet"))}


# Promise: tasks/export.md#export-to-a-table
def test_each_record_is_once_in_the_folder_of_its_day(classic: SparkSession, topic: Log, to: Path) -> None:
    """All columns, byte for byte; several tasks; the summary counts the rows and names where the next run begins."""
    summary = run(classic, topic, to)
    assert exported(to) == in_log(topic)
    found = duckdb.sql(f"SELECT DISTINCT date, timestamp::DATE FROM '{to}/**/*.parquet' ORDER BY 1").fetchall()
    assert found == [(datetime.date(2023, 11, day),) * 2 for day in (14, 15, 16)]
    assert len(files(to)) == summary["files"] > 6
    assert (summary["records"], summary["runs"], summary["lost"]) == (200, 1, 0)
    ends = topic.admin.describe_topics(["t"])["t"].partitions
    assert summary["ends"] == {str(part.partition): part.end for part in ends}


# Promise: tasks/export.md#export-to-a-table
def test_a_run_continues_where_the_last_one_ended(classic: SparkSession, topic: Log, to: Path) -> None:
    """With a new partition, and without a run if nothing is new; a group shows the progress."""
    run(classic, topic, to)
    topic.admin.create_partitions({"t": 3})
    topic.append("t", records(50, first=200))
    assert run(classic, topic, to)["records"] == 50
    before = files(to)
    assert run(classic, topic, to)["runs"] == 0
    assert files(to) == before
    assert exported(to) == in_log(topic)
    ends = {TopicPartition("t", p.partition): p.end for p in topic.admin.describe_topics(["t"])["t"].partitions}
    assert {tp: at.offset for tp, at in topic.admin.list_consumer_group_offsets("export-t").items()} == ends


def in_table(to: Path, kind: str, catalog: str) -> pa.Table:
    """The rows of a Delta or Iceberg table, by the reader of the format."""
    if kind == "delta":
        return DeltaTable(str(to)).to_pyarrow_table()
    return load_catalog("lake", uri=catalog).load_table("sales.orders").scan().to_arrow()


def options_of(kind: str, uri: str) -> list[str]:
    """Arguments for a table of a format; `in_table` reads it."""
    catalog = ["--catalog", "lake", "--catalog-option", f"uri={uri}", "--table", "sales.orders"]
    return ["--format", kind, *(catalog if kind == "iceberg" else [])]


# Promise: tasks/export.md#each-record-is-exported-once
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_of_two_first_jobs_the_slower_one_continues(
    classic: SparkSession, topic: Log, to: Path, tmp_path: Path, kind: str
) -> None:
    """It looked for an export before the other one began, and finds the table of the other one, which is its table."""
    options = options_of(kind, f"sqlite:///{tmp_path}/catalog.db")
    given = ["--url", topic.url, "--topic", "t", "--to", str(to), *options]
    slower, other = (
        job.Export(classic, job.parse_args([*given, *more]), topic, Manifest(str(to), {}))
        for more in ([], ["--name", "other"])
    )
    run(classic, topic, to, *options)
    slower.check()
    slower.begin()
    assert slower.export_to_end()["runs"] == 0
    with pytest.raises(InvalidRequest, match="--name was 'export-t' when the export to .* began, and is 'other' now"):
        other.check()


# Promise: tasks/export.md#delta-and-iceberg, tasks/export.md#each-record-is-exported-once
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_of_commits_has_each_record_once(
    classic: SparkSession, topic: Log, to: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Also if two jobs run at the same time, or one was killed after a commit.  Results say what is known of a run."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    options = options_of(kind, uri)
    assert run(classic, topic, to, *options, "--end", "20")["records"] == 40
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: run(classic, topic, to, *options), range(2)))
    assert result_of_run(to, 2)["records"] == 160, "of the job that has committed it, whichever was done first"
    forget_result(to)
    topic.append("t", records(50, first=200))
    summary = run(classic, topic, to, *options)
    assert (summary["records"], summary["runs"], summary["runs_committed_before"]) == (50, 2, 1)
    assert result_of_run(to, 2) == {"committed_before": True, "lost": 0}
    assert "run 2 was committed before, by another job or by one that was killed" in capsys.readouterr().err
    assert run(classic, topic, to, *options)["runs"] == 0
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    rows = in_table(to, kind, uri).select(columns).sort_by([("partition", "ascending"), ("offset", "ascending")])
    # PyIceberg reads an array of structs that is null as an empty one.
    assert [{**row, "headers": row["headers"] or None} for row in rows.to_pylist()] == in_log(topic)
    with pytest.raises(InvalidRequest, match=f"--format was '{kind}' when the export to .* began, and is 'parquet'"):
        run(classic, topic, to)


class LostAnswer:
    """A table that has got a run, whose commit was repeated and refused."""

    def check(self, rows: pa.Schema, last: int) -> None: ...

    def has(self, number: int) -> bool:
        return False

    def commit(self, number: int, rows: pa.Schema, files: Sequence[WrittenFile]) -> bool:
        return False


class OneFile(job.Export):
    """An export that writes one file, without tasks."""

    def _written(self, number: int, run: ExportRun) -> list[Written]:
        content = ParquetFile(pa.schema([("a", pa.int64())])).finish()
        self._manifest.store.put("a.parquet", [memoryview(content)])
        return [Written([WrittenFile("a.parquet", len(content), pq.read_metadata(pa.BufferReader(content)))], 0)]


# Promise: tasks/export.md#delta-and-iceberg
def test_a_job_keeps_its_files_if_its_run_was_committed_before(topic: Log, to: Path) -> None:
    """The answer to its own commit may have been lost: then they are in the table."""
    args = job.parse_args(["--url", topic.url, "--topic", "t", "--to", str(to)])
    export = OneFile(None, args, topic, Manifest(str(to), {}))
    export._table = LostAnswer()
    assert export._exported(1, ExportRun([], {}, lost=2)) == Found(lost=2)
    assert (to / "a.parquet").exists()


def test_a_range_by_hours_as_text(classic: SparkSession, topic: Log, to: Path) -> None:
    """From a position to a position, without the columns of offsets."""
    at = ("--start", "10", "--end", "50", "--partition-by", "hour")
    run(classic, topic, to, *at, "--value-as", "text", "--key-as", "text", "--no-keep-offsets")
    rows = ds.dataset(to, partitioning="hive").to_table().to_pylist()
    assert list(rows[0]) == ["key", "value", "timestamp", "headers", "date", "hour"]
    assert {row["hour"] for row in rows} == {22}
    wanted = topic.read("t", start=10, end=50, columns=["key", "value"]).to_pylist()
    texts = [tuple(None if part is None else part.decode() for part in row.values()) for row in wanted]
    assert sorted(map(str, texts)) == sorted(str((row["key"], row["value"])) for row in rows)


def result_of_run(to: Path, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((to / f"_pylog/runs/{number:08}.done.json").read_text())
    return found


def forget_result(to: Path) -> None:
    """As if the job had been killed before its last run was done."""
    max((to / "_pylog/runs").glob("*.done.json")).unlink()


def keep_files(to: Path, share: Callable[[int], bool]) -> None:
    for number, name in enumerate(files(to)):
        if not share(number):
            (to / name).unlink()


# Promise: tasks/export.md#each-record-is-exported-once
@pytest.mark.parametrize("left", ["no file", "half of the files", "all files"])
def test_an_unfinished_run_is_written_again(classic: SparkSession, topic: Log, to: Path, left: str) -> None:
    """Whatever the killed job has left, and although the topic has grown and was merged meanwhile."""
    run(classic, topic, to)
    before = files(to)
    forget_result(to)
    keep_files(to, {"no file": lambda _: False, "half of the files": lambda n: n % 2 == 0}.get(left, lambda _: True))
    topic.append("t", records(30, first=200))
    merge(topic)
    summary = run(classic, topic, to)
    assert (summary["runs"], summary["records"]) == (2, 230)
    assert exported(to) == in_log(topic)
    assert {name: content for name, content in files(to).items() if name in before} == before


# Promise: tasks/export.md#each-record-is-exported-once
def test_two_jobs_at_the_same_time_write_one_table(classic: SparkSession, topic: Log, to: Path) -> None:
    """Whichever plans a run, both write the same files."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: run(classic, topic, to), range(2)))
    assert exported(to) == in_log(topic)


# Promise: tasks/mirror-topics.md#failures-of-a-job-that-repeats
def test_a_continuous_export_ends_with_its_topic(
    classic: SparkSession, topic: Log, to: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each round exports what was added since.  A folder that is not mounted for a while does not end the job."""
    root, away = Path(topic.url.removeprefix("file://")), to.parent / "away"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, classic, topic, to, "--continuous", "--every", "10ms")
        eventually(lambda: files(to))
        topic.append("t", records(10, first=200))
        eventually(lambda: exported(to) == in_log(topic))
        root.rename(away)
        eventually(lambda: "the export 'export-t' failed, retrying in its next run: " in caplog.text)
        away.rename(root)
        topic.append("t", records(10, first=210))
        eventually(lambda: exported(to) == in_log(topic))
        topic.admin.delete_topics(["t"])
        with pytest.raises(UnknownTopicOrPartition):
            running.result()


def test_many_small_files_are_worth_a_warning() -> None:
    """A few of them are not, nor are large ones."""
    files = [f"date=2026-01-{day:02}/t-{task}.parquet" for day in range(1, 31) for task in range(4)]
    found = job.small_files(Result(records=9, bytes=120_000, files=files), "day")
    assert found.startswith("its 120 files in 30 folders have 1,000 bytes on average, which is slow to read: each task")
    assert not job.small_files(Result(bytes=120 << 20, files=files), "day")
    assert not job.small_files(Result(bytes=9, files=files[:99]), "day")


def test_a_dry_run_writes_nothing(classic: SparkSession, topic: Log, to: Path) -> None:
    """It counts what is left."""
    found = run(classic, topic, to, "--dry-run")
    assert (found["records"], found["unfinished_run"]) == (200, False)
    assert not to.exists()
    run(classic, topic, to, "--end", "20")
    assert run(classic, topic, to, "--dry-run")["records"] == 160


# Promise: tasks/export.md#when-records-are-gone
def test_records_that_were_removed_before_the_export_are_named(classic: SparkSession, topic: Log, to: Path) -> None:
    """The job fails, or skips them if asked to, and counts them; also in a run that was planned before."""
    run(classic, topic, to, "--end", "5")
    topic.admin.delete_records({TopicPartition("t", 0): 9})
    with pytest.raises(DataLoss, match="4 records of topic 't' were removed before they were exported"):
        run(classic, topic, to)
    assert run(classic, topic, to, "--skip-lost")["lost"] == 4
    assert [row["offset"] for row in exported(to) if row["partition"] == 0][4:6] == [4, 9]

    forget_result(to)
    topic.admin.delete_records({TopicPartition("t", 0): 12})
    with pytest.raises(Exception, match="are out of range"):
        run(classic, topic, to)
    assert run(classic, topic, to, "--skip-lost")["lost"] == 4 + 3


def wrong(log: Log, to: Path, *more: str) -> tuple[str, ...]:
    return ("--url", log.url, "--to", str(to), *more)


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        (["--topic", "none"], UnknownTopicOrPartition, "none"),
        (["--topic", "t", "--start", "900"], OffsetOutOfRange, "offset 900 of t-0 is out of range"),
        (["--topic", "t", "--end", "900"], OffsetOutOfRange, "offset 900 of t-0 is out of range"),
        (["--topic", "t", "--end", "soon"], InvalidRequest, "--end: 'soon' is not a position"),
        (["--topic", "t", "--name", "billing"], InvalidRequest, "'billing' is used by consumers: give .* --name"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(
    classic: SparkSession, topic: Log, to: Path, more: Sequence[str], error: type[SparkLogError], said: str
) -> None:
    """With the value that is wrong."""
    topic.admin.alter_consumer_group_offsets("billing", {TopicPartition("t", 0): 3})
    with pytest.raises(error, match=said):
        job.export(classic, job.parse_args(wrong(topic, to, *more)))
    assert not to.exists()


# Promise: tasks/export.md#each-record-is-exported-once
def test_a_folder_that_has_other_files_is_refused(classic: SparkSession, topic: Log, to: Path) -> None:
    """Files of anybody else; another topic; the same export with other settings; a topic that was created again."""
    to.mkdir()
    (to / "notes.txt").write_text("mine")
    with pytest.raises(InvalidRequest, match=r"has files that no export has written, such as table/notes\.txt"):
        run(classic, topic, to)
    (to / "notes.txt").unlink()
    run(classic, topic, to)
    topic.admin.create_topics([NewTopic("u", 1)])
    with pytest.raises(InvalidRequest, match="has the export 'export-t' of topic 't'"):
        job.export(classic, job.parse_args(wrong(topic, to, "--topic", "u")))
    with pytest.raises(InvalidRequest, match="--value-as was 'binary' when .* and is 'text' now"):
        run(classic, topic, to, "--value-as", "text")
    topic.admin.delete_topics(["t"])
    topic.admin.create_topics([NewTopic("t", 2, FOREVER)])
    with pytest.raises(InvalidRequest, match="topic 't' was deleted and created again since it was exported"):
        run(classic, topic, to)


def test_bytes_that_are_not_text_are_named(classic: SparkSession, topic: Log, to: Path) -> None:
    """The error of the task is a sentence, which says what to do."""
    topic.append("t", [{"value": b"\xff\xfe", "partition": 1}])
    with pytest.raises(PySparkException) as raised:
        run(classic, topic, to, "--value-as", "text")
    end = topic.admin.describe_topics(["t"])["t"].partitions[1].end
    assert sentence(raised.value) == (
        f"a record of t-1 between offsets {end - 1} and {end - 1} has a value that is not UTF-8: export it with "
        "--value-as binary to another folder"
    )


def test_a_query_that_failed_is_named_without_its_state() -> None:
    """A late Python gets the remedy, and so does a machine without Java."""
    gone = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
    assert sentence(Exception(gone)) == gone + NO_JAVA
    query = "[STREAM_FAILED] Query [id = 1] terminated with exception: "
    for failed, advice in (("Division by zero.", ""), ("Python worker failed to connect back.", PYTHON_LATE)):
        error = Exception(f"{query}{failed}\n=== Streaming Query ===\nThread State: RUNNABLE")
        assert sentence(error) == f"{query}{failed}{advice}"


ORDERS = "id INT NOT NULL, date DATE, price DECIMAL(10,2), item STRUCT<name: STRING>, tags ARRAY<STRING>"


# Promise: tasks/export.md#topics-with-a-schema
def test_a_topic_with_a_schema_is_exported_as_its_columns(
    classic: SparkSession, log: Log, to: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later run has the columns of a newer schema; a run that is repeated has those of its plan."""
    log.admin.create_topics([NewTopic("t", 1, FOREVER, schema=ORDERS)])
    first = {"id": 1, "date": datetime.date(2024, 5, 1), "price": Decimal("1.50"), "item": {"name": "x"}, "tags": ["a"]}
    log.append("t", [{**first, "key": b"k"}])
    log.append("t", [{"value": None, "key": b"gone"}])
    run(classic, log, to)
    before = files(to)
    log.admin.alter_schema("t", f"{ORDERS.replace('INT', 'BIGINT')}, note STRING")
    forget_result(to)
    log.append("t", [{"id": 1 << 40, "note": "new"}])
    assert run(classic, log, to, "--value-as", "columns")["runs"] == 2
    assert {name: content for name, content in files(to).items() if name in before} == before
    assert "run 2: the schema of topic 't' has version 2 now" in capsys.readouterr().err

    query = f"SELECT id, \"value.date\", price, item.name, tags, note FROM read_parquet('{to}/**/*.parquet', union_by_name=true)"
    rows = [(1, first["date"], first["price"], "x", ["a"], None), (None,) * 6, (1 << 40, None, None, None, None, "new")]
    assert duckdb.sql(f'{query} ORDER BY "offset"').fetchall() == rows
    schema = log.admin.describe_schema("t")[-1]
    ddl = to_ddl(pa.schema([field.with_nullable(True) for field in schema.columns])).replace(
        "date ", "`value.date` ", 1
    )
    frame = classic.read.schema(f"{ddl}, offset BIGINT, date DATE").parquet(str(to)).orderBy("offset")
    found = frame.select("id", "`value.date`", "price", "item.name", "tags", "note").collect()
    assert [tuple(row) for row in found] == rows


# Promise: tasks/export.md#topics-with-a-schema
def test_values_from_before_the_schema_are_refused_or_parsed(classic: SparkSession, log: Log, to: Path) -> None:
    """As the whole export is by default; bytes without a schema are no columns."""
    log.admin.create_topics([NewTopic("t", 1, FOREVER)])
    log.append("t", [{"value": b'{"id": 1}'}])
    log.admin.create_topics([NewTopic("empty", 1, schema="id INT, nothing STRUCT<>")])
    with pytest.raises(
        InvalidRequest, match="topic 'empty' cannot be exported as columns: .*'nothing' .*--value-as text"
    ):
        job.export(classic, job.parse_args(wrong(log, to, "--topic", "empty")))
    with pytest.raises(
        InvalidRequest, match=r"--value-as columns: topic 't' has no schema.*pylog topic alter t --schema"
    ):
        run(classic, log, to, "--value-as", "columns")
    log.admin.alter_schema("t", "id BIGINT NOT NULL")
    log.append("t", [{"id": 2}])
    with pytest.raises(InvalidRequest, match="records of t-0 before offset 1 are bytes .*--value-parse json"):
        run(classic, log, to)
    assert not to.exists()
    run(classic, log, to, "--value-parse", "json")
    assert sorted(duckdb.sql(f"SELECT id FROM '{to}/**/*.parquet'").fetchall()) == [(1,), (2,)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "--topic"),
        (["--topic", "t", "--format", "csv"], "invalid choice"),
        (["--topic", "t", "--task-bytes", "many"], "is not a size"),
        (["--topic", "t", "--continuous", "--end", "5"], "--continuous has no end"),
        (["--topic", "t", "--every", "5s"], "--every is for --continuous"),
        (["--topic", "t", "--to-option", "key"], "KEY=VALUE"),
        (["--topic", "t", "--format", "iceberg", "--table", "a.b"], "--format iceberg needs --catalog"),
        (["--topic", "t", "--format", "iceberg", "--catalog", "c", "--table", "a"], "'a' has no namespace: give N"),
        (["--topic", "t", "--format", "delta", "--table", "a.b"], "are for --format iceberg"),
    ],
)
def test_wrong_arguments(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and a sentence."""
    with pytest.raises(SystemExit) as ended:
        job.parse_args(["--url", "file:///x", "--to", "/y", *more])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("to", "more", "options"),
    [
        ("s3://lake/t", [], {"key": "a"}),
        ("/lake/t", [], {}),
        ("s3://lake/t", ["--to-option", "key=b"], {"key": "b"}),
    ],
)
def test_options_of_the_tables_storage(to: str, more: list[str], options: dict[str, str]) -> None:
    """Those of the log's storage, if both are of one kind and nothing else is given."""
    args = ["--url", "s3://b/log", "--storage-option", "key=a", "--topic", "t", "--to", to, *more]
    given = job.parse_args(args)
    assert storage_beside(given.to_option, given.to, given) == options


def test_a_table_in_a_bucket(topic: Log, s3: Callable[[], Bucket]) -> None:
    """The files of a task, its plan and its result, on S3."""
    bucket = s3()
    manifest = Manifest(f"{bucket.url}/table", bucket.options)
    settings = ExportSettings(
        name="e", log=topic.cluster_id, topic="t", topic_id=topic.admin.describe_topics(["t"])["t"].topic_id,
        format="parquet", partition_by="none", key_as="binary", value_as="binary", keep_offsets=True, start="earliest",
    )  # fmt: skip
    assert manifest.settings() is None
    manifest.begin(settings)
    manifest.begin(settings)
    planned = planned_log(Location(url=topic.url, storage={}), topic.journal)
    result = write_files(planned, manifest.store, settings, 1, 0, False, (0, [Part(0, 0, 10)]))
    [file] = result.files
    assert (file.footer.num_rows, file.name) == (10, "e-00000001-00000.parquet")
    found = pa.parquet.read_table(pa.BufferReader(manifest.store.get(file.name))).to_pylist()
    assert found == in_log(topic)[:10]
    manifest.finish(1, result_of([result], 0))
    assert manifest.is_done(1) and manifest.last() == 0


@given(
    sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 500)), min_size=1, max_size=8),
    task_bytes=st.integers(1, 300),
    tasks_max=st.integers(1, 20),
)
def test_tasks_have_each_record_once(sizes: list[tuple[int, int]], task_bytes: int, tasks_max: int) -> None:
    """In order, from the first record on; all of them unless the tasks are full."""
    given_chunks = [(number, Chunk(7, 7 + rows, size)) for number, (rows, size) in enumerate(sizes)]
    tasks = divide(given_chunks, task_bytes, tasks_max)
    found = [(part.partition, offset) for task in tasks for part in task for offset in range(part.start, part.end)]
    every = [(number, offset) for number, (rows, _) in enumerate(sizes) for offset in range(7, 7 + rows)]
    assert found == every[: len(found)]
    assert len(tasks) <= tasks_max and all(tasks)
    assert found == every or len(tasks) == tasks_max


# Promise: tasks/export.md#export-to-a-table
@given(times=st.lists(st.integers(-(10**16), 10**17), max_size=20))
def test_rows_go_to_the_folder_of_their_time(times: list[int]) -> None:
    """Days and hours in UTC, also before 1970; rows of a folder keep their order."""
    rows = pa.record_batch({"timestamp": pa.array(times, pa.timestamp("us", "UTC")), "n": range(len(times))})
    found = {folder: some.column("n").to_pylist() for folder, some in by_folder(rows, "hour")}
    wanted: dict[str, list[int]] = {}
    for number, micros in enumerate(times):
        at = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)
        wanted.setdefault(f"date={at:%Y-%m-%d}/hour={at:%H}/", []).append(number)
    assert found == (wanted or {"": []})
