"""Tables of Delta and Iceberg get each run of an export once, with all types that a topic may have."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse
from pyspark_pylog.export.delta_log import statistics
from pyspark_pylog.export.iceberg_log import shown_uri
from pyspark_pylog.export.manifest import ExportRun, ExportSettings, Manifest, Result
from pyspark_pylog.export.parquet_files import WrittenFile, as_rows
from pyspark_pylog.export.planning import Planner
from pyspark_pylog.export.storage_options import delta_options, iceberg_options
from pyspark_pylog.export.tables import TRIES, Commits, TableChanged

from spark_log import NewTopic, connect
from spark_log.errors import ConcurrentChange, DataLoss, InvalidRequest
from spark_log.positions import parse_position
from spark_log.store.open import open_store
from tests.conftest import Bucket
from tests.unit.exported_tables import ALL_TYPES, FORMATS, START, VALUES, Case, case_of, changed_by_others, records


@pytest.fixture(params=FORMATS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return case_of(request.param, tmp_path)


# Promise: tasks/export.md#delta-and-iceberg
def test_a_run_becomes_visible_as_a_whole(case: Case) -> None:
    """In one commit, row for row, by the format's reader and by DuckDB; what is not committed is not in the table."""
    batch = records(10)
    files = case.write(batch)
    assert len(files) == 2, "a file for each day"
    case.write(batch)
    assert case.table().commit(1, case.rows(batch), files)
    assert case.read() == as_rows(batch, case.settings).to_pylist()
    assert sorted(name.rpartition("/")[2] for name in case.files()) == sorted(
        file.name.rpartition("/")[2] for file in files
    )
    paths = [unquote(name.removeprefix("file://")) for name in case.files()]
    found = duckdb.sql(f'SELECT "offset", date, headers IS NULL FROM read_parquet({paths}) ORDER BY 1').fetchall()
    days = [START + datetime.timedelta(minutes=20 * at) for at in range(10)]
    assert found == [(at, day.date(), at % 2 == 0) for at, day in enumerate(days)]


# Promise: tasks/export.md#delta-and-iceberg
def test_a_run_is_committed_once(case: Case) -> None:
    """A job that was killed before the commit, or after it, is repeated; the result of two jobs is that of one."""
    first, second = records(3), records(3, first=3)
    assert not case.table().has(1)
    case.write(first)
    assert case.run(1, first) and case.table().has(1)
    assert not case.run(1, first), "killed before the run was recorded as done"
    assert case.run(2, second)
    assert not case.run(1, first), "a job that was paused"
    assert case.offsets() == list(range(6))


class AnswersLost(SqlCatalog):
    """Makes commits, and refuses them, as a catalog that gets them a second time."""

    def commit_table(self, *args: Any) -> CommitTableResponse:
        super().commit_table(*args)
        raise CommitFailedException("the table was changed")


# Promise: tasks/export.md#delta-and-iceberg
def test_a_commit_whose_answer_was_lost(tmp_path: Path) -> None:
    """The run is in the table, with everything that it needs."""
    case = case_of("iceberg", tmp_path)
    assert case.run(1, records(2))
    catalog = f"{AnswersLost.__module__}.{AnswersLost.__qualname__}"
    assert not case._replace(catalog={**case.catalog, "py-catalog-impl": catalog}).run(2, records(2, first=2))
    assert case.offsets() == [0, 1, 2, 3]


def test_a_run_without_files_is_committed(case: Case) -> None:
    """All of its records were removed."""
    rows = case.rows(records(1))
    assert case.table().commit(1, rows, [])
    assert not case.table().commit(1, rows, [])
    assert case.run(2, records(2))
    assert case.offsets() == [0, 1]


