"""`pylog repair`: rebuilds the metadata of a log that does not open, from the checkpoints and records that can be read.

If every version of a log can be restored, it is rewritten: its damaged files are moved to `meta/damaged/`, and two new
checkpoints replace them.  If a version is lost, the offsets of its records could be given to other records.  Then
nothing is changed, and the report lists the loss, unless the loss is accepted: the log continues with the state that
is certain, and every topic gets a new id (metadata/maintenance/accepted_loss.py).  A lost `meta/format` is rebuilt with
the id of the log, on which its brokers, mirrors, backups and queries depend (log_id.py).  Clients and coordinators must
not use the log meanwhile.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from spark_log.errors import ConcurrentChange, CorruptObject, InvalidRequest, NoLog, SparkLogError, StorageError
from spark_log.journal.context import Context
from spark_log.journal.dropped_lists import read_lists
from spark_log.journal.index_reads import read_known
from spark_log.journal.lost_versions import (
    LostVersions,
    again_text,
    find_lost,
    given_again,
    known_loss,
    loss_text,
)
from spark_log.journal.other_lines import OtherLine, note_objects, records_of_other_lines
from spark_log.journal.storage.beyond_the_end import records_beyond
from spark_log.journal.storage.checkpointing import checkpoint, damaged_between, lost_checkpoint, put_aside
from spark_log.journal.storage.log_format import FORMAT_VERSION, Format, check_is_here, parse_format, put_format
from spark_log.journal.storage.log_remains import find_remains, remains_error
from spark_log.journal.storage.opening import View, open_view, state_in
from spark_log.journal.store_operations import OWN_ROOT, Delete, Get, List, Steps, Stores, run
from spark_log.metadata.decide_coordinators import closed_error, moved_to, moving_to
from spark_log.metadata.maintenance.accepted_loss import renew, replay_after_loss
from spark_log.metadata.records import Batch, CommitRecord, Piece, TakeOverRecord
from spark_log.metadata.renewed_ids import renewed_id, version_after_loss
from spark_log.metadata.replay import replay as replay_batch
from spark_log.metadata.replicas.replica_state import OWN_BROKER, Broker
from spark_log.metadata.state import Leadership, State, TopicKey
from spark_log.recovery.log_id import (
    RECORD,
    batch_of,
    check_is_no_copy,
    choose_id,
    id_in_records,
    ids_in_checkpoints,
    ids_of_brokers,
)
from spark_log.recovery.lost_ends import COUNTED_MAX, index_of
from spark_log.recovery.mirror import format_of
from spark_log.roots.broker_roots import Roots
from spark_log.roots.root_options import DEFAULT_OPTIONS, RootOptions
from spark_log.runtime.clock import Clock, SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import (
    CHECKPOINTS,
    DATA,
    FORMAT_KEY,
    LOG,
    LOST_VERSIONS,
    MIRRORED,
    checkpoint_version,
    listed,
    log_key,
    log_version,
)
from spark_log.store.retry import with_retries
from spark_log.text import counted

SHOWN = 20
"""Maximum number of lost changes in an error."""

IsAlive = Callable[[Leadership], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """The damage, and the result of the repair."""

    version: int
    """The newest version that can be restored."""
    base: str
    """The checkpoint it is restored from; empty: from the first record."""
    damaged: tuple[str, ...]
    """Files that are unreadable and not needed: they are moved to `meta/damaged/`."""
    absent: tuple[str, ...] = ()
    """The first missing record between two checkpoints.  It is not needed; new checkpoints replace it."""
    others: tuple[OtherLine, ...] = ()
    """Records that are not of this log.  They are moved away, and their objects are kept."""
    moved: tuple[str, ...] = ()
    """Files that are moved to `meta/damaged/`: the damaged ones and, if versions are lost, all later records."""
    lost: tuple[str, ...] = ()
    """A description of each version from the first lost one.  If there are any, the log changes only with
    `accept_loss`."""
    continues_at: int = 0
    """The version at which the log continues with `accept_loss`; 0: nothing is lost."""
    kept: tuple[str, ...] = ()
    """The offsets of each partition that are kept."""
    unnamed: tuple[str, ...] = ()
    """Objects without a reference after the repair that were not dropped before the loss: they may hold lost records,
    and are kept for `gc.fence.age.ms`."""
    missing: tuple[str, ...] = ()
    """Objects that the repaired log refers to, but that do not exist."""
    gone: tuple[str, ...] = ()
    """The offsets of the records in them, by partition."""
    helps_from: int = 0
    """A checkpoint of this version, or a later one, makes up for all versions that are lost."""
    given_again: str = ""
    """The versions among these that clients have given again since, as a text; empty: none is known."""
    kept_topics: tuple[str, ...] = ()
    """The topics that the log has with `accept_loss`."""
    left_out: tuple[str, ...] = ()
    """By topic, the records in objects without a reference, and the topics that the log does not have any more."""
    lost_format: bool = False
    """`meta/format` is missing: it is rebuilt."""
    cluster_id: str = ""
    """The log's id for it; empty: the log gets a new one, as asked for."""
    id_source: str = ""
    """The holder of this id; empty: it was given, and nothing that can be read here has it."""
    former_id: str = ""
    """The id that `meta/format` has, if another one was given."""
    needed: bool = True
    """False: the log opens, and nothing is damaged."""
    left: tuple[str, ...] = ()
    """If it is not needed: what else is wrong with the metadata, with the command that helps."""


