"""`spark_log.tune(spark)`: Spark's own settings that help pylog, as far as a session can set them, safe at any size of records."""

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
        "the JVM holds a batch for Python in each task that writes: with 8 MiB instead of 64, large records fit and are faster",
    ),
)
"""What conf/spark-defaults.conf recommends, too; docs/decisions/0031 has the figures."""


def tune(spark: SparkSession) -> dict[str, tuple[str, str]]:
    """Set what nobody has set, in the session or when Spark started; gives name -> (before, after) of what was changed.

    Called again it changes nothing.  `spark.conf.unset(name)` takes a setting back.
    """
    chosen = spark.conf.getAll
    changed = {}
    for setting in SETTINGS:
        if setting.name not in chosen:
            changed[setting.name] = (str(spark.conf.get(setting.name)), setting.value)
            spark.conf.set(setting.name, setting.value)
    return changed
