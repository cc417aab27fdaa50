"""Slices in the log's own root whose records cannot be read: their offsets, and the records that are left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import NamedTuple

import msgspec

from spark_log.client.admin.brokers import check_answers
from spark_log.client.reader.fetch import fetch
from spark_log.errors import StorageUnavailable
from spark_log.journal.failure_isolation import resolve_each
from spark_log.journal.journal import Journal
from spark_log.journal.metadata_log import decided
from spark_log.journal.set_aside import SetAside
from spark_log.journal.store_operations import Steps
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.state import State, TopicKey
from spark_log.model import CREATE_TIME, Slice
from spark_log.recovery.verify import read_of
from spark_log.recovery.verify_copies import is_replicated
from spark_log.recovery.verify_objects import SliceAt, Spread, find_lost, find_sizes, here, shares_of
from spark_log.rewriting.rewrite import Rest, Span
from spark_log.rewriting.rewrite_packs import Stretch
from spark_log.segment.offsets import shifted
from spark_log.segment.reader import Decoded
from spark_log.store.object_names import INDEX


class DamagedSlice(NamedTuple):
    """A slice, and its offsets that no reader can read; there may be none."""

    key: TopicKey
    piece: Slice
    lost: tuple[Span, ...]


def find_damaged(journal: Journal, deep: bool, spread: Spread | None = None) -> list[DamagedSlice]:
    """Live slices whose object is missing or cut; with `deep`, also those with damaged bytes.

    Raises StorageUnavailable or WrongRoot if the log's own root cannot be read, also if that was so for a moment: its
    objects may be there.
    """
    mount = journal.roots.mount(OWN_BROKER)
    check_answers(journal.roots, OWN_BROKER)
    spread = spread or here(journal.roots)
    found = _damaged(journal, journal.refresh(), deep, spread)
    if found:  # an object may be missing because a newer state has replaced it
        now = set(_own_slices(journal, journal.refresh()))
        found = [one for one in found if (one.key, one.piece) in now]
    check_answers(journal.roots, OWN_BROKER)
    if journal.roots.mount(OWN_BROKER) != mount:
        raise StorageUnavailable("the log's own root was mounted again meanwhile: run the command again")
    return found


def _damaged(journal: Journal, state: State, deep: bool, spread: Spread) -> list[DamagedSlice]:
    slices = list(_own_slices(journal, state))
    names = sorted({piece.object for _, piece in slices})
    sizes = dict(zip(names, chain.from_iterable(spread(find_sizes, shares_of(names))), strict=True))
    gone = [(key, piece) for key, piece in slices if sizes[piece.object] is None]
    found = [DamagedSlice(key, piece, ((piece.start, piece.end),)) for key, piece in gone]
    there = [
        (key, piece)
        for key, piece in slices
        if (size := sizes[piece.object]) is not None and (deep or size != state.objects[piece.object].size)
    ]
    reads = [SliceAt(OWN_BROKER, read) for key, piece in there if (read := read_of(state, key, piece)) is not None]
    looked = chain.from_iterable(spread(find_lost, shares_of(reads, lambda one: one.read.slice.length)))
    found += [DamagedSlice(*one, tuple(lost)) for one, lost in zip(there, looked, strict=True) if lost is not None]
    return sorted(found, key=lambda one: (one.key, one.piece.start))


def _own_slices(journal: Journal, state: State) -> Iterator[tuple[TopicKey, Slice]]:
    """The slices that readers need, of objects in the log's own root alone.  Lost slice indexes are left out."""
    entries = {key: part.entries for key, part in state.partitions.items() if not state.topics[key[0]].deleted}
    known, metadata_log = journal.view, journal.metadata_log

    def resolved() -> Steps[dict[TopicKey, list[Slice]]]:
        _, found = yield from decided(metadata_log, known, resolve_each(state, entries, _ignore, SetAside()))
        return found

    for key, slices in journal.run(resolved()).items():
        for piece in slices:
            row = state.objects.get(piece.object)
            is_own = row is not None and not is_replicated(state, row) and not piece.object.endswith(INDEX)
            if is_own and piece.end > state.partitions[key].start:
                yield key, piece


def _ignore(what: str, error: Exception) -> None:
    """`verify` names slice indexes that cannot be read."""


def stretches_of(damaged: Iterable[DamagedSlice]) -> list[Stretch]:
    """The slices to rewrite.  Adjacent ones without any record become one; others stay alone."""
    found = list[Stretch]()
    for (key, *_), some in groupby(_with_runs(damaged), key=lambda pair: pair[0]):
        found.append(Stretch(key, [one.piece for _, one in some]))
    return found


def _with_runs(damaged: Iterable[DamagedSlice]) -> Iterator[tuple[tuple[TopicKey, bool, int], DamagedSlice]]:
    """Each slice with a name that it has in common with those before it that are rewritten with it."""
    number, before = 0, None  # type: int, DamagedSlice | None
    for one in damaged:
        follows = before is not None and before.key == one.key and before.piece.end == one.piece.start
        if before is None or not follows or not _is_empty(one) or not _is_empty(before):
            number += 1
        yield (one.key, one.piece.time_kind == CREATE_TIME, number), one
        before = one


def _is_empty(one: DamagedSlice) -> bool:
    return one.lost == ((one.piece.start, one.piece.end),)


def rest_of(journal: Journal, state: State, damaged: Iterable[DamagedSlice]) -> Rest:
    """Reads what is left of the slices.  The records between the lost offsets have to be readable."""
    lost = {(one.key, one.piece): one.lost for one in damaged}

    def rest(key: TopicKey, piece: Slice) -> tuple[Iterator[Decoded], Sequence[Span]]:
        return _readable(journal, state, key, piece, lost[key, piece]), lost[key, piece]

    return rest


def _readable(journal: Journal, state: State, key: TopicKey, piece: Slice, lost: Sequence[Span]) -> Iterator[Decoded]:
    whole = read_of(state, key, piece)
    starts, ends = [piece.start, *(end for _, end in lost)], [*(start for start, _ in lost), piece.end]
    for start, end in zip(starts, ends, strict=True):
        if start < end and whole is not None:
            for part in fetch(journal.roots[OWN_BROKER], msgspec.structs.replace(whole, start=start, end=end)):
                if part.records.num_rows:
                    yield Decoded(shifted(part.offsets, -piece.start), part.records)
