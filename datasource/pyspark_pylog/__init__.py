"""The Spark data source `pylog`.  Spark finds it by this package's name and imports it in every planner and worker process,
so nothing is imported here but the class itself, which loads the rest when it is used."""

from pyspark_pylog.data_source import DefaultSource

__all__ = ["DefaultSource"]