# Promise: tasks/export.md#delta-and-iceberg
def test_of_two_jobs_at_the_same_time_one_commits(case: Case) -> None:
    """Both have read the table before; also if they create it, and if nothing but the number changes."""
    batch = records(4)
    rows, files = case.rows(batch), case.write(batch)
    one, other = case.log(), case.log()
    assert (one.last_run(), other.last_run()) == (None, None)
    one.create(rows)
    with pytest.raises(TableChanged):
        other.create(rows)
    for number, some in ((1, files), (2, [])):
        assert (one.last_run(), other.last_run()) == (number - 1, number - 1)
        one.append(number, some)
        with pytest.raises(TableChanged):
            other.append(number, some)
    assert case.offsets() == [0, 1, 2, 3]


def test_a_run_that_another_job_has_planned_with_a_newer_schema(case: Case, tmp_path: Path) -> None:
    """The job reads the newer state of the log."""
    log = connect(str(tmp_path / "log"), durability="os")
    log.admin.create_topics([NewTopic("t", 1, schema="id INT")])
    settings = ExportSettings(
        **{**as_dict(case.settings), "topic_id": log.admin.describe_topics(["t"])["t"].topic_id, "value_as": "columns"}
    )
    planner = Planner(log.journal, Manifest(case.url, {}), case.table(), settings, parse_position("latest", "--end"))
    assert planner.schema() == 1
    connect(log.url, durability="os").admin.alter_schema("t", "id INT, note STRING")
    assert planner.rows(2).names[:3] == ["key", "id", "note"]


# Promise: tasks/export.md#each-record-is-exported-once
def test_the_older_of_two_jobs_reads_a_schema_that_the_table_has_already(tmp_path: Path) -> None:
    """It would have refused the wider type of the table."""
    log = connect(str(tmp_path / "log"), durability="os")
    log.admin.create_topics([NewTopic("t", 1, schema="n INT")])
    log.append("t", [{"n": 1}])
    case = case_of("iceberg", tmp_path)
    topic_id = log.admin.describe_topics(["t"])["t"].topic_id
    settings = ExportSettings(**{**as_dict(case.settings), "topic_id": topic_id, "value_as": "columns"})
    planner = Planner(log.journal, Manifest(case.url, {}), case.table(), settings, parse_position("latest", "--end"))
    ends = planner.ends()
    connect(log.url, durability="os").admin.alter_schema("t", "n BIGINT")
    assert case.run(1, records(2, ddl="n INT")) and case.run(2, records(2, ddl="n BIGINT"))
    assert planner.schema() == 1
    run = planner.plan(0, ends, 1 << 20, 1, skip_lost=False)
    assert run is not None and run.schema == 2


# Promise: tasks/export.md#when-records-are-gone
@pytest.mark.parametrize("ends", [{0: 3}, {0: 2, 1: 1}])
def test_a_log_that_was_set_back_is_refused(tmp_path: Path, ends: dict[int, int]) -> None:
    """Its next records would be left out.  One whose newest records this process has not seen yet is read again."""
    log = connect(str(tmp_path / "log"), durability="os")
    log.admin.create_topics([NewTopic("t", 1)])
    log.append("t", [{"value": "v"}])
    connect(log.url, durability="os").append("t", [{"value": "v"}])
    case = case_of("delta", tmp_path)
    settings = ExportSettings(**{**as_dict(case.settings), "topic_id": log.admin.describe_topics(["t"])["t"].topic_id})
    manifest = Manifest(case.url, {})
    planner = Planner(log.journal, manifest, case.table(), settings, parse_position("latest", "--end"))
    manifest.plan(1, ExportRun([], {0: 2}))
    assert planner.next_starts(1) == {0: 2}
    manifest.plan(2, ExportRun([], ends))
    with pytest.raises(
        DataLoss, match=r"records of t-\d before offset \d, and the log ends before it: the log was rest"
    ):
        planner.next_starts(2)


