"""Sentences for `pylog cluster health`: defects of brokers and replicas, each with its cure.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from spark_log.metadata.commits.pending_commits import lost_ranges
from spark_log.metadata.records import FenceBrokerRecord
from spark_log.metadata.replicas.replay_replicas import replay_fence
from spark_log.metadata.replicas.replica_state import OWN_BROKER, Copies
from spark_log.metadata.replicas.replicas import can_lead, is_active, last_copies, min_insync
from spark_log.metadata.state import State
from spark_log.monitoring.replica_metrics import count_replicas
from spark_log.replication.replicator import lag_of
from spark_log.text import counted

NAMED_MAX = 3
"""Partitions that a sentence names."""


class Finding(NamedTuple):
    """One check."""

    what: str
    healthy: bool
    says: str


def broker_findings(
    state: State, free: Mapping[int, int] | None = None, silent: Mapping[int, bool] | None = None
) -> list[Finding]:
    """One for each broker, and one for the partitions; none for a log without brokers.

    free:    by broker, the free bytes of its disk, as far as they are known.
    silent:  the active brokers whose roots do not answer on this machine, and whether that is a defect: another machine
             may check them, and this one have no access.
    """
    if not state.brokers:
        return []
    free, silent = free or {}, silent or {}
    brokers = [
        _broker(state, one, free.get(one), is_defect=silent.get(one)) for one in sorted({OWN_BROKER, *state.brokers})
    ]
    return [*brokers, _partitions(state), *_lost(state), *_objects(state)]


class Needed(NamedTuple):
    """Why the disk of a broker must stay where it is; without uses, it may be taken away once the broker is fenced."""

    uses: list[str]
    """Those that no other broker can take over."""
    helps: list[str]
    """Sentences: what lets other brokers take them over."""


def why_needed(state: State, broker: int, silent: Collection[int] = ()) -> Needed:
    """The uses of the disk of a broker that no other one can take over.

    silent:  other brokers whose roots do not answer: they can take over nothing, also if nobody has fenced them yet.
             Broker 0 may be among them: it is never fenced.
    """
    if broker == OWN_BROKER or broker not in state.brokers:
        return Needed(["everything that has one copy: it is the log's own root"], [])
    state = _fenced(state, [broker])
    uses, more = _uses(state, broker), _uses(_fenced(state, sorted(silent)), broker, silent)
    if more == uses:
        return Needed(_says(uses), _helps(state, broker, uses))
    says = [f"{use}: {_roots(silent)} not answer on this machine" for use in _says(more)]
    return Needed(says, ["Run this again on a machine where every root answers"])


def _fenced(state: State, brokers: Iterable[int]) -> State:
    for broker in brokers:
        if (known := state.brokers.get(broker)) is not None:
            state = replay_fence(state, FenceBrokerRecord(broker=broker, epoch=known.epoch)) or state
    return state


def _roots(brokers: Collection[int]) -> str:
    names = " and ".join(str(broker) for broker in sorted(brokers))
    return f"the root of broker {names} does" if len(brokers) == 1 else f"the roots of brokers {names} do"


class _Part(NamedTuple):
    """A partition with a replica on a broker."""

    name: str
    group: int
    least: int
    """`min.insync.replicas`."""


class _Uses(NamedTuple):
    offline: list[_Part]
    """Partitions without an in-sync replica that is there."""
    short: list[_Part]
    """Those with one, and with fewer in-sync replicas than they need."""
    only: list[Copies]
    """Objects without a copy that is there."""


def _parts(state: State, broker: int) -> list[_Part]:
    groups = {number for number, group in state.placement_groups.items() if broker in group.replicas}
    found = list[_Part]()
    for name, topic_id in sorted(state.names.items()):
        least = min_insync(state, topic_id)
        numbers = enumerate(state.assignments.get(topic_id, ()))
        found += [_Part(f"{name}-{partition}", number, least) for partition, number in numbers if number in groups]
    return found


def _uses(state: State, broker: int, silent: Collection[int] = ()) -> _Uses:
    def there(brokers: Iterable[int]) -> int:
        return sum(is_active(state, one) and one not in silent for one in brokers)

    in_sync = {number: there(group.isr) for number, group in state.placement_groups.items()}
    lacking = [one for one in _parts(state, broker) if in_sync[one.group] < one.least]
    offline = [one for one in lacking if not in_sync[one.group]]
    short = [one for one in lacking if in_sync[one.group]]
    only = [one for one in state.copies.values() if broker in one.brokers and not there(one.brokers)]
    return _Uses(offline, short, only)


def _says(uses: _Uses) -> list[str]:
    says = list[str]()
    if uses.offline:
        says.append(f"writes to {_named(uses.offline)} without another in-sync replica")
    if uses.short:
        says.append(f"writes to {_named(uses.short)} with too few others for min.insync.replicas")
    if uses.only:
        objects = sum(one.objects for one in uses.only)
        says.append(f"reads of {counted(objects, 'object')}, of which no active broker has another copy")
    return says


def _named(parts: Sequence[_Part]) -> str:
    """`5 partitions (orders-0, orders-1, orders-2 and 2 others)`."""
    names, more = [one.name for one in parts[:NAMED_MAX]], len(parts) - NAMED_MAX
    listed = ", ".join(names) + (f" and {counted(more, 'other')}" if more > 0 else "")
    return f"{counted(len(parts), 'partition')} ({listed})"


def _helps(state: State, broker: int, uses: _Uses) -> list[str]:
    """Other replicas that are active get the copies in time; partitions without enough of them wait for ever."""
    lacking = [*uses.offline, *uses.short]
    stuck = [
        one
        for one in lacking
        if sum(can_lead(state, x) for x in state.placement_groups[one.group].replicas) < one.least
    ]
    groups, helps = {one.group for one in stuck}, list[str]()
    if len(stuck) < len(lacking) or any(one.group not in groups for one in uses.only):
        helps.append("`pylog replicate` or a coordinator copies what no other broker has: run this again after that")
    if stuck:
        helps.append(
            f"`pylog broker drain {broker}` moves {counted(len(stuck), 'partition')} without enough other active replicas to "
            "other brokers: run this again when `pylog reassign list` is empty"
        )
    return helps


def _broker(state: State, broker: int, free: int | None, *, is_defect: bool | None) -> Finding:
    """is_defect:  None: its root answers."""
    what, lag = f"broker {broker}", lag_of(state, broker)
    known = state.brokers.get(broker)
    if known is not None and known.fenced:
        if known.has_other_id:
            cure = "a coordinator, `pylog replicate` or `pylog maintain` takes it back then"
        elif known.returns:
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
    has = f"has {'the newest' if newest else 'all'} objects of its partitions"
    if is_defect is None:
        return Finding(what, True, has)
    says = f"{'' if is_defect else 'warning: '}its root does not answer on this machine; by the metadata, it {has}"
    return Finding(what, not is_defect, f"{says}: bring its disk or bucket back" if is_defect else says)


def _partitions(state: State) -> Finding:
    under, offline, short = count_replicas(state)
    says = list[str]()
    if offline and any(known.has_other_id for known in state.brokers.values()):
        says.append(
            f"{counted(offline, 'partition')} without a leader: give the log its previous id, which the checks of the brokers name"
        )
    elif offline:
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
