"""Whether a log is the one that a mirror has followed: another one may have been begun at its URL.

The id of the log says so, unless somebody has changed it by `pylog repair --cluster-id`.  Topics have random ids, which
no repair changes, apart from an accepted loss.
"""

from __future__ import annotations

from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.journal.journal import Journal
from spark_log.journal.storage.log_format import Format
from spark_log.journal.storage.opening import open_view
from spark_log.journal.store_operations import Stores, run
from spark_log.metadata.renewed_ids import has_accepted_loss, later_ids
from spark_log.metadata.state import State
from spark_log.recovery.lost_log import has_other_versions
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.text import counted


def lacking_records(mirror: State, log: State) -> int:
    """Records of a mirror that its log does not have, although it never removed them; 0 if there are none.

    A log that has none of the mirror's topics may be another one.  Otherwise a topic that it lacks was deleted.
    """
    known = {topic_id: _ids_in(log, topic_id) for topic_id in mirror.topics}
    is_other = not any(known.values())
    lacking = 0
    for (topic_id, number), part in mirror.partitions.items():
        ends = [one.end for same in known[topic_id] if (one := log.partitions.get((same, number))) is not None]
        if ends or is_other:
            lacking += max(0, part.end - max(part.start, *ends, 0))
    return lacking


def _ids_in(log: State, topic_id: str) -> list[str]:
    """The ids that a topic of a mirror has in the log."""
    return [one for one in later_ids(topic_id, log.version) if one in log.topics]


def check_replaceable(mirror: Journal, source: Journal) -> None:
    """Raises InvalidRequest if a mirror has records that its log lacks, or if nothing says that it has none."""
    copy, log, here, there = mirror.state, source.state, mirror.metadata.url, source.metadata.url
    if lacking := lacking_records(copy, log):
        what = f"has {counted(lacking, 'record')} that {there} lacks: it was set back, or has lost its last versions"
        if not _is_known_by_topics(copy, log):
            what = (
                f"has {counted(lacking, 'record')}, and {there} has none of its topics: another log was begun there, or all of "
                "these topics were deleted"
            )
    elif has_accepted_loss(log.version, copy.version):
        what = f"may have records that {there} lacks: lost versions of that log were given up since"
    elif has_other_versions(copy, source):
        what = f"has records that {there} lacks: it was set back to an older copy, or has lost its last versions"
    else:
        return
    raise InvalidRequest(
        f"{here} {what}. If you need these records, read them from the mirror and append them to the log; or continue with the "
        f"mirror: stop all that write to the log, and run `pylog recover -u {here} --force`. If you do not, run `pylog "
        f"mirror run {here} --catch-up --force`"
    )


def _is_known_by_topics(mirror: State, log: State) -> bool:
    return any(_ids_in(log, topic_id) for topic_id in mirror.topics)


def check_is_mirror(form: Format, store: ObjectStore, source: Journal) -> None:
    """Raises InvalidRequest if a root is not a mirror of the log, now or before the log was moved.

    form:  `meta/format` of the root.
    """
    form.check_restored(store.url)
    if form.cluster_id != source.cluster_id:
        raise _other_log_error(form, store, source)
    if not form.mirrors:
        raise InvalidRequest(
            f"{store.url} is a separate log: it is the log itself, a copy of it, or a mirror that was recovered"
        )


def _other_log_error(form: Format, store: ObjectStore, source: Journal) -> InvalidRequest:
    """The error for a mirror of which the log has another id, with the ways out.

    form:  `meta/format` of the mirror in `store`.
    """
    text = f"{store.url} has another log, with the id {form.cluster_id}"
    if form.mirrors != source.metadata.url:
        return InvalidRequest(text)
    again = f"stop all its clients, and run `pylog repair --cluster-id {form.cluster_id} -u {form.mirrors}`"
    try:
        mirror = run(open_view(), Stores.of(store), SystemClock()).state
    except SparkLogError:
        mirror = State()
    if _is_known_by_topics(mirror, source.state) and not lacking_records(mirror, source.state):
        return InvalidRequest(
            f"{text}; {form.mirrors} has the id {source.cluster_id}, by a repair or a meta/format of another log: {again}"
        )
    return InvalidRequest(
        f"{text}, and a new log, with the id {source.cluster_id}, was begun at {form.mirrors}: the folder of the mirrored log was "
        f"lost or replaced. Stop all that write there, and run `pylog recover -u {store.url}`, which makes a log of the mirror. Only if it is "
        f"the same log, and a repair has changed its id, {again}"
    )
