"""Generations of groups that come back."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from spark_log.errors import IllegalGeneration


def test_a_consumer_of_a_deleted_group_stays_fenced_when_the_group_is_made_again(tmp_path: Path) -> None:
    """Its generation is never given out a second time."""
    log = spark_log.connect(str(tmp_path))
    log.append("t", [{"value": "x"}] * 3)
    tp = spark_log.TopicPartition("t", 0)
    old = log.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    old.poll(timeout_ms=2000)
    log.admin.delete_consumer_groups(["g"])
    new = log.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    new.poll(timeout_ms=2000, max_records=1)
    new.commit()
    with pytest.raises(IllegalGeneration):
        old.commit()
    assert log.admin.list_consumer_group_offsets("g")[tp].offset == 1
