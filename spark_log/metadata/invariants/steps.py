"""Rules of a state and a later one: what never falls, and what is never used again.

The states may be some versions apart, or within one version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from spark_log.metadata.commits.identities import is_of_deleted
from spark_log.metadata.invariants.partitions import shown_partition
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.state import ProducerState, State

Key = TypeVar("Key")
Value = TypeVar("Value")


def changed_rows(
    old: Mapping[Key, Value], new: Mapping[Key, Value]
) -> Iterator[tuple[Key, Value | None, Value | None]]:
    """The rows that differ; None: the row is not there.  Looks only at the changes of maps that share their columns."""
    if old is new:
        return
    keys = {*old, *new}
    if isinstance(old, LayeredMap) and isinstance(new, LayeredMap) and old.base is new.base:
        keys = {*old.changes, *new.changes}
    for key in keys:
        before, after = old.get(key), new.get(key)
        if before is not after and before != after:
            yield key, before, after


def rows_of_both(old: Mapping[Key, Value], new: Mapping[Key, Value]) -> Iterator[tuple[Key, Value, Value]]:
    """The rows of both maps that differ."""
    for key, before, after in changed_rows(old, new):
        if before is not None and after is not None:
            yield key, before, after


# -------------------------------------------------------------------------------------------------------- the whole log


def counters_never_fall(old: State, new: State) -> Iterator[str]:
    """The version, the fence, epochs and all numbers that are given away once."""
    names = ("version", "changed", "fence", "progressed", "generations", "groups_made", "copies_made")
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in names]
    pairs.append(("the coordinator's epoch", old.coordinator.epoch, new.coordinator.epoch))
    pairs += [(f"the level of {name}", level, new.features.get(name, 0)) for name, level in old.features.items()]
    for name, before, after in pairs:
        if after < before:
            yield f"{name} falls from {before} to {after}"


def time_falls_by_a_reset_only(old: State, new: State) -> Iterator[str]:
    """The log's time falls when an administrator sets it back: no changes before that version are remembered."""
    if new.time < old.time and any(one.version <= old.version for one in new.recent):
        yield f"the log's time falls from {old.time} to {new.time}, without a reset"


def restores_stay(old: State, new: State) -> Iterator[str]:
    """Restores are added at the end, and forgotten at the beginning."""
    gone = [one.history for one in old.restores if one not in new.restores]
    if gone != [one.history for one in old.restores[: len(gone)]] or (gone and len(new.restores) < len(old.restores)):
        yield f"the histories {gone} are forgotten, of {[one.history for one in old.restores]}"


# ------------------------------------------------------------------------------------------------ topics and partitions


def topic_ids_are_never_used_again(old: State, new: State) -> Iterator[str]:
    """A topic keeps its name, loses no partition, and is never live again when it was deleted."""
    for topic_id, before, after in rows_of_both(old.topics, new.topics):
        if before.name != after.name or before.partitions > after.partitions or before.deleted > after.deleted:
            yield f"the topic {topic_id!r} changes from {before} to {after}"


def offsets_never_fall(old: State, new: State) -> Iterator[str]:
    """The start, the high watermark and the log end of a partition, and its edition."""
    for key, before, after in rows_of_both(old.partitions, new.partitions):
        names = (
            ("start", "end", "edition")
            if new.live_topic(key[0]) is None
            else ("start", "end", "edition", "readable_end")
        )
        for name in names:
            if getattr(after, name) < getattr(before, name):
                where = f"{name} of {shown_partition(old, key)}"
                yield f"{where} falls from {getattr(before, name)} to {getattr(after, name)}"


def partitions_go_with_their_topics(old: State, new: State) -> Iterator[str]:
    """A partition of a live topic stays."""
    for key, _, after in changed_rows(old.partitions, new.partitions):
        if after is None and new.live_topic(key[0]) is not None:
            yield f"{shown_partition(old, key)} is gone, and its topic is live"


def entries_change_by_swaps_only(old: State, new: State) -> Iterator[str]:
    """Slices are added at the end; without another edition, all others stay."""
    for key, before, after in rows_of_both(old.partitions, new.partitions):
        if before.edition == after.edition and after.entries[: len(before.entries)] != before.entries:
            yield f"{shown_partition(old, key)} has other slices than before, and still the edition {after.edition}"


def objects_are_live_once(old: State, new: State) -> Iterator[str]:
    """An object keeps its size; when its last slice is gone it is dropped, and a dropped object is never live again."""
    for name, before, after in changed_rows(old.objects, new.objects):
        if before is not None and after is not None:
            if (before.size, before.index_position) != (after.size, after.index_position):
                yield f"{name} has {after.size} bytes, and had {before.size}"
        elif before is None and name in old.dropped:
            yield f"{name} was dropped at version {old.dropped[name]}, and is live"
        elif after is None and name not in new.dropped and new.version <= old.version + 1:
            yield f"{name} is not live any more, and is not among the dropped objects"


def schemas_grow(old: State, new: State) -> Iterator[str]:
    """Versions of a schema are added, and typed records begin where they began."""
    for topic_id, before, after in rows_of_both(old.schemas, new.schemas):
        if after.versions[: len(before.versions)] != before.versions or after.starts != before.starts:
            yield f"the schema of {topic_id!r} changes from {before} to {after}"


def cleaner_points_never_fall(old: State, new: State) -> Iterator[str]:
    """Compaction moves its point on."""
    for key, before, after in rows_of_both(old.cleaned, new.cleaned):
        if after.upto < before.upto:
            yield f"the cleaner point of {shown_partition(old, key)} falls from {before.upto} to {after.upto}"