# Promise: tasks/export.md#delta-and-iceberg
def test_others_may_change_the_table(case: Case) -> None:
    """A job reads the table again, and commits on top of the change."""
    assert case.run(1, records(4))
    batch = records(4, first=4)
    log = case.log()
    assert log.last_run() == 1
    changed_by_others(case)
    with pytest.raises(TableChanged):
        log.append(2, case.write(batch))
    assert case.run(2, batch)
    assert case.offsets() == list(range(8))


# Promise: tasks/export.md#delta-and-iceberg
def test_a_table_of_somebody_else_is_refused(case: Case) -> None:
    """And one that has lost runs: deleted, or restored from a backup."""
    assert case.run(1, records(2))
    other = case._replace(settings=ExportSettings(**{**as_dict(case.settings), "id": "8"}))
    with pytest.raises(InvalidRequest, match="exists and is not of this export: give another"):
        other.table().check(case.rows(records(1)), 0)
    with pytest.raises(InvalidRequest, match=r"has the runs up to 1, and run 3 is done: check .* first\. If"):
        case.table().check(case.rows(records(1)), 3)
    empty = case_of(case.settings.format, Path(case.url.removeprefix("file://")).parent / "empty")
    Path(empty.url.removeprefix("file://").replace("%20", " ")).parent.mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="does not exist, and run 1 is done"):
        empty.table().commit(2, case.rows(records(1)), [])


# Promise: tasks/export.md#delta-and-iceberg
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("delta", r"exist, and run 1 is done: check its folder _delta_log first\. .*, with another --to and --name"),
        ("iceberg", r"'c' \(uri sqlite:///.*catalog\.db\) does not .*, with another --to, --name and --table"),
    ],
    ids=FORMATS,
)
def test_a_table_that_is_gone_is_refused_before_anything_is_new(kind: str, said: str, tmp_path: Path) -> None:
    """From the first run on that is done."""
    log = connect(str(tmp_path / "log"), durability="os")
    log.admin.create_topics([NewTopic("t", 1)])
    case = case_of(kind, tmp_path)
    settings = ExportSettings(**{**as_dict(case.settings), "topic_id": log.admin.describe_topics(["t"])["t"].topic_id})
    manifest = Manifest(case.url, {})
    planner = Planner(log.journal, manifest, case.table(), settings, parse_position("latest", "--end"))
    planner.check_values(0)
    manifest.plan(1, ExportRun([], {0: 0}))
    planner.check_values(1)
    manifest.finish(1, Result())
    with pytest.raises(InvalidRequest, match=f"{said}$"):
        planner.check_values(1)
    case.table().commit(1, planner.rows(0), [])
    planner.check_values(1)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("sqlite:////lake/c.db", " (uri sqlite:////lake/c.db)"),
        ("https://catalog:8181", " (uri https://catalog:8181)"),
        ("postgresql+psycopg2://me:secret@db:5432/lake?password=secret", " (uri postgresql+psycopg2://db:5432/lake)"),
        ("postgresql://me:p/secret@db/lake", ""),
        ("postgresql://me:p?secret@db/lake", ""),
        ("postgresql://me:p@secret@db/lake", ""),
        ("postgresql://db/lake?user=me@here&password=secret", ""),
        ("", ""),
    ],
)
def test_a_catalogs_uri_is_shown_without_secrets(uri: str, shown: str) -> None:
    assert shown_uri(uri) == shown


class Contended:
    """A table that others change before each commit; after some of them it has a run."""

    name, place = "the table", "its folder"

    def __init__(self, changes: int, last: int) -> None:
        self.left, self.last, self.committed = changes, last, list[int]()

    def last_run(self) -> int:
        return self.last if self.left == 0 else 0

    def check(self, rows: pa.Schema) -> None: ...

    def create(self, rows: pa.Schema) -> None: ...

    def extend(self, rows: pa.Schema) -> bool:
        return False

    def append(self, number: int, files: Sequence[WrittenFile]) -> None:
        if self.left:
            self.left -= 1
            raise TableChanged
        self.committed.append(number)


