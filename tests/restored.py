"""Logs that are restored from an older copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import spark_log
from spark_log.node.mirror import Mirror, begin_mirror, recover
from spark_log.store.local import LocalStore


def copy_of(log: spark_log.Log, folder: Path) -> Path:
    """A mirror of the log as it is now."""
    store = LocalStore(folder)
    begin_mirror(log, store)
    Mirror(log, store).round()
    return folder


def restored(url: str, copy: Path) -> spark_log.Log:
    """The log at this URL as its mirror has it, after `pylog recover`."""
    shutil.rmtree(url)
    recover(LocalStore(copy))
    copy.rename(url)
    return spark_log.connect(url)


def set_back(url: str, copy: Path) -> spark_log.Log:
    """The log at this URL as a snapshot of its disk has it."""
    shutil.rmtree(url)
    shutil.copytree(copy, url)
    return spark_log.connect(url)


def set_back_and_written(log: spark_log.Log, copy: Path, until: int) -> None:
    """Set the log of a process back, while it sleeps; others then write as many versions as it knows."""
    with set_back(log.url.removeprefix("file://"), copy) as other:
        while other.journal.state.version <= until:
            other.admin.create_topics([spark_log.NewTopic(f"new-{other.journal.state.version}", 1)])
