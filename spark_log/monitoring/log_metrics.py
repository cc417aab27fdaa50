"""Metrics of what a log holds: topics, objects, groups and their lag.

A log may hold 100,000 partitions and 10,000 groups.  So sums and lines of text are kept, and a scrape visits what
changed since the one before.  Scrapes run in other threads than the coordinator and the event loop.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from spark_log.groups.group import LIVE_STATES, ConsumerGroupState, Group
from spark_log.journal.unseen_changes import UnseenChanges, Visit
from spark_log.metadata.changes import ChangedNames
from spark_log.metadata.groups.shared_groups import members_in_force
from spark_log.metadata.maps.column_map import stored_bytes
from spark_log.metadata.state import State, TopicKey
from spark_log.text import label_value

_Pair = tuple[str, TopicKey]
"""A position: a group and a partition."""


class Family:
    """A gauge with a line for each thing that it measures."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._head = [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        self._name = name
        self._labels = labels
        self._numbers: dict[tuple[str, ...], int] = {}
        self._lines: dict[tuple[str, ...], str] = {}

    def set(self, values: tuple[str, ...], number: int) -> None:
        """Set the number of one thing, which is identified by the values of the labels."""
        if self._numbers.get(values) != number:
            self._numbers[values] = number
            self._lines[values] = line(self._name, self._labels, values, number)

    def remove(self, values: tuple[str, ...]) -> None:
        """The thing does not exist any more."""
        self._numbers.pop(values, None)
        self._lines.pop(values, None)

    def clear(self) -> None:
        self._numbers.clear()
        self._lines.clear()

    def lines(self) -> list[str]:
        return [*self._head, *self._lines.values()]


def line(name: str, labels: Sequence[str], values: Sequence[str], number: float) -> str:
    """A line of Prometheus's text format."""
    pairs = ",".join(f'{label}="{label_value(value)}"' for label, value in zip(labels, values, strict=True))
    return f"{name}{{{pairs}}} {number}"


def one_line(name: str, kind: str, text: str, value: float) -> list[str]:
    """A metric with one number."""
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]


def many_lines(
    name: str, text: str, labels: Sequence[str], rows: Mapping[tuple[str, ...], float], kind: str
) -> list[str]:
    """A metric with a number for each thing, by the values of the labels."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return lines + [line(name, labels, values, number) for values, number in rows.items()]


class TopicMetrics:
    """The records of each topic, and the size of all objects."""

    def __init__(self) -> None:
        self.objects_bytes = 0
        self._unseen = UnseenChanges()
        self._lock = threading.Lock()
        self._records: dict[str, int] = {}
        """By topic id."""
        self._family = Family(
            "pylog_topic_records",
            "Offsets of a topic from start to end, including those of records that compaction or erasure has removed.",
            ("topic",),
        )

    def note(self, state: State) -> None:
        """There is a new state."""
        self._unseen.note(state)

    def lines(self, state: State) -> list[str]:
        """The lines of the records; also updates `objects_bytes`."""
        with self._lock:
            visit = self._unseen.visit(state)
            if visit.changes is None:
                self._begin_again(visit.new)
            else:
                self._update(visit.old, visit.new, visit.changes)
            return self._family.lines()

    def _begin_again(self, state: State) -> None:
        self.objects_bytes = stored_bytes(state.objects)
        self._records = {}
        self._family.clear()
        for _, topic_id in sorted(state.names.items()):
            self._sum_up(state, topic_id)

    def _sum_up(self, state: State, topic_id: str) -> None:
        self._set(state, topic_id, sum(part.readable_end - part.start for _, part in state.topic_partitions(topic_id)))

    def _set(self, state: State, topic_id: str, records: int) -> None:
        self._records[topic_id] = records
        self._family.set((state.topics[topic_id].name,), records)

    def _update(self, old: State, new: State, changes: ChangedNames) -> None:
        sizes = [(old.objects.get(name), new.objects.get(name)) for name in changes.objects]
        self.objects_bytes += sum((0 if b is None else b.size) - (0 if a is None else a.size) for a, b in sizes)
        for topic_id in changes.topics:
            if self._records.pop(topic_id, None) is not None:
                self._family.remove((old.topics[topic_id].name,))
        for topic_id in changes.topics:
            if _is_live(new, topic_id):
                self._sum_up(new, topic_id)
        for key in changes.partitions:
            topic_id = key[0]
            if (
                topic_id in self._records and topic_id not in changes.topics and key in new.partitions
            ):  # else it is void
                before, after = old.partitions[key], new.partitions[key]
                grown = after.readable_end - after.start - (before.readable_end - before.start)
                self._set(new, topic_id, self._records[topic_id] + grown)


def _is_live(state: State, topic_id: str) -> bool:
    return topic_id in state.topics and not state.topics[topic_id].deleted


class GroupSummary(NamedTuple):
    """A group, without its members' assignments, which take long to decode."""

    state: str
    members: int
    """Consumers or streams."""
    generation: int


