"""Records that the log's own root, and its metadata, have nothing any more of what erasures have removed.  Deletes
the rest from mirrors.

Maintenance does this after it has collected garbage (docs/decisions/0108-erasures-in-the-state.md).
"""

from __future__ import annotations

from spark_log.client.admin.brokers import PUT_MS_MAX
from spark_log.configs.settings import cluster_config
from spark_log.journal.context import Context, Proposal
from spark_log.journal.garbage_collection import Collected, Look, collect
from spark_log.journal.metadata_log import AnyView, MetadataLog, decided
from spark_log.journal.store_operations import OWN_ROOT, Decide, Delete, List, Steps, Sweep
from spark_log.metadata.commands import Report
from spark_log.metadata.erasures import METADATA, OWN, Root, statistics_upto, waits_for, wiped_upto
from spark_log.metadata.records import WipedRecord
from spark_log.metadata.state import State
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from spark_log.store.base import NOTHING, Swept
from spark_log.store.object_names import DAMAGED, DATA, META


def mark_own_root(state: State, context: Context, collected: Collected | None, look: Look) -> Steps[State]:
    """For the data of the log's own root, if garbage was collected there up to the fence.

    look:  as for `collect`.
    """
    if collected is None or collected.fence < state.fence or not waits_for(state, OWN):
        return state
    swept = yield from sweep_data(state, context)  # the files of writers that died may have such records
    upto = wiped_upto(state, OWN, swept.oldest_ms, PUT_MS_MAX)
    if upto is not None:
        # All of the root: an upload may have come after the garbage of its time was deleted.
        _, everything = yield from collect(state, context, look=look)
        upto = upto if everything else None
    return (yield from _mark(state, OWN, upto))


def mark_metadata(log: MetadataLog[AnyView], view: AnyView) -> Steps[AnyView]:
    """For checkpoints, records and pins, which have statistics of typed topics, files that were put aside, and those of
    writers that died."""
    state, upto = view.state, wiped_upto(view.state, METADATA)
    if upto is not None:
        yield from log.expire_claims(state)
        view, is_gone = yield from log.forget(view, upto)
        if is_gone:
            yield Delete((yield List(DAMAGED)))  # what repairs and recoveries have put aside has statistics, too
            swept: Swept = yield Sweep(META, dead_before_ms(state, log.context))
            upto = wiped_upto(state, METADATA, swept.oldest_ms, PUT_MS_MAX)
            view, _ = yield from decided(log, view, _mark(view.state, METADATA, upto))
    return view


class MirrorCleaner:
    """Deletes from a mirror what its log does not have any more.  One for each process that copies."""

    def __init__(self) -> None:
        self._collected: Collected | None = None
        self._erased = self._forgotten = 0
        self._swept_ms: int | None = None

    def clean(self, log: MetadataLog[AnyView], view: AnyView, look: Look) -> Steps[AnyView]:
        """Delete garbage, statistics of erased records, and files of processes that died while they copied.

        Returns the view with the newest checkpoint.

        look:  as for `collect`.
        """
        yield from self._collect(view.state, log.context, look)
        yield from log.expire_claims(view.state)
        upto = statistics_upto(view.state)
        if upto > self._forgotten:
            view, is_gone = yield from log.forget(view, upto)
            self._forgotten = upto if is_gone else 0
        now_ms = log.context.clock.now_ms()
        if self._swept_ms is None or not 0 <= now_ms - self._swept_ms < PUT_MS_MAX:
            self._swept_ms = now_ms
            yield from sweep_data(view.state, log.context)
            yield Sweep(META, dead_before_ms(view.state, log.context))
        return view

    def _collect(self, state: State, context: Context, look: Look) -> Steps[None]:
        """After an erasure, look at all objects: a copy may have come after the garbage of its time was deleted."""
        erased = max((row.version for row in state.erasures.values() if row.version <= state.fence), default=0)
        before = self._collected if erased <= self._erased else None
        _, self._collected = yield from collect(state, context, before, look=look)
        self._erased = erased if self._collected else 0


def sweep_data(state: State, context: Context) -> Steps[Swept]:
    """Delete temporary files older than any upload that can still be committed, and than any put in progress."""
    swept: Swept = yield Sweep(DATA, dead_before_ms(state, context), OWN_ROOT)
    return swept


def sweep_all(state: State, context: Context, memory: MaintenanceMemory | None = None, *, meta: bool) -> Steps[int]:
    """Delete temporary files older than any upload that can still be committed, and than any put in progress.

    They are that old when they are deleted, so once in `PUT_MS_MAX` is enough.

    meta:  also those of the metadata, which a client of a served log has no access to.
    """
    now_ms = context.clock.now_ms()
    if memory is not None and memory.swept_ms is not None and 0 <= now_ms - memory.swept_ms < PUT_MS_MAX:
        return 0
    in_data = yield from sweep_data(state, context)
    in_meta: Swept = (yield Sweep(META, dead_before_ms(state, context))) if meta else NOTHING
    if memory is not None:
        memory.swept_ms = now_ms
    return in_data.deleted + in_meta.deleted


def dead_before_ms(state: State, context: Context) -> int:
    """A temporary file that was last written before belongs to a writer that died."""
    return context.clock.now_ms() - max(cluster_config(state.configs, "gc.fence.age.ms"), PUT_MS_MAX)


def _mark(state: State, root: Root, upto: int | None) -> Steps[State]:
    if upto is None:
        return state
    broker, directory = root
    return (yield Decide([Proposal(Report.of(state, WipedRecord(broker=broker, directory=directory, upto=upto)))]))
