"""`jobs/flow.py`, as a process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import spark_log
from spark_log import NewTopic
from tests.spark.builders import CONFS, environment, wait_until
from tests.spark.submitted import JOBS, QUIET

APP = """
import pyarrow as pa, pyarrow.compute as pc

def upper(table, state, names):
    assert "key" in names.column_names
    out = pa.table({"key": table["key"], "value": pc.ascii_upper(table["value"].cast(pa.string()))})
    return out, out
"""

OWN_FRAME = r'File ".*/(pyspark_pylog|spark_log)/.*", line|File ".*/app\.py", line'
"""A line of a traceback of the job.  A daemon of Spark prints another one if Spark stops before the daemon's worker."""


# Promise: tasks/flow.md#as-a-spark-job
def test_the_job_runs_a_flow_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """Its module is in the current folder; SIGTERM lets it finish, and the summary has its progress."""
    log = spark_log.connect(tmp_path / "log", durability="os")
    log.admin.create_topics(
        [NewTopic("in", 2), NewTopic("out", 1), NewTopic("names", 1, {"cleanup.policy": "compact"})]
    )
    rows = [("k", "a"), ("l", "b")]  # one for each task
    log.append("in", [{"key": key, "value": value, "partition": at} for at, (key, value) in enumerate(rows)])
    (tmp_path / "app.py").write_text(APP)
    confs = " ".join(f"--conf {name}={value}" for name, value in {**CONFS, **QUIET}.items())
    command = [sys.executable, str(JOBS / "flow.py"), "--url", log.url, "--function", "app:upper", "--name", "f"]
    command += ["--source", "in", "--target", "out", "--lookup", "names", "--state", "last", "--tasks", "2"]
    started = environment(PYSPARK_SUBMIT_ARGS=f"--master local[2] {confs} pyspark-shell")
    with subprocess.Popen(
        command, cwd=tmp_path, env=started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            assert wait_until(lambda: log.read("out").num_rows == 2 or job.poll() is not None)
            job.send_signal(signal.SIGTERM)
            out, said = job.communicate(timeout=240)
        finally:
            job.kill()
    assert job.returncode == 0, said
    summary = json.loads(out.splitlines()[-1])
    assert (summary["state"], summary["records_in"], summary["records_out"], summary["lag"]) == ("stopped", 2, 4, 0)
    assert "flow f: " in said and not re.search(OWN_FRAME, said), said
    for topic in ("out", "last"):
        assert sorted(log.read(topic)["value"].to_pylist()) == [b"A", b"B"]
    assert log.admin.describe_consumer_groups(["f"])["f"].state == "Empty"
