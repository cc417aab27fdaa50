"""Opens logs: from the location in the options to a store and a journal, which a process keeps for the next task.

Spark runs successive micro-batches in the same few workers, and creates a writer for each, twice per commit.  Opening a
log reads its checkpoint and up to a hundred records; a kept journal needs one get, one listing, and a check that it is
still the same log.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from pyspark_pylog.driver_log import notice
from pyspark_pylog.options.parse import Location, ReadOptions
from spark_log.client.open_journal import open_journal, storage_url
from spark_log.clock import Clock
from spark_log.errors import StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store
from spark_log.store.retry import with_retries

KEPT_MAX = 4

_Key = tuple[str, str, tuple[tuple[str, str], ...], str, str | None]
"""The given URL, which may be a coordinator's; the storage's URL; the other fields of the location."""
_kept: OrderedDict[_Key, Journal] = OrderedDict()

Seen = TypeVar("Seen")


def store_of(location: Location) -> ObjectStore:
    """The store of the log's objects; a coordinator is asked for its location."""
    url = storage_url(location.url, location.token)
    return with_retries(open_store(url, dict(location.storage), location.durability))


def journal_of(location: Location, *, create: bool = False) -> Journal:
    storage = dict(location.storage)
    return open_journal(location.url, storage, location.token, create=create, durability=location.durability)


def kept_journal(location: Location, *, create: bool = False) -> Journal:
    """The log's journal with the state at its end, as if it had just been opened."""
    storage = tuple(sorted(location.storage.items()))
    key = (location.url, store_of(location).url, storage, location.durability, location.token)
    journal = _kept.pop(key, None)
    if journal is None or not journal.is_still_there():
        journal = journal_of(location, create=create)
    else:
        journal.refresh()
    _kept[key] = journal
    while len(_kept) > KEPT_MAX:
        _kept.popitem(last=False)
    return journal


def patiently(look: Callable[[], Seen], options: ReadOptions, clock: Clock) -> Seen:
    """Read from the log, with retries while the storage does not answer.  Raises StorageUnavailable in the end."""
    for number in range(1, options.tries):
        try:
            return look()
        except StorageUnavailable as error:
            notice(logging.WARNING, f"try {number} of {options.tries} (fetchOffset.numRetries): {error}")
            clock.sleep_ms(options.try_wait_ms)
    return look()
