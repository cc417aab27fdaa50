"""The Spark data source `pylog`.  Spark finds it by this package's name and imports it in every planner and worker
process, so this module imports only the class, which loads the rest when it is used."""

try:
    from pyspark_pylog.data_source import DefaultSource
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "pyspark":
        raise
    from spark_log.text import install_extra

    needs = f"Spark's part of pylog needs pyspark, which this Python does not have: {install_extra('spark')}"
    raise ModuleNotFoundError(needs, name=error.name) from None

__all__ = ["DefaultSource"]