@dataclass(frozen=True, slots=True)
class _Found:
    report: RepairReport
    state: State
    """To be written, if nothing is lost or the loss is accepted."""
    files: tuple[str, ...]
    """Checkpoints and records that there were."""
    holders: tuple[Leadership, ...]
    """Coordinators that may lead the log."""


def repair(
    store: ObjectStore,
    *,
    is_alive: IsAlive,
    dry_run: bool = False,
    accept_loss: bool = False,
    cluster_id: str = "",
    clock: Clock | None = None,
    seed: int | None = None,
    root_options: RootOptions = DEFAULT_OPTIONS,
) -> RepairReport:
    """Repair a damaged log without losing acknowledged records.

    is_alive:      whether a coordinator that has the log answers.
    dry_run:       only report the repair.
    accept_loss:   continue without versions that cannot be restored.  Every topic then gets a new id.
    cluster_id:    the log's id, for a lost `meta/format` or in place of a wrong one; `NEW_ID`: a new one.
    root_options:  how to open the roots of brokers.
    Raises NoLog if there is no log; InvalidRequest if a coordinator serves the log, or if nothing has the id of a log
    that has lost `meta/format`, or the id that was given is not the log's; CorruptObject, which states the
    loss, if versions cannot be restored and `accept_loss` is false; WrongRoot for a mirror that has lost `meta/format`,
    if the root of a broker says so; UnsupportedVersion if files are of a newer pylog or
    `meta/format` is damaged.
    """
    clock = clock or SystemClock()
    store = with_retries(store, clock)
    context = Context(clock, random.SystemRandom() if seed is None else random.Random(seed))
    run(_refuse_mirror(store.url), Stores.of(store), clock)
    brokers = dict[int, Broker]()
    roots = Roots(store, "", lambda: brokers, lambda name: (OWN_ROOT,), root_options, clock)
    found = run(_find(store.url, brokers), Stores(store, roots), clock)
    report = _with_id(found, store, roots, brokers, cluster_id)
    if not report.needed:
        return report
    if report.lost:
        report = replace(report, left_out=tuple(_left_out(report, found.state, roots)))
    for holder in found.holders:
        if is_alive(holder):
            raise InvalidRequest(
                f"the coordinator at {holder.address} serves {store.url}: stop it, then repair the log"
            )
    if dry_run:
        return report
    if report.lost and not accept_loss:
        raise _not_accepted(store.url, report)
    run(note_objects(found.state, report.others, clock.now_ms()), Stores(store, roots), clock)
    run(_rebuild(found, context), Stores.of(store), clock)
    if report.lost:
        store.delete([LOST_VERSIONS])  # the new checkpoints name what is left of them
    if report.lost_format:
        run(put_format(_new_format(report.cluster_id, context), store.url), Stores.of(store), clock)
    elif report.former_id and (form := format_of(store)) is not None:
        store.put(FORMAT_KEY, (msgspec.structs.replace(form, cluster_id=report.cluster_id).encode(),))
    return report


