"""`pylog verify`: checks that the storage matches the state.  Reads only.

Checks of the metadata: the chain of records; the checkpoints and the records between them can be read; the state breaks
no rule of `metadata/invariants`, such as that partitions have no gaps; slice indexes can be decoded and match their
pieces; the count of live slices of each object is right; lists of dropped objects can be read.  Checks of the objects:
each exists and has its size, every copy of those with replicas (`verify_copies.py`).  `deep` also reads every byte
(`verify_objects.py`): checksums of runs and batches, indexes against runs, timestamps against their bounds.  Offsets
that cannot be read are those at which a reader fails.

The records and checkpoints of a log that a coordinator serves are not checked: this process has no access to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

from spark_log.client.admin.brokers import check_answers
from spark_log.client.admin.erasure_nodes import quorum_to_erase
from spark_log.client.admin.erasure_status import problems_of
from spark_log.client.admin.second_logs import second_logs
from spark_log.client.log import Log
from spark_log.client.reader.plan import SliceRead
from spark_log.errors import CorruptObject, ObjectNotFound, SparkLogError
from spark_log.journal.dropped_lists import read_lists
from spark_log.journal.index_reads import neighbours
from spark_log.journal.journal import Journal
from spark_log.journal.other_lines import MOVE, records_of_other_lines
from spark_log.journal.storage.beyond_the_end import check_chain, without_lost_records
from spark_log.journal.storage.checkpointing import damaged_between, damaged_checkpoints, lost_checkpoint
from spark_log.journal.storage.missing_indexes import GIVE_UP
from spark_log.journal.storage.opening import View, open_view
from spark_log.journal.storage.storage_health import in_the_way
from spark_log.journal.store_operations import OWN_ROOT, Get, List, Op, Steps
from spark_log.log_lines import logger
from spark_log.metadata.commits.pending_commits import entries_with_pending, optional_copies
from spark_log.metadata.formats.slice_index import decode_piece, slices_of
from spark_log.metadata.invariants import STATE_RULES, check_state
from spark_log.metadata.invariants.partitions import objects_count_their_slices, shown_partition, wrong_counts
from spark_log.metadata.records import Piece
from spark_log.metadata.replicas.replay_replicas import without_replicas
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice
from spark_log.recovery.lost_ends import lost_ends
from spark_log.recovery.verify_copies import (
    CheckedCopies,
    brokers_to_check,
    check_copies,
    is_replicated,
    only_on_fenced,
)
from spark_log.recovery.verify_objects import (
    Problem,
    SliceAt,
    Spread,
    damage_of,
    find_damage,
    find_sizes,
    here,
    shares_of,
)
from spark_log.rewriting.rewrite import Progress
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG, META, foreign_text

CHAIN_TRIES = 2
INDEXES_AT_ONCE = 48
"""Requests for slice indexes, of up to 4 MiB each, that are made together."""
SPARE = "without it the older checkpoint cannot replace the newer one"
HARMLESS = "no data is lost: no objects are deleted until `gc.fence.age.ms` has passed, and then this list is removed"
BROKEN = "this is a fault of pylog: report this line, and keep a copy of `meta/` for it"
DROP = "a lost slice index has left it: if all slice indexes can be read, `pylog verify --repair --lose-data` drops it"
RESTORE = f"restore it from a copy by `pylog verify --repair-from URL`, or {GIVE_UP}"


def verify(
    log: Log, deep: bool = False, *, progress: Progress | None = None, spread: Spread | None = None
) -> list[Problem]:
    """All problems of a log; empty if there are none.  Files of others in its folders are none: a warning names them.

    Writers and maintainers may run meanwhile: objects that they delete are not reported as problems.

    spread:  does what reads objects; None: this process, one share after the other.
    Raises WrongRoot if the log's own root is not mounted on a machine that looks at its objects.
    """
    journal, spread = log.journal, spread or here(log.journal.roots)
    seen, problems = (journal.refresh(), []) if journal.metadata_log.is_served else _metadata(journal)
    lost = journal.run(read_lists(seen.dropped_lists, len))
    problems += [Problem(name, f"{why}; {HARMLESS}") for name, why in lost.items()]
    quorum = quorum_to_erase(journal, seen)
    now_ms, served = journal.context.clock.now_ms(), journal.metadata_log.is_served
    problems += [Problem(*one) for one in problems_of(seen, now_ms, quorum, served=served)]
    slices, found = journal.run(resolve(seen))
    if lost or found:
        check_answers(journal.roots, OWN_BROKER)
    problems += found
    problems += _broken_rules(seen)
    problems += _counts(seen, slices)
    state = seen if journal.roots.brokers else without_replicas(seen)  # a mirror has all in its one root
    objects = list(_objects(state, slices, spread, progress))
    copies = check_copies(journal, state, deep, progress, spread)
    problems += _copies(state, slices, copies)
    looked = [broker for broker in brokers_to_check(state) if broker not in copies.unreachable]
    problems += lost_ends(journal, looked)
    _name_others(journal, looked)
    for other in second_logs(journal):
        logger.warning("%s", other.text)
    contents = list(_contents(state, slices, copies, spread, progress)) if deep else []
    read = {one.what for one in contents}  # it names the offsets exactly
    problems += [one for one in objects if one.what not in read] + contents
    if not journal.roots.brokers:  # a mirror may lack these until readers see them
        late = optional_copies(seen)
        problems = [one for one in problems if one.what not in late]
    return _still_named(journal, problems, seen, slices) if problems else []


def _still_named(
    journal: Journal, problems: Sequence[Problem], state: State, slices: Mapping[TopicKey, Sequence[Slice]]
) -> list[Problem]:
    """Without problems of objects that the log no longer refers to, because merging replaced them meanwhile."""
    now = journal.refresh()
    if now.version != state.version:
        state, (slices, _) = now, journal.run(resolve(now))
    named = {piece.object for rows in slices.values() for piece in rows} | {*state.objects, *state.dropped_lists}
    named |= {entry.object for part in state.partitions.values() for entry in part.entries}
    return [p for p in problems if not p.what.startswith("data/") or p.what in named]


def _name_others(journal: Journal, brokers: Iterable[int]) -> None:
    """Warn of files in the roots that are not of the log.  brokers: those whose copies were checked."""
    for broker in sorted({OWN_BROKER, *brokers}):
        try:
            check_answers(journal.roots, broker)
            text = foreign_text(journal.roots[broker], (DATA,) if journal.metadata_log.is_served else (META, DATA))
        except (SparkLogError, OSError, KeyError) as error:  # it is reported as a root that cannot be read
            logger.debug("files of others on broker %d: %s", broker, error)
            continue
        if text:
            logger.warning("%s", text)


def _metadata(journal: Journal) -> tuple[State, list[Problem]]:
    """The state, and the problems with the files that it comes from."""
    view, problems = journal.run(_chain())
    problems += [Problem(key, why) for key, why in in_the_way(journal.roots[OWN_BROKER], view.state.version)]
    writer = "`pylog mirror run MIRROR`" if journal.is_mirror else "`pylog checkpoint`"
    damaged = journal.run(damaged_checkpoints())
    problems += [Problem(name, f"{why}; {writer} writes a new one") for name, why in damaged.items()]
    if lost := journal.run(lost_checkpoint()):
        problems.append(Problem(CHECKPOINTS, f"{lost}; {writer} writes a new one"))
    between = journal.run(damaged_between())
    spare = writer if journal.is_mirror else "`pylog repair`"
    problems += [Problem(name, f"{why}; {SPARE}: {spare} writes two new ones") for name, why in between.items()]
    others = journal.run(records_of_other_lines(view.state))
    problems += [Problem(one.key, f"{one.text}; {MOVE}") for one in others]
    return view.state, problems


def _chain() -> Steps[tuple[View, list[Problem]]]:
    """A view, and the problems with its records; checked twice, as they may be truncated between view and listing."""
    for _ in range(CHAIN_TRIES):
        view = yield from open_view()
        problems = _missing(view, (yield from without_lost_records(view.state, (yield List(LOG)))))
        if not problems:
            break
    return view, problems


def _missing(view: View, names: Sequence[str]) -> list[Problem]:
    try:
        check_chain(view.state, view.checkpoint, names)
    except CorruptObject as error:
        return [Problem("meta/log/", str(error))]
    return []


# ------------------------------------------------------------------------------------------------------------- metadata


def _broken_rules(state: State) -> Iterator[Problem]:
    """Rules that the state breaks.  The live slices of objects are counted later, with those in indexes."""
    rules = [rule for rule in STATE_RULES if rule is not objects_count_their_slices]
    return (Problem(f"the state at version {state.version}", f"{text}; {BROKEN}") for text in check_state(state, rules))


def resolve(state: State) -> Steps[tuple[dict[TopicKey, list[Slice]], list[Problem]]]:
    """The slices of each partition, and the problems with entries and pieces."""
    slices: dict[TopicKey, list[Slice]] = {}
    problems: list[Problem] = []
    indexes = yield from _read_indexes(state)
    for key, entries in entries_with_pending(state).items():
        slices[key] = []
        for entry in entries:
            if isinstance(entry, Slice):
                slices[key].append(entry)
                continue
            where = f"topic {state.topics[key[0]].name!r}, partition {key[1]}"
            rows, found = _piece(entry, indexes[entry], where)
            slices[key] += rows
            problems += found
    return slices, problems


def _read_indexes(state: State) -> Steps[dict[Piece, bytes | None]]:
    """The bytes of each slice index; None: its object is missing.  Adjacent ones are read together."""
    groups = neighbours(
        entry for entries in entries_with_pending(state).values() for entry in entries if isinstance(entry, Piece)
    )
    found: dict[Piece, bytes | None] = {}
    for at in range(0, len(groups), INDEXES_AT_ONCE):
        some = groups[at : at + INDEXES_AT_ONCE]
        reads: list[Op] = [
            Get(group[0].object, group[0].position, group[-1].position + group[-1].length, OWN_ROOT) for group in some
        ]
        for group, data in zip(some, (yield reads), strict=True):
            first = group[0].position
            for piece in group:
                low = piece.position - first
                found[piece] = None if data is None else data[low : low + piece.length]
    return found


def _holes(name: str, entries: Sequence[Slice | Piece]) -> Iterator[Problem]:
    for before, after in pairwise(entries):
        if before.end != after.start:
            yield Problem(name, f"a slice ends at {before.end} and the next one starts at {after.start}")


def _piece(piece: Piece, data: bytes | None, where: str) -> tuple[list[Slice], list[Problem]]:
    which = f"the slice index of offsets {piece.start} to {piece.end - 1} of {where}"
    if data is None:
        return [], [Problem(piece.object, f"{which} is not there: {RESTORE}")]
    try:
        rows = slices_of(decode_piece(piece, data))
    except CorruptObject as error:
        return [], [Problem(piece.object, f"{which} cannot be read ({error}): {RESTORE}")]
    return rows, list(_piece_sums(piece, rows))


def _piece_sums(piece: Piece, rows: Sequence[Slice]) -> Iterator[Problem]:
    where = f"the slice index of offsets {piece.start} to {piece.end}"
    if (rows[0].start, rows[-1].end) != (piece.start, piece.end):
        yield Problem(piece.object, f"{where} covers {rows[0].start} to {rows[-1].end}")
    yield from _holes(piece.object, rows)
    sums = (len(rows), sum(row.length for row in rows))
    if sums != (piece.slices, piece.bytes):
        yield Problem(piece.object, f"{where} has (slices, bytes) {sums}, not {(piece.slices, piece.bytes)}")
    times = (min(row.min_us for row in rows), max(row.max_us for row in rows))
    if times != (piece.min_us, piece.max_us):
        yield Problem(piece.object, f"{where} has times {times}, not {(piece.min_us, piece.max_us)}")


def _counts(state: State, slices: dict[TopicKey, list[Slice]]) -> Iterator[Problem]:
    live = Counter(piece.object for rows in slices.values() for piece in rows)
    live.update(
        entry.object
        for entries in entries_with_pending(state).values()
        for entry in entries
        if isinstance(entry, Piece)
    )
    for name, text in sorted(wrong_counts(state, live)):
        yield Problem(name, text if live[name] else f"{text}: {DROP}")


# -------------------------------------------------------------------------------------------------------------- objects


def _objects(
    state: State, slices: Mapping[TopicKey, Sequence[Slice]], spread: Spread, progress: Progress | None
) -> Iterator[Problem]:
    """The objects that are in the log's own root alone."""
    rows = sorted((name, row) for name, row in state.objects.items() if not is_replicated(state, row))
    sizes = chain.from_iterable(spread(find_sizes, shares_of(name for name, _ in rows)))
    for number, ((name, row), size) in enumerate(zip(rows, sizes, strict=True)):
        if size is None:
            yield Problem(name, f"the object is not there: {_unread(state, name, slices)}")
        elif size != row.size:
            held = "; ".join(f"{one} may be unreadable" for one in _held(state, name, slices))
            yield Problem(
                name, f"the object has {size} bytes, not {row.size}: {f'{held}: {RESTORE}' if held else RESTORE}"
            )
        if progress is not None:
            progress("objects", number + 1, len(rows))