def summary_of(state: State, name: str) -> GroupSummary:
    """A group as the log has it.  `describe_group` has the same, with the members."""
    group = state.groups[name]
    if group.roster is not None and group.roster.members:
        known = ConsumerGroupState.STABLE if members_in_force(state, name) else ConsumerGroupState.UNKNOWN
        return GroupSummary(known.value, len(group.roster.members), group.roster.generation)
    members = len(group.shares) or int(bool(group.member) or group.session is not None)
    return GroupSummary(
        (ConsumerGroupState.STABLE if members else ConsumerGroupState.EMPTY).value, members, group.generation
    )


class GroupMetrics:
    """The state, members and lag of each group."""

    def __init__(self) -> None:
        self._unseen = UnseenChanges()
        self._lock = threading.Lock()
        self._shared: Mapping[str, Group] = {}
        """At the last scrape."""
        self._known: dict[str, GroupSummary] = {}
        self._counts: Counter[str] = Counter()
        """Groups by state."""
        self._members = Family("pylog_group_members", "Members of a group: consumers or streams.", ("group",))
        self._generation = Family(
            "pylog_group_generation", "Generation of a group: incremented by each rebalance.", ("group",)
        )
        self._lag = _Lag()

    def note(self, state: State) -> None:
        """There is a new state."""
        self._unseen.note(state)

    def text(self, state: State, shared: Mapping[str, Group], rebalances: int | None) -> str:
        """Metrics of all groups.

        shared:  groups with members, including joining ones, by name; not changed afterwards.
        rebalances:  that have begun; None: this process does not coordinate groups.
        """
        with self._lock:
            visit = self._unseen.visit(state)
            for name in self._touched(visit, shared):
                self._set(name, _summary(visit.new, shared, name))
            self._shared = shared
            self._lag.update(visit)
            states: dict[tuple[str, ...], float] = {(name,): self._counts[name] for name in LIVE_STATES}
            lines = many_lines("pylog_groups", "Groups by state.", ("state",), states, "gauge")
            lines += [*self._members.lines(), *self._generation.lines()]
            if rebalances is not None:
                lines += one_line("pylog_group_rebalances_total", "counter", "Rebalances of groups.", rebalances)
            lines += self._lag.family.lines()
        return "\n".join(lines) + "\n"

    def _touched(self, visit: Visit, shared: Mapping[str, Group]) -> Iterable[str]:
        """Groups whose summary may have changed."""
        old, new, changes = visit
        if changes is None or bool(old.coordinator.in_force) != bool(new.coordinator.in_force):
            return sorted({*self._known, *new.groups, *shared})
        found = dict.fromkeys(name for name, group in shared.items() if self._shared.get(name) is not group)
        found.update(dict.fromkeys(self._shared.keys() - shared.keys()))
        found.update(changes.groups)
        return found

    def _set(self, name: str, summary: GroupSummary | None) -> None:
        known = self._known.get(name)
        if summary == known:
            return
        if known is not None:
            self._counts[known.state] -= 1
        if summary is None:
            del self._known[name]
            self._members.remove((name,))
            self._generation.remove((name,))
            return
        self._known[name] = summary
        self._counts[summary.state] += 1
        self._members.set((name,), summary.members)
        self._generation.set((name,), summary.generation)


