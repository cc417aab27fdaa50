"""`spark_log.tune(spark)`: sets Spark's settings that help pylog, if a session can set them; safe for large records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TunedSetting(NamedTuple):
    name: str
    value: str
    reason: str


SETTINGS = (
    TunedSetting(
        "spark.sql.execution.arrow.maxBytesPerBatch",
        "8388608",
        "the JVM holds a batch for Python in each task that writes: with "
        "8 MiB instead of 64, large records fit and are faster",
    ),
)
"""conf/spark-defaults.conf recommends them too; docs/decisions/0031 has the figures."""


def tune(spark: SparkSession) -> dict[str, tuple[str, str]]:
    """Set settings that nobody has set in the session or at Spark's start; returns name -> (before, after).

    A repeated call changes nothing.  `spark.conf.unset(name)` undoes a setting.
    """
    chosen = spark.conf.getAll
    changed = {}
    for setting in SETTINGS:
        if setting.name not in chosen:
            changed[setting.name] = (str(spark.conf.get(setting.name)), setting.value)
            spark.conf.set(setting.name, setting.value)
    return changed
