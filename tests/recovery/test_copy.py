"""A log that is copied while it is used, as docs/copies.md says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_log import connect
from spark_log.maintenance.maintain import checkpoint, maintain_once
from spark_log.model import NewTopic
from spark_log.recovery.repair import repair
from spark_log.recovery.verify import verify
from spark_log.recovery.verify_repair import verify_and_repair
from spark_log.store.local import LocalStore
from spark_log.store.object_names import FORMAT_KEY
from tests.cli.commands import Pylog
from tests.maintenance.logs import append_small, new_log
from tests.services import Services


@pytest.fixture
def services() -> Iterator[Services]:
    found = Services()
    yield found
    found.close()


def copying(source: Path, target: Path) -> Iterator[None]:
    """Copy in the order that the page names; what happens at each `yield` happens meanwhile."""
    (target / "meta").mkdir(parents=True)
    shutil.copy(source / FORMAT_KEY, target / FORMAT_KEY)
    for part in ("meta/log", "meta/ckpt", "data"):
        yield
        if (source / part).exists():  # a new log has no checkpoint
            shutil.copytree(source / part, target / part)


# Promise: copies.md#copy-a-log
@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_a_copy_of_a_log_in_use_has_all_that_its_metadata_names(tmp_path: Path, checkpoints: int) -> None:
    """Others may append, merge, delete and checkpoint meanwhile; `repair` covers records after a checkpoint."""
    log, source, target = new_log(tmp_path / "log"), tmp_path / "log", tmp_path / "copy"
    append_small(log, 10)
    checkpoint(log)
    append_small(log, 4, first=10)
    sure = log.read("t").num_rows
    for step, _ in enumerate(copying(source, target)):
        log.create_topic(NewTopic(f"gone{step}", 1))
        append_small(log, 9, first=100 * (1 + step))
        log.append(f"gone{step}", [{"value": b"x"}])
        log.admin.delete_topics([f"gone{step}"])
        maintain_once(log)
        for _ in range(checkpoints):
            append_small(log, 1, first=100 * (2 + step))
            checkpoint(log)
    copy = connect(str(target))
    assert any("lost: clients that had read version" in str(row) for row in verify(copy))
    given_up = verify_and_repair(copy, repair=True, lose_data=True)
    assert given_up.given_up == () and given_up.lost is not None
    report = repair(LocalStore(str(target), "os"), is_alive=lambda holder: False)
    assert report.lost == ()
    copy = connect(str(target))
    assert verify(copy, deep=True) == []
    values = copy.read("t")["value"].to_pylist()
    assert len(values) >= sure and values == log.read("t")["value"].to_pylist()[: len(values)]


# Promise: copies.md#copy-a-log
def test_a_copy_is_released_from_the_coordinator_of_the_log(tmp_path: Path, services: Services) -> None:
    """Its clients then write to the copy, and the coordinator's log is as before."""
    source, target = tmp_path / "log", tmp_path / "copy"
    log = connect(services.url(source))
    record = [{"value": b"x"}]
    log.append("t", record)
    list(copying(source, target))
    pylog = Pylog(target)
    assert "no problems" in pylog.ok("verify", "--deep")
    assert pylog.json("cluster", "release", "--force") == {"released": True}
    pylog.ok("produce", "t", stdin="of the copy\n")
    assert pylog.ok("consume", "t") == "x\nof the copy\n"
    log.append("t", record)
    assert log.read("t")["value"].to_pylist() == [b"x", b"x"]
