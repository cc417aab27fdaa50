"""Administration that looked offsets up before the log was restored from an older copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.harness.stores import Wrapper
from spark_log import Log, TopicPartition, connect
from spark_log.errors import ConcurrentChange
from spark_log.journal.journal import Journal
from spark_log.store.local import LocalStore
from spark_log.store.object_names import LOG
from tests.maintenance.logs import append_small, new_log
from tests.restored import copy_of, restored

TP = TopicPartition("t", 0)
CALLS: dict[str, Callable[[Log], object]] = {
    "delete records": lambda log: log.admin.delete_records({TP: "@4102444800000"}),
    "move a group": lambda log: log.admin.alter_consumer_group_offsets("g", {TP: "latest"}),
}


class RestoringStore(Wrapper):
    """Restores the log when a process begins to put a record, which has been decided then."""

    def __init__(self, inner: LocalStore, copy: Path) -> None:
        super().__init__(inner)
        self.copy = copy

    def put_new(self, key: str, data: bytes) -> bool:
        if key.startswith(LOG) and self.copy.exists():
            with restored(self.inner.url.removeprefix("file://"), self.copy) as other:
                append_small(other, 12, first=100)
        return self.inner.put_new(key, data)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("call", CALLS)
def test_offsets_of_the_lost_log_change_nothing(tmp_path: Path, call: str) -> None:
    """The restored log has new records before them: they would be deleted, or skipped by the group."""
    with new_log(tmp_path / "log") as log:
        append_small(log, 3)
        copy = copy_of(log, tmp_path / "copy")
        append_small(log, 5, first=3)
    store = RestoringStore(LocalStore(tmp_path / "log", "os"), tmp_path / "unarmed")
    with Log(Journal.open(store, create=False)) as late:
        store.copy = copy
        with pytest.raises(ConcurrentChange, match="the log was restored from a copy meanwhile.*run it again"):
            CALLS[call](late)
    with connect(tmp_path / "log") as found:
        assert found.admin.list_offsets({TP: "earliest"}) == {TP: 0}
        assert [one.group_id for one in found.admin.list_consumer_groups()] == []
        assert found.read("t").num_rows == 45
