"""The tables of an export: how the files of a run become visible to readers.

    Folder    Parquet files: each one when it is written
    Commits   all files of a run in one commit of a table format, with the run's number

A table of commits names the last run that it has, and a run is committed on top of the state in which that number was
read.  If anybody has changed the table meanwhile, it is read again.  So a run is committed once, however many jobs try
to, and whether or not a job was killed after a commit.  If an earlier version of the table is restored, it has the last
run of that version, and the next job refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from pyspark_pylog.export.manifest import ExportSettings
from pyspark_pylog.export.parquet_files import WrittenFile, check_parquet
from spark_log.errors import ConcurrentChange, InvalidRequest
from spark_log.schema.arrow_types import ELEMENT, dotted
from spark_log.schema.ddl import sql_type

TRIES = 100
"""Tries of a commit, if others change the table at the same time.  Each try fails only if somebody else's commit
succeeds."""


class TableChanged(Exception):
    """Somebody else has changed the table since it was read.  Nothing was committed."""


class ExportTable(Protocol):
    """A table that gets the files of runs."""

    def check(self, rows: pa.Schema, last: int) -> None:
        """Raises InvalidRequest if the table cannot get rows of these columns after run `last`, which is done."""

    def has(self, number: int) -> bool:
        """Whether a run is committed."""

    def commit(self, number: int, rows: pa.Schema, files: Sequence[WrittenFile]) -> bool:
        """Make the files of a run visible.  False: the run is committed already, without these files."""


class Folder:
    """A folder of Parquet files.  Those of a repeated run replace the earlier ones."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def check(self, rows: pa.Schema, last: int) -> None:
        check_parquet(self._topic, rows)

    def has(self, number: int) -> bool:
        return False

    def commit(self, number: int, rows: pa.Schema, files: Sequence[WrittenFile]) -> bool:
        return True


class TableLog(Protocol):
    """A table of a format that has commits."""

    @property
    def name(self) -> str:
        """For messages, with the place where it is."""

    @property
    def place(self) -> str:
        """For messages: the options or the folder that say where it is."""

    def last_run(self) -> int | None:
        """The last run in the newest state of the table, which the other methods are for.  0: none; None: no table.

        Raises InvalidRequest if the table is not of this export, or does not say which runs it has.
        """

    def check(self, rows: pa.Schema) -> None:
        """Raises InvalidRequest for columns that the table cannot have."""

    def create(self, rows: pa.Schema) -> None:
        """Create the table, without files.  Raises TableChanged if it exists."""

    def extend(self, rows: pa.Schema) -> bool:
        """Give the table the columns and the wider types that it lacks.  False: it lacks none.

        Raises TableChanged.
        """

    def append(self, number: int, files: Sequence[WrittenFile]) -> None:
        """Commit files and the number of their run.  Raises TableChanged."""


class Commits:
    """A table of a format that has commits."""

    def __init__(self, settings: ExportSettings, log: TableLog) -> None:
        self._settings, self._log = settings, log

    def check(self, rows: pa.Schema, last: int) -> None:
        check_parquet(self._settings.topic, rows)
        self._reached(last + 1)
        self._log.check(rows)

    def has(self, number: int) -> bool:
        return (self._log.last_run() or 0) >= number

    def commit(self, number: int, rows: pa.Schema, files: Sequence[WrittenFile]) -> bool:
        for _ in range(TRIES):
            last = self._reached(number)
            if last is not None and last >= number:
                return False
            try:
                if last is None:
                    self._log.create(rows)
                elif not self._log.extend(rows):
                    self._log.append(number, files)
                    return True
            except TableChanged:
                continue
        raise ConcurrentChange(f"{self._log.name} was changed by others {TRIES} times while run {number} was committed")

    def _reached(self, number: int) -> int | None:
        """The last run in the table.  Raises InvalidRequest if one before a run is missing."""
        last = self._log.last_run()
        if (last or 0) < number - 1:
            found = "does not exist" if last is None else f"has the runs up to {last}" if last else "has no run"
            raise InvalidRequest(
                f"{self._log.name} {found}, and run {number - 1} is done: check {self._log.place} first. If the table was "
                f"restored to an earlier version, restore the version that has run {number - 1}. If it was deleted, "
                f"{self._settings.begin_again}"
            )
        return last


class ColumnChange(NamedTuple):
    """A column that a table lacks, or has with another type."""

    path: tuple[str, ...]
    before: pa.DataType | None
    now: pa.DataType


def check_changes(
    name: str,
    found: Iterable[ColumnChange],
    can_widen: Callable[[pa.DataType, pa.DataType], bool],
    settings: ExportSettings,
) -> None:
    """Raises InvalidRequest for a column whose type the table `name` cannot change."""
    for path, before, now in found:
        if before is not None and not can_widen(before, now):
            raise InvalidRequest(
                f"column {dotted(path)} is {sql_type(before)} in {name} and {sql_type(now)} in the topic's schema now, "
                f"and a table of this format cannot change it: {settings.begin_again}"
            )


def changes(old: Iterable[pa.Field], new: Iterable[pa.Field], path: tuple[str, ...] = ()) -> Iterator[ColumnChange]:
    """The changes from one schema to another one, at any depth."""
    before = {field.name: field.type for field in old}
    for field in new:
        if field.name in before:
            yield from _of_types(before[field.name], field.type, (*path, field.name))
        else:
            yield ColumnChange((*path, field.name), None, field.type)


def _of_types(old: pa.DataType, new: pa.DataType, path: tuple[str, ...]) -> Iterator[ColumnChange]:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        yield from changes(list(old), list(new), path)
    elif is_any_list(old) and is_any_list(new):
        yield from _of_types(old.value_type, new.value_type, (*path, ELEMENT))
    elif pa.types.is_map(old) and pa.types.is_map(new):
        yield from _of_types(old.key_type, new.key_type, (*path, "key"))
        yield from _of_types(old.item_type, new.item_type, (*path, "value"))
    elif old != new:
        yield ColumnChange(path, old, new)


def is_any_list(given: pa.DataType) -> bool:
    return bool(pa.types.is_list(given) or pa.types.is_large_list(given))
