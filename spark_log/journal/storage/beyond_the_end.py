"""Records behind the end of a log, with absent versions before them.

Each client puts a version only where it has found the ones before it, so absent versions are lost ones.  But a process
may still use a log while its folder is set back to an older copy.  It can put one record before it notices, and be
killed before it takes that back.  Such a record is of another line, as those are that follow another batch
(docs/decisions/0148-records-behind-the-end.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from spark_log.errors import CorruptObject, SparkLogError
from spark_log.journal.store_operations import PARALLEL, Get, List, Steps
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.lines import mark_of
from spark_log.metadata.records import Batch
from spark_log.metadata.restores import is_former
from spark_log.metadata.state import State
from spark_log.store.object_names import LOG, checkpoint_version, log_key, log_version

RANGES_MAX = 3
"""Ranges of missing versions that an error names."""


class Beyond(NamedTuple):
    """Records behind the end of a log.  Those of a log before a restore are in neither field."""

    strays: Mapping[str, Batch]
    """Each was left by a client of a log that was set back: no other record belongs to it."""
    chain: Sequence[str] = ()
    """The others: the versions before them are lost."""


def records_beyond(state: State, names: Iterable[str]) -> Steps[Beyond]:
    """The records of a listing behind the end of a log that ends at a state.

    A record is a stray if none before or after it belongs to it, and at least two versions are absent before it, or it
    is older than the log.  If one version is absent, it is rather that which is lost.
    """
    batches = yield from _read([name for name in names if log_version(name) > state.version])
    kept = {name: batch for name, batch in batches.items() if batch is None or not is_former(state, batch.history)}
    linked, strays = _linked(kept), dict[str, Batch]()
    for name, batch in kept.items() if log_key(state.version + 1) not in kept else ():
        is_far = log_version(name) > state.version + 2
        if batch is not None and (is_far or batch.time < state.time) and name not in linked:
            strays[name] = batch
    return Beyond(strays, [name for name in kept if name not in strays])


def listed_beyond(state: State) -> Steps[Beyond]:
    """All records behind the end of a log that ends at a state."""
    return (yield from records_beyond(state, (yield List(LOG))))


def _read(names: Sequence[str]) -> Steps[dict[str, Batch | None]]:
    """None: it is damaged.  Those that are gone by now are left out."""
    found = dict[str, Batch | None]()
    for at in range(0, len(names), PARALLEL):
        few = names[at : at + PARALLEL]
        for name, data in zip(few, (yield [Get(name) for name in few]), strict=True):
            if data is not None:
                found[name] = _decoded(data, name)
    return found


def _decoded(data: bytes, name: str) -> Batch | None:
    try:
        return decode_batch(data, name)
    except SparkLogError:
        return None


def _linked(batches: Mapping[str, Batch | None]) -> set[str]:
    """The records that follow the one before them, or that the next one follows: a damaged one may."""
    pairs = [(key, log_key(log_version(key) + 1)) for key in batches]
    return {key for pair in pairs if pair[1] in batches and _may_follow(*map(batches.get, pair)) for key in pair}


def _may_follow(first: Batch | None, second: Batch | None) -> bool:
    return first is None or second is None or second.after in ("", mark_of(first))


def is_of_lost_log(state: State, data: bytes, key: str) -> bool:
    """Whether a process that still used the log put a record, after it had been lost and restored from a copy."""
    batch = _decoded(data, key)
    return batch is not None and is_former(state, batch.history)


def without_lost_records(state: State, names: Sequence[str]) -> Steps[list[str]]:
    """The records of a listing without leftovers beyond the end of the log: of one before a restore, and strays."""
    there = [name for name in names if log_version(name) <= state.version]
    return [*there, *(yield from records_beyond(state, names)).chain]


def check_chain(state: State, checkpoint: str, names: Sequence[str]) -> None:
    """Raises CorruptObject if a version is missing after the newest checkpoint, among the existing records.

    names: a listing of `meta/log/` that began after the state was read; later commits are not a hole.
    """
    versions = {log_version(name) for name in names}
    end = max(versions | {state.version})
    missing = [v for v in range(checkpoint_version(checkpoint) + 1, end + 1) if v not in versions]
    if missing:
        raise CorruptObject(
            f"the metadata log has a hole: no records of {_ranges(missing)} are there, but version {end} is later. Restore "
            "them from a copy of the log, or run `pylog repair --dry-run`, which shows what is lost. If a record after "
            f"the hole is not of this log, move it out of {LOG}"
        )


def _ranges(versions: Sequence[int]) -> str:
    """`version 3`, `versions 4 to 98`; the first three ranges of several."""
    starts = [version for before, version in pairwise([-1, *versions]) if version != before + 1]
    ends = [version for version, after in pairwise([*versions, -1]) if after != version + 1]
    said = [f"versions {a} to {b}" if a != b else f"version {a}" for a, b in zip(starts, ends, strict=True)]
    return ", ".join(said[:RANGES_MAX]) + (f" and {len(said) - RANGES_MAX} more ranges" if said[RANGES_MAX:] else "")
