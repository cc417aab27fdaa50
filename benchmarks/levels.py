"""What do levels of compression cost a task of a Spark write, and how many bytes do they save?

The task of `write_task.py` for a topic of one partition, with keys: batches of 10,000 rows through the sink's checks
and encoder into an object on a local disk.  CPU of the process and bytes of the object for each codec and level, in
turn with level 1 of zstd, the default.  By hand: zstd takes 200 ns of a row of 100 B at level 1, twice that at level 3
and 160 at -1; lz4 takes 150 at level 1, and several times that from 3 on, where it searches longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import common
from pyspark_pylog.sink.writer import TaskWritten
from write_task import SIZES, make_batches, name_of, task

import spark_log


class Level(NamedTuple):
    """A codec and its level."""

    codec: str
    level: int


DEFAULT = Level("zstd", 1)
LEVELS = [Level("zstd", -1), DEFAULT, Level("zstd", 3), Level("zstd", 9), Level("lz4", 1), Level("lz4", 9)]


def main() -> None:
    given = common.arguments(__doc__, rows=400_000)
    figures: dict[str, object] = {}
    for size, value_bytes in SIZES.items():
        rows = max(given.rows * 100 // value_bytes, 1)
        batches = make_batches(rows, value_bytes, True, 1)
        for level in LEVELS:
            with common.folder() as ours, common.folder() as other:
                begin(ours, level), begin(other, DEFAULT)
                tried, usual = task(ours, batches, {}), task(other, batches, {})
                pair = common.pairs(tried, usual, rounds=given.rounds, warm=given.warm, now=time.process_time)
                case = f"{size}_{level.codec}_{level.level}"
                figures |= {
                    f"{case}_ns": pair.ours / rows * 1e9,
                    f"{case}_times_default": 1 / pair.ratio,
                    f"{case}_bytes": written(tried) / rows,
                }
    common.report("levels", rows=given.rows, **figures)


def begin(url: str, level: Level) -> None:
    """A log with one topic of this level."""
    configs = {"compression.type": level.codec, f"compression.{level.codec}.level": str(level.level)}
    spark_log.connect(url).admin.create_topics([spark_log.NewTopic(name_of(0), 1, configs)])


def written(run: Callable[[], object]) -> int:
    """Bytes of the object of one task."""
    message = run()
    assert isinstance(message, TaskWritten)
    return sum(made.size for made in message.uploaded.objects)


if __name__ == "__main__":
    main()
