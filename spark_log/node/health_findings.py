"""Sentences for `pylog cluster health`: defects of brokers and replicas, each with its cure.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from spark_log.metadata.pending_commits import lost_ranges
from spark_log.metadata.records import FenceBrokerRecord
from spark_log.metadata.replay_replicas import replay_fence
from spark_log.metadata.replica_state import OWN_BROKER
from spark_log.metadata.replicas import has_active, is_active, last_copies
from spark_log.metadata.state import State
from spark_log.node.broker_prober import SINCE_REASON
from spark_log.node.replica_metrics import count_replicas
from spark_log.node.replicator import lag_of
from spark_log.text import counted


class Finding(NamedTuple):
    """One check."""

    what: str
    healthy: bool
    says: str


def broker_findings(state: State, free: Mapping[int, int] | None = None) -> list[Finding]:
    """One for each broker, and one for the partitions; none for a log without brokers.

    free:  by broker, the free bytes of its disk, as far as they are known.
    """
    if not state.brokers:
        return []
    brokers = [_broker(state, broker, (free or {}).get(broker)) for broker in sorted({OWN_BROKER, *state.brokers})]
    return [*brokers, _partitions(state), *_lost(state), *_objects(state)]


def why_needed(state: State, broker: int, silent: Collection[int] = ()) -> list[str]:
    """The uses of the disk of a broker that no other one can take over; empty: when fenced, it may be taken away.

    silent:  other brokers whose roots do not answer: they can take over nothing, also if nobody has fenced them yet.
    """
    if broker == OWN_BROKER or broker not in state.brokers:
        return ["everything that has one copy: it is the log's own root"]
    state = _fenced(state, broker)
    needs = _needs(state, broker)
    for other in sorted(silent):
        state = _fenced(state, other)
    more = _needs(state, broker) if silent else needs
    return needs if more == needs else [f"{need}: {_roots(silent)} not answer on this machine" for need in more]


def _fenced(state: State, broker: int) -> State:
    known = state.brokers.get(broker)
    return state if known is None else replay_fence(state, FenceBrokerRecord(broker=broker, epoch=known.epoch)) or state


def _roots(brokers: Collection[int]) -> str:
    names = " and ".join(str(broker) for broker in sorted(brokers))
    return f"the root of broker {names} does" if len(brokers) == 1 else f"the roots of brokers {names} do"


def _needs(state: State, broker: int) -> list[str]:
    _, offline, short = count_replicas(state, broker)
    only = [one for one in state.copies.values() if broker in one.brokers and not has_active(state, one)]
    needs = list[str]()
    if offline:
        needs.append(f"writes to {counted(offline, 'partition')} without another in-sync replica")
    if short > offline:
        needs.append(f"writes to {counted(short - offline, 'partition')} with too few others for min.insync.replicas")
    if only:
        objects = sum(one.objects for one in only)
        needs.append(f"reads of {counted(objects, 'object')}, of which no active broker has another copy")
    return needs


def _broker(state: State, broker: int, free: int | None = None) -> Finding:
    what, lag = f"broker {broker}", lag_of(state, broker)
    known = state.brokers.get(broker)
    if known is not None and known.fenced:
        if known.reason.startswith(SINCE_REASON):
            cure = (
                "bring its disk or bucket back, or free space there: a coordinator, `pylog replicate` or `pylog maintain` "
                "takes it back then. "
                f"If it is lost, `pylog broker replace {broker}`"
            )
        else:
            cure = f"`pylog broker unfence {broker}` takes it back"
        only = last_copies(state, broker)
        says = f"is fenced: {known.reason}; {cure}"
        if only.objects:
            says += f". Only it has {counted(only.objects, 'object')}, whose records cannot be read meanwhile"
        return Finding(what, False, says)
    if lag.objects:
        cure = "a coordinator copies them by itself; without one, run `pylog replicate`"
        if free is not None and free < lag.bytes:
            cure = f"its disk has only {free:,} bytes left: free space there"
        return Finding(what, False, f"lacks {counted(lag.objects, 'object')} ({lag.bytes:,} bytes): {cure}")
    newest = known is not None and known.keep_ms
    return Finding(
        what, True, "has the newest objects of its partitions" if newest else "has all objects of its partitions"
    )


def _partitions(state: State) -> Finding:
    under, offline, short = count_replicas(state)
    says = list[str]()
    if offline:
        says.append(
            f"{counted(offline, 'partition')} without a leader: bring the brokers of their ISR back, or choose another "
            "leader by `pylog elect unclean`, which may lose records"
        )
    if short > offline:
        says.append(
            f"{counted(short, 'partition')} with fewer in-sync replicas than min.insync.replicas: they accept no writes"
        )
    if under and not (offline or short):
        says.append(f"{counted(under, 'partition')} with replicas that are not in sync: see the brokers")
    return Finding("replicas", not says, "; ".join(says) or "all replicas are in sync")


def _lost(state: State) -> list[Finding]:
    """Records that were lost with all roots that had them, until they would be deleted anyway.

    A warning: nobody can mend it, so the log counts as healthy.
    """
    ranges = [(key, one) for key in sorted(state.lost) if key in state.partitions for one in lost_ranges(state, key)]
    if not ranges:
        return []
    (topic_id, number), first = ranges[0]
    rows = sum(one.end - one.start for _, one in ranges)
    says = (
        f"warning: {counted(rows, 'record')} {'was' if rows == 1 else 'were'} lost with the only roots that had them, the "
        f"first at offset {first.start} of {state.topics[topic_id].name}-{number}: `pylog topic describe` shows the ranges"
    )
    return [Finding("records", True, says)]


def _objects(state: State) -> list[Finding]:
    lost = sum(copies.objects for copies in state.copies.values() if not copies.brokers)
    if not lost:
        return []
    says = (
        f"{counted(lost, 'object')} without any known good copy: `pylog replicate` looks for one on all replicas, and "
        "`pylog verify` names the records. If all copies are lost for good, `pylog verify --repair --lose-data` lets readers "
        "skip them"
    )
    active = all(is_active(state, broker) for broker in state.brokers)
    return [Finding("objects", False, says if active else f"{says}. A fenced broker may have one")]
