"""A coordinator's metrics, in Prometheus's text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from spark_log.groups.group import LIVE_STATES, Group, GroupState
from spark_log.metadata.shared_groups import members_in_force
from spark_log.metadata.state import State
from spark_log.net.connection_limits import Connections
from spark_log.net.quotas import Usage

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

PRINCIPALS = {
    "topics": "Topics that a token has access to.",
    "partitions": "Their partitions.",
    "groups": "Groups that a token has access to.",
    "connections": "Open connections that have sent a complete request with a token.",
    "commits": "Changes requested with a token, without heartbeats.",
    "refused": "Changes and connections rejected because of a quota.",
}
COUNTED = ("commits", "refused")


class Latencies:
    """A histogram of durations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        with self._lock:
            self.counts[bisect_left(BOUNDS_S, seconds)] += 1
            self.seconds += seconds

    def lines(self, name: str, text: str) -> Iterator[str]:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} histogram"
        with self._lock:
            counts, seconds = list(self.counts), self.seconds
        total = 0
        for bound, count in zip(BOUNDS_S, counts, strict=False):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f'{name}_bucket{{le="+Inf"}} {sum(counts)}'
        yield f"{name}_sum {seconds}"
        yield f"{name}_count {sum(counts)}"


class Metrics:
    """The metrics of one coordinator."""

    def __init__(self) -> None:
        self.commits = Latencies()
        """Commits that wrote a record: others are faster, and would hide a slow storage."""
        self.commands = 0

    def text(
        self,
        state: State,
        *,
        epoch: int,
        polls: int,
        connections: Connections,
        usage: Sequence[Usage],
        storage_age_s: float,
    ) -> str:
        """All metrics in the text format."""
        lines: list[str] = []
        lines += self.commits.lines("pylog_commit_seconds", "Time to write one record of the metadata log.")
        lines += _one("pylog_commands_total", "counter", "Commands that were applied or rejected.", self.commands)
        lines += _one("pylog_leading", "gauge", "1 while this coordinator has the log.", int(epoch > 0))
        lines += _one("pylog_epoch", "gauge", "Epoch of the coordinator that has the log.", state.coordinator.epoch)
        lines += _one("pylog_version", "gauge", "Newest version of the metadata log.", state.version)
        text = "Seconds since a write to the storage was last completed and read back."
        lines += _one("pylog_storage_write_age_seconds", "gauge", text, storage_age_s)
        lines += _one("pylog_long_polls", "gauge", "Requests that wait for a change.", polls)
        lines += _one("pylog_connections", "gauge", "Open connections.", len(connections))
        text = "Open connections that have not sent a complete request with a valid token."
        lines += _one("pylog_silent_connections", "gauge", text, connections.silent)
        lines += _one("pylog_topics", "gauge", "Topics.", len(state.names))
        lines += _one("pylog_objects", "gauge", "Live objects.", len(state.objects))
        lines += _one("pylog_objects_bytes", "gauge", "Their size.", sum(row.size for row in state.objects.values()))
        lines += _many("pylog_topic_records", "Records that a topic holds.", ("topic",), _records(state))
        for kind, text in PRINCIPALS.items():
            rows: dict[tuple[str, ...], int] = {(one.principal,): getattr(one, kind) for one in usage}
            counter = kind in COUNTED
            name = f"pylog_principal_{kind}_total" if counter else f"pylog_principal_{kind}"
            lines += _many(name, text, ("principal",), rows, "counter" if counter else "gauge")
        return "\n".join(lines) + "\n"


class GroupSummary(NamedTuple):
    """A group, without its members' assignments, which take long to decode."""

    state: str
    members: int
    """Consumers or streams."""
    generation: int


def summary_of(state: State, name: str) -> GroupSummary:
    """A group as the log has it.  `describe_group` has the same, with the members."""
    group = state.groups[name]
    if group.roster is not None and members_in_force(state, name):
        return GroupSummary(GroupState.STABLE.value, len(group.roster.members), group.roster.generation)
    owned = bool(group.member) or group.session is not None
    return GroupSummary((GroupState.STABLE if owned else GroupState.EMPTY).value, int(owned), group.generation)


def group_text(state: State, shared: Mapping[str, Group], rebalances: int) -> str:
    """Metrics of groups.

    shared:  groups with members, including joining ones, by name.
    """
    known = {name: summary_of(state, name) for name in state.groups if name not in shared}
    for name, group in shared.items():
        known[name] = GroupSummary(group.state.value, len(group.members), group.generation)
    groups = dict(sorted(known.items()))
    counts: dict[tuple[str, ...], int] = {(name,): 0 for name in LIVE_STATES}
    for summary in groups.values():
        counts[(summary.state,)] += 1
    lines: list[str] = []
    lines += _many("pylog_groups", "Groups by state.", ("state",), counts)
    lines += _many(
        "pylog_group_members",
        "Members of a group: consumers or streams.",
        ("group",),
        {(name,): summary.members for name, summary in groups.items()},
    )
    lines += _many(
        "pylog_group_generation",
        "Generation of a group: incremented by each rebalance.",
        ("group",),
        {(name,): summary.generation for name, summary in groups.items()},
    )
    lines += _one("pylog_group_rebalances_total", "counter", "Rebalances of groups.", rebalances)
    lines += _many("pylog_group_lag", "Records that a group has not read.", ("group", "topic"), _lags(state))
    return "\n".join(lines) + "\n"


def _records(state: State) -> dict[tuple[str, ...], int]:
    return {
        (name,): sum(part.readable_end - part.start for _, part in state.topic_partitions(topic_id))
        for name, topic_id in sorted(state.names.items())
    }


def _lags(state: State) -> dict[tuple[str, ...], int]:
    lags: dict[tuple[str, ...], int] = {}
    for group, known in sorted(state.groups.items()):
        for key, position in known.offsets.items():
            part, labels = state.partitions[key], (group, state.topics[key[0]].name)
            lags[labels] = lags.get(labels, 0) + max(0, part.readable_end - max(part.start, position.offset))
    return lags


def _one(name: str, kind: str, text: str, value: float) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]


def _many(
    name: str, text: str, labels: Sequence[str], rows: Mapping[tuple[str, ...], int], kind: str = "gauge"
) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for values, number in rows.items():
        pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
        lines.append(f"{name}{{{pairs}}} {number}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
