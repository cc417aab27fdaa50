"""Opens logs in the driver: from the location in the options to a journal.  A process keeps journals for later calls.

Spark runs successive micro-batches in the same few workers, and creates a writer for each, twice per commit.  So it
does with the frames of batch reads.  Opening a log reads its checkpoint and up to a hundred records, in three rounds of
requests; a kept journal takes one round if nothing has changed, which also shows that it is still the same log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pyspark_pylog.driver_log import notice
from pyspark_pylog.log.planned_log import HoldersByState, PlannedLog, PlannedRoots
from pyspark_pylog.options.parse import Location, ReadOptions
from spark_log.client.open_journal import open_journal, storage_url
from spark_log.errors import LogRestored, StorageUnavailable
from spark_log.http.address import is_coordinator
from spark_log.journal.journal import Journal
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import State
from spark_log.roots.root_options import RootOptions
from spark_log.runtime.clock import Clock
from spark_log.store.open import open_store

KEPT_MAX = 4

Key = tuple[str, str | None, PlannedRoots]
"""The URL of the metadata log, the token, and the roots."""

Seen = TypeVar("Seen")


class KeptJournals:
    """The journals that this process used last.  Safe for threads, and without a lock that a fork would copy."""

    def __init__(self) -> None:
        self._journals: dict[Key, Journal] = {}
        """The one that was used last is the last."""

    def __len__(self) -> int:
        return len(self._journals)

    def get(self, key: Key) -> Journal | None:
        """The journal as it was left."""
        return self._journals.get(key)

    def refreshed(self, key: Key, open_log: Callable[[], Journal], *, peek: bool = False) -> Journal:
        """The journal with the state at the end of the log, as if it had just been opened.

        peek:  bring only `newest` there, in fewer rounds of requests; `state` may be behind.
        """
        journal = self._journals.get(key)  # it stays: other threads continue to use it meanwhile
        try:
            if journal is None or not journal.refresh_if_there(peek=peek):
                journal = open_log()
        except BaseException:
            self._journals.pop(key, None)
            raise
        self._journals.pop(key, None)
        self._journals[key] = journal
        for oldest in tuple(self._journals)[:-KEPT_MAX]:
            self._journals.pop(oldest, None)
        return journal


KEPT = KeptJournals()


def journal_of(location: Location, *, create: bool = False) -> Journal:
    storage = dict(location.storage)
    return open_journal(
        location.url,
        storage,
        location.token,
        create=create,
        durability=location.durability,
        client_rack=location.rack,
    )


def kept_journal(location: Location, *, create: bool = False, peek: bool = True) -> Journal:
    """The journal of a log, which this process keeps, with `newest` at the end of the log.

    A coordinator is asked only once per process where its storage is.

    create:  create the log if there is none.
    peek:    if True, only `newest` is brought to the end of the log, and `state` may be behind.  A read passes False:
             `state` is brought there too, at the price of a second round of requests if there are new records.
    """
    root = root_of(location)
    return KEPT.refreshed(_key(location, root), lambda: journal_of(location, create=create), peek=peek)


def root_of(location: Location) -> str:
    """The URL of the log's own root, in one spelling; a coordinator tells it, once per process."""
    options = RootOptions.of(dict(location.storage), location.durability).own()
    return open_store(storage_url(location.url, location.token), options, location.durability).url


def journal_to_read(location: Location, *, peek: bool = False) -> Journal:
    """`kept_journal` for a read.  It has no commits to compare with a restored copy of the log: it opens the copy."""
    try:
        return kept_journal(location, peek=peek)
    except LogRestored:
        return kept_journal(location, peek=peek)


def planned_log(location: Location, journal: Journal, state: State | None = None) -> PlannedLog:
    """The log for tasks that are planned by a state or a later one; None: the journal's."""
    state = journal.state if state is None else state
    roots = journal.roots
    served = journal.metadata_log.is_served
    now_ms = journal.context.clock.now_ms()
    key = _key(location, roots.own.url)
    log = PlannedLog(*key, journal.cluster_id, state.version, now_ms, history_of(state), served)
    if not roots.brokers:
        return log
    brokers = tuple(sorted(roots.brokers.items()))
    return replace(log, brokers=brokers, rack=location.rack, holders=HoldersByState(roots))


def _key(location: Location, root: str) -> Key:
    """A relative path is resolved: the same text is another log in another working directory."""
    url = location.url if is_coordinator(location.url) else root
    storage = RootOptions.of(dict(location.storage), location.durability).at(root).storage
    return url, location.token, PlannedRoots(((0, root),), storage, location.durability)


def patiently(look: Callable[[], Seen], options: ReadOptions, clock: Clock) -> Seen:
    """Read from the log, with retries while the storage does not answer.  Raises StorageUnavailable in the end."""
    for number in range(1, options.tries):
        try:
            return look()
        except StorageUnavailable as error:
            notice(logging.WARNING, f"try {number} of {options.tries} (fetchOffset.numRetries): {error}")
            clock.sleep_ms(options.try_wait_ms)
    return look()
