"""Shared by the benchmarks: the session, the data, and pairs of runs in turn.

A single time says little on a shared machine.  So each benchmark runs two things in turn, A B A B …, after warm-up
rounds of both, and reports the median of the ratios pair by pair.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import spark_log

if TYPE_CHECKING:
    # Most benchmarks do without Spark, whose modules take longer to import than all others.
    from pyspark.sql import DataFrame, SparkSession

ROWS = 4_000_000
PARTITIONS = 4


class Pair(NamedTuple):
    """Medians of the measurements in seconds, and of the ratio other / ours."""

    ours: float
    other: float
    ratio: float


def arguments(
    doc: str | None, rows: int = ROWS, of: str = "records", rounds: int | None = 5, warm: int | None = 3
) -> argparse.Namespace:
    """of: the unit that `--rows` counts.  None for rounds or warm-up rounds removes their option."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=rows, help=f"{of} ({rows:,})")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"that count ({rounds})")
    if warm is not None:
        parser.add_argument("--warm", type=int, default=warm, help=f"rounds before them ({warm})")
    return parser.parse_args()


def some_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Parse an option of names separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
        return found

    return parse


def pairs(
    ours: Callable[[], object],
    other: Callable[[], object],
    *,
    rounds: int,
    warm: int,
    now: Callable[[], float] = time.perf_counter,
) -> Pair:
    """Run both in turn.  now: the clock, `time.process_time` for the CPU that this process takes."""
    for _ in range(warm):
        ours(), other()
    times = [(clock(ours, now), clock(other, now)) for _ in range(rounds)]
    return Pair(
        statistics.median(a for a, _ in times),
        statistics.median(b for _, b in times),
        statistics.median(b / a for a, b in times),
    )


def clock(run: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> float:
    begun = now()
    run()
    return now() - begun


def report(name: str, **figures: object) -> None:
    """Print one line of JSON on standard output."""
    print(
        json.dumps({"benchmark": name, **{k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}})
    )


@contextmanager
def folder(where: Path | None = None) -> Iterator[str]:
    """A new folder for a while, in that of temporary files if `where` is None.  Maintenance may run at its end."""
    with tempfile.TemporaryDirectory(prefix="pylog-bench-", dir=where, ignore_cleanup_errors=True) as path:
        yield path


def session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Stock settings, except the driver's memory, which holds the cached input, and the given ones."""
    from pyspark.sql import SparkSession

    compile_modules()
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "6g")
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark_log.register(spark)
    return spark


def compile_modules() -> None:
    """Compile what pip does on installation: with PYTHONDONTWRITEBYTECODE set, each Python process of Spark would
    compile them again.
    """
    import pyspark_pylog

    for package in (spark_log, pyspark_pylog):
        compileall.compile_dir(str(Path(package.__file__).parent), quiet=1)


def events(spark: SparkSession, rows: int) -> DataFrame:
    """`rows` records with a key of about 10 bytes and a JSON value of about 90, cached."""
    from pyspark import StorageLevel

    frame = numbered_events(spark, 0, rows).select("key", "value").persist(StorageLevel.MEMORY_ONLY)
    frame.count()
    return frame


def numbered_events(spark: SparkSession, start: int, end: int) -> DataFrame:
    """Records for the numbers from `start` to `end`, with a column `id`."""
    return spark.range(start, end, 1, PARTITIONS).selectExpr(
        "id",
        "concat('user-', id % 100000) key",
        """concat('{"id":', id, ',"path":"/product/', id % 977, '","ms":', id % 1009, ',"session":"', md5(cast(id as string)), '"}') value""",
    )


def keep(path: Path, parts: Mapping[str, object]) -> None:
    """Add parts to a file of results, with the machine that measured them; other parts stay."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**kept, **parts, "machine": machine()}, indent=1, sort_keys=True) + "\n")


def machine() -> dict[str, object]:
    """The machine and the versions of a measurement."""
    import pyarrow
    import pyspark

    return {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "pyarrow": pyarrow.__version__,
        "pyspark": pyspark.__version__,
        "load": round(os.getloadavg()[0], 1),
    }
