"""When the list says that an erasure is done, no file of data or metadata has keys or values of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.harness.clocks import ManualClock
from spark_log import Log, NewTopic, connect
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import collect_garbage, maintain_once
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.rpc.messages import SERVED
from spark_log.store.local import TEMPORARY, LocalStore
from tests.hidden_bytes import files_with, forms_of
from tests.replication.replicated_logs import replicated_log
from tests.services import Services
from tests.thinning import merge_all, seal_all

KEY = b"customer-1738"
SECRETS = (KEY, b"aaa-secret-person", b"header-of-person", b"zzz-secret-place", b"secret-tag")
DAY_MS = 24 * 3_600_000
SCHEMA = "name STRING, place STRING, tags ARRAY<STRING>"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "log", durability="os") as log:
        yield log


def rows(typed: bool, number: int) -> list[dict[str, object]]:
    """One record of the person among others.  Its columns are the least and the greatest ones."""
    found = []
    for n in range(5):
        key, first, last = b"other-%d" % n, f"m{number}-{n}", f"n{number}"
        tag, headers = "tag", [("h", b"other")]
        if n == 2 and number % 3 == 0:
            key, first, last, tag, headers = KEY, "aaa-secret-person", "zzz-secret-place", "secret-tag", []
            headers = [("h", b"header-of-person")]
        value = {"name": first, "place": last, "tags": [tag]} if typed else {"value": f"{first} {last} {tag}".encode()}
        found.append({"key": key, "partition": n % 3, "headers": headers, **value})
    return found


def fill(log: Log, typed: bool, compression: str, together: bool = True) -> None:
    """Small slices, sealed ones, merged ones.  Three partitions share indexes, and objects if `together`."""
    log.create_topic(NewTopic("people", 3, {"compression.type": compression}, schema=SCHEMA if typed else None))
    for number in range(12):
        some = rows(typed, number)
        for part in [some] if together else [[row] for row in some]:
            log.append("people", part)
        if number == 3:
            seal_all(log)
        if number == 6 and together:
            merge_all(log)
    seal_all(log)


def pass_the_fence(log: Log, topic: str = "people") -> None:
    """Until the list says that erasures are done."""
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for _ in range(6):
        log.append("more", [{"key": b"other", "value": b"more"}])
        maintain_once(log)
        if not log.admin.list_erasures():
            return
    raise AssertionError(log.admin.list_erasures())


def found_in(folder: Path) -> dict[str, list[str]]:
    return {text.decode(): names for text in SECRETS for cut in [text[:14]] if (names := files_with(folder, cut))}


# Promise: tasks/erase.md#when-the-records-are-gone
@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
@pytest.mark.parametrize("typed", [False, True])
def test_no_file_has_the_records(log: Log, tmp_path: Path, typed: bool, compression: str) -> None:
    """Statistics have the least and the greatest value of columns: in segments, slice indexes, records, checkpoints."""
    fill(log, typed, compression)
    assert set(found_in(tmp_path)) == {text.decode() for text in SECRETS}
    assert log.admin.erase_records("people", [KEY]).records == 4
    pass_the_fence(log)
    assert found_in(tmp_path) == {}


# Promise: tasks/erase.md#when-the-records-are-gone
def test_indexes_and_checkpoints_of_before(log: Log, tmp_path: Path) -> None:
    """The partitions share an index, and each object has one of them: the index stays, as the others need it.  Garbage
    collection alone writes no second checkpoint."""
    fill(log, typed=True, compression="zstd", together=False)
    assert log.admin.erase_records("people", [KEY]).records == 4
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    while log.admin.list_erasures():
        log.append("more", [{"key": b"other", "value": b"more"}])
        collect_garbage(log)
    assert found_in(tmp_path) == {}


# Promise: tasks/erase.md#when-the-records-are-gone
@pytest.mark.parametrize("folder", ["meta/ckpt", "meta/log", "meta/pin"])
def test_a_file_of_the_metadata_whose_writer_died_keeps_an_erasure_open(log: Log, tmp_path: Path, folder: str) -> None:
    """It has statistics of the records.  Maintenance deletes it after an hour."""
    fill(log, typed=True, compression="none")
    left = tmp_path / "log" / folder / f"{TEMPORARY}1"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"statistics: aaa-secret-person")
    assert log.admin.erase_records("people", [KEY]).records == 4
    with pytest.raises(AssertionError, match="the metadata"):
        pass_the_fence(log)
    assert found_in(tmp_path) == {"aaa-secret-person": [f"log/{folder}/{left.name}"]}
    os.utime(left, (0, 0))
    pass_the_fence(log)
    assert found_in(tmp_path) == {}


# Promise: tasks/erase.md#when-the-records-are-gone
def test_a_client_of_a_coordinator_does_not_end_what_only_the_coordinator_can(tmp_path: Path) -> None:
    """Its erasure and its maintenance wait for nothing; the list names the metadata until maintenance ran."""
    services = Services()
    try:
        coordinator = services.start(tmp_path / "log", metadata=SERVED).coordinator
        with connect(f"pylog://{coordinator.address}") as log:
            fill(log, typed=True, compression="none")
            assert log.admin.erase_records("people", [KEY]).problems == ()
            with pytest.raises(AssertionError, match="the metadata"):
                pass_the_fence(log)
            (listed,) = log.admin.list_erasures()
            assert [text.startswith("the metadata") for text in listed.waits_for] == [True]
            assert all("/meta/" in name for names in found_in(tmp_path).values() for name in names) and found_in(
                tmp_path
            )
            assert [*listed.problems(listed.gone_by_ms)] == []
            (problem,) = listed.problems(listed.gone_by_ms + 1)
            assert "the coordinator deletes them with its maintenance" in problem and "`pylog maintain`" not in problem
            while log.admin.list_erasures():
                log.append("more", [{"key": b"other", "value": b"more"}])
                with coordinator.open_log() as maintenance:
                    maintain_once(maintenance)
            assert found_in(tmp_path) == {}
    finally:
        services.close()


# Promise: tasks/erase.md#when-the-records-are-gone
def test_files_that_a_repair_has_put_aside_go_with_the_statistics(log: Log, tmp_path: Path) -> None:
    fill(log, typed=True, compression="none")
    aside = tmp_path / "log" / "meta" / "damaged" / "log-00000000000000000007.rec"
    aside.parent.mkdir()
    aside.write_bytes(b"statistics: aaa-secret-person")
    assert log.admin.erase_records("people", [KEY]).records == 4
    pass_the_fence(log)
    assert found_in(tmp_path) == {}


# Promise: tasks/erase.md#copies-elsewhere
@pytest.mark.parametrize("typed", [False, True])
def test_a_mirror_has_nothing_when_the_log_has_nothing(tmp_path: Path, typed: bool) -> None:
    """It follows the log every hour.  Copies that came late, and files of copies that died, go as well."""
    clock = ManualClock(int(time.time() * 1000))
    log = Log(Journal.open(LocalStore(str(tmp_path / "log"), "os"), create=True, clock=clock))
    log.admin.incremental_alter_configs({None: {"log.clock.skew.max.ms": str(7 * DAY_MS)}})
    begin_mirror(log, LocalStore(str(tmp_path / "mirror"), "os"))
    mirror = Mirror(log, LocalStore(str(tmp_path / "mirror"), "os"))
    mirror.round()
    fill(log, typed, compression="zstd")
    log.append("people", rows(typed, 0))
    mirror.round()
    data = next((tmp_path / "mirror" / "data").iterdir())
    left = [data / f"{'0' * 16}-{'1' * 16}.seg", data / f"{TEMPORARY}1"]
    assert log.admin.erase_records("people", [KEY]).records == 5
    for hour in range(36):
        log.append("more", [{"key": b"other", "value": b"more"}])
        mirror.round()
        maintain_once(log)
        if hour == 5:
            for path in left:
                path.write_bytes(SECRETS[1])
        clock.ms += DAY_MS // 24
    mirror.round()
    assert log.admin.list_erasures() == []
    assert found_in(tmp_path) == {}


# Promise: tasks/erase.md#when-the-records-are-gone
def test_processes_that_are_killed_leave_nothing_in_folders_of_their_own(tmp_path: Path) -> None:
    """Clients have no caches of records on a disk: what they spool is in files without names."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    env = os.environ | {"HOME": str(home), "TMPDIR": str(temporary)}
    env |= {name: str(home / name) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    for folder in (home, temporary):
        folder.mkdir()
    ran = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "log")], env=env, cwd=home, timeout=120)
    assert ran.returncode == -signal.SIGKILL
    assert found_in(tmp_path / "log")
    assert found_in(home) == found_in(temporary) == {}


