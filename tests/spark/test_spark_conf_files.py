"""The files of conf/ that Spark reads: each setting exists, and none depends on the size of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.tune import ROWS, SETTINGS

CONF = Path(__file__).parents[2] / "conf"
PROFILES = ("spark-defaults.conf", "spark-throughput.conf", "spark-latency.conf", "spark-object-store.conf")
BY_NAME = {"spark.sql.streaming.checkpointFileManagerClass"}
"""Spark reads it by its name, from Hadoop's configuration."""
KNOWN = "org.apache.spark.internal.config"


def settings(file: str) -> dict[str, str]:
    lines = (CONF / file).read_text(encoding="utf-8").splitlines()
    pairs = [line.split(None, 1) for line in lines if line.strip() and not line.startswith("#")]
    assert len({name for name, _ in pairs}) == len(pairs), "a name twice"
    return {name: value.strip() for name, value in pairs}


def java_properties(jvm: Any, file: str) -> Any:
    found = jvm.java.util.Properties()
    found.load(jvm.java.io.FileReader(str(CONF / file)))
    return found


# Promise: performance.md#sparks-settings
@pytest.mark.classic("it asks the JVM")
@pytest.mark.parametrize("file", PROFILES)
def test_every_setting_of_a_profile_exists_in_spark(spark: SparkSession, file: str) -> None:
    """Spark ignores a name that it does not know, without a message; it parses each value."""
    jvm: Any = spark.sparkContext._jvm
    for name, value in settings(file).items():
        if name in BY_NAME:
            continue
        entry = getattr(jvm, f"{KNOWN}.ConfigEntry").findEntry(name)
        assert entry is not None, name
        entry.valueConverter().apply(value)


# Promise: performance.md#sparks-settings
@pytest.mark.parametrize("file", PROFILES)
def test_a_profile_is_safe_at_any_size_of_records(file: str) -> None:
    """A batch is limited by its bytes, as `spark_log.tune` does it, and never by a number of rows."""
    found = settings(file)
    assert {setting.name: setting.value for setting in SETTINGS}.items() <= found.items()
    assert ROWS not in found


# Promise: performance.md#sparks-settings
@pytest.mark.classic("it asks the JVM")
def test_classes_that_files_name_are_in_spark(spark: SparkSession) -> None:
    """Of the checkpoint manager, and of sinks and sources of metrics."""
    jvm: Any = spark.sparkContext._jvm
    metrics = java_properties(jvm, "metrics.properties")
    names = [str(metrics[name]) for name in metrics.stringPropertyNames() if name.endswith(".class")]
    names += [settings(file)[name] for file in PROFILES for name in settings(file) if name.endswith("Class")]
    assert len(names) == 4
    for name in names:
        jvm.java.lang.Class.forName(name, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())


# Promise: performance.md#sparks-settings
@pytest.mark.classic("it asks the JVM")
def test_log4j_reads_its_file(spark: SparkSession) -> None:
    """It finds the appender, and the loggers with their levels."""
    jvm: Any = spark.sparkContext._jvm
    core = jvm.org.apache.logging.log4j.core.config
    source = core.ConfigurationSource(jvm.java.io.FileInputStream(str(CONF / "log4j2.properties")))
    found = core.properties.PropertiesConfigurationFactory().getConfiguration(None, source)
    found.initialize()
    levels = {one.getName(): str(one.getLevel()) for one in found.getLoggers().values()}
    assert levels[""] == "WARN" and levels["org.apache.spark.sql.execution.streaming"] == "INFO"
    assert [str(name) for name in found.getAppenders()] == ["console"]