def _with_id(found: _Found, store: ObjectStore, roots: Roots, brokers: dict[int, Broker], given: str) -> RepairReport:
    """The report, with the id of the log if `meta/format` is lost or another id is given.  Raises as `repair` does."""
    report, form = found.report, format_of(store)
    if form is not None and given in ("", form.cluster_id):
        return report
    brokers.update(found.state.brokers)
    check_is_no_copy(roots)
    if form is None and store.size(MIRRORED) is not None:
        raise remains_error(store.url, [MIRRORED])
    known = ids_of_brokers(roots)
    if recorded := report.cluster_id or run(id_in_records(listed(store, LOG)), Stores.of(store), roots.clock):
        known[RECORD] = recorded
    written = run(ids_in_checkpoints(listed(store, CHECKPOINTS)), Stores.of(store), roots.clock)
    known |= {
        name: one for name, one in written.items() if form is None or one == given
    }  # others may be of a wrong file
    source, cluster_id = choose_id(store.url, known, given, "" if form is None else form.cluster_id)
    former = "" if form is None else form.cluster_id
    return replace(report, cluster_id=cluster_id, id_source=source, former_id=former, needed=True)


def _refuse_mirror(url: str) -> Steps[None]:
    data: bytes | None = yield Get(FORMAT_KEY)
    form = None if data is None else parse_format(data, url)
    if form is not None and form.mirrors:
        form.check_restored(url)
        raise InvalidRequest(
            f"{url} is a mirror of {form.mirrors}: if it is damaged, give the log a new mirror in an empty folder, with "
            f"`pylog mirror set NEW-MIRROR`; if that log is lost, run `pylog recover -u {url}`"
        )


def _not_accepted(url: str, report: RepairReport) -> CorruptObject:
    more = len(report.lost) - SHOWN
    return CorruptObject(
        f"{url} can be restored up to version {report.version}, and nothing was changed, because more is lost: "
        f"{'; '.join(report.lost[:SHOWN])}{f'; and {more} more' if more > 0 else ''}. {way_back(report)}. If a later "
        f"record is not of this log, move it out of {LOG} and run `pylog repair` again. Without a copy, `pylog repair "
        "--accept-loss` continues without them; add --dry-run to see what it keeps"
    )


def way_back(report: RepairReport) -> str:
    """A sentence on what makes up for the lost versions."""
    if report.given_again:
        return f"Beside that, {report.given_again}; `pylog verify` names the objects of the lost records"
    return (
        f"Copy one file of meta/ckpt/, of version {report.helps_from} or later, or ALL lost files of meta/log/, from a copy or a mirror "
        "of the log, and run `pylog repair` again"
    )


def _find(url: str, brokers: dict[int, Broker]) -> Steps[_Found]:
    """
    brokers:  gets those of which the roots are read.
    """
    form, names, records = yield [Get(FORMAT_KEY), List(CHECKPOINTS), List(LOG)]
    if form is not None:
        check_is_here(parse_format(form, url), url)
    elif not names and not records:
        if remains := (yield from find_remains()):
            raise remains_error(url, remains)
        raise NoLog(f"there is no log at {url}: it has no {FORMAT_KEY}")
    found = yield from _find_damage(names, records, brokers)
    if form is not None:
        return found
    cluster_id = yield from id_in_records(records)
    return replace(found, report=replace(found.report, lost_format=True, cluster_id=cluster_id, needed=True))


