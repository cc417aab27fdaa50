"""A Delta table, through the package deltalake: the folder of an export, with `_delta_log` beside `_pylog`.

The number of the last run is in the history of the table, and is the version of an application, as Spark's own sink has
it for its batches.  The tasks have written the files, so a commit names them, with the statistics of their columns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_pylog.export.manifest import ExportSettings
from pyspark_pylog.export.parquet_files import FOLDERS, WrittenFile
from pyspark_pylog.export.storage_options import delta_options
from pyspark_pylog.export.tables import ColumnChange, TableChanged, changes, check_changes
from spark_log.errors import InvalidRequest, ObjectNotFound, StorageError
from spark_log.schema.arrow_types import nullable
from spark_log.store.open import open_store
from spark_log.store.retry import with_retries
from spark_log.text import install_extra

try:
    import deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
    from deltalake.transaction import AddAction
except ImportError as error:
    raise InvalidRequest(
        f"--format delta needs the package deltalake in the driver: {install_extra('delta')}"
    ) from error

OWNER, RUN = "pylog.export", "pylog.run"
"""Property of a table: the export whose table it is.  In the history: the run of a commit."""
RETENTION = "delta.setTransactionRetentionDuration"
"""Property of a table: how long it keeps versions of applications.  For ever, without it."""
PARTITIONS = {"date": pa.date32(), "hour": pa.int32()}
FORBIDDEN = " ,;{}()\n\t="
"""Characters that names of Delta columns cannot have."""


class DeltaLog:
    """The Delta table of an export."""

    def __init__(self, settings: ExportSettings, url: str, options: Mapping[str, str]) -> None:
        self.name, self.place = f"the Delta table {url}", "its folder _delta_log"
        self._settings, self._url = settings, url
        self._options = delta_options(url, options)
        self._store = with_retries(open_store(url, options))
        self._application = f"pylog-export-{settings.id}"
        self._folders = FOLDERS[settings.partition_by]
        self._table: deltalake.DeltaTable | None = None

    def last_run(self) -> int | None:
        with self._plain_errors():
            try:
                self._table = deltalake.DeltaTable(self._url, storage_options=self._options)
            except TableNotFoundError:
                self._table = None
                return None
            self._check_properties(self._table.metadata().configuration)
            run = self._run_in_state()
            return (self._table.transaction_version(self._application) or 0) if run is None else run

    def _check_properties(self, found: Mapping[str, str | None]) -> None:
        if found.get(OWNER) != self._settings.id:
            raise InvalidRequest(f"{self.name} exists and is not of this export: give another --to")
        if RETENTION in found:
            raise InvalidRequest(
                f"{self.name} has the property {RETENTION} ({found[RETENTION]}), by which it forgets its last run, so "
                "records could be exported twice: remove it with ALTER TABLE … UNSET TBLPROPERTIES in Spark"
            )

    def _run_in_state(self) -> int | None:
        """The last run that the newest state has, by the history.  None: the history does not reach back to a run.

        A state that was restored has fewer runs, while the version of an application stays.
        """
        assert self._table is not None
        at = self._table.version()
        while (commit := self._commit(at)) is not None:
            if RUN in commit:
                return int(commit[RUN])
            if at == 0:
                return 0
            is_restore = commit.get("operation") == "RESTORE"
            at = self._restored_version(commit.get("operationParameters", {})) if is_restore else at - 1
        return None

    def _commit(self, version: int) -> dict[str, Any] | None:
        """How a version was made, as the history shows it.  None: the log of the table does not reach back to it.

        `DeltaTable.history` reads several versions at a time, and stops all threads of Python meanwhile.
        """
        try:
            content = bytes(self._store.get(f"_delta_log/{version:020}.json"))
        except ObjectNotFound:
            return None
        actions = [json.loads(line) for line in content.splitlines() if b'"commitInfo"' in line]
        found: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        return found

    def _restored_version(self, parameters: Mapping[str, Any]) -> int:
        version = parameters.get("version")
        if version in (None, "null"):
            raise InvalidRequest(
                f"{self.name} was restored to a time, and its history does not say which runs it has since: restore it to "
                f"the version of the last commit that has {RUN} in its history, or {self._settings.begin_again}"
            )
        return int(str(version))

    def check(self, rows: pa.Schema) -> None:
        for name in _names(rows):
            if any(character in FORBIDDEN for character in name):
                raise InvalidRequest(
                    f"column {name!r} cannot be in a Delta table, whose names have none of the characters {FORBIDDEN!r}: "
                    "export to Iceberg or Parquet, or give --value-as text"
                )
        if self._table is not None:
            check_changes(self.name, self._changes(rows), lambda before, now: False, self._settings)

    def create(self, rows: pa.Schema) -> None:
        with self._plain_errors():
            try:
                deltalake.DeltaTable.create(
                    self._url,
                    self._stored(rows),
                    partition_by=list(self._folders),
                    configuration={OWNER: self._settings.id},
                    raise_if_key_not_exists=False,
                    storage_options=self._options,
                )
            except DeltaError as error:
                if deltalake.DeltaTable.is_deltatable(self._url, self._options):
                    raise TableChanged from error
                raise

    def extend(self, rows: pa.Schema) -> bool:
        assert self._table is not None, "last_run() has read the table"
        self.check(rows)
        names = {change.path[0] for change in self._changes(rows)}
        if not names:
            return False
        with self._plain_errors():
            self._table.alter.add_columns([field for field in self._stored(rows).fields if field.name in names])
        return True

    def append(self, number: int, files: Sequence[WrittenFile]) -> None:
        assert self._table is not None, "last_run() has read the table"
        with self._plain_errors():
            self._table.create_write_transaction(
                list(map(_added, files)),
                "append",
                self._table.schema(),
                list(self._folders),
                commit_properties=deltalake.CommitProperties(
                    custom_metadata={OWNER: self._settings.name, RUN: str(number)},
                    max_commit_retries=0,  # A repetition would not read the last run again.
                    app_transactions=[deltalake.Transaction(self._application, number)],
                ),
            )

    def _stored(self, rows: pa.Schema) -> deltalake.Schema:
        """The columns of the table: those of its files and of its folders."""
        partitions = [pa.field(name, PARTITIONS[name]) for name in self._folders]
        return deltalake.Schema.from_arrow(pa.schema([*nullable(rows), *partitions]))

    def _changes(self, rows: pa.Schema) -> list[ColumnChange]:
        """The columns, fields and types that the table lacks."""
        assert self._table is not None
        return list(changes(pa.schema(self._table.schema()), pa.schema(self._stored(rows))))

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except CommitFailedError as error:
            raise TableChanged from error
        except (DeltaError, OSError) as error:
            raise StorageError(f"{self.name}: {error}") from error


def _added(file: WrittenFile) -> AddAction:
    folders = [part.partition("=") for part in file.name.split("/")[:-1]]
    return AddAction(
        path=file.name,
        size=file.bytes,
        partition_values={name: value for name, _, value in folders},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=statistics(file.footer),
    )


def _names(fields: Iterable[pa.Field]) -> Iterator[str]:
    """Those of columns and of all fields in them."""
    for field in fields:
        yield field.name
        yield from _names(field.type.field(at) for at in range(field.type.num_fields))


TEXT_MAX = 32
"""Characters of a text that is a limit."""
YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999."""
DAY_US = 86_400_000_000
_encoder = msgspec.json.Encoder(decimal_format="number")


