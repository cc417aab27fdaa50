"""The Spark data source `pylog`.  Spark finds it by this package's name and imports it in every planner and worker
process, so this module imports only the class, which loads the rest when it is used."""

from pyspark_pylog.data_source import DefaultSource

__all__ = ["DefaultSource"]
