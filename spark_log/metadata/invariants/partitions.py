"""Rules of topics, partitions, live objects and pending commits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from spark_log.metadata.commits.pending_commits import is_due
from spark_log.metadata.records import Piece
from spark_log.metadata.replicas.replicas import copies_of
from spark_log.metadata.state import Partition, State, TopicKey, entries_of
from spark_log.model import Slice
from spark_log.text import counted


def shown_partition(state: State, key: TopicKey) -> str:
    """A partition by its topic's name, or by the topic's id if the topic is not there."""
    topic = state.topics.get(key[0])
    return f"{key[0] if topic is None else topic.name}-{key[1]}"


def live_partitions(state: State) -> Iterator[tuple[TopicKey, Partition]]:
    """The partitions of topics that are not deleted.  Those of deleted topics lose their slices in any order."""
    deleted = {topic_id for topic_id, topic in state.topics.items() if topic.deleted}
    return ((key, part) for key, part in state.partitions.items() if key[0] not in deleted)


def all_entries(state: State) -> Iterator[tuple[TopicKey, Slice | Piece]]:
    """The entries of all partitions and of pending commits: an object is live for each of them."""
    for key, part in state.partitions.items():
        for entry in part.entries:
            yield key, entry
    for commit in state.pending:
        for key, entries in entries_of(commit).items():
            yield from ((key, entry) for entry in entries)


# --------------------------------------------------------------------------------------------------------------- topics


def names_are_of_live_topics(state: State) -> Iterator[str]:
    """Each name is that of one live topic, and each live topic has its name."""
    for name, topic_id in state.names.items():
        topic = state.live_topic(topic_id)
        if topic is None or topic.name != name:
            yield f"the name {name!r} is of the id {topic_id!r}, which is {topic}"
    for topic_id, topic in state.topics.items():
        if not topic.deleted and state.names.get(topic.name) is None:
            yield f"the topic {topic_id!r} is live, and its name {topic.name!r} is not there"


def topics_have_their_partitions(state: State) -> Iterator[str]:
    """A live topic has the partitions from 0 on; a deleted one has some of them, and goes with the last."""
    numbers = defaultdict[str, set[int]](set)
    for topic_id, number in state.partitions:
        numbers[topic_id].add(number)
    for topic_id in numbers.keys() - state.topics.keys():
        yield f"there are partitions {sorted(numbers[topic_id])} of {topic_id!r}, which is not a topic"
    for topic_id, topic in state.topics.items():
        has, expected = numbers[topic_id], set(range(topic.partitions))
        if has != expected and not (topic.deleted and has and has <= expected):
            yield f"{topic.name} has {counted(topic.partitions, 'partition')}, and the state has {sorted(has)}"


# ----------------------------------------------------------------------------------------------------------- partitions


def partitions_are_ranges(state: State) -> Iterator[str]:
    """0 ≤ start ≤ high watermark ≤ log end."""
    for key, part in live_partitions(state):
        if not 0 <= part.start <= part.readable_end <= part.end:
            where = f"starts at {part.start}, has the high watermark {part.readable_end}, and ends at {part.end}"
            yield f"{shown_partition(state, key)} {where}"


def entries_have_no_gaps(state: State) -> Iterator[str]:
    """The slices of a partition cover its offsets from its start to the high watermark: holes are in slices, too."""
    for key, part in live_partitions(state):
        if part.entries and part.entries[0].start > part.start:
            yield f"{shown_partition(state, key)} has no slices for offsets {part.start} to {part.entries[0].start}"
        for before, after in pairwise(part.entries):
            if before.end != after.start:
                where = f"a slice that ends at {before.end} before one that starts at {after.start}"
                yield f"{shown_partition(state, key)} has {where}"


def slices_have_records(state: State) -> Iterator[str]:
    """A slice or a piece covers at least one offset, and its times are a range."""
    for key, entry in all_entries(state):
        if entry.start >= entry.end or entry.min_us > entry.max_us:
            times = f"times {entry.min_us} to {entry.max_us}"
            yield f"{shown_partition(state, key)} has a slice of offsets {entry.start} to {entry.end}, {times}"


def slices_share_no_bytes(state: State) -> Iterator[str]:
    """No two live slices have the same bytes of an object."""
    ranges = sorted(
        ((entry.object, entry.position, entry.position + entry.length, key) for key, entry in all_entries(state)),
        key=lambda one: one[:2],
    )
    for before, after in pairwise(ranges):
        if before[0] == after[0] and after[1] < before[2]:
            names = f"{shown_partition(state, before[3])} and {shown_partition(state, after[3])}"
            yield f"{names} share bytes {after[1]} to {min(before[2], after[2])} of {after[0]}"


# -------------------------------------------------------------------------------------------------------------- objects


def count_references(state: State, inside: Callable[[Piece], Iterable[Slice]] = lambda piece: ()) -> Counter[str]:
    """How many live entries each object has: slices and pieces, those of pending commits included.

    inside:  the slices in a piece; without it, they are not counted.
    """
    count = Counter[str]()
    for _, entry in all_entries(state):
        count[entry.object] += 1
        if isinstance(entry, Piece):
            count.update(one.object for one in inside(entry))
    return count


def wrong_counts(state: State, references: Counter[str], *, at_least: bool = False) -> Iterator[tuple[str, str]]:
    """The objects whose rows have another number of live entries than were counted, and what is wrong.

    at_least:  the entries in indexes were not counted, so a row may have more.
    """
    for name, row in state.objects.items():
        found = references[name]
        if row.live < found or row.live <= 0 or (row.live > found and not at_least):
            yield name, f"its live slices are counted as {row.live}, but there are {found}"
    for name in references:
        if name not in state.objects:
            slices = counted(references[name], "slice")
            yield name, f"the log has {slices} in it, but it is not among the live objects"


def objects_count_their_slices(state: State) -> Iterator[str]:
    """An object is live as long as a slice is in it, and counts its slices; those in indexes are not looked up here."""
    has_indexes = any(isinstance(entry, Piece) for _, entry in all_entries(state))
    for name, text in wrong_counts(state, count_references(state), at_least=has_indexes):
        yield f"{name}: {text}"


def dropped_objects_are_not_live(state: State) -> Iterator[str]:
    """No dropped object, and no list of them, is live: maintenance deletes it."""
    for name in (*state.dropped, *state.dropped_lists):
        if name in state.objects:
            yield f"{name} is dropped, and has {counted(state.objects[name].live, 'live slice')}"


# ------------------------------------------------------------------------------------------------------ pending commits


def pending_commits_follow_the_high_watermark(state: State) -> Iterator[str]:
    """The pending commits of a partition cover its offsets from the high watermark to the log end, in their order."""
    ends = dict[TopicKey, int]()
    for commit in state.pending:
        for key, entries in entries_of(commit).items():
            part = state.partitions.get(key)
            if part is None or state.live_topic(key[0]) is None:
                continue
            end = ends.get(key, part.readable_end)
            for entry in entries:
                if entry.start != end:
                    yield f"{shown_partition(state, key)} has a pending slice at {entry.start}, expected at {end}"
                end = entry.end
            ends[key] = end
    for key, part in live_partitions(state):
        if (end := ends.get(key, part.readable_end)) < part.end or (key in ends and end > part.end):
            yield f"{shown_partition(state, key)} ends at {part.end}, and its slices at {end}"


def pending_commits_are_in_order(state: State) -> Iterator[str]:
    """Pending commits are in the order of their versions."""
    for before, after in pairwise(state.pending):
        if before.version > after.version:
            yield f"a pending commit of version {after.version} is behind one of version {before.version}"


def pending_commits_wait(state: State) -> Iterator[str]:
    """A commit that readers may see is not pending any more."""
    for commit in state.pending:
        if all(name in state.objects for name in commit.objects) and is_due(state, commit, {}):
            yield f"the commit {commit.sequence} of {commit.producer!r} is pending, and nothing is lacking"


def pending_objects_are_marked(state: State) -> Iterator[str]:
    """The copies of an object are marked as pending if its commit is: a replica without them may be in the ISR."""
    pending = {name for commit in state.pending for name in commit.objects}
    for name in pending.difference(state.objects):
        yield f"{name} is of a pending commit, and is not live"
    for name, row in state.objects.items() if state.copies else ():
        known = copies_of(state, row)
        if known is not None and known.pending != (name in pending):
            yield f"{name} is {'' if name in pending else 'not '}of a pending commit, and its copies say otherwise"