class Limits(NamedTuple):
    """The smallest and the largest value: a number, or a text."""

    low: Any
    high: Any


def statistics(footer: pq.FileMetaData) -> str:
    """The statistics of a file, in JSON, from its footer.

    Readers skip files by them, so what is left out costs time, and what is wrong loses rows.  There are no limits of

    * floats, because Parquet's leave out NaN, which is the largest value for Spark,
    * long texts, of which Delta has a prefix,
    * bytes and booleans, which Delta has none of, and times that have no usual year,
    * decimals of more than 18 digits, which not every pyarrow has,
    * fields of nested columns.
    """
    low, high, nulls = {}, {}, {}
    for field, groups in _columns(footer):
        if not all(group is not None and group.has_null_count for group in groups):
            continue
        nulls[field.name] = sum(group.null_count for group in groups)
        limits = [_limits(field.type, group) for group in groups if group.num_values]
        known = [limit for limit in limits if limit is not None]
        if known and len(known) == len(limits):
            low[field.name] = _shown(field.type, min(limit.low for limit in known))
            high[field.name] = _shown(field.type, max(limit.high for limit in known))
    found = {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return _encoder.encode(found).decode()


def _columns(footer: pq.FileMetaData) -> Iterator[tuple[pa.Field, list[Any]]]:
    """The columns that are not nested, and the statistics of each of their row groups."""
    at = 0
    for field in footer.schema.to_arrow_schema():
        if not field.type.num_fields:
            yield field, [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
        at += _leaves(field.type)


def _leaves(kind: pa.DataType) -> int:
    """Columns of Parquet that a column has."""
    return sum(_leaves(kind.field(at).type) for at in range(kind.num_fields)) or 1


def _limits(kind: pa.DataType, group: Any) -> Limits | None:
    if not group.has_min_max:
        return None
    if pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and group.physical_type in ("INT32", "INT64")):
        return Limits(group.min_raw, group.max_raw)
    if pa.types.is_string(kind):
        return Limits(group.min, group.max) if max(len(group.min), len(group.max)) <= TEXT_MAX else None
    unit_us = DAY_US if pa.types.is_date(kind) else 1
    if pa.types.is_temporal(kind) and YEARS_US[0] <= group.min_raw * unit_us <= group.max_raw * unit_us <= YEARS_US[1]:
        return Limits(group.min_raw, group.max_raw)
    return None


def _shown(kind: pa.DataType, limit: Any) -> Any:
    if pa.types.is_date(kind):
        return str(np.datetime64(limit, "D"))
    if pa.types.is_timestamp(kind):
        return f"{np.datetime64(limit, 'us')}{'Z' if kind.tz else ''}"
    if pa.types.is_decimal(kind):
        return Decimal(limit).scaleb(-kind.scale)
    return limit