def _find_damage(names: Sequence[str], records: Sequence[str], brokers: dict[int, Broker]) -> Steps[_Found]:
    states, damaged = yield from _read_checkpoints(names)
    base, state = yield from _furthest(states, frozenset(records))
    beyond = yield from records_beyond(state, records)
    brokers.update(state.brokers)
    stored = yield from _stored(state, beyond.strays.values())
    newest = max([state.version, *map(log_version, beyond.chain), *map(checkpoint_version, names), stored.upto])
    if state.version < newest:
        newest = max([newest, *map(log_version, beyond.strays)])
        yield from _check_unchanged([*names, *records])  # an object ahead may be of a client that writes meanwhile
        report = RepairReport(version=state.version, base=base, damaged=damaged)
        return (yield from _find_loss(report, state, stored, newest, records, [*names, *records]))
    between = yield from damaged_between()
    damaged += tuple(name for name in between if name in records)
    absent = tuple(name for name in between if name not in records)
    others = yield from records_of_other_lines(state)
    needed = bool(between or damaged or others) or not (yield from _opens())
    left = () if needed else tuple((yield from _left(state)))
    report = RepairReport(
        version=state.version,
        base=base,
        damaged=damaged,
        absent=absent,
        moved=(*damaged, *(one.key for one in others if one.key not in damaged)),
        others=tuple(others),
        needed=needed,
        left=left,
    )
    return _Found(report, state, (*names, *records), (state.coordinator,))


def _left(state: State) -> Steps[list[str]]:
    """The findings of health about the metadata of a log that opens."""
    found = list[str]()
    if url := moving_to(state.coordinator):
        found.append(str(closed_error(url)))
    if url := moved_to(state.coordinator):
        found.append(
            f"the log was moved to {url}, so it opens there and not here; if it is lost there, `pylog move --cancel --force` opens "
            "it here again, with what it had before the move"
        )
    if why := (yield from lost_checkpoint()):
        found.append(f"{why}; `pylog checkpoint` writes a new one")
    try:
        if lost := (yield from known_loss(state, None)):
            found.append((yield from loss_text(state, lost)))
    except CorruptObject as error:
        found.append(str(error))
    return found


def _find_loss(
    report: RepairReport, known: State, objects: _Stored, newest: int, names: Sequence[str], files: Sequence[str]
) -> Steps[_Found]:
    """Also the state with which the log can continue without the lost versions."""
    stored, lost = objects.names, [*objects.problems]
    state, holders, last, helps_from = known, [known.coordinator], known.version, newest
    after = [name for name in names if log_version(name) > known.version]
    for key in after:
        version = log_version(key)
        lost += _missing(last + 1, version)
        helps_from = version - 1 if version > last + 1 else helps_from
        last, batch = version, (yield from batch_of(key))
        if batch is None:
            lost.append(f"{key} is damaged")
            helps_from = version
            continue
        before, state = state, replay_after_loss(state, version, batch, known, stored)
        lost.append(f"{key} can be read, but follows a lost one{_content(before, state, batch)}")
        holders += [
            Leadership(one.epoch, one.address, one.host, purpose=one.purpose)
            for one in batch.records
            if isinstance(one, TakeOverRecord)
        ]
    lost += _missing(last + 1, newest + 1)
    if objects.upto == newest:
        lost.append(f"clients that had read version {newest} have put objects")
    helps_from = newest if newest > last else helps_from
    version = version_after_loss(max(newest, objects.last))
    renewed = renew(state, version, {key: renewed_id(key, version) for key in state.names.values()}, stored)
    garbage = {*known.dropped, *known.dropped_lists}
    yield from read_lists(known.dropped_lists, garbage.update)
    report = replace(
        report,
        moved=(*report.damaged, *after),
        lost=tuple(lost),
        continues_at=version,
        kept=tuple(_kept(known, state)),
        unnamed=tuple(sorted({*renewed.dropped} - garbage)),
        missing=(missing := tuple(_missing_objects(state, stored))),
        gone=tuple((yield from _gone(state, frozenset(missing)))),
        helps_from=helps_from,
        given_again=objects.given_again,
        kept_topics=tuple(sorted(state.names)),
    )
    return _Found(report, renewed, tuple(files), tuple(holders))


