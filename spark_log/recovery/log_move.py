"""A log moves to another storage.

A mirror there catches up, the log ends with a record that names the new place, and the mirror becomes the log.

The record is a take-over with the purpose `moving`.  So nothing that anybody writes in the former place
afterwards counts, and every process that reads the record knows where the log will be.  Uploads that began before are
in the former place only, and the fence of the new one rejects them.

A second take-over, `moved to URL`, ends the move, before the new place is opened.  If the move is cancelled, the log is
released instead.  Both are decided like any other record of the former log, so only one of them happens, also if the
new place cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_log.client.log import Log
from spark_log.errors import InvalidRequest, LogRestored, NoLog, StorageError, UnsupportedVersion
from spark_log.journal.journal import Journal
from spark_log.journal.other_lines import MOVE, records_of_other_lines
from spark_log.journal.storage.log_format import Format
from spark_log.journal.storage.storage_log import StorageLog
from spark_log.metadata.commands import AddFormerRoot, Report
from spark_log.metadata.decide_coordinators import QUORUM, check_can_move, moved_to, moving_to
from spark_log.metadata.decision import Decision
from spark_log.metadata.erasures import name_of_own
from spark_log.metadata.records import FenceRecord, WipedRecord
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.recovery.lost_ends import lost_text
from spark_log.recovery.lost_format import format_of_own
from spark_log.recovery.mirror import Mirror, begin_mirror, check_place_of_mirror, format_of
from spark_log.rewriting.rewrite import Progress
from spark_log.rpc.client import check_cluster
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import FORMAT_KEY, MIRRORED
from spark_log.store.open import open_store

NEAR = 16
"""The log is closed when the mirror is at most so many versions behind."""
ROUNDS = 20
"""Rounds of copying before a log that is written too fast is closed anyway."""


@dataclass(frozen=True, slots=True)
class MovedLog:
    """A log in its new place."""

    url: str
    version: int
    """Version of the last commit in the former place."""
    closed_ms: int
    """How long nothing could be written."""


def move_log(log: Log, store: ObjectStore, progress: Progress | None = None) -> MovedLog:
    """Move a log to an empty folder or prefix, or to a mirror of the log.  If this is killed, run it again.

    log:    opened without a link to a coordinator.
    store:  the log's new place.
    Raises InvalidRequest for a log that cannot be moved, or if `store` has anything but a mirror of this log or
    what an earlier run has copied; NoLog if an earlier run has moved the log to `store`, and nothing is there now.
    Raises StorageError if the rest of the log cannot be copied.  The log is then open in its former place.
    """
    journal, clock = log.journal, log.journal.context.clock
    is_closed = check_move(log, store)
    if not is_closed:
        _come_near(log, store, progress)
    began_ms = clock.monotonic_ms()
    if not is_closed:
        journal.take_over(journal.state.coordinator.epoch, store.url, host="", purpose="moving")
    if not moved_to(journal.state.coordinator):
        epoch = journal.state.coordinator.epoch
        try:
            _prepare(log, store, progress)
        except StorageError as error:
            raise _cancelled(journal, store.url, error) from error
        journal.take_over(epoch, store.url, host="", purpose="moved")
    _open_there(journal, store)
    return MovedLog(store.url, journal.state.version, clock.monotonic_ms() - began_ms)


def check_move(log: Log, store: ObjectStore) -> bool:
    """Whether an earlier run has closed the log.  Raises InvalidRequest if the log cannot be moved there."""
    if check_on_its_way(log.journal, store.url):
        return True
    check_can_move(log.journal.state, store.url)
    check_place_of_mirror(log, store)
    if lost := lost_text(log.journal):
        raise InvalidRequest(
            f"{log.url} cannot be moved, because objects that no record names would stay there: {lost}"
        )
    check_is_one_line(log.journal)
    return False


def check_is_one_line(journal: Journal) -> None:
    """Raises InvalidRequest if records are there that do not count: nothing would name their objects any more."""
    if others := journal.run(records_of_other_lines(journal.state)):
        raise InvalidRequest(
            f"{journal.metadata.url} cannot be moved because of {others[0].key}: {others[0].text}. {MOVE}"
        )


def _cancelled(journal: Journal, url: str, error: StorageError) -> StorageError:
    """The error of a move that cannot continue, such as to a full disk, after it was cancelled: writers wait."""
    if not journal.release(journal.state.coordinator.epoch + 1):
        return error
    return StorageError(
        f"the move is cancelled, and the log is open at {journal.metadata.url}, because the last records could not be "
        f"copied to {url}: {error}"
    )


def cancel_move(log: Log, options: Mapping[str, Any] | None = None, *, force: bool = False) -> None:
    """Open a log in its former place again, after a move that cannot be completed.

    log:      as for `move_log`.
    options:  fsspec options of the new storage, which is looked at if the move was completed.
    force:    also cancel a completed move, unless the log can be seen in its new place.
    Raises InvalidRequest if the log is not being moved, or if the move was completed and `force` is not set, or the log
    can be seen in its new place, or is in a quorum.
    """
    check_cancel(log, options, force=force)
    journal = log.journal
    held = journal.state.coordinator
    if not journal.release(held.epoch + 1):
        raise InvalidRequest("another process has ended the move, or cancelled it: nothing was changed")


def check_cancel(log: Log, options: Mapping[str, Any] | None = None, *, force: bool = False) -> None:
    """Raises as `cancel_move` does if there is nothing to cancel."""
    journal = log.journal
    held = journal.refresh().coordinator
    if url := moved_to(held):
        _check_not_there(journal, url, options, force=force)
    elif not moving_to(held):
        raise InvalidRequest(f"{journal.metadata.url} is not being moved")


def check_on_its_way(journal: Journal, url: str) -> bool:
    """Whether an earlier run has closed the log.  Raises InvalidRequest if it moves to another place."""
    held = journal.refresh().coordinator
    if moved_to(held) not in ("", url):
        raise InvalidRequest(f"{journal.metadata.url} was moved to {moved_to(held)} already")
    if (other := moving_to(held)) not in ("", url):
        again = "pylog quorum adopt" if other.startswith(QUORUM) else f"pylog move {other}"
        raise InvalidRequest(
            f"{journal.metadata.url} is being moved to {other}: run `{again}` again, or `pylog move --cancel`"
        )
    return bool(moved_to(held) or other)


def _check_not_there(journal: Journal, url: str, options: Mapping[str, Any] | None, *, force: bool) -> None:
    """Raises InvalidRequest if the log is in its new place, or if that is not certain."""
    if url.startswith(QUORUM):
        raise InvalidRequest(f"the log is in the quorum at {url} already: there is no way back, see docs/quorum.md")
    form, why = None, "nothing is there (is its disk mounted?)"
    try:
        form = format_of(open_store(url, options))
    except (InvalidRequest, StorageError, UnsupportedVersion) as error:
        why = f"it cannot be read there: {error}"
    if form is not None and not form.mirrors and form.cluster_id == journal.cluster_id:
        raise InvalidRequest(f"the log is at {url} already: to return, move it from there to an empty folder")
    if form is not None:
        why = f"only the last write there is missing: run `pylog move {url}` again"
    if not force:
        raise InvalidRequest(
            f"the log was moved to {url}, and {why}; if it is lost there, and nobody has written to it, give --force; if "
            "somebody has, that makes two logs with the same id"
        )


def _come_near(log: Log, store: ObjectStore, progress: Progress | None) -> None:
    try:
        begin_mirror(log, store)
        mirror = Mirror(log, store)
        for _ in range(ROUNDS):
            if mirror.round(progress).behind <= NEAR:
                break
    except LogRestored as error:
        raise InvalidRequest(
            f"{store.url} has records that the log lacks, such as those of a move that was cancelled: empty the folder, "
            "or choose another"
        ) from error


def _epoch(store: ObjectStore) -> int:
    """The epoch of a mirror; it is beyond that of the log if an earlier run was killed when it had nearly ended."""
    try:
        return Journal.open(store, create=False).state.coordinator.epoch
    except NoLog:
        return 0


def _form_of(store: ObjectStore, journal: Journal) -> Format:
    form = format_of(store)
    if form is None:
        raise NoLog(f"the log was moved to {store.url}, and nothing is there: is its disk mounted?")
    check_cluster(form.cluster_id, journal.cluster_id, store.url)
    return form


def _prepare(log: Log, store: ObjectStore, progress: Progress | None) -> None:
    """Copy the rest, and write the first records of the log in its new place, which is still a mirror."""
    former = log.journal
    _form_of(store, former)
    if _epoch(store) <= former.state.coordinator.epoch:
        Mirror(log, store).round(progress)
    mirror = Journal.open(store, create=False, clock=former.context.clock)
    epoch = mirror.state.coordinator.epoch
    if not _form_of(store, former).mirrors:
        return  # another run has ended the move while this one was stopped, and the log may have moved on
    known = mirror.metadata_log
    assert isinstance(known, StorageLog), "it was opened from a store"
    form = format_of_own(mirror, known)
    journal = Journal(StorageLog(known.context, form, mirror.metadata, is_mirror=True), mirror.stores)
    last = journal.state.version
    epoch = journal.take_over(epoch, store.url, host="", purpose="arrived")
    journal.propose(lambda state, now: Decision((FenceRecord(upto=last),), None), maintenance=False)
    journal.propose(AddFormerRoot(url=former.metadata.url), maintenance=False)
    here = name_of_own(store.url)  # the log returns to a folder that is empty by now
    journal.propose(
        Report.of(journal.state, WipedRecord(broker=OWN_BROKER, directory=here, upto=last)),
        maintenance=False,
    )
    journal.release(epoch)
    journal.finish_maintenance()


def _open_there(journal: Journal, store: ObjectStore) -> None:
    """Make the mirror the log.  It is the log when its `meta/format` says so, at last."""
    form = _form_of(store, journal)
    if not form.mirrors:
        return  # an earlier run has ended the move
    if _epoch(store) < journal.state.coordinator.epoch:
        raise InvalidRequest(f"{store.url} lacks the end of the log: an older copy was restored there")
    if moved_to(journal.refresh().coordinator) != store.url:
        raise InvalidRequest("the move was cancelled meanwhile")
    store.delete([MIRRORED])
    store.put(FORMAT_KEY, (form.of_mirror("").encode(),))
