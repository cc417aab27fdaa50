"""Erasure of records by key: `Admin.erase_records`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_log.client.admin.answering_roots import RootAnswers
from spark_log.client.admin.brokers import ANSWER_S
from spark_log.client.admin.erasure_status import ended_texts, former_roots, gone_by, is_deleted, unreached_roots
from spark_log.client.producer.sent_values import to_bytes
from spark_log.client.reader.positions_to_offsets import partition_of, partitions_of, resolve
from spark_log.client.representations import described
from spark_log.client.topic_creation import DEAD_LETTER_CONFIGS
from spark_log.errors import ConcurrentChange, InvalidRequest, RequestTimedOut
from spark_log.journal.failure_isolation import Failures
from spark_log.journal.journal import Journal
from spark_log.journal.metadata_log import LogView, decided
from spark_log.journal.store_operations import Steps
from spark_log.metadata.commands import Report
from spark_log.metadata.erasures import Root, roots_of
from spark_log.metadata.groups.named_state import named_state
from spark_log.metadata.lines import plan_of
from spark_log.metadata.records import ErasedRecord
from spark_log.metadata.renewed_ids import later_ids
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.replicas.replicas import is_active
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.positions import Latest, parse_position
from spark_log.rewriting.erasing import Erased, Erasing, erase, plan_erasure, plan_shares
from spark_log.segment.keys.key_set import KeySet

Progress = Callable[[str, int, int], None]
"""(name of the step, amount done, total)."""
SHARE_BYTES = 1 << 30
"""About the size of the objects that a task searches."""
PENDING_MS = 60_000
"""How long an erasure waits for records that readers do not see yet."""
PENDING_POLL_MS = 100
LOOKS_MAX = 5
"""How often an erasure searches for state that flows have written while it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedShare:
    """The result of one task of a distributed erasure."""

    erased: Erased
    problems: Sequence[str]


Spread = Callable[[Erasing, Sequence[frozenset[str]]], Iterable[ErasedShare]]
"""Runs `erase_share` for each share of the objects, in other processes."""


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReport:
    """The result of an erasure; of a dry run, what it would be."""

    topic: str
    topic_id: str
    keys: int
    """Distinct keys that were given."""
    before: dict[int, int]
    """By partition: records before this offset were searched.  Later ones are kept, including those of uploads
    and transactions that were in progress.  Empty for a deleted topic."""
    records: int
    """Erased records."""
    objects: int
    """Objects with such records, live or dead.  They are deleted later."""
    bytes: int
    """Size of the slices in these objects, which were rewritten."""
    gone_by_ms: int | None
    """Maintenance has deleted the last copy by this time, if it runs and reaches all roots.  None for a dry run."""
    unreached: tuple[str, ...]
    """Sentences about roots that cannot be reached now, each with what to do: the erasure is not done before that."""
    former_roots: tuple[str, ...]
    """Sentences about roots of removed and replaced brokers, whose files may still be there."""
    ended: tuple[str, ...]
    """Sentences about earlier incomplete erasures of the topic, which are no longer listed because this one is
    complete.  They may have been for other keys."""
    dead_letters: tuple[str, ...]
    """Topics that pylog created for dead letters.  Records with the same keys may be in them."""
    writers: tuple[str, ...]
    """Producers with a name that wrote to the topic, such as mirrors.  If they repeat old records, these return."""
    flows: tuple[str, ...]
    """Flows that keep their state in the topic.  They write it again from records of the keys that they still get."""
    readers: tuple[str, ...]
    """Groups with a position in the topic.  They may have copied the records."""
    notes: dict[str, str]
    """By group: the metadata of its positions in the topic.  That of an export is the URL of its table."""
    problems: tuple[str, ...]
    """Data that could not be searched or rewritten: run the erasure again after repairing it.  And `unreached`."""


def erase_records(
    journal: Journal,
    topic: str,
    keys: Iterable[bytes | str] | pa.Array,
    before: object = "latest",
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    spread: Spread | None = None,
) -> ErasureReport:
    """See `Admin.erase_records`.

    spread:  runs most of the work in other processes; None: all of it runs here.
    """
    if not (progress is None or callable(progress)):
        raise InvalidRequest(f"erase_records: progress is {progress!r}, and not a function")
    began = state = journal.refresh()
    topic_id, is_gone = _topic_to_search(state, topic)
    wanted = KeySet(_key_array(keys), journal.context.rng)
    position = parse_position(before, "before")
    if not dry_run and not is_gone:
        state = await_pending(journal, topic)
    ends = {} if is_gone else resolve(journal, dict.fromkeys(partitions_of(state, topic), position))
    erasing = Erasing(
        topic=state.erasures[topic_id].name if is_gone else topic,
        topic_id=topic_id,
        ends={tp.partition: end for tp, end in ends.items()},
        history=plan_of(began),
        keys=wanted,
        failures=Failures(journal.metadata.url),
        progress=progress,
    )
    name = journal.context.unique()
    if not dry_run:
        _note(journal, began, ErasedRecord(topic_id=topic_id, incomplete=True, begins=name))
    try:
        state, erased, problems = _erased(journal, erasing, spread, dry_run=dry_run)
        if position == Latest() and not (dry_run or is_gone):
            erasing, later = _erase_later_state(journal, began, erasing, erased, name)
            problems = tuple(dict.fromkeys([*problems, *later]))
    except ConcurrentChange:
        if not dry_run:
            _note(journal, began, ErasedRecord(topic_id=topic_id, incomplete=True, ends=name))
        raise
    if not dry_run:
        _note(journal, began, ErasedRecord(topic_id=topic_id, incomplete=bool(problems), ends=name))
        erasing.check(state := journal.refresh())
    unreached = tuple(_unreached(journal, state).values())
    report = _report(state, erasing, erased, problems, unreached, None if dry_run else journal.context.clock.now_ms())
    return report if dry_run or problems else replace(report, ended=_ended(began, topic_id))