class _Stored(NamedTuple):
    names: frozenset[str]
    """The objects in all roots."""
    problems: tuple[str, ...]
    """The roots of brokers that could not be read."""
    upto: int
    """A version that the log had and that was not given up, as the names of objects show; 0: they show none after the
    state."""
    last: int
    """A version that the log had, given up or not: it has to continue beyond."""
    given_again: str
    """Versions that clients have written since the loss, as a text; empty: none."""


def _stored(known: State, strays: Iterable[Batch]) -> Steps[_Stored]:
    """
    strays:  records behind the end that are not of the log.  Their objects do not show that it had versions.
    """
    named = {
        made.name for batch in strays for one in batch.records if isinstance(one, CommitRecord) for made in one.objects
    }
    own: list[str] = yield List(DATA, OWN_ROOT)
    stored, lost, ahead = set(own), list[str](), [(yield from find_lost(known, {*own} - named))]
    for broker in sorted(known.brokers):
        try:
            found: list[str] = yield List(DATA, broker)
        except StorageError as error:
            lost.append(f"the root of broker {broker} cannot be read, so its objects are taken for lost: {error}")
            continue
        if not found:
            lost.append(f"the root of broker {broker} has no objects (is its disk mounted?)")
        stored.update(found)
        ahead.append((yield from find_lost(known, {*found} - named, broker)))
    furthest = max(filter(None, ahead), key=lambda one: one.upto, default=None)
    kept = yield from _not_given_up(known, furthest)
    if kept is not None and kept.objects and named.issuperset(kept.objects):
        kept = None
    upto, last = (0 if one is None or one.upto <= known.version else one.upto for one in (kept, furthest))
    again = 0 if kept is None else (yield from given_again(known, kept))
    text = again_text(min(again, known.version), known.version) if again else ""
    return _Stored(frozenset(stored), tuple(lost), upto, last, text)


def _not_given_up(known: State, found: LostVersions | None) -> Steps[LostVersions | None]:
    try:
        return (yield from known_loss(known, found))
    except CorruptObject:  # the note is damaged, and objects are there
        return found


def _left_out(report: RepairReport, state: State, roots: Roots) -> Iterator[str]:
    """By topic, the records in objects that the repaired log does not name."""
    records, objects = Counter[str](), Counter[str]()
    for name in report.unnamed[:COUNTED_MAX]:
        for broker in (OWN_BROKER, *sorted(roots.brokers)):
            if (index := index_of(roots[broker], name)) is not None:
                found = Counter[str]()
                for topic_id, rows in zip(index.table["topic_id"].to_pylist(), index.numbers["rows"], strict=True):
                    found[topic_id] += int(rows)
                records += found
                objects.update(found.keys())
                break
    for topic_id, count in sorted(records.items()):
        topic = state.topics.get(renewed_id(topic_id, report.continues_at))
        what = f"{counted(count, 'record')} in {counted(objects[topic_id], 'object')} without a reference"
        if topic is not None:
            yield f"topic {topic.name} lacks {what}"
        else:
            yield f"a topic is dropped, with {what}: no file that can be read has its name; its id is {topic_id}"


def _missing(first: int, end: int) -> list[str]:
    """The description of versions [first, end) that have no record."""
    if first >= end:
        return []
    return [
        f"{log_key(first)} is missing" if end - first == 1 else f"{log_key(first)} to {log_key(end - 1)} are missing"
    ]


def _content(before: State, after: State, batch: Batch) -> str:
    """Record counts by partition, and whether all records can be kept."""
    rows = Counter[TopicKey]()
    for record in batch.records:
        if isinstance(record, CommitRecord):
            for _, run_ in record.slices:
                rows[run_.topic_id, run_.partition] += run_.rows
            for topic_id, number, piece in record.pieces:
                rows[topic_id, number] += piece.end - piece.start
    parts = ", ".join(f"{counted(count, 'record')} of {_named(after, key)}" for key, count in sorted(rows.items()))
    lost = any(_end(after, key) - _end(before, key) < count for key, count in rows.items())
    return f": {parts}{', not all of which can be kept' if lost else ''}" if parts else ""