def _summary(state: State, shared: Mapping[str, Group], name: str) -> GroupSummary | None:
    group = shared.get(name)
    if group is not None:
        return GroupSummary(group.state.value, len(group.members), group.generation)
    return summary_of(state, name) if name in state.groups else None


class _Sum:
    """The lag of a group in a topic."""

    __slots__ = ("lag", "positions")

    def __init__(self) -> None:
        self.lag = 0
        self.positions = 0
        """Number of partitions with a position."""


class _Lag:
    """How many records each group has not read of each topic."""

    def __init__(self) -> None:
        self.family = Family("pylog_group_lag", "Records that a group has not read.", ("group", "topic"))
        self._sums: dict[tuple[str, str], _Sum] = {}
        """By group and topic id."""
        self._readers: dict[TopicKey, dict[str, None]] = {}
        """The groups with a position in a partition."""

    def update(self, visit: Visit) -> None:
        old, new, changes = visit
        if changes is None:
            old = State()
            self._sums, self._readers = {}, {}
            self.family.clear()
            pairs: Iterable[_Pair] = (
                (name, key) for name, group in sorted(new.groups.items()) for key in group.offsets
            )
        else:
            pairs = dict.fromkeys(self._touched(old, new, changes))
        named = {(group, key[0]): self._change(old, new, group, key) for group, key in pairs}
        for (group, topic_id), summed in named.items():  # first: another topic may have the name of a deleted one
            if not summed.positions:
                self._sums.pop((group, topic_id), None)
                self.family.remove((group, _name(old, new, topic_id)))
        for (group, topic_id), summed in named.items():
            if summed.positions:
                self.family.set((group, _name(old, new, topic_id)), summed.lag)

    def _touched(self, old: State, new: State, changes: ChangedNames) -> Iterator[_Pair]:
        """Positions whose lag may differ."""
        for group in changes.groups:
            before, after = (at.groups[group].offsets if group in at.groups else {} for at in (old, new))
            if before is not after:
                yield from ((group, key) for key in before if before[key] is not after.get(key))
                yield from ((group, key) for key in after if key not in before)
        for key in changes.partitions:
            yield from ((group, key) for group in self._readers.get(key, ()))
        for topic_id in changes.topics:
            if topic_id in old.topics:
                for number in range(old.topics[topic_id].partitions):
                    key = (topic_id, number)
                    yield from ((group, key) for group in self._readers.get(key, ()))

    def _change(self, old: State, new: State, group: str, key: TopicKey) -> _Sum:
        """Change the sum by what one position changes."""
        summed = self._sums.setdefault((group, key[0]), _Sum())
        before, after = lag_in(old, group, key), lag_in(new, group, key)
        summed.lag += (after or 0) - (before or 0)
        summed.positions += (after is not None) - (before is not None)
        if after is not None:
            self._readers.setdefault(key, {})[group] = None
        elif before is not None:
            readers = self._readers[key]
            del readers[group]
            if not readers:
                del self._readers[key]
        return summed


def lag_in(state: State, group: str, key: TopicKey) -> int | None:
    """How many records a group has not read of a partition; None without a position."""
    known = state.groups.get(group)
    position = None if known is None else known.offsets.get(key)
    if position is None:
        return None
    part = state.partitions[key]
    return max(0, part.readable_end - max(part.start, position.offset))


def _name(old: State, new: State, topic_id: str) -> str:
    return (old.topics.get(topic_id) or new.topics[topic_id]).name
