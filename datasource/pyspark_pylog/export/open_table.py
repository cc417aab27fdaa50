"""Opens the table of an export.  The packages of a format are imported only for it, and only in the driver."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_pylog.export.manifest import ExportSettings
from pyspark_pylog.export.tables import Commits, ExportTable, Folder

FORMATS = ("parquet", "delta", "iceberg")


def open_table(
    settings: ExportSettings, url: str, options: Mapping[str, str], catalog: Mapping[str, str]
) -> ExportTable:
    """The table of an export, which may not exist yet.

    url, options:  its folder, and the options of its storage.
    catalog:       properties of the catalog, for Iceberg.
    Raises InvalidRequest if a package is not installed.
    """
    match settings.format:
        case "delta":
            from pyspark_pylog.export.delta_log import DeltaLog

            return Commits(settings, DeltaLog(settings, url, options))
        case "iceberg":
            from pyspark_pylog.export.iceberg_log import IcebergLog

            return Commits(settings, IcebergLog(settings, url, options, catalog))
        case _:
            return Folder(settings.topic)
