"""Jobs of `jobs/` under spark-submit, as separate processes, which tests may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.spark.builders import CONFS, DEADLINE_S, environment, wait_until

JOBS = Path(__file__).parents[2] / "jobs"
SUBMIT = Path(sys.executable).parent / "spark-submit"

QUIET = {"spark.log.level": "WARN"}
"""Without a page of log for each task."""


def submitted(job: str, *arguments: str, master: str = "local[2]", **more: str) -> subprocess.Popen[str]:
    """A started job, in a separate process group.

    job:   the name of its file in `jobs/`, or the path of a script.
    more:  configs of Spark.
    """
    confs = [part for name, value in {**CONFS, **QUIET, **more}.items() for part in ("--conf", f"{name}={value}")]
    command = [str(SUBMIT), "--master", master, *confs, str(JOBS / job), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(), start_new_session=True, **pipes)


def local_cluster() -> dict[str, str]:
    """For `submitted`: Spark's cluster on this machine, with an executor for four tasks, which is another process."""
    return {
        "master": "local-cluster[1,4,1024]",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],  # as the driver: see tests/class_archive.py
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }


def finished(process: subprocess.Popen[str], timeout: float = 240) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a job."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def draining(process: subprocess.Popen[str]) -> Future[tuple[int, str, str]]:
    """`finished`, in a thread: a job whose output nobody reads stops when the pipe is full."""
    return ThreadPoolExecutor(1).submit(finished, process, 2 * DEADLINE_S)


def killed_when(process: subprocess.Popen[str], true: Callable[[], bool]) -> None:
    """SIGKILL to the job, its JVM and its workers, as soon as a condition holds."""
    done = draining(process)
    assert wait_until(lambda: true() or done.done())
    assert not done.done(), f"the job ended first: {done.result()[2][-6000:]}"
    os.killpg(process.pid, signal.SIGKILL)
    done.result()
