"""Delta, for the versions of Spark that it has a release for: its jars, and what a session needs to use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simulation.harness.kafka import retrieve

VERSION = "4.4.0"
SPARKS = ("4.0", "4.1", "4.2")
"""The versions of Spark that this release is for."""
PARTS = ("delta-storage", "delta-kernel-api", "delta-kernel-defaults", "delta-kernel-unitycatalog")
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def jars_for(spark: str) -> tuple[str, ...]:
    """Delta's jars for a version of Spark; none if it has no release for it."""
    series = ".".join(spark.split(".")[:2])
    if series not in SPARKS:
        return ()
    return tuple(f"io.delta:{name}:{VERSION}" for name in (f"delta-spark_{series}_2.13", *PARTS))


def with_delta(settings: Mapping[str, str], directory: Path, jars: tuple[str, ...]) -> dict[str, str]:
    """Settings of a session, with Delta; downloads its jars into `directory`, once."""
    found = retrieve(directory, "delta", jars, transitive=False)
    return {**settings, **SETTINGS, "spark.jars": f"{settings['spark.jars']},{found}"}