# Promise: tasks/export.md#delta-and-iceberg
def test_a_table_that_others_change_is_read_again(tmp_path: Path) -> None:
    """Until the run is committed, or is there; but not for ever."""
    rows, settings = pa.schema([("offset", pa.int64())]), case_of("delta", tmp_path).settings
    busy, taken, hopeless = Contended(3, 0), Contended(3, 1), Contended(TRIES, 0)
    assert Commits(settings, busy).commit(1, rows, []) and busy.committed == [1]
    assert not Commits(settings, taken).commit(1, rows, []) and taken.committed == []
    with pytest.raises(ConcurrentChange, match="the table was changed by others 100 times while run 1 was committed"):
        Commits(settings, hopeless).commit(1, rows, [])


# Promise: tasks/export.md#delta-and-iceberg
def test_vacuum_deletes_what_is_not_committed(tmp_path: Path) -> None:
    """The files of a killed attempt, and none of those that describe the export."""
    case = case_of("delta", tmp_path)
    assert case.run(1, records(2))
    [left] = case.write(records(1))
    open_store(case.url).put_new("_pylog/export.json", b"{}")
    found = case.delta().vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
    assert list(map(unquote, found)) == [left.name]


def as_dict(settings: ExportSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


# Promise: tasks/export.md#delta-and-iceberg
@pytest.mark.parametrize("partition_by", ["day", "hour", "none"])
@pytest.mark.parametrize("kind", FORMATS)
def test_all_types_of_a_topic(kind: str, partition_by: str, tmp_path: Path) -> None:
    """Are read back as they were, and nulls, too; a column that is called as a folder is value.NAME."""
    case = case_of(kind, tmp_path, partition_by)
    batch = records(4, ddl=ALL_TYPES, data=VALUES)
    assert case.run(1, batch)
    expected = as_rows(batch, case.settings).to_pylist()
    assert ("value.date" in expected[0]) == (partition_by != "none")
    found = case.read()
    assert [{**row, "counts": row["counts"] and list(row["counts"])} for row in found] == expected


# Promise: tasks/export.md#delta-and-iceberg
def test_new_columns(case: Case) -> None:
    """Are added to the table before the first run that has them, in structs and arrays, too, in any order."""
    before, after = (
        "id INT, item STRUCT<name: STRING>, tags ARRAY<STRUCT<n: INT>>",
        (
            "note TIMESTAMP_NTZ, item STRUCT<name: STRING, size: DECIMAL(5,1)>, id INT, tags ARRAY<STRUCT<n: INT, m: DATE>>"
        ),
    )
    data = {"id": 1, "item": {"name": "x"}, "tags": [{"n": 1}]}
    assert case.run(1, records(2, ddl=before, data=data))
    new = {
        "id": 2, "note": datetime.datetime(2024, 1, 1), "item": {"name": "y", "size": Decimal("2.5")},
        "tags": [{"n": 2, "m": datetime.date(2024, 1, 1)}],
    }  # fmt: skip
    assert case.run(2, records(2, first=2, ddl=after, data=new))
    assert not case.run(2, records(2, first=2, ddl=after, data=new))
    rows = [{name: row[name] for name in new} for row in case.read()]
    assert rows[3] == new
    assert rows[1] == {**data, "note": None, "item": {"name": "x", "size": None}, "tags": [{"n": 1, "m": None}]}
    assert rows[0] == dict.fromkeys(new)


WIDER = [
    ("iceberg", "n INT", "n BIGINT", ""),
    ("iceberg", "n TINYINT", "n INT", ""),
    ("iceberg", "n FLOAT", "n DOUBLE", ""),
    ("iceberg", "n DECIMAL(5,1)", "n DECIMAL(9,1)", ""),
    ("iceberg", "n DECIMAL(5,1)", "n DECIMAL(9,2)", "column 'n' is DECIMAL(5,1) in the Iceberg table db.t of"),
    ("iceberg", "n INT", "n DOUBLE", "and DOUBLE in the topic's schema now"),
    ("delta", "n INT", "n BIGINT", "column 'n' is INT in the Delta table"),
    ("delta", "a STRUCT<n: TINYINT>", "a STRUCT<n: INT>", "column 'a.n' is TINYINT in the Delta table"),
    ("delta", "a ARRAY<FLOAT>", "a ARRAY<DOUBLE>", "and DOUBLE in the topic's schema now"),
]


# Promise: tasks/export.md#delta-and-iceberg
@pytest.mark.parametrize(("kind", "before", "after", "said"), WIDER)
def test_wider_numbers(kind: str, before: str, after: str, said: str, tmp_path: Path) -> None:
    """Are columns of the table if its format can change them; otherwise the job is refused before it plans a run."""
    case = case_of(kind, tmp_path)
    data = {"n": 1, "a": None}
    assert case.run(1, records(2, ddl=before, data=data))
    batch = records(2, first=2, ddl=after, data=data)
    if said:
        with pytest.raises(InvalidRequest) as raised:
            case.table().check(case.rows(batch), 1)
        assert said in str(raised.value)
    else:
        case.table().check(case.rows(batch), 1)
        assert case.run(2, batch)
        assert [row["n"] for row in case.read()] == [None, 1, None, 1]


# Promise: tasks/export.md#delta-and-iceberg
def test_names_that_delta_cannot_have(tmp_path: Path) -> None:
    """Are refused before anything is written; Iceberg has them."""
    rows = records(2, ddl="a STRUCT<`two words`: INT>", data={"a": {"two words": 1}})
    with pytest.raises(InvalidRequest, match="column 'two words' cannot be in a Delta table"):
        case_of("delta", tmp_path).table().check(rows.schema, 0)
    case = case_of("iceberg", tmp_path)
    case.table().check(case.rows(rows), 0)
    assert case.run(1, rows)
    assert [row["a"] for row in case.read()] == [None, {"two words": 1}]


def test_files_are_skipped_by_their_statistics(case: Case) -> None:
    """Limits and nulls of each file are in the table."""
    for number in (1, 2, 3):
        assert case.run(number, records(3, first=3 * (number - 1)))
    if case.settings.format == "delta":
        actions = pa.table(case.delta().get_add_actions(flatten=True)).sort_by("min.offset").to_pylist()
        assert [(row["min.offset"], row["max.offset"], row["null_count.value"]) for row in actions] == [
            (0, 1, 1), (2, 2, 1), (3, 5, 1), (6, 8, 2),
        ]  # fmt: skip
    else:
        files = case.iceberg().inspect.files().to_pylist()
        found = sorted((m["offset"]["lower_bound"], m["offset"]["upper_bound"], m["value"]["null_value_count"]) for m in
                       (row["readable_metrics"] for row in files))  # fmt: skip
        assert found == [(0, 1, 1), (2, 2, 1), (3, 5, 1), (6, 8, 2)]
        assert len(list(case.iceberg().scan("timestamp < '2024-05-02T00:00:00+00:00'").plan_files())) == 1


def footer_of(columns: dict[str, pa.Array], **options: Any) -> pq.FileMetaData:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, **options)
    return pq.read_metadata(pa.BufferReader(sink.getvalue()))


