"""docs/raft.md names the times of `Config`."""

from __future__ import annotations

from pathlib import Path

from spark_log.quorum.ready import Config

PAGE = Path(__file__).parents[3] / "docs" / "raft.md"


def test_the_times_on_the_page_are_those_of_the_config() -> None:
    config, text = Config(), " ".join(PAGE.read_text(encoding="utf-8").split())
    timeout, election = config.fetch_timeout_ms / 1000, config.election_timeout_ms / 1000
    assert f"after {timeout:g} to {1.5 * timeout:g} s without an answer" in text
    assert f"election has {election:g} to {2 * election:g} s" in text
    assert f"resigns after {1.5 * timeout:g} s" in text
    assert config.retry_ms > config.fetch_wait_ms
