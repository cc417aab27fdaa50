"""Random loads of logs that were compacted, erased, trimmed and merged: the rows and errors of both paths of a read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.maintenance.maintain import maintain_once
from tests.client.replicated import with_copies
from tests.spark.builders import load
from tests.spark.native_paths import MARKS, is_native, rows
from tests.spark.small_slices import COMPACT

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")]
PARTITIONS = 2
TIME_MS, SPREAD_MS = 1_600_000_000_000, 10_000
SCHEMA = "id INT, name STRING, list ARRAY<BIGINT>, inner STRUCT<a: STRING>"
LOADS = 6
CONDITIONS = (
    *("true", "offset >= 20 and offset < 200", "partition = 1 and offset > 5", "key = X'6b31'", "key is null"),
    *("timestamp >= timestamp'2020-09-13 12:26:43'", "timestamp < timestamp'2020-09-13 12:26:42' or offset = 7"),
)
RANGES = (
    "timestamp between '2020-09-13 12:26:41' and '2020-09-13 12:26:48'",
    "timestamp < '2020-09-13 12:26:47' and partition = 0 and offset >= 5",
    "offset between 10 and 300 and partition in (0, 1)",
)


def record(rng: random.Random, number: int, typed: bool) -> dict[str, Any]:
    """With a key that other records have, too: compaction removes the older ones."""
    one: dict[str, Any] = {"key": b"k%d" % rng.randrange(40), "timestamp": TIME_MS + rng.randrange(SPREAD_MS)}
    if rng.random() < 0.3:
        one["headers"] = [("h", rng.choice([None, b"x"]))] * rng.randrange(3)
    if rng.random() < 0.1:
        return one | {"value": None}
    if not typed:
        return one | {"value": rng.choice([b"", b"v%d" % number, rng.randbytes(rng.randrange(3000))])}
    name = rng.choice([None, "", "\u00e4", f"n{number % 4}"])
    return one | {"id": rng.choice([None, number]), "name": name, "list": [number, None], "inner": {"a": name}}


def change(log: spark_log.Log, rng: random.Random, kind: str) -> None:
    """Some commits, and then a change of what is stored."""
    for _ in range(rng.randrange(1, 5)):
        records = [record(rng, n, kind == "typed") for n in range(rng.choice([1, 40, 300]))]
        placed = [one | {"partition": rng.randrange(PARTITIONS)} for one in records]
        tombstones = [one for one in placed if "value" in one and one["value"] is None]
        for some in filter(None, (tombstones, [one for one in placed if one not in tombstones])):
            log.append("t", some)
    reads = [read for read in log.plan("t") if read.partition == 0]
    if rng.random() < 0.4 and kind != "replicas":
        log.admin.erase_records("t", [b"k%d" % rng.randrange(40)])
    if rng.random() < 0.4 and kind == "typed" and reads:
        log.admin.delete_records({TopicPartition("t", 0): rng.randrange(reads[0].start, reads[-1].end)})
    if rng.random() < 0.6:
        maintain_once(log)


def options(rng: random.Random, kind: str) -> dict[str, Any]:
    """Options of a load; some positions do not exist, or were removed."""
    found: dict[str, Any] = rng.choice([{}, {"includeHeaders": "true"}])
    places = {number: rng.choice([-2, 0, 3, 50, 10_000 if rng.random() < 0.1 else 7]) for number in range(PARTITIONS)}
    ends = {number: rng.choice([-1, 60, 250, 900]) for number in range(PARTITIONS)}
    times = str(TIME_MS + rng.randrange(SPREAD_MS))
    starts = [{}, {"startingOffsets": json.dumps({"t": places})}, {"startingTimestamp": times}]
    found = found | rng.choice(starts) | rng.choice([{}, {}, {"endingOffsets": json.dumps({"t": ends})}])
    found |= rng.choice([{}, {"minPartitions": "5"}, {"maxRecordsPerPartition": "70"}])
    found |= rng.choice([{}, {"failOnDataLoss": "false"}])
    found |= {"where": RANGES[places[0] % len(RANGES)], "timeZone": "UTC"} if places[1] in (3, 7) else {}
    return found | (rng.choice([{}, {"value.format": "struct"}]) if kind == "typed" else {})


class Load:
    """A load by one path, which may fail in each step."""

    def __init__(self, spark: SparkSession, url: str, native: str, asked: dict[str, Any]) -> None:
        self.frame: DataFrame | None = None
        self.error = self._error(lambda: setattr(self, "frame", load(spark, url, nativeRead=native, **asked)))

    def _error(self, step: Callable[[], object]) -> list[str]:
        """The message of a step that fails; nothing for one that does not."""
        try:
            step()
        except PySparkException as error:
            lines = str(error).splitlines()
            of_pylog = [line.rpartition("spark_log.errors")[2] for line in lines if "spark_log.errors" in line]
            return ["error", *(of_pylog[:1] or lines[:1])]
        return []

    def plan(self) -> None:
        """The queries that follow see what is added after this."""
        if self.frame is not None:
            self._error(self.frame.limit(1).collect)

    def outcome(self, condition: str, columns: Sequence[str]) -> list[str]:
        """The rows of queries; or the error."""
        found: list[str] = []
        return self.error or self._error(lambda: found.extend(self._rows(condition, columns))) or found

    def _rows(self, condition: str, columns: Sequence[str]) -> list[str]:
        assert self.frame is not None
        chosen = self.frame.where(condition)
        chosen = chosen.select(*columns) if columns else chosen
        found, few = rows(chosen), [str(row) for row in chosen.limit(9).collect()]
        assert len(few) == min(9, len(found)) and set(few) <= set(found)
        return [str(chosen.count()), *found]


def new_log(log: spark_log.Log, folder: Path, kind: str) -> None:
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    if kind == "replicas":
        with_copies(log, [folder / "disk1", folder / "disk2"], partitions=PARTITIONS)
        log.admin.incremental_alter_configs({"t": {"retention.ms": "-1"}})
        return
    configs = COMPACT if kind == "compacted" else {"retention.ms": "-1"}
    log.create_topic(NewTopic("t", PARTITIONS, configs=configs, schema=SCHEMA if kind == "typed" else None))


# Promise: spark-read.md#read-in-the-jvm
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compacted", "typed", "replicas"])
def test_random_loads_have_the_same_rows_and_errors(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path, kind: str
) -> None:
    """Some frames were planned before the last change."""
    rng = random.Random(kind)
    new_log(log, tmp_path, kind)
    with_rows = 0
    for number in range(LOADS):
        change(log, rng, kind)
        asked = options(rng, kind)
        both = [Load(classic, url, native, asked) for native in ("true", "false")]
        if rng.random() < 0.5:
            for one in both:
                one.plan()
            change(log, rng, kind)
        condition, columns = rng.choice(CONDITIONS), rng.choice([(), ("offset",), ("key", "partition", "timestamp")])
        native, python = (one.outcome(condition, columns) for one in both)
        assert native == python, f"load {number}: {asked} where {condition}"
        with_rows += native[0] != "error" and len(native) > 1
        for frame, is_it in ((both[0].frame, True), (both[1].frame, False)):
            assert native[0] == "error" or frame is None or is_native(frame) == is_it
    assert with_rows >= 2