def lost_ranges_stay(old: State, new: State) -> Iterator[str]:
    """Lost offsets of a live topic are named until the partition starts behind them."""
    for key, some, others in changed_rows(old.lost, new.lost):
        part = new.partitions.get(key) if new.live_topic(key[0]) is not None else None
        gone = [one for one in some or () if part is not None and one.end > part.start and one not in (others or ())]
        if gone:
            yield f"{shown_partition(old, key)} has lost {gone}, which is not named any more"


def erasures_never_fall(old: State, new: State) -> Iterator[str]:
    """The version of a topic's last erasure: reads that were planned before it are planned again."""
    for topic_id, before, after in rows_of_both(old.erasures, new.erasures):
        if after.version < before.version:
            yield f"the last erasure of {topic_id!r} was at {before.version}, and is at {after.version}"


# -------------------------------------------------------------------------------------------------------------- clients


def sequences_never_fall(old: State, new: State) -> Iterator[str]:
    """An identity's epoch, and its last sequence within one, unless that commit is lost, or its topics are gone."""
    for name, before, after in rows_of_both(old.producers, new.producers):
        if is_of_deleted(new, name, before, after.last):
            continue
        if after.epoch < before.epoch:
            yield f"the epoch of {name} falls from {before.epoch} to {after.epoch}"
        elif after.epoch == before.epoch and after.last < before.last and not _is_lost(old, name, before):
            yield f"the last sequence of {name} falls from {before.last} to {after.last}"


def _is_lost(old: State, name: str, before: ProducerState) -> bool:
    """Whether the last commit was pending, and may have been given up."""
    return any((one.producer, one.sequence) == (name, before.last) for one in old.pending)


def producers_expire_behind_the_fence(old: State, new: State) -> Iterator[str]:
    """An identity is forgotten only when the fence has passed its last commit."""
    for name, before, after in changed_rows(old.producers, new.producers):
        if before is not None and after is None and before.version > new.fence:
            yield f"{name} is forgotten, last seen at version {before.version}, with the fence at {new.fence}"


def kafkas_producers_expire_behind_the_fence(old: State, new: State) -> Iterator[str]:
    """A row of Kafka's producers is forgotten only when the fence has passed its last batch."""
    for key, before, after in changed_rows(old.kafka_producers, new.kafka_producers):
        if before is not None and after is None and before.version > new.fence:
            yield f"{key} is forgotten, last seen at version {before.version}, with the fence at {new.fence}"


def generations_never_fall(old: State, new: State) -> Iterator[str]:
    """A group's generation, also when the group is deleted and created again."""
    for name, before, after in changed_rows(old.groups, new.groups):
        least = old.last_generation(name)
        if before is not None and after is None and before.generation > new.generations:
            yield f"group {name!r} of generation {before.generation} is gone, and the highest is {new.generations}"
        elif after is not None and after.generation < least and (after.generation or (before and before.generation)):
            yield f"group {name!r} has generation {after.generation}, after {least}"


def positions_have_the_version_of_their_commit(old: State, new: State) -> Iterator[str]:
    """A position changes with the version in which it was committed."""
    for name, before, after in rows_of_both(old.groups, new.groups):
        for key, was, now in rows_of_both(before.offsets, after.offsets):
            if was[:2] != now[:2] and not (now.version > old.version or now.version == new.version):
                where = f"the position of group {name!r} in {shown_partition(old, key)}"
                yield f"{where} changes from {was.offset} to {now.offset} as of version {now.version}"


# ------------------------------------------------------------------------------------------------------------- replicas


def group_numbers_are_never_used_again(old: State, new: State) -> Iterator[str]:
    """A placement group keeps its brokers; the number of a new group is higher than all before it."""
    last = max((old.groups_made, *old.placement_groups))
    for number, before, after in changed_rows(old.placement_groups, new.placement_groups):
        if before is None and number <= last:
            yield f"a new group has the number {number}, and {last} was given away"
        elif after is None and number > new.groups_made:
            yield f"group {number} is gone, and the highest number of a removed group is {new.groups_made}"
        elif before is not None and after is not None and before.replicas != after.replicas:
            yield f"group {number} has the replicas {after.replicas}, and had {before.replicas}"


def keys_of_copies_are_never_used_again(old: State, new: State) -> Iterator[str]:
    """A new row of copies has a key above all before it."""
    for key, before, _ in changed_rows(old.copies, new.copies):
        if before is None and key <= old.copies_made:
            yield f"there are new copies {key}, and {old.copies_made} was given away"


def leader_epochs_never_fall(old: State, new: State) -> Iterator[str]:
    """A group's leader epoch."""
    for number, before, after in rows_of_both(old.placement_groups, new.placement_groups):
        if after.leader_epoch < before.leader_epoch:
            yield f"the leader epoch of group {number} falls from {before.leader_epoch} to {after.leader_epoch}"


def isr_keeps_a_member(old: State, new: State) -> Iterator[str]:
    """An ISR with a member keeps one, unless a broker in it has got another directory or lost its place."""
    for number, before, after in rows_of_both(old.placement_groups, new.placement_groups):
        renewed = any(_directory(old, one) != _directory(new, one) for one in before.isr)
        if before.isr and not after.isr and not renewed:
            yield f"group {number} has an empty ISR, and had {before.isr}"


def _directory(state: State, broker: int) -> str:
    known = state.brokers.get(broker)
    return "" if known is None else known.directory


def broker_epochs_never_fall(old: State, new: State) -> Iterator[str]:
    """The epoch of a registered broker; copies that were put under an older one do not count."""
    for broker, before, after in rows_of_both(old.brokers, new.brokers):
        if after.epoch < before.epoch or after.dropped < (before.dropped if after.directory == before.directory else 0):
            yield f"broker {broker} changes from {before} to {after}"
