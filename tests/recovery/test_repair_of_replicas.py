"""Repair of a log with brokers: objects on their roots are not lost, and topics keep their replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from spark_log.metadata.replicas.replicas import group_at, group_number
from spark_log.recovery.repair import repair
from spark_log.store.local import LocalStore
from spark_log.store.object_names import log_key
from tests.client.replicated import commit_copies, with_copies

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")


def test_objects_on_other_roots_are_kept(tmp_path: Path) -> None:
    """A version is lost, and the readable commits after it have their objects on brokers alone."""
    log = spark_log.connect(tmp_path / "log", create=True)
    journal = with_copies(log, [tmp_path / "disk1", tmp_path / "disk2"])
    commit_copies(log, "t", [b"a"], held=(1, 2))
    log.create_topic(spark_log.NewTopic("u", 1))
    gone = journal.state.version
    commit_copies(log, "t", [b"b"], held=(1,))
    log.close()
    (tmp_path / "log" / log_key(gone)).unlink()
    report = repair(LocalStore(str(tmp_path / "log")), is_alive=lambda holder: False, accept_loss=True)
    assert report.missing == ()
    again = spark_log.connect(tmp_path / "log")
    assert again.read("t").column("value").to_pylist() == [b"a", b"b"]
    state = again.journal.state
    assert group_at(state, group_number(state, (state.names["t"], 0))).replicas == (0, 1, 2)
