"""Scans into what people work with."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pytest

import spark_log
from spark_log.errors import CorruptObject, InvalidRequest, ObjectNotFound, OffsetOutOfRange, SequenceConflict
from tests.client.logs import new_log
from tests.logged import logged


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    """Thirty records with keys, in three partitions and two commits."""
    log = new_log(tmp_path, orders=3)
    for first in (0, 15):
        log.append("orders", [{"key": f"k{n}", "value": f"{n}"} for n in range(first, first + 15)])
    return log


def test_one_topic_at_a_time(log: spark_log.Log) -> None:
    with pytest.raises(InvalidRequest, match="is not the name of a topic; read one topic at a time"):
        log.scan(["orders", "copy"])  # type: ignore[arg-type]


def test_into_pandas(log: spark_log.Log) -> None:
    """read_pandas, and back by append."""
    pandas = pytest.importorskip("pandas")
    frame = log.scan("orders", columns=["key", "value"]).read_pandas()
    assert isinstance(frame, pandas.DataFrame) and sorted(map(int, frame["value"])) == list(range(30))
    log.append("copy", frame)
    assert log.read("copy").num_rows == 30


def test_into_polars(log: spark_log.Log) -> None:
    """from_arrow takes the reader, append takes the frame."""
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(log.scan("orders"))
    assert frame.height == 30 and frame["offset"].max() < 30
    log.append("copy", frame.select("key", "value"))
    assert log.read("copy").num_rows == 30


def test_into_duckdb(log: spark_log.Log) -> None:
    """SQL over the stream, without a copy of it."""
    duckdb = pytest.importorskip("duckdb")
    reader = log.scan("orders")  # noqa: F841 - DuckDB finds it by its name
    found = duckdb.sql("select count(*), count(distinct partition), min(decode(value)) from reader").fetchall()
    assert found == [(30, 3, "0")]


def test_ranges_columns_and_partitions(log: spark_log.Log) -> None:
    """Half-open, by positions; an end beyond the end is the end; only the columns asked for."""
    table = log.read("orders", partition=1, start=2, end=4, columns=["offset", "value"])
    assert table.column_names == ["offset", "value"] and table.column("offset").to_pylist() == [2, 3]
    assert set(log.scan("orders", [0, 2]).read_all().column("partition").to_pylist()) == {0, 2}
    assert log.read("orders", 0, start="latest-1", end=10**9).num_rows == 1
    assert log.read("orders", 0, start=3, end=3).num_rows == 0
    with pytest.raises(OffsetOutOfRange):
        log.read("orders", 0, start=1000)
    with pytest.raises(InvalidRequest, match="nope"):
        log.read("orders", columns=["nope"])


def test_a_read_of_no_columns_has_its_rows(log: spark_log.Log) -> None:
    """A count by a read of no columns was 0."""
    assert log.read("orders", columns=[]).num_rows == 30
    assert log.read("orders", columns=[], where="partition = 1").num_rows == log.read("orders", 1).num_rows
    assert log.read("orders", columns=[], where="timestamp < '2020-01-01'").num_rows == 0
    assert sum(batch.num_rows for batch in log.scan("orders", columns=[], where="offset IN (0, 2)")) == 6
    assert log.table("orders", columns=[]).num_rows == 30


def test_the_same_append_lands_once_per_application_and_version(log: spark_log.Log) -> None:
    """txn_app_id and txn_version go together; a repeat of the last version gives the offsets of the first time."""
    first = log.append("totals", pa.table({"value": ["1"]}), txn_app_id="job", txn_version=1)
    again = spark_log.connect(log.url).append("totals", [{"value": "1"}], txn_app_id="job", txn_version=1)
    assert first == again and log.read("totals").num_rows == 1
    log.append("totals", [{"value": "2"}], txn_app_id="job", txn_version=2)
    assert log.append("totals", [{"value": "1"}], txn_app_id="job", txn_version=0) == {}
    assert log.append("totals", [{"value": "1"}] * 3, txn_app_id="job", txn_version=1) == {}
    assert log.read("totals").num_rows == 2
    with pytest.raises(InvalidRequest, match="go together"):
        log.append("totals", [{"value": "1"}], txn_app_id="job")


def test_a_version_that_is_skipped_is_a_warning(log: spark_log.Log, caplog: pytest.LogCaptureFixture) -> None:
    """With both versions, and how many rows were not written."""
    log.append("totals", [{"value": "1"}], txn_app_id="job:a", txn_version=7)
    assert not logged(caplog, "is skipped")
    log.append("totals", [{"value": "2"}], txn_app_id="job:a", txn_version=7)
    log.append("totals", [{"value": "1"}] * 3, txn_app_id="job:a", txn_version=5)
    assert logged(caplog, "is skipped") == [
        "txnVersion 7 of application 'job:a' is skipped, 1 row to topic 'totals' not written: that version is in the log already",
        "txnVersion 5 of application 'job:a' is skipped, 3 rows to topic 'totals' not written: the last version in the log is 7, "
        "and a version must be higher",
    ]


# Promise: spark-streams.md#exactly-once
def test_a_version_with_another_number_of_rows_is_a_conflict(log: spark_log.Log) -> None:
    """It is another write, whose rows would be lost; nothing is written."""
    log.append("totals", [{"value": "1"}] * 2, txn_app_id="job:a", txn_version=7)
    expected = (
        r"txnVersion 7 of application 'job:a' is in the log \(version \d+\) with other content .*commit 7 has 3 rows, and in "
        "the log it has 2 rows.* give them a higher txnVersion"
    )
    with pytest.raises(SequenceConflict, match=expected) as raised:
        log.append("totals", [{"value": "1"}] * 3, txn_app_id="job:a", txn_version=7)
    assert raised.value.last == 7 and not raised.value.maybe_applied
    assert log.read("totals").num_rows == 2


def test_an_object_that_is_gone_is_told_with_what_it_held(tmp_path: Path) -> None:
    """Not just the name of a file: the topic, the partition, the offsets, and what to do."""
    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"value": "v"}] * 3)
    (lost,) = tmp_path.glob("**/*.seg")
    lost.unlink()
    with pytest.raises(ObjectNotFound, match=r"offsets 0 to 2 of topic 'orders', partition 0: `pylog verify`"):
        log.read("orders")


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
@pytest.mark.parametrize("rows", [3, 25_000])
def test_damage_is_reported_with_its_offsets_and_a_way_past_it(tmp_path: Path, rows: int) -> None:
    """As narrowly as it is known: a slice that is read in one go, or one record batch.  Reading and trimming at that
    offset work.
    """
    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"value": os.urandom(100)} for _ in range(rows)])
    log.append("orders", [{"value": b"after"}])
    piece = log.plan("orders")[0].slice
    name, file = piece.object, tmp_path / "log" / piece.object
    damaged = bytearray(file.read_bytes())
    damaged[piece.position + piece.length // 2] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(CorruptObject) as caught:
        log.read("orders")
    found = re.fullmatch(
        rf"file://.*/{name} is damaged: offsets (\d+) to (\d+) of topic 'orders', partition 0 cannot be read: the \w+ in .* has "
        r"changed since it was written: .*`pylog verify --deep --repair-from URL`.*, continue at offset (\d+), or give "
        r"these offsets up by `pylog verify --deep --repair --lose-data`",
        str(caught.value),
    )
    assert found is not None, caught.value
    first, last, end = map(int, found.groups())
    assert end == last + 1 and last - first < min(rows, 20_000)
    assert log.read("orders", start=end).num_rows == rows + 1 - end
    log.admin.delete_records({spark_log.TopicPartition("orders", 0): end})
    assert log.read("orders").num_rows == rows + 1 - end


def test_a_closed_log_connects_again(log: spark_log.Log) -> None:
    log.close()
    log.append("orders", [{"value": "again"}])
    log.close()
    assert log.read("orders").num_rows == 31
