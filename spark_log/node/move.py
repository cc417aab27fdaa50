"""A log moves to another storage.

A mirror there catches up, the log ends with a record that names the new place, and the mirror becomes the log.

The record is a take-over whose address is the new URL.  So nothing that anybody writes in the former place afterwards
counts, and every process that reads the record knows where the log is.  Uploads that began before are in the former
place only, and the fence of the new one rejects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from spark_log.client.log import Log
from spark_log.errors import InvalidRequest, NoLog, StorageError, UnsupportedVersion
from spark_log.journal.journal import Journal
from spark_log.journal.object_names import FORMAT_KEY
from spark_log.journal.storage_log import StorageLog
from spark_log.metadata.decide.coordinators import ARRIVED, MOVED, moved_to
from spark_log.metadata.decide.decision import Decision
from spark_log.metadata.features import METADATA_VERSION, REPLICAS
from spark_log.metadata.records import FenceRecord
from spark_log.metadata.state import State
from spark_log.node.mirror import Mirror, begin_mirror, format_of
from spark_log.node.rewrite import Progress
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store
from spark_log.store.probe import probe

NEAR = 16
"""The log is closed when the mirror is at most so many versions behind."""
ROUNDS = 20
"""Rounds of copying before a log that is written too fast is closed anyway."""


@dataclass(frozen=True, slots=True)
class MovedLog:
    """A log in its new place."""

    url: str
    version: int
    """Of the last commit in the former place."""
    closed_ms: int
    """How long nothing could be written."""


def move_log(log: Log, store: ObjectStore, progress: Progress | None = None) -> MovedLog:
    """Move a log to an empty folder or prefix, or to a mirror of it.  If this is killed, run it again.

    log:  opened without a link to a coordinator.
    Raises InvalidRequest for a log that cannot be moved, or a place that has something else.
    """
    journal, clock = log.journal, log.journal.context.clock
    before = moved_to(journal.refresh().coordinator)
    if before not in ("", store.url):
        raise InvalidRequest(f"{journal.metadata.url} was moved to {before} already")
    if not before:
        _check(journal.state)
        _come_near(log, store, progress)
        _check(journal.state)
    began_ms = clock.monotonic_ms()
    if not before:
        journal.take_over(journal.state.coordinator.epoch, MOVED + store.url, host="")
    form = format_of(store)
    if form is not None and form.mirrors:  # otherwise an earlier run has ended the move
        if _version(store) <= journal.state.version:
            Mirror(log, store).round(progress)
        _open_there(log, store)
    return MovedLog(store.url, journal.state.version, clock.monotonic_ms() - began_ms)


def cancel_move(log: Log, options: Mapping[str, Any] | None = None) -> None:
    """Open a log in its former place again, after a move that cannot be ended.

    log:      as for `move_log`.
    options:  of the new storage, which is looked at if it can be reached.
    Raises InvalidRequest if the log is not being moved, or is in its new place already.
    """
    journal = log.journal
    url = moved_to(journal.refresh().coordinator)
    if not url:
        raise InvalidRequest(f"{journal.metadata.url} is not being moved")
    try:
        form = format_of(open_store(url, options))
    except (StorageError, UnsupportedVersion):
        form = None
    if form is not None and not form.mirrors:
        raise InvalidRequest(f"the log is at {url} already: to return, move it from there to an empty folder")
    journal.release(journal.state.coordinator.epoch + 1)


def _come_near(log: Log, store: ObjectStore, progress: Progress | None) -> None:
    begin_mirror(log, store)
    mirror = Mirror(log, store)
    for _ in range(ROUNDS):
        if mirror.round(progress).behind <= NEAR:
            break


def _version(store: ObjectStore) -> int:
    """The version of a mirror; it is beyond that of the log if an earlier run was killed when it had nearly ended."""
    try:
        return Journal.open(store, create=False).state.version
    except NoLog:
        return 0


def _check(state: State) -> None:
    if held := state.coordinator.address:
        raise InvalidRequest(
            f"the coordinator at {held} has the log: stop it, move the log, and start it with the new URL; if it crashed, "
            "run `pylog cluster release --force` first"
        )
    if state.brokers:
        raise InvalidRequest(
            "a log with brokers cannot be moved: move its partitions to broker 0 by `pylog topic alter TOPIC "
            "--replication-factor 1`, remove the brokers, and add them again afterwards"
        )
    if (level := state.levels[METADATA_VERSION]) < REPLICAS:
        raise InvalidRequest(
            f"the log is at level {level} of {METADATA_VERSION}, and a log that is moved needs level {REPLICAS}: when no "
            "older pylog uses it any more, run `pylog cluster upgrade`"
        )


def _open_there(log: Log, store: ObjectStore) -> None:
    """Make the mirror the log.  It is the log when its `meta/format` says so, at last."""
    mirror = Journal.open(store, create=False, clock=log.journal.context.clock)
    known = mirror.metadata_log
    assert isinstance(known, StorageLog), "it was opened from a store"
    fingerprint = mirror.metadata.fingerprint()
    if fingerprint != known.form.probed:  # here, so that the records do not change `meta/format`
        probe(mirror.metadata, nonce=known.context.unique())
    form = msgspec.structs.replace(known.form.of_mirror(""), probed=fingerprint)
    journal = Journal(StorageLog(known.context, form, mirror.metadata), mirror.stores)
    last = journal.state.version
    epoch = journal.take_over(journal.state.coordinator.epoch, ARRIVED, host="")
    journal.propose(lambda state, now: Decision((FenceRecord(upto=last),), None), upkeep=False)
    journal.release(epoch)
    mirror.metadata.put(FORMAT_KEY, (form.encode(),))
    journal.finish_upkeep()