def _topic_to_search(state: State, topic: str) -> tuple[str, bool]:
    """The id of a topic, and whether it is a deleted one: that is given by its id, and has an erasure to repeat."""
    if topic not in state.names and topic in state.erasures and is_deleted(state, topic):
        return topic, True
    return topic_named(state, topic)[0], False


def _ended(began: State, topic_id: str) -> tuple[str, ...]:
    """Sentences about the erasures that are no longer listed after a complete one."""
    known = began.erasures.get(topic_id)
    return () if known is None else ended_texts(known)


def _note(journal: Journal, began: State, record: ErasedRecord) -> None:
    """Record the beginning, so that an erasure whose process is killed is listed, or the end."""
    journal.propose(Report.of(began, record))


def _erased(
    journal: Journal, erasing: Erasing, spread: Spread | None, *, dry_run: bool
) -> tuple[State, Erased, tuple[str, ...]]:
    """Erase, in other processes too if there is a `spread`.  Returns the state afterwards, the result and problems."""
    begun, problems = Erased(), list[str]()
    if spread is not None:
        for share in spread(erasing, _shares(journal, erasing)):
            begun.add(share.erased)
            problems += share.problems
    # After a distributed erasure, this finds only objects that others have merged meanwhile.
    state, erased = _run(journal, erasing, begun.checked, dry_run=dry_run)
    erased.add(begun)
    return state, erased, tuple(dict.fromkeys([*problems, *erasing.failures.problems]))


def _erase_later_state(
    journal: Journal, began: State, erasing: Erasing, erased: Erased, name: str
) -> tuple[Erasing, Sequence[str]]:
    """Erase the state that flows have written since the erasure began.  Returns the ends and the problems.

    A flow commits no batch that has read the state before the newest note.  So once nothing is found after a note, no
    flow has anything of the erased state.
    """
    topic = erasing.topic
    for _ in range(LOOKS_MAX):
        if not (flows := _flows(journal.refresh(), erasing.topic_id)):
            return erasing, ()
        _note(journal, began, ErasedRecord(topic_id=erasing.topic_id, incomplete=True, begins=name))
        state = await_pending(journal, topic)
        ends = {tp.partition: partition_of(state, tp)[1].end for tp in partitions_of(state, topic)}
        erasing = replace(erasing, ends=ends)
        _, again = _run(journal, erasing, dry_run=False)
        erased.add(again)
        if not again.records:
            return erasing, erasing.failures.problems
    return erasing, (
        *erasing.failures.problems,
        f"flow {flows[0]!r} writes state of these keys to topic {topic!r} while they are erased: stop the writers of "
        "its source, or the flow, and run the erasure again",
    )


def _report(
    state: State,
    erasing: Erasing,
    erased: Erased,
    problems: tuple[str, ...],
    unreached: tuple[str, ...],
    ended_ms: int | None,
) -> ErasureReport:
    """ended_ms:  when it ended; None for a dry run."""
    topic, topic_id = erasing.topic, erasing.topic_id
    return ErasureReport(
        topic=topic,
        topic_id=topic_id,
        keys=len(erasing.keys),
        before=dict(erasing.ends),
        records=erased.records,
        objects=erased.objects,
        bytes=erased.bytes,
        gone_by_ms=None if ended_ms is None else gone_by(state, max(state.time, ended_ms)),
        unreached=unreached,
        former_roots=former_roots(state),
        ended=(),
        dead_letters=_dead_letters(state, topic),
        writers=_writers(state, topic_id),
        flows=_flows(state, topic_id),
        readers=_readers(state, topic_id),
        notes=_notes(state, topic_id),
        problems=(*problems, *unreached),
    )


