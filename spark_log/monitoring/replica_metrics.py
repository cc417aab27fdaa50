"""Metrics of brokers and replicas."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from spark_log.metadata.replicas.replica_state import NO_LEADER, OWN_BROKER
from spark_log.metadata.replicas.replicas import is_active, is_async, min_insync
from spark_log.metadata.state import State
from spark_log.monitoring.log_metrics import many_lines, one_line
from spark_log.replication.replicator import Lag, ReplicationReport, lag_of


class ReplicaCounts(NamedTuple):
    """Partitions that need attention; each may be in several counts."""

    under_replicated: int = 0
    """Replicas of them are not in sync."""
    offline: int = 0
    """They have no leader."""
    under_min_isr: int = 0
    """They have fewer in-sync replicas than `min.insync.replicas`, so they accept no writes."""


def count_replicas(state: State) -> ReplicaCounts:
    """The counts of all partitions of topics that exist."""
    under = offline = short = 0
    for topic_id, numbers in state.assignments.items():
        topic = state.topics.get(topic_id)
        if topic is None or topic.deleted:
            continue
        least = min_insync(state, topic_id)
        for number, partitions in Counter(numbers).items():
            group = state.placement_groups.get(number)
            if group is not None:
                under += partitions * (len(group.isr) < sum(not is_async(state, broker) for broker in group.replicas))
                offline += partitions * (group.leader == NO_LEADER)
                active = sum(is_active(state, broker) for broker in group.isr)
                short += partitions * (active < least)
    return ReplicaCounts(under, offline, short)


class ReplicaMetrics:
    """Noted by the coordinator's thread and by that of replication; scrapes run in other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._isr: dict[int, frozenset[int]] = {}
        self._shrinks = self._expands = self._objects = self._bytes = 0
        self._unrecoverable = 0
        self._lag: dict[int, Lag] = {}
        self._last: State | None = None

    def note(self, state: State) -> None:
        """There is a new state."""
        if self._last is not None and self._last.placement_groups is state.placement_groups:
            return
        with self._lock:
            is_first, self._last = self._last is None, state
            for number, group in state.placement_groups.items():
                before, now = self._isr.get(number), frozenset(group.isr)
                if before is not None and not is_first:
                    self._shrinks += bool(before - now)
                    self._expands += bool(now - before)
                self._isr[number] = now

    def note_report(self, report: ReplicationReport) -> None:
        """A round of replication has ended."""
        with self._lock:
            self._objects += report.objects
            self._bytes += report.bytes
            self._unrecoverable = len(report.unrecoverable)
            self._lag = dict(report.lag)

    def lines(self, state: State) -> Iterator[str]:
        """The lines of the text format."""
        with self._lock:
            lag, sums = self._lag, (self._shrinks, self._expands, self._objects, self._bytes)
            unrecoverable = self._unrecoverable
        yield from replica_lines(state)
        text = "Objects without a good copy on any active broker."
        yield from one_line("pylog_unrecoverable_objects", "gauge", text, unrecoverable)
        for (name, text), number in zip(COUNTERS, sums, strict=True):
            yield from one_line(name, "counter", text, number)
        late = {
            broker: lag[broker].seconds if broker in lag and lag_of(state, broker).objects else 0
            for broker in _brokers(state)
        }
        yield from _by_broker("pylog_broker_lag_seconds", "Since when a broker has lacked something.", late)


def replica_lines(state: State) -> Iterator[str]:
    """The lines of what the state says about brokers and replicas, which are the same in every process."""
    counts = count_replicas(state)
    yield from one_line(
        "pylog_under_replicated_partitions", "gauge", "Partitions with replicas out of sync.", counts[0]
    )
    yield from one_line(
        "pylog_offline_partitions", "gauge", "Partitions without a leader: they accept no writes.", counts[1]
    )
    text = "Partitions with fewer in-sync replicas than min.insync.replicas: they accept no writes."
    yield from one_line("pylog_under_min_isr_partitions", "gauge", text, counts[2])
    gone = sum(one.end - one.start for ranges in state.lost.values() for one in ranges)
    text = "Records that were lost or given up, as far as they are not below the start of their partition."
    yield from one_line("pylog_lost_records", "gauge", text, gone)
    brokers = _brokers(state)
    lacking = {broker: lag_of(state, broker) for broker in brokers}
    active = {broker: int(is_active(state, broker)) for broker in brokers}
    yield from _by_broker("pylog_broker_active", "1 while a broker is not fenced.", active)
    objects = {broker: lack.objects for broker, lack in lacking.items()}
    yield from _by_broker("pylog_broker_lag_objects", "Objects that a broker lacks.", objects)
    yield from _by_broker("pylog_broker_lag_bytes", "Their size.", {b: lack.bytes for b, lack in lacking.items()})


def _brokers(state: State) -> list[int]:
    return sorted({OWN_BROKER, *state.brokers})


def _by_broker(name: str, text: str, numbers: Mapping[int, float]) -> list[str]:
    return many_lines(name, text, ("broker",), {(str(broker),): number for broker, number in numbers.items()}, "gauge")


COUNTERS = (
    ("pylog_isr_shrinks_total", "Times that replicas of a placement group left its ISR."),
    ("pylog_isr_expands_total", "Times that replicas of a placement group entered its ISR."),
    ("pylog_copied_objects_total", "Copies of objects that this coordinator has made."),
    ("pylog_copied_bytes_total", "Their size."),
)
