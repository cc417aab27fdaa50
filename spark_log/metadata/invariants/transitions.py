"""The roles of a state, and how they may change within an epoch.  Pure.

Each role has an epoch.  The next epoch may begin with any role; within an epoch, only the transitions in `LEGAL`
happen.  So the rule also holds between states that are some versions apart.  The states of a consumer group that a
coordinator keeps in memory are not in the log: `groups/group.py` has their transitions, and each change of state checks
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from spark_log.metadata.invariants.steps import rows_of_both
from spark_log.metadata.replicas.replica_state import Broker, PlacementGroup
from spark_log.metadata.state import Leadership, ProducerState, State

LEGAL: Mapping[str, frozenset[tuple[str, str]]] = {
    "coordinator": frozenset([("leads", "released")]),
    "broker": frozenset([("active", "fenced")]),
    "leader of group": frozenset(),
    "transaction": frozenset(
        [("open", "committed"), ("idle", "committed"), ("committed", "open"), ("committed", "idle")]
    ),
}
"""By kind of role, which one may follow which within an epoch.  A commit that was lost before readers saw it is taken
back, so its transaction is open again."""


class Role(NamedTuple):
    """A role at a version."""

    epoch: int
    name: str
    who: str = ""
    """The owner of the role; another one gets it with another epoch only."""


def roles_change_as_they_may(old: State, new: State) -> Iterator[str]:
    """A coordinator, a broker, a leader or a transaction changes within its epoch only as `LEGAL` says."""
    for kind, key, was, now in _changed(old, new):
        if was.epoch != now.epoch or was == now or (was.name, now.name) in LEGAL[kind]:
            continue
        before, after = (f"{one.name} ({one.who})" if one.who else one.name for one in (was, now))
        yield f"{kind} {key} changes from {before} to {after} within epoch {now.epoch}"


def _changed(old: State, new: State) -> Iterator[tuple[str, object, Role, Role]]:
    """Roles that may have changed, by kind and key."""
    yield "coordinator", "of the log", _of_coordinator(old.coordinator), _of_coordinator(new.coordinator)
    for broker, was, now in rows_of_both(old.brokers, new.brokers):
        if now.epoch < new.version or old.version < new.version:  # otherwise it began in this version
            yield "broker", broker, _of_broker(was), _of_broker(now)
    for number, led, leads in rows_of_both(old.placement_groups, new.placement_groups):
        yield "leader of group", number, _of_leader(led), _of_leader(leads)
    for name, before, after in rows_of_both(old.producers, new.producers):
        yield "transaction", name, _of_transaction(before), _of_transaction(after)


def _of_coordinator(held: Leadership) -> Role:
    return Role(held.epoch, "leads", held.address) if held.address else Role(held.epoch, "released")


def _of_broker(known: Broker) -> Role:
    """A fence by hand after one by a check has another epoch, so the role has the reason."""
    return Role(known.epoch, "fenced", known.reason) if known.fenced else Role(known.epoch, "active", known.directory)


def _of_leader(group: PlacementGroup) -> Role:
    return Role(group.leader_epoch, "leads", f"broker {group.leader}")


def _of_transaction(known: ProducerState) -> Role:
    if known.aborted:
        return Role(known.epoch, "aborted")
    if known.last_commit is not None:
        return Role(known.epoch, "committed", known.holder)
    return Role(known.epoch, "open" if known.timeout_ms else "idle", known.holder)
