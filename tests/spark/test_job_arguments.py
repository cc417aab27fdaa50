"""Jobs refuse wrong arguments before Spark starts, which takes seconds: here there is no Java to start it with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark_pylog.jobs
import pytest

import spark_log
from spark_log import NewTopic
from tests.spark.submitted import JOBS, environment

PROGRAMS = Path(pyspark_pylog.jobs.__file__).parent
"""The files in `JOBS` start these."""
URL = ("--url", "{log}")
NO_LOG = ("--url", "{log}-none")
EXPORT = (*URL, "--to", "{log}-table")
COPY = ("--topics", "t", "--checkpoint", "{log}-checkpoint")
BACKFILL = ("--from", "table", "--format", "table", "--value", "v", "--timestamp", "at")
FLOW = ("--name", "f", "--source", "t")
ARGUMENTS = {
    "backfill": [
        ((*URL, *BACKFILL, "--topic", "none"), "topic 'none' does not exist"),
        ((*NO_LOG, *BACKFILL, "--topic", "t"), "there is no log at"),
    ],
    "backup": [
        ((*URL, "--backups", "{log}-backups"), "has no backups: is its disk mounted?"),
        ((*URL, "--backups", "{log}/backups", "--create"), "must not lie within each other"),
        ((*URL, "--backups", "ftp://x", "--create"), "url: ftp://x cannot have a log"),
        (("--backups", "{log}-backups", "--restore", "latest", *NO_LOG), "has no backups"),
    ],
    "bench": [(NO_LOG, "there is no log at")],
    "erase": [
        ((*URL, "--topic", "none", "--key", "a"), "none"),
        ((*URL, "--topic", "t", "--key", "a", "--before", "x"), "before: 'x'"),
        ((*URL, "--topic", "t", "--key", "zz", "--key-format", "hex"), "zz"),
    ],
    "export": [
        ((*EXPORT, "--topic", "none"), "none"),
        ((*EXPORT, "--topic", "t", "--end", "x"), "--end: 'x'"),
        ((*EXPORT, "--topic", "t", "--start", "x"), "'x'"),
        ((*EXPORT, "--topic", "t", "--value-as", "columns"), "schema"),
    ],
    "flow": [
        ((*URL, *FLOW, "--function", "nowhere:f"), "No module named 'nowhere'"),
        ((*URL, *FLOW, "--function", "json:dumps", "--target", "t"), "topic 't' is a source, too"),
        ((*URL, *FLOW, "--function", "json:dumps", "--tasks", "0"), "invalid value 0 for tasks"),
        ((*URL, *FLOW, "--function", "json:dumps", "--start", "x"), "start: 'x'"),
        ((*NO_LOG, *FLOW, "--function", "json:dumps"), "there is no log at"),
    ],
    "maintain": [(NO_LOG, "there is no log at")],
    "mirror_kafka": [
        ((*URL, *COPY, "--bootstrap-servers", "x", "--group-offsets", "{log}-none"), "the shape is"),
    ],
    "mirror_pylog": [
        ((*URL, *COPY, "--source", "{log}-none"), "there is no log at"),
        ((*URL, *COPY, "--source", "{log}"), "have the same id"),
    ],
    "replicate": [((*URL, "--broker", "7"), "unknown broker 7")],
    "verify": [((*URL, "--repair-from", "{log}-none"), "has no copy of the log")],
}


@pytest.mark.parametrize("job", ARGUMENTS)
def test_a_wrong_argument_is_refused_before_spark_starts(tmp_path: Path, job: str) -> None:
    log = spark_log.connect(tmp_path / "log", create=True)
    log.admin.create_topics([NewTopic("t", 1)])
    for given, said in ARGUMENTS[job]:
        arguments = [one.format(log=tmp_path / "log") for one in given]
        command = [sys.executable, str(JOBS / f"{job}.py"), *arguments]
        done = subprocess.run(
            command, env=environment(JAVA_HOME="/nowhere"), capture_output=True, text=True, timeout=240, check=False
        )
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert done.stderr.startswith(f"{job}: ") and said in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1


def test_every_job_that_starts_spark_is_here() -> None:
    """`admin` starts none, and `quickstart` takes no arguments of a log."""
    programs = {path.stem: PROGRAMS / path.name for path in JOBS.glob("*.py")}
    starting = {name for name, path in programs.items() if path.exists() and "run_job(" in path.read_text()}
    assert starting == set(ARGUMENTS)