KILLED = """
import os, signal, sys
from spark_log import connect

row = {"key": b"customer-1738", "value": b"aaa-secret-person" + bytes(100)}
with connect(sys.argv[1]) as log:
    log.append("people", [row] * 100_000, compression="none")
    assert log.consumer("people", group_id="g", auto_offset_reset="earliest").poll()
    with log.transaction("t") as transaction:
        transaction.append("people", [row] * 200_000)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_search_finds_a_text_in_all_its_forms(tmp_path: Path) -> None:
    for form in forms_of(b"secret-person"):
        (tmp_path / "file").write_bytes(b"x" + form + b"y")
        assert files_with(tmp_path, b"secret-person") == ["file"]


@pytest.mark.parametrize("typed", [False, True])
def test_no_root_of_a_broker_and_no_compacted_topic_has_the_records(tmp_path: Path, typed: bool) -> None:
    """The roots of the brokers and the log's own are beside each other."""
    log = replicated_log(tmp_path)
    configs = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
    log.create_topic(NewTopic("people", 3, configs, replication_factor=2, schema=SCHEMA if typed else None))
    for number in range(7):
        log.append("people", rows(typed, number))
        if number == 3:
            seal_all(log)
            maintain_once(log)
    assert found_in(tmp_path)
    assert log.admin.erase_records("people", [KEY]).records
    pass_the_fence(log)
    assert found_in(tmp_path) == {}
