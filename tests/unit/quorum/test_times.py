"""docs/raft.md names the times of `Config`, and the limits of a node."""

from __future__ import annotations

from pathlib import Path

from spark_log.quorum.node.handshake import SECRET_MIN
from spark_log.quorum.node.links import LOST_MS
from spark_log.quorum.node.node import ENTRY_BYTES_MAX, UNKNOWN_S
from spark_log.quorum.node.node_config import SLOW_DISK_MS, SNAPSHOT_BYTES, TIMES
from spark_log.quorum.ready import Config

PAGE = Path(__file__).parents[3] / "docs" / "raft.md"


# Promise: raft.md#times
def test_the_times_on_the_page_are_those_of_the_config() -> None:
    config, text = Config(), " ".join(PAGE.read_text(encoding="utf-8").split())
    timeout, election = config.fetch_timeout_ms / 1000, config.election_timeout_ms / 1000
    assert f"after {timeout:g} to {1.5 * timeout:g} s without an answer" in text
    assert f"election has {election:g} to {2 * election:g} s" in text
    assert f"resigns after {1.5 * timeout:g} s" in text
    assert f"is {config.high_watermark_wait_ms} by default, and {TIMES.high_watermark_wait_ms} ms in a node" in text
    assert config.retry_ms > config.fetch_wait_ms


# Promise: raft.md#run-nodes
def test_the_limits_of_a_node_on_the_page_are_those_of_the_code() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"An entry has {ENTRY_BYTES_MAX:,} bytes at most" in text
    assert f"After {SNAPSHOT_BYTES >> 20} MB of entries" in text
    assert f"at least {SECRET_MIN} characters" in text
    assert f"appends fail with `maybe_applied` {UNKNOWN_S:g} s later" in text
    assert f"a leader hands over after {SLOW_DISK_MS // 1000} s" in text
    assert "when the other machine accepts no byte for three seconds" in text and LOST_MS == 3000
