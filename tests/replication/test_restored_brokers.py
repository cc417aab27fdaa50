"""The log's own root is restored from an older copy beside brokers that are newer."""

from __future__ import annotations

import shutil
from pathlib import Path

from spark_log import connect
from spark_log.client.admin.brokers import fence_broker, return_broker
from spark_log.recovery.verify import verify
from spark_log.replication.replicator import Replicator
from tests.replication.replicated_logs import brokers_of, folder_of, put, replicated_log


# Promise: copies.md#if-the-log-has-brokers
def test_brokers_are_looked_at_by_fencing_and_unfencing_them(tmp_path: Path) -> None:
    """They lack what the newer log has deleted, and have what it has written since, which nothing names."""
    log = replicated_log(tmp_path, replica_lag_time_max_ms="1")
    old = put(log, [0, 1, 2])
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    put(log, [0, 1, 2])
    for broker in (1, 2):
        (folder_of(log, tmp_path, broker) / old).unlink()  # as the collector does after a merge
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "copy").rename(tmp_path / "log")

    restored = connect(tmp_path / "log", durability="os")
    assert {problem.what for problem in verify(restored)} == {old}
    for broker in (1, 2):
        fence_broker(restored.journal, broker)
        assert return_broker(restored.journal, broker)
    assert brokers_of(restored.journal.refresh(), old) == (0,)
    Replicator(restored).round()
    assert brokers_of(restored.journal.refresh(), old) == (0, 1, 2)
    assert verify(restored, deep=True) == []
    assert restored.read("t").num_rows == 10
