"""What does a new process pay to open a log and to read it, beside one that only imports what it needs of Arrow?

CPU of processes, in turn, with compiled modules: `import spark_log`, `connect` and `read` of 1,000 records, by that of
imports of numpy, `pyarrow` and `pyarrow.compute`.  The time that modules of pylog take grows with their number.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

import common

import spark_log

TARGET = 2.5
ARROW = "import numpy, pyarrow.compute"
OPENS = "import sys, spark_log; spark_log.connect(sys.argv[1]).read('t'); assert 'pandas' not in sys.modules"


def cpu_of(code: str, *arguments: str) -> float:
    """CPU seconds of a new process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    given = common.arguments(__doc__, rows=1_000)
    common.compile_modules()
    with common.folder() as folder:
        log = spark_log.connect(f"{folder}/log")
        log.append("t", [{"key": b"%d" % number, "value": b"v" * 50} for number in range(given.rows)])
        pairs = [(cpu_of(OPENS, log.url), cpu_of(ARROW)) for _ in range(given.warm + given.rounds)][given.warm :]
    found = statistics.median(opens / arrow for opens, arrow in pairs)
    common.report("cold_open", cpu=statistics.median(opens for opens, _ in pairs), arrow=found, target=TARGET)


if __name__ == "__main__":
    main()