def test_statistics_that_would_be_wrong_are_left_out() -> None:
    """NaN, long texts, times beyond the year 9999, long decimals, and row groups without a value."""
    columns = {
        "f": pa.array([1.0, float("nan")]),
        "text": pa.array(["a" * 33, "b"]),
        "short": pa.array(["b", "a"]),
        "at": pa.array([0, 1 << 60], pa.timestamp("us", "UTC")),
        "day": pa.array([0, None], pa.date32()),
        "n": pa.array([Decimal("-12345678901234567.5"), None], pa.decimal128(18, 1)),
        "long": pa.array([Decimal("1.5"), None], pa.decimal128(38, 1)),
        "item": pa.array([{"a": 1}, {"a": 2}]),
        "none": pa.array([None, None], pa.int32()),
        "local": pa.array([1, 2], pa.timestamp("us")),
    }
    found = json.loads(
        statistics(footer_of(columns, row_group_size=1, store_decimal_as_integer=True)), parse_float=Decimal
    )
    assert found["numRecords"] == 2
    local = ("1970-01-01T00:00:00.000001", "1970-01-01T00:00:00.000002")
    number = Decimal("-12345678901234567.5")
    assert found["minValues"] == {"short": "a", "day": "1970-01-01", "n": number, "local": local[0]}
    assert found["maxValues"] == {"short": "b", "day": "1970-01-01", "n": number, "local": local[1]}
    nulls = {"f": 0, "text": 0, "short": 0, "at": 0, "day": 1, "n": 1, "long": 1, "none": 2, "local": 0}
    assert found["nullCount"] == nulls


