"""Builders: logs on local disks, topics, and what is in them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import spark_log
from simulation.harness.stores import Faults, FaultyStore
from spark_log.journal.journal import Journal
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from tests.services import Services

services: Services | None = None
"""Where logs are served; None: they are embedded.  Set by the fixture `way`."""


by_topic = False
"""Whether the clients of served logs hold topics only, whatever else a test does with its log."""


class LogByTopic(spark_log.Log):
    """Its clients hold topics.  Code that needs the whole state gets another journal, as in another process."""

    whole: spark_log.Log

    @property
    def journal(self) -> Journal:
        return self.whole.journal

    def close(self) -> None:
        super().close()
        self.whole.close()


def open_log(url: str) -> spark_log.Log:
    """A log that exists."""
    log = spark_log.connect(url)
    if not by_topic:
        return log
    found = LogByTopic(log._journal)
    found.whole = spark_log.connect(url)
    return found


def new_log(folder: Path, **topics: int) -> spark_log.Log:
    """A log with topics, by name their partition count."""
    log = open_log(log_url(folder))
    if topics:
        log.admin.create_topics([spark_log.NewTopic(name, count) for name, count in topics.items()])
    return log


def log_url(folder: Path) -> str:
    """Of the storage, or of the coordinator, which is started if there is none."""
    return str(folder / "log") if services is None else services.url(folder / "log")


def log_on(store: ObjectStore) -> spark_log.Log:
    """A log on a store of the test's making."""
    return spark_log.Log(Journal.open(store, create=True, clock=SystemClock(), rng=random.Random(7)))


class Flaky(FaultyStore):
    """Loses as much as the test wants at the time."""

    def turn(self, faults: Faults) -> None:
        self._faults = faults


def quick_store(folder: Path) -> LocalStore:
    """A local store that does not wait for the disk."""
    return LocalStore(str(folder / "log"), "os")


def values(log: spark_log.Log, topic: str) -> list[bytes]:
    """All values of a topic, partition by partition."""
    return list(log.read(topic, columns=["value"]).column("value").to_pylist())


def in_child(work: Callable[[], object]) -> int:
    """Exit status of a forked child that does `work`: 0 if it raised nothing."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - whatever it is, the parent hears of it
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