def _unread(state: State, name: str, slices: Mapping[TopicKey, Sequence[Slice]]) -> str:
    """The offsets that are lost with an object, and the ways out."""
    held = "; ".join(f"{one} cannot be read" for one in _held(state, name, slices))
    return f"{held}: {RESTORE}" if held else "no offsets are lost"


def _held(state: State, name: str, slices: Mapping[TopicKey, Sequence[Slice]]) -> Iterator[str]:
    """The offsets of each partition in an object."""
    for key, rows in slices.items():
        ranges = list[tuple[int, int]]()
        for piece in rows:
            if piece.object == name:
                start = ranges.pop()[0] if ranges and ranges[-1][1] == piece.start else piece.start
                ranges.append((start, piece.end))
        for start, end in ranges:
            yield f"offsets {start} to {end - 1} of {shown_partition(state, key)}"


def is_whole(store: ObjectStore, state: State, name: str, entries: Sequence[tuple[TopicKey, Slice | Piece]]) -> bool:
    """Whether a store has the whole of a live object: its size, its runs and its slice indexes.

    entries:  the entries of the state that are in the object.  If some are unknown, because a slice index cannot be
              read, the result is False.
    """
    row = state.objects[name]
    try:
        return (
            len(entries) == row.live
            and store.size(name) == row.size
            and not any(
                any(
                    _piece(
                        entry,
                        store.get(name, entry.position, entry.position + entry.length),
                        shown_partition(state, key),
                    )[1]
                )
                if isinstance(entry, Piece)
                else _is_damaged(store, state, key, entry)
                for key, entry in entries
            )
        )
    except ObjectNotFound:  # it was deleted meanwhile
        return False