def _named(state: State, key: TopicKey) -> str:
    topic = state.topics.get(key[0])
    return f"{topic.name if topic else key[0]}-{key[1]}"


def _end(state: State, key: TopicKey) -> int:
    part = state.partitions.get(key)
    return 0 if part is None else part.end


def _kept(known: State, state: State) -> Iterator[str]:
    """The kept and the new offsets of each partition."""
    for _, topic_id in sorted(state.names.items()):
        for number, part in state.topic_partitions(topic_id):
            key = (topic_id, number)
            sure, new = _end(known, key), part.end - _end(known, key)
            kept = f"offsets {part.start} to {sure - 1} are kept" if sure > part.start else "no records up to the loss"
            later = f"; {counted(new, 'record')} of later versions get the offsets from {sure} on" if new else ""
            yield f"{_named(state, key)}: {kept}{later}"


def _gone(state: State, missing: frozenset[str]) -> Steps[list[str]]:
    """The offsets of the records in missing objects, by partition."""
    found = list[str]()
    for key, part in sorted(state.partitions.items()) if missing else ():
        indexes, unread = yield from read_known(entry for entry in part.entries if entry.object not in missing)
        for error in filter(None, unread.values()):
            found.append(f"{_named(state, key)}: it is not known which objects are missing: {error}")
        spans = list[tuple[int, int]]()
        for entry in part.entries:
            slices = indexes.get(entry, [entry]) if isinstance(entry, Piece) else [entry]
            spans += [(one.start, one.end) for one in slices if one.object in missing]
        for start, end in _joined(spans):
            found.append(f"{_named(state, key)}: the objects with offsets {start} to {end - 1} are missing")
    return found


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending spans, of which adjacent ones are one."""
    found = list[tuple[int, int]]()
    for start, end in spans:
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, end))
    return found


def _missing_objects(state: State, stored: Container[str]) -> Iterator[str]:
    """Objects of the state that do not exist."""
    return (name for name in sorted(state.objects) if name not in stored)


def _read_checkpoints(names: Sequence[str]) -> Steps[tuple[dict[str, State], tuple[str, ...]]]:
    """States of the readable checkpoints, newest first, and the names of the others."""
    states, damaged = dict[str, State](), list[str]()
    for name in reversed(names):
        try:
            states[name] = state_in((yield Get(name)), name)
        except CorruptObject:
            damaged.append(name)
    return states, tuple(sorted(damaged))


def _furthest(states: dict[str, State], records: frozenset[str]) -> Steps[tuple[str, State]]:
    """The checkpoint from which records lead to the newest version, and that state; if several do, the newest
    checkpoint."""
    best = ("", State())
    for name, start in [*states.items(), ("", State())]:
        state = start
        while (key := log_key(state.version + 1)) in records:
            batch = yield from batch_of(key)
            if batch is None:
                break
            state = replay_batch(state, batch)
        if state.version > best[1].version:
            best = (name, state)
    return best


def _opens() -> Steps[bool]:
    try:
        yield from open_view()
    except SparkLogError:
        return False
    return True


def _check_unchanged(files: Sequence[str]) -> Steps[None]:
    if [*(yield List(CHECKPOINTS)), *(yield List(LOG))] != [*files]:
        raise ConcurrentChange("the log's metadata has changed since it was read: stop all clients, and repair again")


def _rebuild(found: _Found, context: Context) -> Steps[None]:
    """Copy the files, write two checkpoints, and delete the files: it can be interrupted at any point."""
    yield from _check_unchanged(found.files)
    yield from put_aside(found.report.moved)
    view = View(found.report.base, found.state, frozenset(found.report.damaged))
    yield from checkpoint(view, context)
    yield Delete(list(found.report.moved))
    yield from checkpoint(view, context)
    yield from open_view()


def _new_format(cluster_id: str, context: Context) -> Format:
    """The next change probes the storage, as for a new log."""
    return Format(
        pylog=FORMAT_VERSION,
        cluster_id=cluster_id or context.unique() + context.unique(),
        created_ms=context.clock.now_ms(),
        probed="",
    )
