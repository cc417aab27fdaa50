"""Read orders, add the tax, and write the result: records and the position of the group are one commit.

Prints:
    first run wrote 119 238
    second run wrote nothing
"""

import sys
import tempfile

import spark_log


def enrich(log: spark_log.Log) -> list[str]:
    """One run. If it dies before its end, nothing of it is in the log, and the next run reads the same orders."""
    settings = {"group_id": "tax", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with log.consumer("orders", **settings) as consumer:
        records = [record for part in consumer.poll(timeout_ms=1000).values() for record in part]
        gross = [str(round(int(record.value) * 1.19)) for record in records]
        with log.transaction("tax") as txn:
            txn.append("gross", [{"value": value} for value in gross])
            txn.commit_offsets(consumer)
    return gross


with spark_log.connect(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()) as log:
    log.append("orders", [{"value": "100"}, {"value": "200"}])
    print("first run wrote", *enrich(log))
    print("second run wrote", *enrich(log) or ["nothing"])