# Promise: tasks/export.md#delta-and-iceberg
@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_of_commits_in_a_bucket(kind: str, tmp_path: Path, s3: Callable[[], Bucket]) -> None:
    """With our storage options, on S3; of two commits of one run, one is refused there, too."""
    case = case_of(kind, tmp_path, bucket=s3())
    assert case.run(1, records(4))
    assert not case.run(1, records(4))
    one, other = case.log(), case.log()
    assert (one.last_run(), other.last_run()) == (1, 1)
    one.append(2, [])
    with pytest.raises(TableChanged):
        other.append(2, [])
    assert case.offsets() == [0, 1, 2, 3]


# Promise: tasks/export.md#delta-and-iceberg
def test_storage_options_have_other_names() -> None:
    """Those that have no equivalent are named."""
    given = {"key": "k", "secret": "s", "endpoint_url": "http://minio:9000", "client_kwargs": '{"region_name": "eu-1"}'}
    assert delta_options("s3://b/t", given) == {
        "aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_endpoint_url": "http://minio:9000",
        "aws_region": "eu-1", "aws_allow_http": "true",
    }  # fmt: skip
    assert iceberg_options("s3://b/t", given) == {
        "s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.endpoint": "http://minio:9000", "s3.region": "eu-1",
    }  # fmt: skip
    assert delta_options("gs://b/t", {}) == {}
    for url, option in (
        ("s3://b/t", {"profile": "x"}),
        ("gs://b/t", {"token": "x"}),
        ("s3://b/t", {"client_kwargs": "{}", "anon": "1"}),
    ):
        with pytest.raises(InvalidRequest, match="has no equivalent in the package that writes the table"):
            delta_options(url, option)


@pytest.mark.parametrize(("kind", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg.catalog")])
def test_a_package_that_is_missing_is_named(
    kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs it."""
    case = case_of(kind, tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"pyspark_pylog.export.{kind}_log")
    with pytest.raises(InvalidRequest, match=r"in the driver: .*python.* -m pip install '(deltalake|pyiceberg)>="):
        case.table()


def test_a_catalog_that_is_unknown_is_named(tmp_path: Path) -> None:
    """And one that cannot be opened."""
    case = case_of("iceberg", tmp_path)
    with pytest.raises(InvalidRequest, match=r"--catalog c: .*describe the catalog in ~/.pyiceberg.yaml, or with"):
        case._replace(catalog={}).table()
    with pytest.raises(InvalidRequest, match="--catalog c: "):
        case._replace(catalog={"type": "no"}).table()


# Promise: tasks/export.md#delta-and-iceberg
def test_a_delta_table_of_somebody_else(tmp_path: Path) -> None:
    """Has no owner."""
    case = case_of("delta", tmp_path)
    write_deltalake(case.url, pa.table({"a": [1]}))
    with pytest.raises(InvalidRequest, match="exists and is not of this export: give another --to"):
        case.table().check(case.rows(records(1)), 0)
