"""Rules of versions and times, and of what the state remembers for some versions only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from spark_log.metadata.features import SUPPORTED
from spark_log.metadata.invariants.partitions import shown_partition
from spark_log.metadata.state import State

Dated = tuple[str, int]
"""(a part of the state, its version or time)."""


# --------------------------------------------------------------------------------------------------- versions and times


def versions_are_not_ahead(state: State) -> Iterator[str]:
    """No part of the state is of a version to come."""
    for what, version in _versions(state):
        if version > state.version:
            yield f"{what} has version {version}, and the log is at {state.version}"


def _versions(state: State) -> Iterator[Dated]:
    yield from (("the last change", state.changed), ("the last position", state.progressed))
    yield from ((f"the time {time}", version) for version, time in state.times)
    yield from (("a restore", one.version) for one in state.restores)
    yield from (("a pending commit", one.version) for one in state.pending)
    for name, known in state.producers.items():
        yield f"the producer {name}", known.version
    for key3, row3 in state.kafka_producers.items():
        yield f"Kafka's producer {key3}", row3.version
    for name, version in state.dropped.items():
        yield f"the dropped object {name}", version
    for key, row in state.reassignments.items():
        yield f"the reassignment of {shown_partition(state, key)}", max(row.version, row.late)
    for key, some in state.lost.items():
        yield from ((f"a lost range of {shown_partition(state, key)}", one.version) for one in some)
    yield from _versions_of_roots(state)


def _versions_of_roots(state: State) -> Iterator[Dated]:
    for broker, known in state.brokers.items():
        yield f"broker {broker}", max(known.epoch, known.dropped, known.dropped_at[0])
    for number, group in state.placement_groups.items():
        yield from ((f"broker {one.broker} in group {number}", one.since) for one in group.members)
    for directory, root in state.former_roots.items():
        yield f"the former root {directory}", root.version
    for erased in state.erasures.values():
        versions = (erased.version, *(one.version for one in erased.unfinished))
        yield f"an erasure of {erased.name}", max(versions)


def times_are_not_ahead(state: State) -> Iterator[str]:
    """No time in the state is later than the log's time, also after that was set back."""
    for what, time in _times(state):
        if time > state.time:
            yield f"{what} has the time {time}, and the log's time is {state.time}"


def _times(state: State) -> Iterator[Dated]:
    yield from ((f"version {version}", time) for version, time in state.times)
    yield "the coordinator", state.coordinator.since
    for topic in state.topics.values():
        yield f"the topic {topic.name}", topic.created_ms
    for name, producer in state.producers.items():
        yield f"the producer {name}", producer.time
    for key3, row3 in state.kafka_producers.items():
        yield f"Kafka's producer {key3}", row3.time
    yield "Kafka's producer that has expired", state.kafka_expired
    for key, part in state.cleaned.items():
        yield from ((f"a pass over {shown_partition(state, key)}", time) for _, time in part.horizons)
    for removed, when in state.forgotten.items():
        yield f"the removal of {removed}", when.time
    for broker, known in state.brokers.items():
        yield f"broker {broker}", max(known.since, known.dropped_at[1], *(time for _, time in known.marks), 0)
    for number, placement in state.placement_groups.items():
        yield from ((f"broker {one.broker} in group {number}", one.missed) for one in placement.members)
    for erased in state.erasures.values():
        # One that has to be repeated in a restored log has no roots, and the time at which the lost log did it.
        yield from ((f"an erasure of {erased.name}", one.time) for one in erased.unfinished if one.roots)
    yield from _times_of_groups(state)


def _times_of_groups(state: State) -> Iterator[Dated]:
    for name, group in state.groups.items():
        yield f"the group {name}", group.seen
        if group.session is not None:
            yield f"the owner of the group {name}", group.session.since
        for one in group.shares:
            yield f"{one.member} in the group {name}", max(one.seen, one.session.since)
        for key, at in group.offsets.items():
            yield f"the position of the group {name} in {shown_partition(state, key)}", at.time


def remembered_times_ascend(state: State) -> Iterator[str]:
    """The remembered times are of ascending versions above the fence, but for the first, and do not fall."""
    times = state.times
    if not times or any(version <= state.fence for version, _ in times[1:]):
        yield f"the log remembers the times {times}, with the fence at {state.fence}"
    for before, after in pairwise(times):
        if before[0] >= after[0] or before[1] > after[1]:
            yield f"the log remembers the (version, time) {after} after {before}"


