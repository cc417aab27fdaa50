"""Logs that are restored from an older copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import spark_log
from spark_log.client.consumer.consumer import Consumer
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.store.local import LocalStore


def copy_of(log: spark_log.Log, folder: Path) -> Path:
    """A mirror of the log as it is now."""
    store = LocalStore(folder)
    begin_mirror(log, store)
    Mirror(log, store).round()
    return folder


def values(consumer: Consumer, wanted: int) -> list[bytes | None]:
    """The values that a consumer gets until it has as many as are wanted, or for twelve seconds."""
    found: list[bytes | None] = []
    for _ in range(60):
        found += [record.value for records in consumer.poll(200).values() for record in records]
        if len(found) >= wanted:
            break
    return found


def lose(url: str) -> None:
    """Delete a log as a whole: a process that uses it could write while its files are deleted one by one."""
    lost = Path(f"{url} was lost")
    Path(url).rename(lost)
    shutil.rmtree(lost)


def restored(url: str, copy: Path) -> spark_log.Log:
    """The log at this URL as its mirror has it, after `pylog recover`."""
    lose(url)
    recover(LocalStore(copy))
    copy.rename(url)
    return spark_log.connect(url)


def set_back(url: str, copy: Path) -> spark_log.Log:
    """The log at this URL as a snapshot of its disk has it."""
    lose(url)
    shutil.copytree(copy, url)
    return spark_log.connect(url)


def set_back_and_written(log: spark_log.Log, copy: Path, until: int) -> None:
    """Set the log of a process back, while it sleeps; others then write as many versions as it knows."""
    with set_back(log.url.removeprefix("file://"), copy) as other:
        while other.journal.state.version <= until:
            other.admin.create_topics([spark_log.NewTopic(f"new-{other.journal.state.version}", 1)])
