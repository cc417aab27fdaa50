"""`pylog recover`: a mirror, or a copy of a backup, becomes a separate log in the place of the lost one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_log.client.admin.erasure_status import to_repeat_texts
from spark_log.errors import (
    ConcurrentChange,
    CorruptObject,
    InvalidRequest,
)
from spark_log.journal.journal import Journal
from spark_log.journal.storage.log_format import OF_BACKUP
from spark_log.journal.storage.opening import View
from spark_log.journal.storage.storage_log import StorageLog
from spark_log.journal.store_operations import Stores, run
from spark_log.log_lines import logger
from spark_log.metadata.commands import AddFormerRoot, BeginHistory, Report, SetConfigs
from spark_log.metadata.decide_coordinators import moving_to
from spark_log.metadata.records import ErasedRecord
from spark_log.metadata.replicas.replica_commands import ResetReplicas
from spark_log.metadata.restores import new_history
from spark_log.recovery.late_files import late_text, move_late_files, open_copy
from spark_log.recovery.lost_format import UNKNOWN, format_of_own, open_mirror
from spark_log.recovery.lost_log import erased_in, find_lost, has_diverged
from spark_log.recovery.mirror import write_checkpoints
from spark_log.recovery.whole_copies import give_up, lacking_commits
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import FORMAT_KEY, MIRRORED

FACTOR = "default.replication.factor"


@dataclass(frozen=True, slots=True)
class Recovered:
    """A mirror that has become a log."""

    version: int
    """The version of the lost log that it had; later commits are lost."""
    time_ms: int
    """When that version was written, by its writer's clock."""
    mirrored: str
    """URL of the lost log."""
    erase_again: tuple[str, ...] = ()
    """Sentences about erasures after that version, as far as the lost log still tells.  The new log lists them."""
    late: tuple[str, ...] = ()
    """Files of clients of the lost log, put into the mirror in its place, that are moved to `meta/damaged/`."""


def recover(
    store: ObjectStore,
    options: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    cluster_id: str = "",
) -> Recovered:
    """Make a mirror a separate log.  If this is killed, run it again.

    options:  fsspec options of the lost log's storage.  The lost log is looked for with these options and without them.
    force:    recover even if the lost log exists, or cannot be looked for, and without files that clients of the lost
              log may have put into the mirror (`late_files.py`).
    dry_run:  only check.
    cluster_id:  the log's id, if the mirror has lost `meta/format` and nothing else has the id.
    Raises InvalidRequest for a root that is not a mirror; also, without `force`, if the lost log exists or cannot be
    looked for.  Raises CorruptObject if objects are missing, or records before others; ConcurrentChange if a client of
    the lost log changes the mirror meanwhile.
    """
    opened = partial(open_mirror, options=options, cluster_id=cluster_id, force=force, dry_run=dry_run)
    mirror, late = open_copy(store, opened, force=force)
    _log_of(mirror).form.check_restored(store.url)
    lost = _log_of(mirror).form.mirrors
    if not lost:
        raise InvalidRequest(f"{store.url} is not a mirror, but a separate log")
    moved = moving_to(mirror.state.coordinator)
    for url in () if force else dict.fromkeys((lost, moved)):
        if url in ("", store.url) or (there := find_lost(url, options, mirror.cluster_id)) is None:
            continue
        raise InvalidRequest(
            f"{url}, which {store.url} mirrors, can be opened: it has version {there.state.version}, and the mirror has "
            f"{mirror.state.version}. {_before_recovery(url, store.url, has_diverged(mirror, there))}"
        )
    erased, state = erased_in(lost, options, mirror) if force else {}, mirror.state
    if late and not dry_run:
        logger.warning("%s came into %s late, and is moved to meta/damaged/", late_text(late), store.url)
        move_late_files(store, late)
    if not dry_run:
        try:
            become_log(opened(store) if late else mirror, erased, state.version)
        except CorruptObject as error:
            raise ConcurrentChange(
                f"{error}, although the mirror was whole: does a client of the lost log still use {store.url}? Stop it, "
                "and run this again"
            ) from error
    return Recovered(state.version, state.time, lost, to_repeat_texts(erased), late)


def _before_recovery(url: str, mirror: str, diverged: bool) -> str:
    """Advice for a recovery while the log can still be opened."""
    then = f"`pylog recover --force -u {mirror}`"
    if diverged:
        return (
            "An older copy of the log was restored there, so only the mirror has its later commits: to continue with "
            f"these, stop all clients of the log, and run {then}"
        )
    return f"Stop all clients of the log, run `pylog mirror run {mirror} -u {url}` once more, and then {then}"


def become_log(mirror: Journal, erased: Iterable[str], version: int) -> None:
    """Make a mirror a separate log.

    First records that the lost log does not have: what still copies from there finds them, and stops.  All objects are
    in this root, so the brokers of the lost log are forgotten.

    erased:  ids of topics of which erasures have to be repeated.
    version: the one that the mirror has, if no client of the lost log has put a record there meanwhile.
    Raises CorruptObject if objects are missing, ConcurrentChange if there is such a record.
    """
    log, lacking = _log_of(mirror), lacking_commits(mirror)
    form = format_of_own(mirror, log)
    journal = Journal(StorageLog(log.context, form, mirror.metadata, is_mirror=True), mirror.stores)
    epoch = journal.take_over(
        journal.state.coordinator.epoch, mirror.metadata.url, host="", purpose="recovered", version=version
    )
    history = new_history(journal.state, log.context.clock.now_ms(), log.context.unique())
    journal.propose(BeginHistory(history=history, version=version), maintenance=False)
    for text in give_up(journal, lacking):
        logger.error("%s: %s", mirror.metadata.url, text)
    if not log.form.mirrors.startswith((OF_BACKUP, UNKNOWN)):
        journal.propose(AddFormerRoot(url=log.form.mirrors), maintenance=False)
    journal.propose(ResetReplicas(), maintenance=False)  # the roots belong to the lost log
    for topic_id in erased:
        journal.propose(
            Report.of(journal.state, ErasedRecord(topic_id=topic_id, incomplete=True)),
            maintenance=False,
        )
    if FACTOR in journal.state.configs:  # otherwise no topic could be created until there are as many brokers again
        journal.propose(SetConfigs(name=None, changes={FACTOR: None}), maintenance=False)
    journal.release(epoch)
    # Two checkpoints make up for these records, if a recovery or a client that hangs deletes a late one of their name.
    view = journal.view
    assert isinstance(view, View), "it was opened from a store"
    run(write_checkpoints(view, log.context), Stores.of(mirror.metadata), log.context.clock)
    mirror.metadata.delete([MIRRORED])
    mirror.metadata.put(FORMAT_KEY, (form.encode(),))
    journal.finish_maintenance()


def _log_of(mirror: Journal) -> StorageLog:
    log = mirror.metadata_log
    assert isinstance(log, StorageLog), "it was opened from a store"
    return log
