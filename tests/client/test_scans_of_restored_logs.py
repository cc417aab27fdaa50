"""Reads during which their log is restored from an older copy, and gets other records at the offsets that they read."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from spark_log import NewTopic
from spark_log.client.reader.latest import scan_latest
from spark_log.errors import ConcurrentChange
from tests.restored import copy_of, restored

KEPT, LOST = 30, 30


class Restored:
    """A log with a reader, and a copy that has half of its records, each in an object."""

    def __init__(self, folder: Path) -> None:
        self._url = str(folder / "log")
        self.log = spark_log.connect(self._url, durability="os")
        self.log.create_topic(NewTopic("t", 1))
        self._append("kept", KEPT)
        self._copy = copy_of(self.log, folder / "copy")
        self._append("lost", LOST)

    def _append(self, what: str, count: int) -> None:
        for number in range(count):
            self.log.append("t", [{"key": f"{what}{number}", "value": f"{what}{number}"}])

    def restore(self) -> None:
        """With new records up to the end that it had, and further."""
        with restored(self._url, self._copy) as log:
            for number in range(LOST + 1):
                log.append("t", [{"key": f"new{number}", "value": f"new{number}"}])


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_scan_does_not_mix_records_of_two_histories(tmp_path: Path) -> None:
    log = Restored(tmp_path)
    scan = log.log.scan("t")
    assert scan.read_next_batch()["value"].to_pylist() == [b"kept0"]
    log.restore()
    with pytest.raises(
        ConcurrentChange, match=r"t-0 cannot be read on: the log was restored from a copy that ended at 30"
    ):
        scan.read_all()
    values = log.log.read("t")["value"].to_pylist()
    assert values[KEPT - 1 : KEPT + 1] == [b"kept29", b"new0"] and len(values) == KEPT + LOST + 1


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_view_of_the_latest_records_does_not_mix_them(tmp_path: Path) -> None:
    log = Restored(tmp_path)
    scan = scan_latest(log.log.journal, "t", None, "latest", ["value"], None)
    log.restore()
    with pytest.raises(ConcurrentChange):
        scan.read_all()


def test_a_scan_of_what_the_copy_has_continues(tmp_path: Path) -> None:
    log = Restored(tmp_path)
    scan = log.log.scan("t", end=KEPT)
    log.restore()
    assert scan.read_all()["value"].to_pylist() == [b"kept%d" % number for number in range(KEPT)]
