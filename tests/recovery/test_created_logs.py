"""A log is created in a folder that was lost: it says so, it can be refused, and a mirror of the lost log survives."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark_pylog.options.parse import write_options
from pyspark_pylog.sink.log_of_query import journal_to_write

import spark_log
from spark_log import Log
from spark_log.errors import InvalidRequest, NoLog
from spark_log.maintenance.maintain import checkpoint, maintain_once
from spark_log.metadata.state import Leadership
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.repair import repair
from spark_log.serve.serve_config import read_config
from spark_log.server.coordinator import Coordinator, LeaderStatus
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS, LOG, checkpoint_version, log_key, log_version
from tests.cli.commands import Pylog

CREATED = "created a new log at"
OTHER_ID = 16 * "a1"


def a_log(folder: Path, values: str = "abc", topic: str = "t") -> Log:
    log = spark_log.connect(str(folder), durability="os")
    for value in values:
        log.append(topic, [{"value": value}])
    return log


def mirrored(log: Log, folder: Path) -> LocalStore:
    store = LocalStore(str(folder), durability="os")
    begin_mirror(log, store)
    Mirror(log, store).round()
    return store


def with_id(folder: Path, cluster_id: str, *, accept_loss: bool = False) -> None:
    def is_alive(holder: Leadership) -> bool:
        return False

    store = LocalStore(str(folder), durability="os")
    repair(store, is_alive=is_alive, cluster_id=cluster_id, accept_loss=accept_loss)


def forget_records(log: Log) -> None:
    """Checkpoints take the place of records, as after `gc.fence.age.ms`."""
    for _ in range(2):
        checkpoint(log)
        log.append("t", [{"value": "later"}])
    store = log.journal.metadata
    oldest = checkpoint_version(store.list(CHECKPOINTS)[0])
    store.delete([name for name in store.list(LOG) if log_version(name) <= oldest])


# Promise: storage-failures.md#when-the-disk-of-a-log-is-not-mounted
def test_a_new_log_is_announced_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "spark_log")
    a_log(tmp_path / "log", values="")
    a_log(tmp_path / "log")
    assert [CREATED in text for text in caplog.messages] == [True] and f"{tmp_path}/log" in caplog.text
    assert "in the folder of the log" not in caplog.text
    a_log(tmp_path / "log" / "t", values="")
    assert f"in the folder of the log at {tmp_path}/log, whose topics are not folders" in caplog.text


@pytest.mark.parametrize(
    "command", [["produce", "t"], ["topic", "create", "t"], ["bench", "produce", "t", "-n", "1"]], ids=" ".join
)
def test_commands_say_that_they_created_a_log_or_do_not_create_one(tmp_path: Path, command: list[str]) -> None:
    url = str(tmp_path / "log")
    refused = Pylog(url).run(*command, "--no-create", stdin="a\n")
    assert refused.exit_code == 1 and "there is no log at" in refused.stderr and not (tmp_path / "log").exists()
    assert Pylog(url).run(*command, stdin="a\n").exit_code == 0
    assert spark_log.connect(url, create=False).journal.state.names


def _spark(url: str) -> object:
    return journal_to_write(write_options({"path": url, "topic": "t", "create": "false"}, streaming=False))


def _coordinator(url: str) -> object:
    config = read_config(None, {"url": url, "create": "false"}, {})
    store = LocalStore(url, durability="os")
    return Coordinator(store, host="here", ask_leader=lambda holder: LeaderStatus.SILENT, create=config.create)


@pytest.mark.parametrize("opened", [_spark, _coordinator])
def test_a_writer_does_not_create_a_log_if_it_must_not(tmp_path: Path, opened: Callable[[str], object]) -> None:
    with pytest.raises(NoLog, match="there is no log at"):
        opened(str(tmp_path / "log"))
    assert not (tmp_path / "log").exists()


# Promise: copies.md#keep-a-mirror
def test_a_mirror_says_that_another_log_was_begun(tmp_path: Path) -> None:
    """A cron job wrote into the folder that was lost: nothing that the messages advise destroys the mirror."""
    log = a_log(tmp_path / "log")
    store, cluster_id = mirrored(log, tmp_path / "mirror"), log.journal.cluster_id
    log.close()
    shutil.rmtree(tmp_path / "log")
    log = a_log(tmp_path / "log", values="vwxyz")
    with pytest.raises(InvalidRequest) as found:
        Mirror(log, store)
    recovers, repairs = (str(found.value).index(f"pylog {name} ") for name in ("recover -u", "repair --cluster-id"))
    assert recovers < repairs
    log.close()
    with_id(tmp_path / "log", cluster_id)
    log = spark_log.connect(str(tmp_path / "log"))
    forget_records(log)
    with pytest.raises(
        InvalidRequest, match=r"has 3 records, and .* has none of its topics: another log was begun.*--catch-up --force"
    ):
        Mirror(log, store).round(catch_up=True)
    assert spark_log.connect(store.url).read("t").num_rows == 3
    recover(store, force=True)
    assert spark_log.connect(store.url).read("t").num_rows == 3


def test_a_mirror_is_replaced_by_force(tmp_path: Path) -> None:
    log = a_log(tmp_path / "log")
    store, cluster_id = mirrored(log, tmp_path / "mirror"), log.journal.cluster_id
    log.close()
    shutil.rmtree(tmp_path / "log")
    a_log(tmp_path / "log", values="vwxyz").close()
    with_id(tmp_path / "log", cluster_id)
    log = spark_log.connect(str(tmp_path / "log"))
    forget_records(log)
    assert Mirror(log, store).round(catch_up=True, force=True).behind == 0
    assert spark_log.connect(store.url).read("t").num_rows == 7


def test_a_repair_that_changed_the_id_is_recognised_by_the_topics(tmp_path: Path) -> None:
    log = a_log(tmp_path / "log")
    store, cluster_id = mirrored(log, tmp_path / "mirror"), log.journal.cluster_id
    log.append("t", [{"value": "d"}])
    log.close()
    with_id(tmp_path / "log", OTHER_ID)
    with pytest.raises(InvalidRequest, match=f"by a repair or a meta/format .*--cluster-id {cluster_id}"):
        Mirror(spark_log.connect(str(tmp_path / "log")), store)


def test_a_mirror_that_lacks_nothing_is_replaced_without_force(tmp_path: Path) -> None:
    """One topic was deleted, another one got records."""
    log = a_log(tmp_path / "log")
    log.append("u", [{"value": "x"}])
    store = mirrored(log, tmp_path / "mirror")
    log.admin.delete_topics(["u"])
    forget_records(log)
    assert Mirror(log, store).round(catch_up=True).behind == 0
    assert spark_log.connect(store.url).read("t").num_rows == log.read("t").num_rows == 5


def assert_only_force_replaces(log: Log, store: LocalStore, why: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"{why}.*--catch-up --force"):
        Mirror(log, store).round(catch_up=True)
    assert b"lost" in spark_log.connect(store.url).read("t")["value"].to_pylist()
    assert Mirror(log, store).round(catch_up=True, force=True).behind == 0
    append_more(log, 1)
    forget_records(log)
    assert Mirror(log, store).round(catch_up=True).behind == 0
    assert spark_log.connect(store.url).read("t").num_rows == log.read("t").num_rows


def append_more(log: Log, count: int) -> None:
    for number in range(count):
        log.append("t", [{"value": f"more {number}"}])


@pytest.mark.parametrize("later", [1, 9])
def test_a_mirror_that_may_have_what_was_given_up_is_not_replaced_without_force(tmp_path: Path, later: int) -> None:
    """Also if the log has more records than it has by then."""
    log = a_log(tmp_path / "log")
    log.append("t", [{"value": "lost"}])
    append_more(log, 1)
    store = mirrored(log, tmp_path / "mirror")
    log.close()
    LocalStore(str(tmp_path / "log")).delete([log_key(log.journal.state.version - 1)])
    with_id(tmp_path / "log", "", accept_loss=True)
    log = spark_log.connect(str(tmp_path / "log"))
    append_more(log, later)
    forget_records(log)
    assert_only_force_replaces(log, store, "lacks: lost versions of that log were given up since")


def test_a_mirror_of_a_log_that_was_set_back_is_not_replaced_without_force(tmp_path: Path) -> None:
    """Its records under the versions of the mirror are deleted by now, and it has as many others."""
    a_log(tmp_path / "log").close()
    shutil.copytree(tmp_path / "log", tmp_path / "snapshot")
    log = spark_log.connect(str(tmp_path / "log"))
    log.append("t", [{"value": "lost"}])
    store = mirrored(log, tmp_path / "mirror")
    log.close()
    shutil.rmtree(tmp_path / "log")
    shutil.move(tmp_path / "snapshot", tmp_path / "log")
    log = spark_log.connect(str(tmp_path / "log"))
    append_more(log, 9)
    forget_records(log)
    assert_only_force_replaces(log, store, "lacks: it was set back to an older copy")


def test_a_mirror_of_which_all_topics_were_deleted_is_replaced_by_force(tmp_path: Path) -> None:
    """Nothing says that it is the same log: the message names both cases."""
    log = a_log(tmp_path / "log")
    store = mirrored(log, tmp_path / "mirror")
    log.admin.delete_topics(["t"])
    maintain_once(log)  # until then, the log has the deleted topic
    forget_records(log)
    with pytest.raises(
        InvalidRequest, match="has none of its topics: another log was begun there, or all of .* deleted"
    ):
        Mirror(log, store).round(catch_up=True)
    assert Mirror(log, store).round(catch_up=True, force=True).behind == 0
    assert spark_log.connect(store.url).read("t").num_rows == 2
