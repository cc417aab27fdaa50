"""Charts of the console over a restart: samples in a file that may be lost, damaged or too large."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from spark_log.console import history_file
from spark_log.console.history import KEPT_MS, SERIES_MAX, History
from spark_log.console.history_file import HistoryFile, state_folder
from spark_log.console.site import Site
from spark_log.model import TopicPartition
from spark_log.server.tokens import ANYBODY
from tests.server.asking import eventually

NOW = 1_767_225_600_000


def noted(times: int = 5) -> History:
    history = History()
    for n in range(times):
        history.note(NOW + 15_000 * n, {"billing": 100 - n, "é\n": -n})
    return history


def loaded(file: HistoryFile, now_ms: int = NOW + 60_000) -> History:
    history = History()
    file.load({"lags": history}, now_ms)
    return history


# Promise: console.md#see-how-a-log-is-doing
def test_samples_are_there_after_a_restart(tmp_path: Path) -> None:
    """Samples of the last hour are shown, and new ones follow them."""
    file = HistoryFile(tmp_path / "new" / "folder", "cluster")
    file.save({"lags": noted()})
    assert [one.name for one in file.path.parent.iterdir()] == ["cluster.samples"]
    assert file.path.stat().st_mode & 0o777 == 0o600 and file.path.parent.stat().st_mode & 0o777 == 0o700
    found = loaded(file)
    assert found.of("billing") == noted().of("billing") and found.of("é\n") == noted().of("é\n")
    found.note(NOW + 75_000, {"billing": 7})
    assert found.of("billing")[-2:] == [(NOW + 60_000, 96), (NOW + 75_000, 7)] and found.of("é\n") == []
    assert loaded(file, NOW + KEPT_MS + 30_000).of("billing")[0][0] == NOW + 30_000
    assert loaded(file, NOW + 2 * KEPT_MS).of("billing") == []
    assert loaded(file, NOW - 1).of("billing") == []  # the clock was set back


# Promise: console.md#see-how-a-log-is-doing
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[: len(data) // 2], id="half"),
        pytest.param(lambda data: b"x" + data, id="not compressed"),
        pytest.param(lambda data: zlib.compress(b"[]"), id="other JSON"),
        pytest.param(lambda data: zlib.compress(b'{"format": 2, "series": {}}'), id="newer"),
        pytest.param(lambda data: with_series([1, 2], [1]), id="a value is missing"),
        pytest.param(lambda data: with_series([NOW], [1 << 70]), id="too large a number"),
        pytest.param(lambda data: with_series([NOW + 10, -20], [1, 1]), id="backwards"),
        pytest.param(lambda data: zlib.compress(bytes(40 << 20), 1), id="a bomb"),
    ],
)
def test_a_damaged_file_is_survived(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Charts start empty, and the next save replaces the file."""
    file = HistoryFile(tmp_path, "cluster")
    file.save({"lags": noted()})
    file.path.write_bytes(damage(file.path.read_bytes()))
    assert loaded(file).of("billing") == []
    file.save({"lags": noted()})
    assert len(loaded(file).of("billing")) == 5


def with_series(times: list[int], values: list[int]) -> bytes:
    return zlib.compress(json.dumps({"format": 1, "series": {"lags": {"billing": [times, values]}}}).encode())


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody writes into it."""
    file = HistoryFile(tmp_path, "cluster")
    os.mkfifo(file.path)
    assert loaded(file).of("billing") == []


def test_a_place_that_cannot_be_written_is_survived(tmp_path: Path) -> None:
    """A file is in the place of the folder."""
    (tmp_path / "folder").write_text("")
    file = HistoryFile(tmp_path / "folder", "../odd/name")
    file.save({"lags": noted()})
    assert loaded(file).of("billing") == [] and file.path.parent == tmp_path / "folder"


def test_the_file_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of as many series as are kept; more than its limit is not written."""
    history = History()
    for n in range(240):
        history.note(NOW + 15_000 * n, {f"group-{i}": 1000 * i + n * (i % 7) for i in range(SERIES_MAX)})
    file = HistoryFile(tmp_path, "cluster")
    file.save({"lags": history})
    assert file.path.stat().st_size < 1 << 20
    assert loaded(file, NOW + KEPT_MS).of("group-499") == history.of("group-499")
    monkeypatch.setattr(history_file, "FILE_BYTES_MAX", 10)
    file.save({"lags": noted()})
    assert loaded(file).of("billing") == []


def test_the_folder_is_that_of_the_users_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Systemd's takes precedence."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert state_folder() == tmp_path / ".local" / "state" / "pylog" / "console"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_folder() == tmp_path / ".local" / "state" / "pylog" / "console"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert state_folder() == Path("/state/pylog/console")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/pylog:/var/lib/other")
    assert state_folder() == Path("/var/lib/pylog/console")


# Promise: console.md#see-how-a-log-is-doing
def test_the_lag_of_a_group_survives_a_restart(tmp_path: Path) -> None:
    """A second console shows what the first one has sampled."""
    with spark_log.connect(tmp_path / "log", durability="os") as log:
        log.append("t", [{"value": "x"}] * 5)
        log.admin.alter_consumer_group_offsets("billing", {TopicPartition("t", 0): 2})

        def history(site: Site) -> list[list[int]]:
            found: list[list[int]] = json.loads(site.ask(ANYBODY, "group", {"group": "billing"}))["history"]
            return found

        first = Site(lambda: log, folder=tmp_path / "state")
        eventually(lambda: len(history(first)) == 1)
        (sample,) = history(first)
        first.close()
        log.append("t", [{"value": "x"}] * 5)
        second = Site(lambda: log, folder=tmp_path / "state")
        eventually(lambda: len(history(second)) == 2)
        assert history(second)[0] == sample == [sample[0], 3] and history(second)[1][1] == 8
        second.close()
