"""A batch job that reads what came since its last run. Its position is committed when the run ends without an error.

Prints:
    first night: 3 orders
    second night: 2 orders
"""

import sys
import tempfile

import spark_log


def night(log: spark_log.Log) -> int:
    """Read everything up to the end that was there when the run began."""
    with log.bookmark("nightly", "orders") as run:
        tables = [log.read("orders", tp.partition, start, run.ends[tp]) for tp, start in run.starts.items()]
        return sum(table.num_rows for table in tables)


with spark_log.connect(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()) as log:
    log.append("orders", [{"value": str(number)} for number in range(3)])
    print(f"first night: {night(log)} orders")
    log.append("orders", [{"value": str(number)} for number in range(2)])
    print(f"second night: {night(log)} orders")