def _unreached(journal: Journal, state: State) -> dict[Root, str]:
    active = {broker for broker, _ in roots_of(state) if broker != OWN_BROKER and is_active(state, broker)}
    answers = RootAnswers(journal)
    silent = active - answers.among(active, ANSWER_S) if active else set()
    silent = {broker for broker in silent if not answers.was_denied(broker)}  # this process has no access to others
    return unreached_roots(state, roots_of(state), silent)


def await_pending(journal: Journal, topic: str, limit_ms: int = PENDING_MS) -> State:
    """Wait until readers see all records that the topic has now, because an erasure would miss the others.

    Returns the state in which they do.  Raises RequestTimedOut if they do not see them in time.
    """
    clock, state = journal.context.clock, journal.refresh()
    until_ms = clock.monotonic_ms() + limit_ms
    ends = {tp: partition_of(state, tp)[1].end for tp in partitions_of(state, topic)}
    while hidden := [tp for tp, end in ends.items() if partition_of(state, tp)[1].readable_end < end]:
        if clock.monotonic_ms() >= until_ms:
            raise RequestTimedOut(
                f"erasing from {topic}: readers do not see all records of {topic}-{hidden[0].partition} yet, because not "
                "all in-sync replicas have them, and the erasure would miss these. Nothing was erased: `pylog topic "
                "describe` shows the high watermark; run it again when that is the end"
            )
        clock.sleep_ms(PENDING_POLL_MS)
        state = journal.refresh()
    return state


def _key_array(keys: Iterable[bytes | str] | pa.Array) -> pa.Array:
    """Raises InvalidRequest for no keys, and for a null."""
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        array = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
        if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
            raise InvalidRequest(f"keys: the array has type {array.type}: expected binary or string")
        array = array.cast(pa.binary())
    elif isinstance(keys, str | bytes):
        raise InvalidRequest(f"keys: {keys!r} is not a list; give [{keys!r}]")
    else:
        array = pa.array([None if key is None else to_bytes("key", key) for key in keys], pa.binary())
    if array.null_count:
        raise InvalidRequest("keys: one of them is null: records without a key cannot be erased by key")
    if not len(array):
        raise InvalidRequest("keys: there are none: give at least one key")
    return array


def erase_share(journal: Journal, erasing: Erasing, share: frozenset[str], *, dry_run: bool) -> ErasedShare:
    """Erase records from a share of the objects.

    A share may be erased twice, or by two processes at a time: objects that have been replaced are left out.
    """
    failures = Failures(journal.metadata.url)
    _, erased = _run(journal, replace(erasing, objects=share, failures=failures), dry_run=dry_run)
    return ErasedShare(erased=erased, problems=failures.problems)


def _shares(journal: Journal, erasing: Erasing) -> list[frozenset[str]]:
    def run() -> Steps[list[frozenset[str]]]:
        view = yield from journal.metadata_log.refresh(journal.view)
        _, shares = yield from decided(journal.metadata_log, view, plan_shares(view.state, erasing, SHARE_BYTES))
        return shares

    return journal.run(run())


def _run(journal: Journal, erasing: Erasing, checked: Iterable[str] = (), *, dry_run: bool) -> tuple[State, Erased]:
    """The state afterwards, and the result."""
    known, metadata_log, context = journal.view, journal.metadata_log, journal.context

    def run() -> Steps[tuple[LogView, Erased]]:
        view = yield from metadata_log.refresh(known)
        steps = plan_erasure(view.state, erasing, checked) if dry_run else erase(view.state, context, erasing, checked)
        view, erased = yield from decided(metadata_log, view, steps, lambda newer: journal.adopt(newer, known))
        return view, erased

    view, erased = journal.run(run())
    journal.adopt(view, known)
    return view.state, erased


def _dead_letters(state: State, topic: str) -> tuple[str, ...]:
    return tuple(
        name
        for name, topic_id in sorted(state.names.items())
        if name != topic and DEAD_LETTER_CONFIGS.items() <= dict(state.topics[topic_id].configs).items()
    )


def _writers(state: State, topic_id: str) -> tuple[str, ...]:
    return tuple(
        name
        for name, known in sorted(state.producers.items())
        if not known.plain and known.last_commit is not None and topic_id in known.last_commit.topics
    )


def _flows(state: State, topic_id: str) -> tuple[str, ...]:
    return tuple(
        name
        for name, group in sorted(state.groups.items())
        if any(topic_id in later_ids(named_state(at.metadata)[0], state.version) for at in group.offsets.values())
    )


def _notes(state: State, topic_id: str) -> dict[str, str]:
    found = {
        name: sorted({at.metadata for key, at in group.offsets.items() if key[0] == topic_id and at.metadata})
        for name, group in sorted(state.groups.items())
    }
    return {name: ", ".join(notes) for name, notes in found.items() if notes}


def _readers(state: State, topic_id: str) -> tuple[str, ...]:
    return tuple(
        name for name, group in sorted(state.groups.items()) if any(key[0] == topic_id for key in group.offsets)
    )
