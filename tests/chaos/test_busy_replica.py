"""A replica that missed writes comes back into the ISR while a writer continues."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa

from spark_log import connect
from spark_log.maintenance.replicate import replicate_every
from tests.chaos.test_killed_replicator import eventually
from tests.replication.replicated_logs import group_of, move_away, move_back, replicated_log


def test_a_disk_that_was_away_is_in_sync_again_within_seconds_under_load(tmp_path: Path) -> None:
    """All that was written meanwhile is on all roots."""
    log = replicated_log(
        tmp_path,
        replica_lag_time_max_ms="1000",
        broker_session_timeout_ms="2000",
        broker_heartbeat_interval_ms="300",
    )
    stop, written, failures = threading.Event(), list[bytes](), list[Exception]()

    def write() -> None:
        writer = connect(str(tmp_path / "log"), durability="os")
        while not stop.is_set():
            value = b"%d" % len(written)
            try:
                writer.append("t", pa.table({"value": [value]}))
            except Exception as error:  # noqa: BLE001  shown by the test
                failures.append(error)
                return
            written.append(value)

    def replicate() -> None:
        for _ in replicate_every(connect(str(tmp_path / "log"), durability="os"), 200, stop=stop):
            pass

    threads = [threading.Thread(target=work, daemon=True) for work in (write, replicate)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(written) > 20)
        move_away(tmp_path, 2)
        eventually(lambda: log.journal.refresh().brokers[2].fenced)
        before = len(written)
        eventually(lambda: len(written) > before + 20)
        move_back(tmp_path, 2)
        began = time.monotonic()
        eventually(lambda: 2 in group_of(log.journal.refresh()).isr)
        taken = time.monotonic() - began
        before = len(written)
        eventually(lambda: len(written) > before + 20)
        assert 2 in group_of(log.journal.refresh()).isr
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not failures, failures
    assert taken < 30, taken
    assert log.read("t", columns=["value"]).column("value").to_pylist() == written
    state = log.journal.refresh()
    assert all(copies.brokers == (0, 1, 2) for copies in state.copies.values())