# ------------------------------------------------------------------------------------------ the fence, and what it ends


def fence_is_behind(state: State) -> Iterator[str]:
    """The fence has not passed the newest version."""
    if not -1 <= state.fence < max(state.version, 1):
        yield f"the fence is at {state.fence}, and the log at {state.version}"


def fence_ends_what_it_passes(state: State) -> Iterator[str]:
    """Dropped objects, lists of them and removed positions are forgotten when the fence passes their version."""
    rows = [(f"the dropped object {name}", version) for name, version in state.dropped.items()]
    rows += [(f"the list {name}", listed.upto) for name, listed in state.dropped_lists.items()]
    rows += [(f"the removal of {key}", when.version) for key, when in state.forgotten.items()]
    for what, version in rows:
        if version <= state.fence:
            yield f"{what} is of version {version}, and the fence is at {state.fence}"


# ------------------------------------------------------------------------------------------------------- rows of topics


def cleaner_points_are_in_partitions(state: State) -> Iterator[str]:
    """Compaction has come no further than the log end; its horizons ascend, and the last one is the cleaner point."""
    for key, cleaned in state.cleaned.items():
        part = state.partitions.get(key)
        rises = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(cleaned.horizons))
        if part is None or not 0 < cleaned.upto <= part.end or not rises or cleaned.horizons[-1:][0][0] != cleaned.upto:
            yield f"{shown_partition(state, key)} is {part}, and was cleaned up to {cleaned}"


def lost_ranges_are_in_partitions(state: State) -> Iterator[str]:
    """Lost ranges ascend, do not overlap, and are of offsets that the partition has given away."""
    for key, some in state.lost.items():
        part = state.partitions.get(key)
        overlap = any(before.end > after.start for before, after in pairwise(some))
        if part is None or overlap or any(not 0 <= one.start < one.end <= part.end for one in some):
            ends = "is not there" if part is None else f"ends at {part.end}"
            yield f"{shown_partition(state, key)} {ends}, and has lost {some}"


def schemas_are_of_topics(state: State) -> Iterator[str]:
    """A typed topic has a version of its schema, and its typed records begin in its partitions."""
    for topic_id, schema in state.schemas.items():
        topic = state.topics.get(topic_id)
        ends = [state.partitions.get((topic_id, number)) for number in range(len(schema.starts))]
        begins = all(part is None or 0 <= start <= part.end for start, part in zip(schema.starts, ends, strict=True))
        if topic is None or not schema.versions or len(schema.starts) > topic.partitions or not begins:
            yield f"the topic {topic_id!r} is {topic}, and its schema begins at {schema.starts}"


def erasures_are_of_topics(state: State) -> Iterator[str]:
    """Open erasures are in order, and wait for a root or are incomplete; a topic that is gone has at least one."""
    for topic_id, row in state.erasures.items():
        versions = [one.version for one in row.unfinished]
        waits = all(one.roots or one.incomplete for one in row.unfinished)
        if versions != sorted(versions) or not waits or (topic_id not in state.topics and not row.unfinished):
            yield f"the topic {topic_id!r} is {state.topics.get(topic_id)}, and has the erasures {row}"


# -------------------------------------------------------------------------------------------------------- the whole log


def restores_are_in_order(state: State) -> Iterator[str]:
    """Each restore began another history, after an earlier restore's version or at it."""
    histories = [one.history for one in state.restores]
    if len(set(histories)) < len(histories) or "" in histories:
        yield f"the histories of the log are {histories}"
    for before, after in pairwise(state.restores):
        if before.version > after.version:
            yield f"the log was restored at version {after.version} after {before.version}"


def levels_are_supported(state: State) -> Iterator[str]:
    """The log has no feature, and no level, that this pylog does not know."""
    for name, level in state.features.items():
        if not 1 <= level <= SUPPORTED.get(name, 0):
            yield f"{name} is at level {level}, and this pylog supports {SUPPORTED.get(name, 0)}"


def coordinators_have_an_epoch(state: State) -> Iterator[str]:
    """A coordinator with an address has taken the log over, so it has an epoch."""
    held = state.coordinator
    if held.epoch < 0 or (held.address and not held.epoch):
        yield f"the coordinator at {held.address!r} has epoch {held.epoch}"
