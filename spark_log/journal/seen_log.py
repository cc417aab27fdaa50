"""What a reader outside of the log remembers of it, and whether the log was set back to an older copy since."""

from __future__ import annotations

from spark_log.errors import ObjectNotFound
from spark_log.journal.journal import Journal
from spark_log.journal.object_names import log_key
from spark_log.journal.opening import View
from spark_log.journal.storage_log import StorageLog
from spark_log.metadata.batch_format import first_line
from spark_log.metadata.restores import Seen, history_of, record_id, seen_in, was_set_back
from spark_log.metadata.state import State


def seen_by(journal: Journal, state: State) -> Seen:
    """The log in a state of this process, to be kept with the positions that were reached in it."""
    view, seen = journal.view, seen_in(state)
    known = isinstance(view, View) and view.state is state and view.head
    return seen._replace(record=record_id(view.head)) if known else seen


def is_set_back(journal: Journal, seen: Seen) -> bool:
    """Whether the log is an older copy of what was seen, although no command restored it: a snapshot of its disk.

    Certain if True.  With a coordinator, and once the record of that version was deleted, it is found only by versions
    and times, so a copy that soon has as many versions again may not be noticed.
    """
    if seen.history != history_of(journal.state):
        return False
    log = journal.metadata_log
    if not isinstance(log, StorageLog):
        return was_set_back(journal.state, seen) and was_set_back(journal.refresh(), seen)
    if _has_another_record(journal, seen):
        return True
    # A mirror may be behind the log that it follows.
    return not log.form.mirrors and was_set_back(journal.state, seen) and was_set_back(journal.refresh(), seen)


def _has_another_record(journal: Journal, seen: Seen) -> bool:
    if not seen.record:
        return False
    try:
        return record_id(first_line(journal.metadata.get(log_key(seen.version)))) != seen.record
    except ObjectNotFound:
        return False
