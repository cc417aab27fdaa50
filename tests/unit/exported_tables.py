"""Exports to tables of Delta and Iceberg, without Spark."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as IcebergTable
from pyspark_pylog.export.delta_log import DeltaLog
from pyspark_pylog.export.iceberg_log import IcebergLog
from pyspark_pylog.export.manifest import ExportSettings
from pyspark_pylog.export.open_table import open_table
from pyspark_pylog.export.parquet_files import ParquetFiles, WrittenFile, as_rows
from pyspark_pylog.export.storage_options import delta_options, iceberg_options
from pyspark_pylog.export.tables import ExportTable, TableLog, is_any_list
from pyspark_pylog.export.task import put_files

from spark_log.schema.ddl import from_ddl
from spark_log.store.open import open_store
from tests.conftest import Bucket

FORMATS = ("delta", "iceberg")
START = datetime.datetime(2024, 5, 1, 23, 30, tzinfo=datetime.timezone.utc)
ALL_TYPES = (
    "flag BOOLEAN, tiny TINYINT, small SMALLINT, id INT, big BIGINT, f FLOAT, d DOUBLE, price DECIMAL(10,2), "
    "huge DECIMAL(38,10), name STRING, raw BINARY, date DATE, at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>, "
    "counts MAP<STRING, INT>, item STRUCT<name: STRING, parts: ARRAY<STRUCT<n: INT>>>"
)
VALUES = {
    "flag": True, "tiny": -5, "small": 300, "id": 7, "big": 1 << 40, "f": 0.5, "d": 0.25, "price": Decimal("1.50"),
    "huge": Decimal("12345678901234567890.0123456789"), "name": "größer", "raw": b"\xff\0",
    "date": datetime.date(2024, 2, 29), "at": START, "local": START.replace(tzinfo=None), "tags": ["a", None],
    "counts": [("x", 1), ("y", None)], "item": {"name": "n", "parts": [{"n": 1}, {"n": None}]},
}  # fmt: skip


def records(count: int, first: int = 0, ddl: str = "", data: Mapping[str, Any] | None = None) -> pa.RecordBatch:
    """Records as a scan has them, some of them after midnight; each second one without data or value."""
    offsets = range(first, first + count)
    columns: dict[str, pa.Array] = {
        "topic": pa.array(["t"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "key": pa.array([b"k%d" % at for at in offsets], pa.binary()),
    }
    if ddl:
        for field in from_ddl(ddl):
            columns[field.name] = pa.array(
                [(data or {}).get(field.name) if at % 2 else None for at in offsets], field.type
            )
    else:
        columns["value"] = pa.array([b"v" if at % 2 else None for at in offsets], pa.binary())
    minutes = [START + datetime.timedelta(minutes=20 * at) for at in offsets]
    columns["timestamp"] = pa.array(minutes, pa.timestamp("us", "UTC"))
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns["headers"] = pa.array([[{"key": "h", "value": b"\xff"}] if at % 2 else None for at in offsets], headers)
    return pa.record_batch(columns)


class Case(NamedTuple):
    """An export to a folder, without Spark."""

    settings: ExportSettings
    url: str
    options: dict[str, str]
    catalog: dict[str, str]

    def log(self) -> TableLog:
        if self.settings.format == "delta":
            return DeltaLog(self.settings, self.url, self.options)
        return IcebergLog(self.settings, self.url, self.options, self.catalog)

    def table(self) -> ExportTable:
        return open_table(self.settings, self.url, self.options, self.catalog)

    def write(self, batch: pa.RecordBatch, number: int = 1) -> list[WrittenFile]:
        """The files of a run."""
        files = ParquetFiles(self.settings)
        files.add(batch)
        return put_files(open_store(self.url, self.options), files, self.settings, f"{number:08}-00000")

    def rows(self, batch: pa.RecordBatch) -> pa.Schema:
        return as_rows(batch, self.settings).schema

    def run(self, number: int, batch: pa.RecordBatch) -> bool:
        """Write and commit a run."""
        return self.table().commit(number, self.rows(batch), self.write(batch, number))

    def delta(self) -> DeltaTable:
        return DeltaTable(self.url, storage_options=delta_options(self.url, self.options))

    def iceberg(self) -> IcebergTable:
        properties = {**iceberg_options(self.url, self.options), **self.catalog}
        return load_catalog("c", **properties).load_table("db.t")

    def read(self) -> list[dict[str, Any]]:
        """The rows of the table, by the format's own reader, without columns of folders."""
        if self.settings.format == "delta":
            folders = self.delta().metadata().partition_columns
            return self.delta().to_pyarrow_table().drop_columns(folders).sort_by("offset").to_pylist()
        table = self.iceberg().scan().to_arrow()
        # PyIceberg reads an array of structs that is null as an empty one.
        lists = [field.name for field in table.schema if is_any_list(field.type)]
        rows = table.sort_by("offset").to_pylist()
        return [{**row, **{name: row[name] or None for name in lists}} for row in rows]

    def files(self) -> list[str]:
        """Those that the table has."""
        if self.settings.format == "delta":
            return self.delta().file_uris()
        return self.iceberg().inspect.files()["file_path"].to_pylist()

    def offsets(self) -> list[int]:
        return [row["offset"] for row in self.read()]


def case_of(kind: str, tmp_path: Path, partition_by: str = "day", bucket: Bucket | None = None) -> Case:
    iceberg = {"catalog": "c", "table": "db.t"} if kind == "iceberg" else {}
    settings = ExportSettings(
        id="7", name="an/é=1/#?", log="l", topic="t", topic_id="i", format=kind, partition_by=partition_by, key_as="binary",
        value_as="binary", keep_offsets=True, start="earliest", **iceberg,
    )  # fmt: skip
    catalog = {"uri": f"sqlite:///{tmp_path}/catalog.db"} if iceberg else {}
    if bucket is not None:
        return Case(settings, f"{bucket.url}/a table", bucket.options, catalog)
    return Case(settings, (tmp_path / "a table").as_uri(), {}, catalog)


def changed_by_others(case: Case) -> None:
    if case.settings.format == "delta":
        case.delta().optimize.compact()
        case.delta().create_checkpoint()
        case.delta().alter.set_table_description("orders")
    else:
        table = case.iceberg()
        table.append(table.scan().to_arrow().slice(0, 0))
