"""Looks for the partitions with something to merge, and for objects that are mostly dead: the plan of a merge, for the
whole log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from spark_log.journal.failure_isolation import OnFailure, raise_failure, resolve_each
from spark_log.journal.set_aside import SetAside
from spark_log.journal.store_operations import Steps
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from spark_log.rewriting.merge_policy import find_stretches, live_bytes, segment_target, thin_objects, window_ms
from spark_log.rewriting.rewrite_packs import Stretch

Slices = Mapping[TopicKey, Sequence[Slice]]


def plan_merge(
    state: State, on_failure: OnFailure = raise_failure, memory: MaintenanceMemory | None = None
) -> Steps[tuple[list[Stretch], frozenset[str]]]:
    """The slices to rewrite, and the objects that become unnecessary when they are rewritten.

    Looks at partitions that have changed since the last plan, and at all with slices of mostly dead objects.
    """
    memory = memory or MaintenanceMemory()
    live, aside = memory.live, memory.aside
    slices = yield from live_slices(state, memory.unmerged(state), on_failure, aside)
    for key, found in slices.items():
        live.hold(key, found)
    thin = thin_objects(state.objects, live.bytes)
    slices |= yield from live_slices(state, _others(live.holders(thin), slices), on_failure, aside)
    # Merging leaves some objects less than half alive: they are rewritten in the same pass.
    left = live.bytes.copy()
    left.subtract(live_bytes(stretch.slices for stretch in _planned(state, slices, thin, aside)))
    thin |= thin_objects(state.objects, left)
    slices |= yield from live_slices(state, _others(live.holders(thin), slices), on_failure, aside)
    stretches = list(_planned(state, slices, thin, aside))
    memory.set_merged(state, slices, (stretch.key for stretch in stretches))
    return stretches, thin


def plan_partitions(
    state: State,
    keys: Iterable[TopicKey],
    thin: Collection[str],
    aside: SetAside,
    on_failure: OnFailure = raise_failure,
) -> Steps[list[Stretch]]:
    """The slices of these partitions to rewrite.  Partitions that no longer exist are left out.

    thin:  objects that are mostly dead; finding them takes the other partitions, too.
    """
    live = [key for key in keys if key in state.partitions]
    return list(_planned(state, (yield from live_slices(state, live, on_failure, aside)), thin, aside))


def _others(keys: Iterable[TopicKey], known: Slices) -> list[TopicKey]:
    return sorted(key for key in keys if key not in known)


def live_slices(
    state: State, keys: Iterable[TopicKey], on_failure: OnFailure, aside: SetAside
) -> Steps[dict[TopicKey, list[Slice]]]:
    """The slices above the start of each partition.  An index that cannot be read is one slice, and set aside."""
    parts = {key: state.partitions[key] for key in keys}
    resolved = yield from resolve_each(state, {key: part.entries for key, part in parts.items()}, on_failure, aside)
    return {key: [piece for piece in found if piece.end > parts[key].start] for key, found in resolved.items()}


def _planned(state: State, slices: Slices, thin: Collection[str], aside: SetAside) -> Iterator[Stretch]:
    for key, pieces in sorted(slices.items()):
        yield from stretches_of(state, key, pieces, thin, aside)


def stretches_of(
    state: State, key: TopicKey, slices: Sequence[Slice], thin: Collection[str], aside: SetAside
) -> Iterator[Stretch]:
    """Slices of a partition to rewrite.

    thin:  objects whose slices are rewritten, whatever their size.
    """
    configs = state.topics[key[0]].configs
    target, window_us = segment_target(configs), 1000 * window_ms(configs)
    yield from (
        Stretch(key, stretch) for stretch in find_stretches(slices, target, window_us, thin, aside.starts(key, slices))
    )
