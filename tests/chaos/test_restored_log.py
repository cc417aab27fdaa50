"""A log with a coordinator that is restored from an older copy, while a client continues."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import LogRestored
from tests.processes import Process, eventually, free_port


class Restorable:
    """A coordinator, a copy of its log, a client that writes and a consumer that the coordinator tells of changes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._copy, self._port = folder / "log", folder / "copy", free_port()
        self._start()
        self.url = f"pylog://{self._leader.address}"
        self.log, self._writer = (spark_log.connect(self.url) for _ in range(2))
        self._consumer = self.log.consumer("t", auto_offset_reset="earliest")
        self._received = list[bytes | None]()
        self._writer.append("t", [{"value": b"kept"}])

    def _start(self) -> None:
        self._leader = Process(self._folder, self._port)
        eventually(lambda: self._leader.leads)

    def copy(self) -> None:
        shutil.copytree(self._folder, self._copy)

    def take_over(self) -> None:
        """Another process leads, with the next epoch."""
        self._leader.kill()
        self._start()

    def lose(self, records: int) -> None:
        """Append records that are not in the copy, and wait until the consumer has them."""
        for number in range(records):
            self._writer.append("t", [{"value": b"lost %d" % number}])
        eventually(lambda: self.has_received(b"lost %d" % (records - 1)))

    def restore(self) -> None:
        self._leader.kill()
        shutil.rmtree(self._folder)
        shutil.copytree(self._copy, self._folder)
        self._start()

    def has_received(self, value: bytes) -> bool:
        self._received.extend(record.value for records in self._consumer.poll(200).values() for record in records)
        return value in self._received

    def end(self) -> None:
        self._leader.kill()


@pytest.fixture
def restorable(tmp_path: Path) -> Iterator[Restorable]:
    found = Restorable(tmp_path)
    yield found
    found.end()


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("take_overs", [0, 1, 2])
def test_a_reader_that_follows_a_coordinator_notices_that_the_log_was_restored(
    restorable: Restorable, caplog: pytest.LogCaptureFixture, take_overs: int
) -> None:
    """It does not apply the changes of the restored log to a state that this log never had.

    After one take-over since the copy, the coordinator of the restored log has the same epoch as the one before.
    """
    restorable.copy()
    for _ in range(take_overs):
        restorable.take_over()
    restorable.lose(5)
    restorable.restore()
    with spark_log.connect(restorable.url) as other, caplog.at_level(logging.WARNING, "spark_log"):
        for number in range(8):
            other.append("t", [{"value": b"new %d" % number}])
        eventually(lambda: restorable.has_received(b"new 7"))
        assert restorable.log.journal.state == other.journal.refresh()
    assert "an older copy of the log was restored" in caplog.text


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("take_overs", [0, 1])
def test_a_reader_that_is_ahead_of_a_restored_log_says_so_and_waits(
    restorable: Restorable, take_overs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It continues where the copy ended, as soon as the log has as many versions as it knows."""
    restorable.copy()
    for _ in range(take_overs):
        restorable.take_over()
    restorable.lose(5)
    restorable.restore()
    eventually(lambda: not restorable.has_received(b"new 0") and "which this consumer has read" in caplog.text)
    with spark_log.connect(restorable.url) as other:
        for number in range(8):
            other.append("t", [{"value": b"new %d" % number}])
    eventually(lambda: restorable.has_received(b"new 0"))


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_writer_that_is_ahead_of_a_restored_log_raises(restorable: Restorable) -> None:
    """None of its commits is in the restored log: the coordinator refuses what began beyond the log's versions."""
    restorable.copy()
    restorable.take_over()
    restorable.lose(5)
    restorable.restore()
    for _ in range(4):
        with pytest.raises(LogRestored, match="an older copy of the log was restored") as raised:
            restorable.log.append("t", [{"value": b"refused"}])
        assert not raised.value.maybe_applied
    with spark_log.connect(restorable.url) as other:
        for number in range(8):
            other.append("t", [{"value": b"new %d" % number}])
        restorable.log.append("t", [{"value": b"again"}])  # the log has more versions than this process had seen
        found = other.read("t", columns=["value"])["value"].to_pylist()
    assert found == [b"kept", *(b"new %d" % number for number in range(8)), b"again"]
