"""A table of Iceberg, through PyIceberg: files in the folder of an export, and snapshots in a catalog.

Files are partitioned by the hidden partitions `day(timestamp)` or `hour(timestamp)`, so that queries need not name
`date`.  The number of the last run is a property of the table, which is set in the commit that adds the files of a run.
Properties of the snapshot name the run, too: a table that was rolled back has other snapshots and the same properties.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar
from urllib.parse import unquote

import pyarrow as pa

from pyspark_pylog.export.manifest import ExportSettings
from pyspark_pylog.export.parquet_files import WrittenFile
from pyspark_pylog.export.storage_options import iceberg_options
from pyspark_pylog.export.tables import ColumnChange, TableChanged, changes, check_changes
from spark_log.errors import InvalidRequest, StorageError
from spark_log.schema.arrow_types import nullable, storable
from spark_log.text import install_extra

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import (
        CommitFailedException,
        NoSuchNamespaceError,
        NoSuchTableError,
        TableAlreadyExistsError,
    )
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import ancestors_of
    from pyiceberg.transforms import DayTransform, HourTransform
except ImportError as error:
    raise InvalidRequest(
        f"--format iceberg needs the package pyiceberg in the driver: {install_extra('iceberg')}"
    ) from error

T = TypeVar("T")
OWNER, RUN = "pylog.export", "pylog.run"
"""Properties of a table: the export whose table it is, and its last run."""
PARTITIONS = {"day": ("date", DayTransform()), "hour": ("hour", HourTransform()), "none": None}
"""Name of a partition, and what it is of the timestamp.  No column has these names."""
SMALL = (pa.int8(), pa.int16())
"""Iceberg has int for them."""
URI = re.compile(r"([\w+.-]+://)(?:[^@/?#]*@)?([^@?#;]*)(?:[?;][^@]*)?")
"""The URI of a catalog: the groups have no user, password or parameters."""
ONCE = {"commit.retry.num-retries": "0"}
"""PyIceberg repeats a commit on top of other ones.  That would not read the last run again."""


class IcebergLog:
    """The Iceberg table of an export."""

    def __init__(
        self, settings: ExportSettings, url: str, options: Mapping[str, str], catalog: Mapping[str, str]
    ) -> None:
        self._settings = settings
        # Paths of PyIceberg, and of Hadoop, are not quoted.
        self._url = unquote(url) if url.startswith("file:") else url
        self._catalog = _catalog(settings.catalog, {**iceberg_options(url, options), **catalog})
        uri = shown_uri(self._catalog.properties.get("uri", ""))
        self.name = f"the Iceberg table {settings.table} of the catalog {settings.catalog!r}{uri}"
        self.place = "--catalog-option and ~/.pyiceberg.yaml"
        self._table: Table | None = None

    def last_run(self) -> int | None:
        with self._plain_errors():
            try:
                self._table = self._catalog.load_table(self._settings.table)
            except (NoSuchTableError, NoSuchNamespaceError):
                self._table = None
                return None
        properties = self._table.properties
        # Of this object only: a commit names the properties that it sets.
        self._table.metadata = self._table.metadata.model_copy(update={"properties": {**properties, **ONCE}})
        if properties.get(OWNER) != self._settings.id:
            raise InvalidRequest(f"{self.name} exists and is not of this export: give another --table")
        run = self._run_in_state()
        return int(properties.get(RUN, 0)) if run is None else run

    def _run_in_state(self) -> int | None:
        """The last run that the current snapshot has.  None: the snapshots of runs have expired."""
        assert self._table is not None
        for snapshot in ancestors_of(self._table.current_snapshot(), self._table.metadata):
            if snapshot.summary is not None and (run := snapshot.summary.get(RUN)) is not None:
                return int(run)
        return None

    def check(self, rows: pa.Schema) -> None:
        if self._table is not None:
            check_changes(self.name, self._changes(rows), _can_widen, self._settings)

    def create(self, rows: pa.Schema) -> None:
        partition = PARTITIONS[self._settings.partition_by]
        with self._plain_errors():
            namespace = Catalog.namespace_from(self._settings.table)
            _repeated(lambda: self._catalog.create_namespace_if_not_exists(namespace))
            owner = {OWNER: self._settings.id}
            with self._catalog.create_table_transaction(
                self._settings.table, nullable(rows), self._url, properties=owner
            ) as change:
                if partition is not None:
                    change.update_spec().add_field("timestamp", partition[1], partition[0]).commit()

    def extend(self, rows: pa.Schema) -> bool:
        assert self._table is not None, "last_run() has read the table"
        self.check(rows)
        if not self._changes(rows):
            return False
        with self._plain_errors(), self._table.update_schema() as change:
            change.union_by_name(nullable(rows))
        return True

    def append(self, number: int, files: Sequence[WrittenFile]) -> None:
        assert self._table is not None, "last_run() has read the table"
        paths = [f"{self._url}/{file.name}" for file in files]
        about = {OWNER: self._settings.name, RUN: str(number)}
        with self._plain_errors(), self._table.transaction() as change:
            change.set_properties({RUN: str(number)})
            change.add_files(paths, about, check_duplicate_files=False)
            _keep_manifests(change)

    def _changes(self, rows: pa.Schema) -> list[ColumnChange]:
        """The columns, fields and types that the table lacks."""
        assert self._table is not None
        table = storable(self._table.schema().as_arrow())
        return [
            change
            for change in changes(table, nullable(rows))
            if not (change.before == pa.int32() and change.now in SMALL)
        ]

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise TableChanged from error
        except Exception as error:  # Those of catalogs have no common class.
            raise StorageError(f"{self.name}: {error}") from error


def _catalog(name: str, options: Mapping[str, str]) -> Catalog:
    try:
        return _repeated(lambda: load_catalog(name, **options))
    except Exception as error:  # As above.
        raise InvalidRequest(
            f"--catalog {name}: {error}; describe the catalog in ~/.pyiceberg.yaml, or with --catalog-option, such as "
            "uri=https://…"
        ) from error


def _repeated(action: Callable[[], T]) -> T:
    """The result of a step that creates what is missing in a catalog.

    It fails if another job creates the same at the same time, such as the tables of a catalog in a SQL database.
    """
    for _ in range(2):
        with suppress(Exception):
            return action()
    return action()


def shown_uri(uri: str) -> str:
    """For messages; empty if it is not clear where a secret in it ends."""
    found = URI.fullmatch(uri)
    return f" (uri {found[1]}{found[2]})" if found else ""


def _keep_manifests(change: Transaction) -> None:
    """Leave out that PyIceberg 0.12 deletes the manifests of a commit that was refused.

    It may have been made: if its answer was lost, clients of catalogs repeat it, and the repetition is refused.
    """
    getattr(change, "_snapshot_producers", []).clear()


def _can_widen(before: pa.DataType, now: pa.DataType) -> bool:
    """Whether Iceberg can change a type."""
    if pa.types.is_decimal(before) and pa.types.is_decimal(now):
        return bool(before.scale == now.scale and before.precision <= now.precision)
    return (before, now) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
