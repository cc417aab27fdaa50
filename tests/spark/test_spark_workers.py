"""The work of a Spark Python process between two tasks costs no more than the tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

WORKER = """
import gc, json

from pyspark_pylog.worker_process import prepare_process

def walked():
    gc.collect()
    return len(gc.get_objects())

class Garbage:
    pass

def leave_garbage():
    one, other = Garbage(), Garbage()
    one.other, other.one = other, one

found = {"before": walked()}
prepare_process()
found["settled"] = walked()
import email.message, http.client, xml.dom.minidom
found["more was imported"] = walked()
prepare_process()
found["settled again"] = walked()
prepare_process(), leave_garbage(), prepare_process()
found["garbage"] = sum(type(one) is Garbage for one in gc.get_objects())
gc.collect()
found["garbage afterwards"] = sum(type(one) is Garbage for one in gc.get_objects())
print(json.dumps(found))
"""


# Promise: measurements-kafka.md#where-a-triggers-time-goes
def test_what_was_imported_is_not_walked_after_each_task() -> None:
    """Neither is what came later, for which it settles again; and what the tasks leave behind is still collected."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "datasource")])
    command = [sys.executable, "-c", WORKER]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["before"] > 10_000 and found["more was imported"] > 1000
    assert found["settled"] < 100 and found["settled again"] < 100
    assert (found["garbage"], found["garbage afterwards"]) == (2, 0)
