"""How does the CPU time of a write and a read divide in Spark's JVM?  Shares of the steps, and a flame graph of each.

pylog, and a Python source and sink that do nothing, run under async-profiler, which Spark downloads from Maven Central
(0.8 MB, once).  Only CPU time of the threads that run tasks is counted.  The flame graphs are HTML files in
.pylog/flames. To profile the Python workers, use `py-spy record --subprocesses`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import _nulls
import common
from spark_read import noop

import spark_log
from simulation.harness.kafka import SETTINGS_FILE

PROFILER = "tools.profiler:async-profiler:4.1"
OUT = Path(__file__).parents[1] / ".pylog" / "flames"
TASKS = "[Executor task"
"""Prefix of the names of threads that run tasks."""
EVERY = "1ms"
"""CPU time of a thread between two samples; the kernel's clock may round it up to 10."""
WRITE = {
    "the size of the batch so far, anew for each row": "ArrowWriter.sizeInBytes",
    "rows out of Spark's cache": "WritingSparkTask$IteratorWithMetrics.",
    "rows into Arrow": "ArrowWriter.write",
    "batches to Python": "SocketChannelImpl.write",
}
READ = {
    "batches from Python": "ArrowStreamReader.loadNextBatch",
    "rows out of Arrow": "SpecificUnsafeProjection.apply",
    "rows through the plan's projection": "GeneratedIteratorForCodegenStage1.processNext",
}
"""Steps of the work and the stack frames that identify them; a sample belongs to the first step that matches."""
OTHER = "other"


def main() -> None:
    given = common.arguments(__doc__, rows=1_000_000)
    spark = common.session(packages())
    profiler = spark._jvm.one.profiler.AsyncProfiler.getInstance()  # type: ignore[union-attr]  # there is a JVM
    _nulls.register(spark, given.rows, common.PARTITIONS)
    frame = common.events(spark, given.rows)
    with common.folder() as url:
        log = spark_log.connect(url)
        for topic in ("written", "read"):
            log.create_topic(spark_log.NewTopic(topic, common.PARTITIONS))

        def write(topic: str) -> None:
            frame.write.format("pylog").mode("append").option("topic", topic).save(url)

        write("read")
        works: dict[str, tuple[Mapping[str, str], Callable[[], object]]] = {
            "write-null": (WRITE, lambda: frame.write.format(_nulls.SINK).mode("append").save()),
            "write-pylog": (WRITE, lambda: write("written")),
            "read-null": (READ, lambda: noop(spark.read.format(_nulls.SOURCE).load())),
            "read-pylog": (READ, lambda: noop(spark.read.format("pylog").option("subscribe", "read").load(url))),
        }
        for name, (steps, run) in works.items():
            for _ in range(given.warm):
                run()
            stacks = profiled(profiler, run, given.rounds, OUT / f"{name}.html")
            common.report(name, **by_step(stacks, steps), flame_graph=str(OUT / f"{name}.html"))


def packages() -> dict[str, str]:
    """The options with which Spark downloads the profiler, through a mirror if one is configured."""
    mirror = os.environ.get(SETTINGS_FILE)
    return {"spark.jars.packages": PROFILER, **({"spark.jars.ivySettings": mirror} if mirror else {})}


def profiled(profiler: Any, run: Callable[[], object], rounds: int, picture: Path) -> str:
    """Stacks of all samples, one line each with its count at the end; the flame graph is written to `picture`."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    profiler.execute(f"start,event=ctimer,interval={EVERY},threads")
    for _ in range(rounds):
        run()
    profiler.execute("stop")
    profiler.execute(f"flamegraph,file={picture}")
    return str(profiler.execute("collapsed"))


def by_step(stacks: str, steps: Mapping[str, str]) -> dict[str, float]:
    """Shares of the CPU time of the threads that run tasks."""
    samples = Counter[str]()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        if stack.startswith(TASKS):
            samples[next((step for step, frame in steps.items() if frame in stack), OTHER)] += int(count)
    return {step: samples[step] / samples.total() for step in (*steps, OTHER)}


if __name__ == "__main__":
    main()