def _is_damaged(store: ObjectStore, state: State, key: TopicKey, piece: Slice) -> bool:
    read = read_of(state, key, piece)
    return read is not None and any(damage_of(store, read))


def _copies(state: State, slices: Mapping[TopicKey, Sequence[Slice]], copies: CheckedCopies) -> Iterator[Problem]:
    for broker, why in copies.unreachable.items():
        yield Problem(f"broker {broker}", f"its copies were not checked: {why}")
    for brokers, objects in only_on_fenced(state).items():
        yield Problem(", ".join(f"broker {broker}" for broker in brokers), _on_fenced(state, brokers, objects))
    for bad in copies.bad:
        others = copies.good(state, bad.object) if bad.object in state.objects else []
        where = f"broker {', '.join(map(str, others))} has a good one" if others else "no broker has a good one"
        yield Problem(bad.object, f"broker {bad.broker}: {bad.message}; {where}")
    for name in sorted(copies.lost):
        yield Problem(name, f"no active broker has a good copy: {_unread(state, name, slices)}")


def _on_fenced(state: State, brokers: Sequence[int], objects: int) -> str:
    has = "object has its only copies" if objects == 1 else "objects have their only copies"
    reasons = [state.brokers[broker].reason for broker in brokers]
    if len(brokers) == 1:
        where, back = f"broker {brokers[0]}, which is fenced", "it is back"
    else:
        where, back = f"brokers {' and '.join(map(str, brokers))}, which are fenced", "one of them is back"
    why = "; ".join(dict.fromkeys(reason for reason in reasons if reason))
    return f"{objects} {has} on {where}{why and f': {why}'}: their records cannot be read until {back}"


