"""`pylog transaction …`."""

from __future__ import annotations

import pytest

from spark_log import connect
from spark_log.errors import ProducerFenced
from tests.cli.commands import Pylog


# Promise: cli.md#pylog-transaction-describe, cli.md#pylog-transaction-list
def test_list_and_describe(pylog: Pylog) -> None:
    """The last action of each id, and the offsets that it committed."""
    with connect(pylog.url) as log, log.transaction("etl-1", transaction_timeout_ms=5000) as txn:
        txn.send("audit", b"x")
        (row,) = pylog.json("transaction", "list")
        assert (row["transaction"], row["state"], row["epoch"], row["timeout_ms"]) == ("etl-1", "Ongoing", 0, 5000)
    found = pylog.json("transaction", "describe", "etl-1")
    assert found["state"] == "CompleteCommit"
    assert found["offsets"] == [{"topic": "audit", "partition": 0, "start": 0, "end": 1}]
    assert pylog.ok("transaction", "describe", "etl-1").splitlines()[-1].split() == ["audit", "0", "0", "1"]


# Promise: cli.md#pylog-transaction-abort
def test_abort(pylog: Pylog) -> None:
    """Its process can commit no more; what it would do is said before, and what is over is not aborted."""
    with connect(pylog.url) as log:
        hanging = log.transaction("etl-1")
        hanging.__enter__()
        hanging.send("audit", b"x")
        assert "give --yes" in pylog.refused("transaction", "abort", "etl-1")
        pylog.ok("transaction", "abort", "etl-1", "--dry-run")
        assert pylog.json("transaction", "list")[0]["state"] == "Ongoing"
        assert pylog.ok("transaction", "abort", "etl-1", "--yes") == "transaction etl-1 aborted\n"
        with pytest.raises(ProducerFenced):
            hanging.__exit__(None, None, None)
        assert pylog.json("transaction", "list")[0]["state"] == "CompleteAbort"
        with log.transaction("etl-1") as txn:
            txn.send("audit", b"x")
    assert "has committed" in pylog.refused("transaction", "abort", "etl-1", "--yes")
    assert "is unknown" in pylog.refused("transaction", "describe", "nope")
