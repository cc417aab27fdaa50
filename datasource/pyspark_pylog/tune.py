"""`spark_log.tune(spark)`: sets Spark's settings that help pylog, if a session can set them; safe for large records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark_pylog.sessions import check_session
from spark_log.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TunedSetting(NamedTuple):
    name: str
    value: str
    reason: str


BATCH_BYTES = 8 << 20
"""Size of an Arrow batch on its way to Python; docs/decisions/0031 has the figures."""
BATCH_ROWS = 10_000
"""Spark's default."""
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
SETTINGS = (
    TunedSetting(
        BYTES,
        str(BATCH_BYTES),
        "the JVM holds a batch for Python in each task that writes: with "
        "8 MiB instead of 64, large records fit and are faster",
    ),
)
"""conf/spark-defaults.conf recommends them too."""


def tune(spark: SparkSession, *, largest_record: int | None = None) -> dict[str, tuple[str, str]]:
    """`spark_log.tune`, which has the documentation."""
    check_session(spark, "tune")
    chosen, changed = spark.conf.getAll, {}
    wanted = SETTINGS if largest_record is None or ROWS in chosen else _limited_by_rows(largest_record)
    recommended = {setting.name: setting.value for setting in SETTINGS}
    for name, value, _ in wanted:
        # A known size of records takes precedence over the recommended limit.
        if name not in chosen or (wanted is not SETTINGS and chosen[name] == recommended.get(name)):
            changed[name] = (str(spark.conf.get(name)), value)
            spark.conf.set(name, value)
    return changed


def _limited_by_rows(largest_record: int) -> tuple[TunedSetting, ...]:
    """Batches of at most `BATCH_BYTES`, by their rows."""
    if largest_record < 1:
        raise InvalidRequest(f"invalid value {largest_record} for largest_record: expected bytes, at least 1")
    rows = max(min(BATCH_ROWS, BATCH_BYTES // largest_record), 1)
    return (
        TunedSetting(ROWS, str(rows), f"{rows} records of {largest_record} bytes are at most a batch"),
        TunedSetting(BYTES, str(2**31 - 1), "Spark does not compute the bytes of a batch without this limit"),
    )