def _contents(
    state: State,
    slices: Mapping[TopicKey, Sequence[Slice]],
    copies: CheckedCopies,
    spread: Spread,
    progress: Progress | None,
) -> Iterator[Problem]:
    total, at = sum(piece.length for rows in slices.values() for piece in rows), 0
    shares = shares_of(_reads(state, slices, copies), lambda one: one.read.slice.length)
    for size, found in spread(find_damage, shares):
        yield from found
        at += size
        if progress is not None:
            progress("bytes", at, total)


def _reads(state: State, slices: Mapping[TopicKey, Sequence[Slice]], copies: CheckedCopies) -> Iterator[SliceAt]:
    """All slices that can be read."""
    for key, rows in slices.items():
        for piece in rows:
            read, broker = read_of(state, key, piece), _good_broker(state, piece.object, copies)
            if read is not None and broker is not None:
                yield SliceAt(broker, read)


def read_of(state: State, key: TopicKey, piece: Slice) -> SliceRead | None:
    """The read of a whole slice; None: its object is unknown, which `_counts` reports."""
    row = state.objects.get(piece.object)
    if row is None:
        return None
    name = state.topics[key[0]].name
    return SliceRead(name, *key, piece.start, piece.end, piece, row.index_position, row.size)


def _good_broker(state: State, name: str, copies: CheckedCopies) -> int | None:
    """Where an object is read, to compare it with its slices; None: it was reported that it cannot be read."""
    row = state.objects.get(name)
    if row is None or not is_replicated(state, row):
        return OWN_BROKER
    return next(iter(copies.good(state, name)), None)
