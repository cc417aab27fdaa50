"""The files that describe an export, in the folder `_pylog` of its table.

    export.json                   the settings, which are the same for all runs
    runs/00000001.plan.json       which records each task of a run exports, to one file in each folder of the table
    runs/00000001.done.json       the result: all files of the run are written

A plan is put if it is absent, before any file of its run is written, and only after the run before it is done.  Runs
are numbered from 1 without gaps.  So only the last run can be unfinished.  The reasons are in
docs/decisions/0068-export.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.errors import CorruptObject, InvalidRequest
from spark_log.metadata.restores import SeenLog
from spark_log.store.open import open_store
from spark_log.store.retry import with_retries

File = TypeVar("File", bound=msgspec.Struct)

SAME = (
    "name",
    "format",
    "catalog",
    "table",
    "partition_by",
    "key_as",
    "value_as",
    "value_parse",
    "keep_offsets",
    "start",
)
"""Settings that are options of the job, and the same for all runs."""
FOLDER = "_pylog"
"""Readers of tables skip folders whose names begin with `_`."""


class ExportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of an export, for all of its runs: the first run writes it, and later runs must agree."""

    id: str = ""
    """A random id of the export: a table of commits names it, and is not taken for the table of another export."""
    name: str
    log: str
    """The log's id."""
    topic: str
    topic_id: str
    format: str
    partition_by: str
    key_as: str
    value_as: str
    keep_offsets: bool
    start: str
    value_parse: str = ""
    """json: values from before the topic had a schema are parsed."""
    catalog: str = ""
    table: str = ""
    """The table of Iceberg: the catalog's name, and the table in it."""

    @property
    def begin_again(self) -> str:
        """For messages: how to export the topic again.  The group of a name belongs to one folder."""
        others = "--to, --name and --table" if self.table else "--to and --name"
        return f"begin a new export, with another {others}"


class Part(NamedTuple):
    """Records [start, end) of a partition."""

    partition: int
    start: int
    end: int


class ExportRun(msgspec.Struct, frozen=True):
    """A run, as it was planned before any of its files was written.  A repetition writes the same files again."""

    tasks: list[list[Part]]
    """The records of each task."""
    ends: dict[int, int]
    """By partition, where the next run begins."""
    lost: int = 0
    """Records that were removed before the run was planned."""
    seen: SeenLog = SeenLog()
    """The log when the run was planned."""
    schema: int = 0
    """The version of the topic's schema whose columns the files have; 0: values are bytes or text."""


class Result(msgspec.Struct, frozen=True):
    """The files that a job has exported in a run."""

    records: int = 0
    bytes: int = 0
    lost: int = 0
    """Records that were removed before they could be exported."""
    files: list[str] = []


class Found(msgspec.Struct, frozen=True):
    """The result of a run that was in the table: another job has committed it, or this one before it was killed."""

    committed_before: bool = True
    """The table names the files and the records."""
    lost: int = 0
    """Records that were removed before the run was planned."""


class Manifest:
    """The files that describe an export, in the folder `_pylog` of its table: settings, plans and results of runs."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.store = with_retries(open_store(url.rstrip("/"), options))
        self._parent, _, self._folder = self.store.url.rpartition("/")
        if not self._parent.partition("://")[2]:
            raise InvalidRequest(f"--to {url}: give a folder, as in s3://bucket/table")
        self._options = options

    def settings(self) -> ExportSettings | None:
        """None before the first run.  Raises InvalidRequest if the folder has files of anything else."""
        key = f"{FOLDER}/export.json"
        if self.store.size(key) is not None:
            return self._read(key, ExportSettings)
        found = open_store(self._parent, self._options).list(f"{self._folder}/")
        other = [name for name in found if not name.rpartition("/")[2].startswith(".") and not name.endswith("/")]
        if other and self.store.size(key) is None:
            raise InvalidRequest(
                f"--to {self.store.url} has files that no export has written, such as {other[0]}: give an empty folder, "
                "or one that does not exist"
            )
        return None

    def begin(self, settings: ExportSettings) -> ExportSettings:
        """Write the settings, unless they are there.  Returns those in force.  Raises InvalidRequest if others are."""
        known = self.settings()
        if known is None:
            if self.store.put_new(f"{FOLDER}/export.json", msgspec.json.encode(settings)):
                return settings
            known = self.settings()
        return check_same(known, settings, self.store.url)

    def run(self, number: int) -> ExportRun | None:
        key = _run_key(number)
        return None if self.store.size(key) is None else self._read(key, ExportRun)

    def _read(self, key: str, kind: type[File]) -> File:
        try:
            return msgspec.json.decode(self.store.get(key), type=kind)
        except UNREADABLE as error:
            raise CorruptObject(
                f"{self.store.url}/{key} is damaged: {error}. Restore it from a copy, or export to an empty folder"
            ) from error

    def plan(self, number: int, run: ExportRun) -> None:
        """Write the plan of a run, unless another process has written one: that one is in force."""
        self.store.put_new(_run_key(number), msgspec.json.encode(run))

    def is_done(self, number: int) -> bool:
        return self.store.size(_result_key(number)) is not None

    def finish(self, number: int, result: Result | Found) -> None:
        """Say that all files of a run are written.  Another process may have said so before.

        The result of the job that has written them replaces the one of a job that has found them.
        """
        key, content = _result_key(number), msgspec.json.encode(result)
        if isinstance(result, Found):
            self.store.put_new(key, content)
        else:
            self.store.put(key, [memoryview(content)])

    def last(self) -> int:
        """Number of the last run that was planned, 0 without one.  Runs are numbered from 1 without gaps."""
        low, high = 0, 1
        while self.store.size(_run_key(high)) is not None:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.store.size(_run_key(middle)) is not None else (low, middle)
        return low


def _run_key(number: int) -> str:
    return f"{FOLDER}/runs/{number:08}.plan.json"


def _result_key(number: int) -> str:
    return f"{FOLDER}/runs/{number:08}.done.json"


def check_same(known: ExportSettings | None, now: ExportSettings, url: str) -> ExportSettings:
    """The known settings.  Raises InvalidRequest if they are of another export, or differ."""
    assert known is not None, f"the settings in {url} were written before"
    if (known.log, known.topic) != (now.log, now.topic):
        raise InvalidRequest(
            f"--to {url} has the export {known.name!r} of topic {known.topic!r} of the log {known.log}: give another "
            "folder"
        )
    if known.topic_id != now.topic_id:
        raise InvalidRequest(
            f"topic {now.topic!r} was deleted and created again since it was exported to {url}: {now.begin_again}"
        )
    for option in SAME:
        before, given = getattr(known, option), getattr(now, option)
        if before != given:
            raise InvalidRequest(
                f"--{option.replace('_', '-')} was {before!r} when the export to {url} began, and is {given!r} now: "
                f"give {before!r}, or {now.begin_again}"
            )
    return known
