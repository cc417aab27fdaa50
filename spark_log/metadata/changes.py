"""Names of everything that a version may change.  From them, readers update results that they derived from an older
state.

Each state keeps the changes of the last versions (`State.recent`), so that a reader of 100,000 partitions visits only
those that changed since the state it knows (`State.changes_since`).  The names are a superset: a void record changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spark_log.metadata import records as r

RECENT_VERSIONS = 64
"""A reader that is further behind compares everything."""
NAMES_MAX = 1_000
"""Maximum number of names of a version: a reader compares everything after a version with more."""

_QUIET = (
    r.CleanedRecord,
    r.CommitRecord,
    r.CommitOffsetsRecord,
    r.ErasedRecord,
    r.ExpireProducersRecord,
    r.FenceRecord,
    r.FormerRootRecord,
    r.GroupGenerationRecord,
    r.HeldRecord,
    r.InitProducerRecord,
    r.LagRecord,
    r.ListDroppedRecord,
    r.MovedRecord,
    r.SwapRecord,
    r.WipedRecord,
)
"""Records that concern no client but those that read the partitions that grow."""


class ChangedNames(NamedTuple):
    """Names of everything that a version, or several, may have changed."""

    version: int
    """The last of them."""
    topics: dict[str, None]
    """Ids of topics that were created, deleted, extended or configured.  Positions in deleted topics are gone."""
    appended: dict[str, None]
    """Ids of topics that got records."""
    partitions: dict[tuple[str, int], None]
    """Partitions that have other entries, another start or cleaner point, in the order of the records, without those
    that were added or removed with `topics`."""
    objects: dict[str, None]
    """Objects that were added or dropped, or that have another number of slices."""
    groups: dict[str, None]
    """Groups whose members or positions changed."""
    concerns_all: bool
    """There are records that may concern clients that wait for records of other topics."""

    @property
    def names(self) -> int:
        """The number of names."""
        return len(self.topics) + len(self.partitions) + len(self.objects) + len(self.groups)


def no_changes(version: int) -> ChangedNames:
    """The changes of a version that changes nothing."""
    return ChangedNames(version, {}, {}, {}, {}, {}, False)


def extended(
    recent: Sequence[ChangedNames],
    version: int,
    records: Iterable[r.AnyRecord],
    shown: Iterable[tuple[str, int]] = (),
) -> tuple[ChangedNames, ...]:
    """The recent changes with those of the next version; without the older ones if it may have changed anything.

    shown:  (topic id, partition) of pending commits that readers see from this version on.
    """
    found = no_changes(version)._replace(concerns_all=not all(isinstance(record, _QUIET) for record in records))
    for record in records:
        if isinstance(record, r.ResetClockRecord | r.RestoreRecord):
            return (no_changes(version),)  # no state before has it, so none is compared by its changes
        _note(found, record)
    for key in shown:
        found.partitions[key] = found.appended[key[0]] = None
    if found.names > NAMES_MAX:
        return (no_changes(version),)
    return (*recent[1 - RECENT_VERSIONS :], found)


def _note(found: ChangedNames, record: r.AnyRecord) -> None:
    """Add the names in one record."""
    match record:
        case r.CommitRecord():
            keys = [(run.topic_id, run.partition) for _, run in record.slices]
            keys += [(topic_id, number) for topic_id, number, _ in record.pieces]
            found.partitions.update(dict.fromkeys(keys))
            found.appended.update(dict.fromkeys(topic_id for topic_id, _ in keys))
            found.objects.update(dict.fromkeys(named.name for named in record.objects))
            found.groups.update(dict.fromkeys(commit.group for commit in record.groups))
        case r.SwapRecord():
            found.partitions.update(dict.fromkeys((change.topic_id, change.partition) for change in record.changes))
            found.objects.update(dict.fromkeys(named.name for named in record.objects))
            found.objects.update(dict.fromkeys((*record.added, *record.removed)))
        case r.LostRecord():
            found.objects.update(dict.fromkeys((*record.commit, *(named.name for named in record.objects))))
        case r.CommitOffsetsRecord():
            found.groups.update(dict.fromkeys(commit.group for commit in record.commits))
        case r.CleanedRecord():
            found.partitions.update(dict.fromkeys((one.topic_id, one.partition) for one in record.partitions))
        case r.TrimRecord():
            found.partitions[record.topic_id, record.partition] = None
        case r.GroupGenerationRecord() | r.JoinGroupRecord() | r.DeleteOffsetsRecord():
            found.groups[record.group] = None
        case r.CreateTopicRecord() | r.AddPartitionsRecord() | r.DeleteTopicRecord():
            found.topics[record.topic_id] = None
        case r.SetConfigsRecord() if record.topic_id:
            found.topics[record.topic_id] = None
        case r.SetSchemaRecord():
            found.topics[record.topic_id] = None
        case r.ReassignRecord() | r.MovedRecord():
            found.topics.update(dict.fromkeys(one.topic_id for one in record.partitions))


def merged(changes: Sequence[ChangedNames]) -> ChangedNames:
    """The changes of several successive versions."""
    if len(changes) == 1:
        return changes[0]
    found = no_changes(0)
    for one in changes:
        found = add_changes(found, one)
    return found


def add_changes(found: ChangedNames, later: ChangedNames) -> ChangedNames:
    """Adds the names of later versions to `found`."""
    found.topics.update(later.topics)
    found.appended.update(later.appended)
    found.partitions.update(later.partitions)
    found.objects.update(later.objects)
    found.groups.update(later.groups)
    return found._replace(version=later.version, concerns_all=found.concerns_all or later.concerns_all)
