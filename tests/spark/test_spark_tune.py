"""`spark_log.tune` and conf/: what they set, and that large records fit into a small JVM with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark_pylog import DefaultSource
from pyspark_pylog.tune import ROWS, SETTINGS

import spark_log
from spark_log.errors import InvalidRequest
from tests.spark.builders import append, as_bytes, load, numbers, run_job, script, values
from tests.spark.driver import read_task

CONF = Path(__file__).parents[2] / "conf" / "spark-defaults.conf"
COLUMNS = pa.schema([("value", pa.binary()), ("topic", pa.string()), ("offset", pa.int64())])
(BYTES,) = (setting.name for setting in SETTINGS)


@pytest.fixture
def untuned(spark: SparkSession) -> Iterator[SparkSession]:
    """The session as it began: jobs that tests have run in it tune it, too."""

    def unset() -> None:
        for name in (BYTES, ROWS):
            spark.conf.unset(name)

    unset()
    yield spark
    unset()


# Promise: performance.md#sparks-settings, spark.md#settings
def test_it_sets_what_nobody_has_set_and_says_so(untuned: SparkSession, url: str) -> None:
    """Names with the values before and after; a second call changes nothing; writes and reads continue."""
    before = {setting.name: untuned.conf.get(setting.name) for setting in SETTINGS}
    expected = {setting.name: (before[setting.name], setting.value) for setting in SETTINGS}
    assert spark_log.tune(untuned) == expected
    assert {setting.name: untuned.conf.get(setting.name) for setting in SETTINGS} == {
        setting.name: setting.value for setting in SETTINGS
    }
    assert spark_log.tune(untuned) == {}
    append(numbers(untuned, range(3)), url)
    assert values(load(untuned, url)) == as_bytes(range(3))


# Promise: spark.md#settings
def test_what_the_user_has_set_stays(untuned: SparkSession) -> None:
    """Also where it is Spark's default: it was a choice."""
    chosen = str(untuned.conf.get(BYTES))
    untuned.conf.set(BYTES, chosen)
    assert spark_log.tune(untuned) == {}
    assert untuned.conf.get(BYTES) == chosen


# Promise: performance.md#what-to-set
@pytest.mark.parametrize(("largest", "rows"), [(100, 10_000), (1000, 8388), (1 << 20, 8), (100 << 20, 1)])
def test_a_batch_of_records_of_known_size_is_limited_by_its_rows(
    untuned: SparkSession, url: str, largest: int, rows: int
) -> None:
    """At most 8 MiB of them, and at most Spark's 10,000; writes and reads continue."""
    changed = spark_log.tune(untuned, largest_record=largest)

    assert changed == {ROWS: ("10000", str(rows)), BYTES: (changed[BYTES][0], str(2**31 - 1))}
    assert spark_log.tune(untuned, largest_record=largest) == {}
    append(numbers(untuned, range(30)), url)
    assert values(load(untuned, url)) == as_bytes(range(30))


# Promise: performance.md#sparks-settings
def test_the_size_of_the_largest_record_can_be_given_later(untuned: SparkSession) -> None:
    """It replaces what `tune` or conf/ had set before, and nothing that the user has set."""
    spark_log.tune(untuned)
    assert spark_log.tune(untuned, largest_record=1000)[BYTES] == ("8388608", str(2**31 - 1))


# Promise: performance.md#sparks-settings
def test_the_limit_of_bytes_stays_if_the_user_has_set_the_rows(untuned: SparkSession) -> None:
    """Otherwise nothing would limit a batch."""
    untuned.conf.set(ROWS, "1000000")
    changed = spark_log.tune(untuned, largest_record=1000)
    assert {name: after for name, (_, after) in changed.items()} == {BYTES: "8388608"}
    assert untuned.conf.get(ROWS) == "1000000"


@pytest.mark.parametrize("largest", [0, -1])
def test_a_record_without_bytes_is_refused(untuned: SparkSession, largest: int) -> None:
    """The message names the value."""
    with pytest.raises(InvalidRequest, match=f"invalid value {largest} for largest_record"):
        spark_log.tune(untuned, largest_record=largest)


# Promise: performance.md#sparks-settings
def test_the_file_recommends_the_same() -> None:
    """And nothing that a session could set beside it."""
    lines = [line.split() for line in CONF.read_text().splitlines() if line and not line.startswith("#")]
    of_sessions = {name: value for name, value in lines if name.startswith("spark.sql.")}
    assert of_sessions == {setting.name: setting.value for setting in SETTINGS}


@pytest.mark.parametrize(("size", "count"), [(100, 30_000), (20_000, 1000), (1_000_000, 20)])
def test_a_task_hands_over_a_few_megabytes_at_a_time(log: spark_log.Log, url: str, size: int, count: int) -> None:
    """Whatever the size of the records: as their batches were written, and a batch is closed at 2 MiB."""
    log.append("t", [{"value": b"v" * size}] * count)
    options = {"path": url, "subscribe": "t", "endingoffsets": json.dumps({"t": {"0": count}})}
    source: Any = DefaultSource(options)
    reader = source.reader(from_arrow_schema(COLUMNS))
    batches = [batch for task in reader.partitions() for batch in read_task(reader, task)]
    assert sum(batch.num_rows for batch in batches) == count
    assert max(batch.nbytes for batch in batches) < 4 << 20


LARGE = """
import json, sys
import spark_log
confs = dict(line.split() for line in open(sys.argv[2]) if line.strip() and not line.startswith("#"))
spark = session("local[2]", **{"spark.driver.memory": "1g", **confs})
for topic, size, rows in (("kilobytes", 20_000, 40_000), ("megabytes", 1_000_000, 600)):
    frame = spark.range(0, rows, 1, 2).selectExpr(f"repeat(md5(string(id)), {size // 32}) as value")
    frame.write.format("pylog").mode("append").option("topic", topic).save(sys.argv[1])
    read = spark.read.format("pylog").option("subscribe", topic).load(sys.argv[1])
    found = read.selectExpr("count(*)", "sum(length(value))").first()
    assert tuple(found) == (rows, rows * (size // 32 * 32)), found
print("done")
"""


# Promise: performance.md#sparks-settings
@pytest.mark.slow
def test_large_records_fit_into_spark_s_default_memory_with_the_recommended_settings(url: str, tmp_path: Path) -> None:
    """800 MB of records of 20 kB and 600 of 1 MB, written and read by a driver of 1 GB."""
    assert "done" in run_job(script(tmp_path / "job.py", LARGE), url, str(CONF))
