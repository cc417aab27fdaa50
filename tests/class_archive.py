"""Java's archive of Spark's classes: with it, a JVM of Spark starts with half of the CPU time.

`make test` makes it beside the first tests, which take longer than that, once for each version of Java and Spark.  JVMs
that start afterwards use it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Every JVM of the tests does little: most of its time would go into compiling that well."""
QUIET = "-Xlog:disable"
"""A JVM with another class path does without the archive, and would say so."""

# Most programs do this: a batch and a stream, with Python workers.
PROGRAM = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
log, folder = sys.argv[1:]
spark.range(1).selectExpr("string(id) as value").write.format("pylog").mode("append").option("topic", "t").save(log)
spark.read.format("pylog").option("subscribe", "t").load(log).groupBy("value").count().write.format("noop").mode("append").save()
stream = spark.readStream.format("pylog").options(subscribe="t", startingOffsets="earliest").load(log).select("value")
writer = stream.writeStream.format("pylog").options(topic="copy", checkpointLocation=folder)
writer.trigger(availableNow=True).start(log).awaitTermination()
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait(600)
"""


@cache
def archive() -> Path | None:
    """The file, which may not exist yet; None without Java."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return None
    import pyspark

    at = Path(java).resolve()
    key = f"{at} {at.stat().st_mtime_ns} {pyspark.__file__} {pyspark.__version__} {OPTIONS}"
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pylog-tests"
    return folder / f"spark-classes-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def use() -> None:
    """Have the JVMs that start from now on use the archive, if it exists: without it, the option would slow them."""
    options = os.environ.setdefault("SPARK_SUBMIT_OPTS", OPTIONS)
    found = archive()
    if found is not None and options == OPTIONS and found.exists():
        os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} {QUIET} -XX:SharedArchiveFile={found}"


_making: list[subprocess.Popen[bytes]] = []


def start_making() -> None:
    """Make it in the background, unless it exists.  If that fails, the tests only take longer."""
    target = archive()
    if target is not None and not target.exists():
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        _making.append(subprocess.Popen([sys.executable, __file__, str(target)], **silent))


def make(target: Path) -> None:
    """The JVM writes it when it exits."""
    target.parent.mkdir(parents=True, exist_ok=True)
    root = Path(__file__).parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), str(root / "datasource")])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.pop("SPARK_HOME", None)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        new = Path(folder) / target.name
        os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} {QUIET} -XX:ArchiveClassesAtExit={new}"
        subprocess.run([sys.executable, "-c", PROGRAM, f"{folder}/log", f"{folder}/checkpoint"], check=True)
        new.rename(target)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
