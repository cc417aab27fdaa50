"""The log that a mirror follows, as it is when the mirror is to take its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_log.client.open_journal import open_journal
from spark_log.errors import CorruptObject, InvalidRequest, NoLog, SparkLogError
from spark_log.journal.dropped_lists import read_lists
from spark_log.journal.journal import Journal
from spark_log.journal.lost_versions import unnamed_in
from spark_log.journal.store_operations import Get, Steps
from spark_log.metadata.decide_coordinators import check_is_here
from spark_log.metadata.erasures import erased_since
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.restores import history_of, restores_after, seen_in, was_set_back
from spark_log.metadata.state import ErasedTopic, State
from spark_log.runtime.daemon_tasks import Task
from spark_log.store.object_names import log_key, upload_epoch

LIST_CURE = (
    "Restore the list from a mirror or a copy of the log, or wait for `gc.fence.age.ms`: then the log removes it."
)
LOOK_S = 10
"""How long a recovery by force waits for the log, to learn of erasures."""


def find_lost(url: str, storage_options: Mapping[str, Any] | None, cluster_id: str) -> Journal | None:
    """The log with this id; None if it is not there."""
    failures: list[Exception] = []
    for options in (storage_options, None):
        try:
            journal = open_journal(url, options, create=False)
            check_is_here(journal.state.coordinator)
            return journal if journal.cluster_id == cluster_id else None
        except NoLog:
            return None
        except (SparkLogError, OSError) as error:
            failures.append(error)
    raise InvalidRequest(
        f"{url}, which is mirrored, cannot be looked for: {failures[-1]}. If no process uses it any more, give --force"
    )


def has_diverged(mirror: Journal, log: Journal) -> bool:
    """Whether the log lacks commits of its mirror, as far as the records say that are left."""
    if mirror.state.version > log.state.version or has_other_history(mirror.state, log.state):
        return True
    if log.metadata_log.is_served:
        return False
    found = mirror.run(_last_record(mirror.state)), log.run(_last_record(mirror.state))
    return found[0] != found[1] and not any(one is None or damage_of_record("", one) for one in found)


def has_other_history(mirror: State, log: State) -> bool:
    """Whether the log was restored from a copy that was older than its mirror."""
    here = history_of(mirror)
    later = restores_after(log, here) if here != history_of(log) else ()
    return later is None or bool(later and later[0].version < mirror.version)


def has_other_versions(copy: State, log: Journal) -> bool:
    """Whether a log with at least as many versions as a copy of it lacks some of the copy's, as far as it tells.

    It was restored or set back, or it has lost its last versions and given them again.  Raises CorruptObject if a
    damaged list of dropped objects hides that.
    """
    there = log.refresh()
    if has_other_history(copy, there) or was_set_back(there, seen_in(copy)):
        return True
    recent = [name for name in copy.objects if upload_epoch(name) > there.fence]  # it remembers those it has dropped
    left = log.run(unnamed_in(there, recent))
    damaged = log.run(read_lists(there.dropped_lists, len)) if left else {}
    upto = max((there.dropped_lists[name].upto for name in damaged), default=0)
    if left and all(upload_epoch(name) < upto for name in left):  # the lists may have these objects
        raise CorruptObject(
            f"{'; '.join(damaged.values())}: so it cannot be told whether {log.metadata.url} has all that its last copy has. "
            f"{LIST_CURE} If no older copy of the log was restored, give --force once"
        )
    return bool(left)


def _last_record(state: State) -> Steps[bytes | None]:
    found: bytes | None = yield Get(log_key(state.version))
    return found


def damage_of_record(key: str, data: bytes | None) -> str:
    """Why a record of the metadata log cannot be read; empty if it can, or if there is none."""
    try:
        if data is not None:
            decode_batch(data, key)
    except CorruptObject as error:
        return str(error)
    return ""


def erased_in(url: str, storage_options: Mapping[str, Any] | None, mirror: Journal) -> dict[str, ErasedTopic]:
    """Erasures that a mirror lacks, if its log can still be read: one that hangs is not waited for."""
    look = Task(lambda: open_journal(url, storage_options, create=False), "pylog-lost-log")
    if not look.wait(LOOK_S) or look.error is not None:
        return {}
    lost = look.result()
    return erased_since(mirror.state, lost.state) if lost.cluster_id == mirror.cluster_id else {}
