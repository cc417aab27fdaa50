"""Administration that looked offsets up before the log was restored from an older copy, or set back to one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from simulation.harness.stores import Wrapper
from spark_log import Log, TopicPartition, connect
from spark_log.errors import ConcurrentChange
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import TRANSACTIONAL, InitProducer
from spark_log.store.local import LocalStore
from spark_log.store.object_names import LOG
from tests.maintenance.logs import append_small, new_log
from tests.restored import copy_of, restored, set_back

TP = TopicPartition("t", 0)
CALLS: dict[str, Callable[[Log], object]] = {
    "delete records": lambda log: log.admin.delete_records({TP: "@4102444800000"}),
    "move a group": lambda log: log.admin.alter_consumer_group_offsets("g", {TP: "latest"}),
    "erase": lambda log: log.admin.erase_records("t", [b"k0"]),
    "abort": lambda log: log.admin.abort_transaction("x"),
}


def snapshot(log: Log, folder: Path) -> Path:
    """The files of a log as they are now."""
    log.journal.finish_maintenance()
    return shutil.copytree(log.url.removeprefix("file://"), folder)


class Restore(NamedTuple):
    """How a log gets back to an older copy."""

    copy: Callable[[Log, Path], Path]
    restore: Callable[[str, Path], Log]


RESTORES = {
    "restored from a copy": Restore(copy_of, restored),
    "set back to an older copy": Restore(snapshot, set_back),
}


class RestoringStore(Wrapper):
    """Restores the log when a process begins to put a record, which has been decided then."""

    def __init__(self, inner: LocalStore) -> None:
        super().__init__(inner)
        self.restore: Callable[[], object] = list

    def put_new(self, key: str, data: bytes) -> bool:
        if key.startswith(LOG):
            self.restore, restore = list, self.restore
            restore()
        return self.inner.put_new(key, data)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("how", RESTORES)
@pytest.mark.parametrize("call", CALLS)
def test_what_was_found_in_the_lost_log_changes_nothing(tmp_path: Path, call: str, how: str) -> None:
    """The restored log has new records before these offsets, which would be deleted, erased, or skipped by the group,
    and another transaction of this epoch."""
    url, open_transactions = str(tmp_path / "log"), ExitStack()
    with new_log(tmp_path / "log") as log:
        append_small(log, 3)
        copy = RESTORES[how].copy(log, tmp_path / "copy")
        append_small(log, 5, first=3)
        log.journal.propose(InitProducer(producer=TRANSACTIONAL + "x", timeout_ms=60_000))

    def restore() -> None:
        other = open_transactions.enter_context(RESTORES[how].restore(url, copy))
        append_small(other, 12, first=100)
        open_transactions.enter_context(other.transaction("x")).append("t", [{"value": "from x"}])

    store = RestoringStore(LocalStore(tmp_path / "log", "os"))
    with open_transactions, Log(Journal.open(store, create=False)) as late:
        store.restore = restore
        with pytest.raises(ConcurrentChange, match=f"the log was {how} meanwhile.*run it again"):
            CALLS[call](late)
    with connect(tmp_path / "log") as found:
        assert found.admin.list_offsets({TP: "earliest"}) == {TP: 0}
        assert [one.group_id for one in found.admin.list_consumer_groups()] == []
        assert found.read("t").num_rows == 46
