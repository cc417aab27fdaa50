"""A log that nobody uses."""

from __future__ import annotations

import time
from pathlib import Path

import spark_log
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.topics.decide_topics import decide_set_configs


def test_an_idle_log_writes_no_more_fences(tmp_path: Path) -> None:
    """Once the fence has passed all that happened, maintain adds no version however often it runs."""
    log = spark_log.connect(str(tmp_path))
    log.journal.propose(lambda state, now: decide_set_configs(state, None, {"gc.fence.age.ms": "100"}))
    log.append("t", [{"value": "x"}])
    versions = []
    for _ in range(7):
        time.sleep(0.12)
        maintain_once(log)
        versions.append(log.journal.refresh().version)
    assert versions[-1] == versions[-2] == versions[-3]
    assert log.journal.state.fence == log.journal.state.changed
