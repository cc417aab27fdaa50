"""Jobs of `jobs/` under spark-submit, as separate processes, which tests may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.spark.builders import CONFS, environment, wait_until

JOBS = Path(__file__).parents[2] / "jobs"
SUBMIT = Path(sys.executable).parent / "spark-submit"


def submitted(job: str, *arguments: str, master: str = "local[2]", **more: str) -> subprocess.Popen[str]:
    """A started job, in a separate process group.

    job:   the name of its file in `jobs/`, or the path of a script.
    more:  configs of Spark.
    """
    confs = [part for name, value in {**CONFS, **more}.items() for part in ("--conf", f"{name}={value}")]
    command = [str(SUBMIT), "--master", master, *confs, str(JOBS / job), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(), start_new_session=True, **pipes)


def finished(process: subprocess.Popen[str], timeout: float = 240) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a job."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def killed_when(process: subprocess.Popen[str], true: Callable[[], bool]) -> None:
    """SIGKILL to the job, its JVM and its workers, as soon as a condition holds."""
    assert wait_until(lambda: true() or process.poll() is not None)
    assert process.poll() is None, f"the job ended first: {finished(process)[2][-6000:]}"
    os.killpg(process.pid, signal.SIGKILL)
    finished(process)
