"""The log as a reader outside of it has seen it, and whether it was set back to an older copy since."""

from __future__ import annotations

from spark_log.errors import ObjectNotFound
from spark_log.journal.journal import Journal
from spark_log.journal.storage.checkpointing import is_kept
from spark_log.journal.storage.log_format import parse_format
from spark_log.metadata.formats.batch_format import first_line
from spark_log.metadata.restores import SeenLog, history_of, record_id, seen_in, was_set_back
from spark_log.metadata.state import State
from spark_log.store.object_names import FORMAT_KEY, log_key


def seen_by(journal: Journal, state: State) -> SeenLog:
    """The log in a state of this process, to be kept with the positions that were reached in it."""
    view, seen = journal.view, seen_in(state)
    return seen._replace(record=record_id(view.head)) if view.state is state and view.head else seen


def is_set_back(journal: Journal, seen: SeenLog) -> bool:
    """Whether the log is an older copy of what was seen, although no command restored it: a snapshot of its disk.

    Certain if True.  With a coordinator, and once the record of that version was deleted, it is found only by versions
    and times, so a copy that soon has as many versions again may not be noticed.
    """
    if seen.history != history_of(journal.state):
        return False
    if _has_another_record(journal, seen):
        return True
    return was_set_back(journal.state, seen) and not is_mirror(journal) and was_set_back(journal.refresh(), seen)


def _has_another_record(journal: Journal, seen: SeenLog) -> bool:
    if not seen.record or journal.metadata_log.is_served:
        return False
    try:
        if record_id(first_line(journal.metadata.get(log_key(seen.version)))) == seen.record:
            return False
    except ObjectNotFound:
        return False
    return journal.run(is_kept(seen.version, journal.refresh().fence))


def is_mirror(journal: Journal) -> bool:
    """Whether it follows another log, and so may be behind it."""
    if journal.metadata_log.is_served:
        return False
    return bool(parse_format(journal.metadata.get(FORMAT_KEY), journal.metadata.url).mirrors)
