"""Journals that this process keeps open.

Spark serves one micro-batch after the other from the same few workers, and asks for the writer anew each time, twice on the
way to a commit.  To open a log is to read its checkpoint and up to a hundred records; to go on from what is known is one get,
one listing, and a look whether it is still the same log.
"""

from __future__ import annotations

from collections import OrderedDict

from pyspark_pylog.batch import journal_of, store_of
from pyspark_pylog.options import Location
from spark_log.journal.journal import Journal

KEPT_MAX = 4

_Key = tuple[str, str, tuple[tuple[str, str], ...], str, str | None]
"""The URL as it was given, which may be a coordinator's; the storage's; the other fields of the location."""
_kept: OrderedDict[_Key, Journal] = OrderedDict()


def kept_journal(location: Location, *, create: bool = False) -> Journal:
    """The log's journal with the state at its end, as if it had been opened now."""
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
