"""Erasures in the state: which topics had one, and on which roots copies may be left.  Pure.

An erasure drops objects.  Maintenance deletes them on each root once the fence has passed, and records that it has.  A
root that maintenance cannot reach keeps the erasure open (docs/decisions/0108-erasures-in-the-state.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b

from spark_log.metadata import records as r
from spark_log.metadata.renewed_ids import later_ids
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.restores import common_version
from spark_log.metadata.state import ErasedTopic, FormerRoot, OpenErasure, State

Root = tuple[int, str]
"""(broker, directory)."""
OWN: Root = (OWN_BROKER, "")
METADATA: Root = (OWN_BROKER, "meta")
"""Statistics of a typed topic are in checkpoints and records: the least and the greatest values of its columns."""


def erased_at(state: State, topic_id: str) -> int:
    """The version of the end of the last erasure from a topic; -1: there was none.

    topic_id:  also its former one.
    """
    known = (state.erasures.get(one) for one in later_ids(topic_id, state.version))
    return max((row.version for row in known if row is not None), default=-1)


def waits_for(state: State, root: Root) -> bool:
    """Whether maintenance should record that a root has no copies: the fence passed an erasure that is open."""
    return any(
        root in one.roots and one.version <= state.fence for row in state.erasures.values() for one in row.unfinished
    )


def wiped_upto(state: State, root: Root, oldest_ms: float | None = None, put_ms: int = 0) -> int | None:
    """The version up to which a root has nothing that erasures have removed, after maintenance has deleted there what
    the fence has passed.  None: no erasure waits for that.

    oldest_ms:  when the oldest unfinished file there was last written; None: there is none.
    put_ms:     how long a write may take: a file that is so much younger than an erasure was begun after it.
    """
    ended = [
        one.version
        for row in state.erasures.values()
        for one in row.unfinished
        if root in one.roots and one.version <= state.fence and (oldest_ms is None or one.time + put_ms <= oldest_ms)
    ]
    return max(ended, default=None)


def statistics_upto(state: State) -> int:
    """The last erasure from a typed topic that the fence has passed: metadata of before its version may have
    statistics of erased records, also after the erasure is done.  0: there was none.
    """
    known = [row.version for topic_id, row in state.erasures.items() if topic_id in state.schemas]
    waiting = [one.version for row in state.erasures.values() for one in row.unfinished if METADATA in one.roots]
    return max((version for version in (*known, *waiting) if version <= state.fence), default=0)


def roots_of(state: State) -> tuple[Root, ...]:
    """The roots that may have objects."""
    brokers = sorted((broker, known.directory) for broker, known in state.brokers.items() if broker != OWN_BROKER)
    return (OWN, *brokers)


def replay_erased(state: State, record: r.ErasedRecord) -> State | None:
    """The roots are those of now.  The end of an erasure replaces its beginning.  A complete one also ends the
    incomplete ones of its topic that were recorded before it began.  A topic that is gone may have erasures that are
    not done: objects of other topics have its dead slices."""
    topic, known = state.topics.get(record.topic_id), state.erasures.get(record.topic_id)
    if topic is None and known is None:
        return None
    before = () if known is None else known.unfinished
    if not record.incomplete:
        began = next((one.version for one in before if one.running and one.running == record.ends), state.version)
        before = tuple(one for one in before if not one.incomplete or one.version > began)
    if record.ends:
        before = tuple(one for one in before if one.running != record.ends)
    may_be_typed = topic is None or record.topic_id in state.schemas
    roots = (*roots_of(state), *([METADATA] if may_be_typed else []))
    new = OpenErasure(state.version, state.time, roots, record.incomplete, record.begins)
    named = topic or known
    assert named is not None
    row = ErasedTopic(named.name, state.version, (*before, new), state.time)
    return replace(state, erasures=state.erasures.set(record.topic_id, row))


def replay_wiped(state: State, record: r.WipedRecord) -> State | None:
    """Void for a root in use if the fence has not passed the version: the copies may come back until then."""
    root = (record.broker, record.directory)
    is_former = record.directory in state.former_roots
    if not is_former and (root not in (METADATA, *roots_of(state)) or record.upto > state.fence):
        return None
    upto = state.version if is_former else record.upto
    changed = {
        topic_id: new
        for topic_id, row in state.erasures.items()
        if (new := row._replace(unfinished=tuple(_without(row.unfinished, root, upto)))) != row
    }
    if not changed and not is_former:
        return None
    former = state.former_roots.delete(record.directory) if is_former else state.former_roots
    return _only_known(replace(state, erasures=state.erasures.update(changed), former_roots=former), changed)


def _without(rows: Iterable[OpenErasure], root: Root, upto: int) -> Iterator[OpenErasure]:
    """The erasures that are still open without a root; incomplete ones stay."""
    for one in rows:
        if one.version > upto or root not in one.roots:
            yield one
        elif (left := tuple(other for other in one.roots if other != root)) or one.incomplete:
            yield one._replace(roots=left)


def erased_since(copy: State, newer: State) -> dict[str, ErasedTopic]:
    """By topic id: topics of a copy of the log from which records may have been erased later, by another state.

    The copy may have other records than the log, such as those of a recovery that was killed.  The log may have been
    restored since: then its versions begin again before those of the copy.  An erasure drops each object with one of
    its records, so a complete one has found nothing in the copy while the log has all objects of the copy.
    """
    last = common_version(copy, newer)
    is_replaced = any(name not in newer.objects for name in copy.objects)
    former = {later: one for one in copy.topics for later in later_ids(one, newer.version)}
    return {
        former[topic_id]: row
        for topic_id, row in sorted(newer.erasures.items())
        if topic_id in former
        and row.version > last
        and (is_replaced or any(one.incomplete and one.version > last for one in row.unfinished))
    }


def to_repeat(state: State, rows: Mapping[str, ErasedTopic]) -> State:
    """The state of a copy, in which later erasures of topics are listed until they are repeated."""
    changed = {}
    for topic_id, row in rows.items():
        known = state.erasures.get(topic_id)
        again = OpenErasure(state.version, row.time, (), incomplete=True)
        before = () if known is None else known.unfinished
        changed[topic_id] = ErasedTopic(row.name, state.version, (*before, again), row.time)
    return replace(state, erasures=state.erasures.update(changed))


def without_erasures(state: State, topic_ids: Iterable[str]) -> State:
    """The state without what it knows of erasures of topics that are gone, as far as these are done."""
    return _only_known(state, [one for one in topic_ids if one in state.erasures])


def _only_known(state: State, topic_ids: Iterable[str]) -> State:
    rows = state.erasures
    for one in topic_ids:
        if one not in state.topics and not rows[one].unfinished:
            rows = rows.delete(one)
    return state if rows is state.erasures else replace(state, erasures=rows)


def name_of_own(url: str) -> str:
    """The name of a former root of the log itself, which has no directory.  A log may return to it."""
    return blake2b(url.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def replay_former_root(state: State, record: r.FormerRootRecord) -> State:
    """Erasures that wait for the log's own root wait for both: nobody deletes anything in the former one."""
    former, root = FormerRoot(OWN_BROKER, record.url, state.version), (OWN_BROKER, record.directory)
    waiting = {
        topic_id: row._replace(
            unfinished=tuple(
                one._replace(roots=(*one.roots, root)) if OWN in one.roots and root not in one.roots else one
                for one in row.unfinished
            )
        )
        for topic_id, row in state.erasures.items()
    }
    return replace(
        state,
        erasures=state.erasures.update(waiting),
        former_roots=state.former_roots.set(record.directory, former),
    )


def with_copied_roots(state: State) -> State:
    """The state of a copy that becomes a log: its brokers and former roots are those of the other log."""
    state = with_former_roots(state, state.brokers)
    copied = {directory: known._replace(is_copied=True) for directory, known in state.former_roots.items()}
    return replace(state, former_roots=state.former_roots.update(copied))


def with_former_roots(state: State, brokers: Iterable[int]) -> State:
    """The state in which the roots of some brokers are former ones: their files are still there."""
    former = state.former_roots.update(
        {
            known.directory: FormerRoot(broker, known.url, state.version)
            for broker in brokers
            if (known := state.brokers.get(broker)) is not None and known.directory
        }
    )
    return replace(state, former_roots=former)
