"""`pylog maintain`: all duties that keep a log small, once or periodically; each duty is also available separately.

A maintainer is an ordinary process: several may run concurrently, beside writers and readers, and each may be killed
at any time.  It works on a separate view, so writers in the same process do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from spark_log.client.admin.second_logs import OFTEN_MS, second_logs
from spark_log.client.log import Log
from spark_log.configs.settings import cluster_config
from spark_log.errors import LogRestored, NoSpace
from spark_log.journal.context import Context
from spark_log.journal.dropped_lists import list_dropped
from spark_log.journal.failure_isolation import Failures, OnFailure, partition_name
from spark_log.journal.garbage_collection import collect, garbage_from
from spark_log.journal.maintenance import fence_and_expire
from spark_log.journal.metadata_log import LogView, MetadataLog, decided
from spark_log.journal.rounds import rounds
from spark_log.journal.sealing import prune, seal
from spark_log.journal.set_aside import SetAside
from spark_log.journal.storage.disk_reserve import has_reserve, keep_reserve
from spark_log.journal.store_operations import Steps
from spark_log.log_lines import logger
from spark_log.maintenance.erasure_ends import mark_metadata, mark_own_root, sweep_all
from spark_log.maintenance.lost_end import lost_end
from spark_log.maintenance.maintain_brokers import BrokerMaintenance, BrokerMaintenanceReport
from spark_log.maintenance.maintain_report import MaintainReport, Plan
from spark_log.maintenance.memory_file import load_memory, save_memory
from spark_log.maintenance.partition_moves import Moves, Moving, move_all
from spark_log.maintenance.retention import ExpiredTopic, expire_records, expired_topics, find_expired
from spark_log.maintenance.root_collection import RootCollector
from spark_log.maintenance.workers import CompactionShare, Workers, compact_by, merge_by
from spark_log.metadata.lines import is_of_plan, plan_of
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.replicas.reassignments import moving
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import decide_trim
from spark_log.replication.copy_throttle import pace_of
from spark_log.rewriting.compaction_plan import find_dirty_parts
from spark_log.rewriting.compaction_rounds import CompactionTally
from spark_log.rewriting.compaction_rounds import compact as compact_steps
from spark_log.rewriting.lost_index import drop_unnamed, prune_lost
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from spark_log.rewriting.merge import Tally
from spark_log.rewriting.merge import merge as merge_steps
from spark_log.rewriting.merge_candidates import plan_merge
from spark_log.rewriting.merge_shares import MergeShare
from spark_log.rewriting.merge_shares import merge_share as merge_share_steps
from spark_log.rewriting.read_again import read_again
from spark_log.rewriting.rewrite import Progress, open_spool

Result = TypeVar("Result")


def plan_round(log: Log) -> Plan:
    """Compute the changes of a run, without sealing and checkpoints.  Writes nothing."""

    failed = Failures(log.url)

    def plan(state: State) -> Steps[Plan]:
        memory, now = MaintenanceMemory(), log.journal.context.clock.now_ms()
        removals = yield from find_expired(state, now, failed, memory)
        trims = decide_trim(state, {key: removal.start for key, removal in removals.items()}).records
        trimmed = replay_records(next_version(state, now), trims)
        stretches, _ = yield from plan_merge(trimmed, failed, MaintenanceMemory(aside=memory.aside))
        dirty = yield from find_dirty_parts(trimmed, now, failed, MaintenanceMemory(aside=memory.aside))
        names = yield from garbage_from(state, now)
        return Plan(
            expired_records=sum(removal.records for removal in removals.values()),
            expired_bytes=sum(removal.bytes for removal in removals.values()),
            merged_slices=sum(len(stretch.slices) for stretch in stretches),
            merged_bytes=sum(piece.length for stretch in stretches for piece in stretch.slices),
            cleaned_partitions=len(dirty),
            cleaned_bytes=sum(part.bytes for part in dirty.values()),
            collected=len(names),
            collected_bytes=sum(log.journal.objects.size(name) or 0 for name in names),
        )

    def run() -> Steps[Plan]:
        metadata_log = log.journal.metadata_log
        view = yield from metadata_log.open()
        _, found = yield from decided(metadata_log, view, plan(view.state))
        return found

    return log.journal.run(run())


class Maintainer:
    """Rounds of maintenance of one log.  Not thread-safe.

    A round applies retention, advances the fence, deletes garbage, merges small slices, compacts and seals.  Then it
    writes a checkpoint, and deletes the metadata that the checkpoint replaces.

    The first round looks at the whole log, unless another process has saved its memory.  Later rounds look only at the
    changes since the round before.
    """

    def __init__(
        self, log: Log, *, saves_memory: bool = False, checks_brokers: bool = False, workers: Workers | None = None
    ) -> None:
        """
        saves_memory:    save, after each round that had something to plan, the memory that the first round of another
                         process needs.  Each round then finishes its passes of compaction, which another process cannot
                         continue.
        checks_brokers:  in each round, first check all roots, and copy to those that lack something; also move
                         partitions.
        workers:         merge and compact; None: this process does.
        """
        self.log = log
        self._workers = workers
        self._brokers = BrokerMaintenance(log) if checks_brokers else None
        self._collector = RootCollector(log.journal)
        self._second_logs: tuple[str, ...] = ()
        self._saves_memory = saves_memory and not log.journal.metadata_log.is_served
        self._memory: MaintenanceMemory | None = None
        """None: of no round that this process has ended."""
        self._has_begun = False

    def round(self, *, progress: Progress | None = None) -> MaintainReport:
        """Run one round.  Failures are logged and listed in the report.

        progress:  called with (name of the work, progress, total).
        Raises the errors of opening the log and of reaching its coordinator.
        """
        return self._run(progress)[0]

    def round_or_raise(self, *, progress: Progress | None = None) -> MaintainReport:
        """Does what `round` does, but raises the first failure after all duties were tried.  Completed work is kept."""
        report, failures = self._run(progress)
        failures.raise_first()
        return report

    def _run(self, progress: Progress | None) -> tuple[MaintainReport, Failures]:
        log, failed = self.log, Failures(self.log.url)
        kept = self._brokers.round(failed) if self._brokers is not None else BrokerMaintenanceReport()
        known, is_first = log.journal.view, not self._has_begun

        def run() -> Steps[tuple[LogView, MaintenanceMemory, MaintainReport]]:
            view, memory = yield from self._begin(known)
            # Retention and sweeps use this clock even if no batch is written.
            yield from log.journal.metadata_log.check_clock(view.state)
            duties = _Round(
                log,
                view,
                failed,
                memory,
                progress=progress,
                workers=self._workers,
                saves_memory=self._saves_memory,
                moves=self._brokers is not None,
                is_first=is_first,
            )
            report = yield from duties.run()
            return duties.view, memory, report

        view, memory, report = log.journal.run(run())
        log.journal.adopt(view, known)
        # After an exception the next round looks at the whole log again.
        self._memory = memory
        if view.state.brokers:
            report = self._with_roots(report, view.state, kept, failed)
        return replace(report, second_logs=self._look_for_second_logs()), failed

    def _look_for_second_logs(self) -> tuple[str, ...]:
        """Looks now and then at the places from which the log was moved.  A warning is logged once."""
        others = second_logs(self.log.journal, OFTEN_MS, of_copies=False)
        before, self._second_logs = self._second_logs, tuple(one.text for one in others)
        for text in self._second_logs:
            if text not in before:
                logger.warning("%s", text)
        return self._second_logs

    def _with_roots(
        self, report: MaintainReport, state: State, kept: BrokerMaintenanceReport, failed: Failures
    ) -> MaintainReport:
        """The report with what was done on the roots of brokers; collects garbage there."""
        done = self._collector.round(state)
        for broker, error in sorted(done.errors.items()):
            failed(f"garbage collection on broker {broker}", error)
        return replace(
            report,
            collected=report.collected + len(done.names),
            unfinished=report.unfinished + done.unfinished,
            fenced_brokers=kept.fenced,
            returned_brokers=kept.returned,
            copied=kept.copied,
            copied_bytes=kept.copied_bytes,
            joined=kept.joined,
            problems=tuple(failed.problems),
            no_space=failed.no_space,
        )

    def _begin(self, known: LogView) -> Steps[tuple[LogView, MaintenanceMemory]]:
        """The end of the log, and the memory of the last round.

        Without one the log is opened again, which finds damaged checkpoints, and replaces a view from before an older
        copy of the log was restored.
        """
        metadata_log, clock = self.log.journal.metadata_log, self.log.journal.context.clock
        memory, self._memory = self._memory, None
        if not self._has_begun:
            self._has_begun = True
            memory = None if metadata_log.is_served else (yield from load_memory(known.state))
        age_ms = clock.now_ms() - memory.began_ms if memory is not None else 0
        aside = SetAside()
        if memory is not None:
            with suppress(LogRestored):
                view = yield from metadata_log.refresh(known)
                if is_of_plan(view.state, memory.log):
                    if 0 <= age_ms < cluster_config(known.state.configs, "gc.fence.age.ms"):
                        return view, memory
                    aside = memory.aside
        view = yield from metadata_log.open()
        return view, MaintenanceMemory(began_ms=clock.now_ms(), aside=aside)


def maintain_once(log: Log, *, progress: Progress | None = None) -> MaintainReport:
    """Run one round of maintenance.  The first failure of a duty is raised when the others are done.

    Completed work is kept; the next round does the rest.

    progress:  called with (name of the work, progress, total).
    """
    return Maintainer(log, saves_memory=True, checks_brokers=True).round_or_raise(progress=progress)


def maintain_round(log: Log, *, progress: Progress | None = None, workers: Workers | None = None) -> MaintainReport:
    """Does what `maintain_once` does, but failures are logged and listed in the report.

    workers:  merge and compact; None: this process does.
    Raises the errors of opening the log and of reaching its coordinator.
    """
    return Maintainer(log, saves_memory=True, checks_brokers=True, workers=workers).round(progress=progress)


def maintain_every(
    log: Log, interval_ms: int, *, progress: Progress | None = None, workers: Workers | None = None
) -> Iterator[MaintainReport]:
    """Run rounds of maintenance, which start every `interval_ms`, until the caller stops iterating.

    The first round raises the errors of `maintain_round`, so that the caller sees whether maintenance works.  Later
    failures are logged: nobody else may do the maintenance.

    workers:  merge and compact; None: this process does.
    """
    maintainer = Maintainer(log, checks_brokers=True, workers=workers)
    work = partial(maintainer.round, progress=progress)
    failed = f"maintenance of {log.url} failed, retrying in its next run"
    return rounds(log.journal.context.clock, interval_ms, work, failed, passes=lambda _: True)


@dataclass(slots=True)
class _Done:
    """The results of the duties of a round."""

    expired: tuple[ExpiredTopic, ...] = ()
    moved: Moves = field(default_factory=Moves)
    merged: Tally = field(default_factory=Tally)
    cleaned: CompactionTally = field(default_factory=CompactionTally)
    truncated: int = 0
    collected: int = 0
    pins: int = 0
    unfinished: int = 0


class _Round:
    """One round of all duties.  Each is attempted, on the view that the duties before it leave."""

    def __init__(
        self,
        log: Log,
        view: LogView,
        failed: Failures,
        memory: MaintenanceMemory,
        *,
        progress: Progress | None,
        workers: Workers | None,
        saves_memory: bool,
        moves: bool,
        is_first: bool,
    ) -> None:
        self.view = view
        self._log, self._failed, self._memory = log, failed, memory
        self._progress, self._workers = progress, workers
        self._saves_memory, self._moves = saves_memory, moves
        self._metadata_log, self._context = log.journal.metadata_log, log.journal.context
        is_served = self._metadata_log.is_served
        self._looks = False if is_served else True if is_first else None
        self._began, self._done = view.state, _Done()
        self._is_idle = memory.is_idle(view.state, self._context.clock.now_ms())
        self._had_aside = bool(memory.aside.objects)

    def run(self) -> Steps[MaintainReport]:
        if not self._is_idle:
            looking = self._failed.attempt("looking for lost versions", lost_end(self._log.journal, self.view), None)
            if lost := (yield from looking):
                self._failed("maintenance", lost)
                return _report(self._state, self._failed, self._memory, self._done)
            yield from self._apply_retention()
        yield from self._collect_garbage()  # before the rewriting: it frees space on a full disk
        if not self._is_idle:
            yield from self._rewrite()
        yield from self._shrink_metadata()
        yield from self._delete_leftovers()
        yield from self._remember()
        return _report(self._state, self._failed, self._memory, self._done)

    @property
    def _state(self) -> State:
        return self.view.state

    def _change(self, what: str, steps: Steps[Result], otherwise: Result) -> Steps[Result]:
        """Attempt a duty that changes the log."""
        changed = decided(self._metadata_log, self.view, steps)
        self.view, result = yield from self._failed.attempt(what, changed, (self.view, otherwise))
        return result

    def _apply_retention(self) -> Steps[None]:
        retention = _expire(self._state, self._context, self._failed, self._memory)
        _, self._done.expired = yield from self._change("retention", retention, (self._state, ()))
        yield from self._change("pruning without slice indexes", prune_lost(self._state, self._context), None)
        yield from self._change("pruning", prune(self._state, self._context), self._state)

    def _collect_garbage(self) -> Steps[None]:
        fence = fence_and_expire(self._state, self._context, looks=self._looks)
        yield from self._change("advancing the fence", fence, self._state)
        self.view, self._done.collected = yield from self._failed.attempt(
            "garbage collection", self._collect(), (self.view, 0)
        )
        look = partial(self._metadata_log.refresh, self.view)
        wiped = mark_own_root(self._state, self._context, self._memory.collected, look)
        yield from self._change("recording the end of erasures", wiped, self._state)

    def _collect(self) -> Steps[tuple[LogView, int]]:
        view, memory = self.view, self._memory
        if memory.collected is None or memory.collected.fence < view.state.fence:
            view = yield from _with_checkpoints_at_fence(self._metadata_log, view)
        look = partial(self._metadata_log.refresh, view)
        names, memory.collected = yield from collect(
            view.state, self._context, memory.collected, look=look, notices_loss=True
        )
        return view, len(names)

    def _rewrite(self) -> Steps[None]:
        done = self._done
        state, memory, now_ms = self._state, self._memory, self._context.clock.now_ms()
        had_index = any(one.is_index for _, one in memory.aside)
        again = yield from self._change("reading again", read_again(state, memory.aside, now_ms, self._failed), [])
        memory.plan_again(again)
        if had_index and again:
            yield from self._change("dropping objects without slices", drop_unnamed(self._state, self._context), state)
        if self._moves and moving(state):
            how = Moving(
                on_failure=self._failed, aside=memory.aside, progress=self._progress, pace=pace_of(self._log).take
            )
            done.moved = yield from self._change("moving", move_all(self._state, self._context, how), done.moved)
        done.merged = yield from self._change("merging", self._merging(), done.merged)
        # After merging, so that each record is rewritten once by each, and few large slices are read.
        done.cleaned = yield from self._change("compaction", self._compaction(), done.cleaned)
        yield from self._change("sealing", seal(self._state, self._context), self._state)

    def _merging(self) -> Steps[Tally]:
        if self._workers is not None:
            return merge_by(self._workers, self._state, self._failed, self._memory)
        return merge_steps(self._state, self._context, open_spool, self._progress, self._failed, self._memory)

    def _compaction(self) -> Steps[CompactionTally]:
        state, context, failed, memory = self._state, self._context, self._failed, self._memory
        if self._workers is not None:
            return compact_by(self._workers, state, context, failed, memory)
        return compact_steps(state, context, open_spool, self._progress, failed, memory, ends_passes=self._saves_memory)

    def _shrink_metadata(self) -> Steps[None]:
        yield from self._change("listing dropped objects", list_dropped(self._state, self._context), self._state)
        if self._state.version != self._memory.truncated:
            checkpoint = self._metadata_log.checkpoint(self.view)
            self.view = yield from self._failed.attempt("the checkpoint", checkpoint, self.view)
            truncation = self._metadata_log.truncate(self.view)
            self._done.truncated = yield from self._failed.attempt("truncation", truncation, 0)
        forgotten = mark_metadata(self._metadata_log, self.view)
        self.view = yield from self._failed.attempt("deleting statistics of erased records", forgotten, self.view)

    def _delete_leftovers(self) -> Steps[None]:
        attempt, on_storage = self._failed.attempt, not self._metadata_log.is_served
        self._done.pins = yield from attempt("deleting pins", self._metadata_log.expire_claims(self._state), 0)
        sweep = sweep_all(self._state, self._context, self._memory, meta=on_storage)
        self._done.unfinished = yield from attempt("deleting unfinished files", sweep, 0)
        if on_storage and has_reserve(self._log.journal.metadata):
            yield from attempt("making the reserve", keep_reserve(), None)

    def _remember(self) -> Steps[None]:
        """Which duties the next round need not look at, if nothing changes."""
        memory, state, done = self._memory, self._state, self._done
        memory.log = plan_of(state)
        if not self._failed.problems:
            memory.truncated = state.version if not done.truncated else None
            waits = done.merged.planned or done.cleaned.left or (self._moves and moving(state))
            if state.changed == self._began.changed and not self._is_idle and not waits:
                memory.finish(state)
        is_large = memory.live.count >= self._context.limits.remembered_slices
        is_worth = is_large or memory.aside.objects or self._had_aside
        if self._saves_memory and not self._is_idle and is_worth:
            yield from self._failed.attempt("saving the memory of maintenance", save_memory(memory, state), None)


def _report(state: State, failed: Failures, memory: MaintenanceMemory, done: _Done) -> MaintainReport:
    return MaintainReport(
        version=state.version,
        expired_records=sum(one.records for one in done.expired),
        expired_bytes=sum(one.bytes for one in done.expired),
        expired_topics=done.expired,
        merged_slices=done.merged.slices,
        segments=done.merged.segments,
        segment_bytes=done.merged.bytes,
        moved_partitions=done.moved.partitions,
        moved_bytes=done.moved.bytes,
        cleaned_partitions=done.cleaned.partitions,
        removed_records=done.cleaned.records,
        removed_bytes=done.cleaned.bytes,
        uncleaned=done.cleaned.left,
        uncleanable=tuple(partition_name(state, key) for key in memory.uncleanable(state)),
        set_aside=memory.aside.objects,
        dirty_ratios={state.topics[key].name: ratio for key, ratio in sorted(memory.dirty_ratios(state).items())},
        fence=state.fence,
        truncated=done.truncated,
        collected=done.collected,
        pins=done.pins,
        unfinished=done.unfinished,
        waiting=len(state.dropped) + sum(listed.names for listed in state.dropped_lists.values()),
        fence_age_ms=cluster_config(state.configs, "gc.fence.age.ms"),
        problems=tuple(failed.problems),
        no_space=failed.no_space,
    )


# --------------------------------------------------------------------------------------------------- duties, each alone


def expire(log: Log) -> int:
    """Apply retention, and return the number of removed records.  Raises the first failure after trying all
    partitions."""
    failed = Failures(log.url)

    def duty(state: State, context: Context) -> Steps[int]:
        state, found = yield from _expire(state, context, failed)
        yield from prune(state, context)
        return sum(one.records for one in found)

    count = _run_decided(log, duty)
    failed.raise_first()
    return count


def merge(log: Log, *, progress: Progress | None = None) -> Tally:
    """Rewrite small slices as segments.  Raises the first failure after trying all partitions."""
    failed = Failures(log.url)

    def duty(state: State, context: Context) -> Steps[Tally]:
        return (yield from merge_steps(state, context, open_spool, progress, failed))

    tally = _run_decided(log, duty)
    failed.raise_first()
    return tally


def merge_share(log: Log, share: MergeShare, failures: Failures) -> Tally:
    """Merge the partitions of a share.

    failures:  collects the objects that cannot be read, which `share.aside` has afterwards, and partitions that cannot
               be merged.
    """

    def duty(state: State, context: Context) -> Steps[Tally]:
        return (yield from merge_share_steps(state, context, share, open_spool, failures))

    return _run_decided(log, duty)


def compact(
    log: Log,
    share: CompactionShare | None = None,
    *,
    progress: Progress | None = None,
    failures: Failures | None = None,
) -> CompactionTally:
    """Compact the partitions of compacted topics that are due.

    share:     compact only its partitions; None: all.  Its `aside` has the slices afterwards that cannot be read.
    failures:  collects these, and the partitions that cannot be compacted.  None: after all partitions were tried, the
               first failure is raised.
    """
    failed = failures or Failures(log.url)
    only, memory = (None, None) if share is None else (share.keys, MaintenanceMemory(aside=share.aside))

    def duty(state: State, context: Context) -> Steps[CompactionTally]:
        return (yield from compact_steps(state, context, open_spool, progress, failed, memory, only=only))

    tally = _run_decided(log, duty)
    if failures is None:
        failed.raise_first()
    return tally


def checkpoint(log: Log) -> int:
    """Seal, list dropped objects, write a checkpoint, and delete replaced files.  Returns its version."""

    def run(view: LogView, context: Context) -> Steps[int]:
        metadata_log = log.journal.metadata_log
        view, _ = yield from decided(metadata_log, view, seal(view.state, context))
        view, _ = yield from decided(metadata_log, view, list_dropped(view.state, context))
        view = yield from metadata_log.checkpoint(view)
        yield from metadata_log.truncate(view)
        return view.state.version

    return _run(log, run)


def collect_garbage(log: Log) -> list[str]:
    """Advance the fence, and delete unreferenced objects.  Returns their names.

    Raises the first failure of a broker's root, after all roots were tried.
    """

    def run(view: LogView, context: Context) -> Steps[list[str]]:
        metadata_log = log.journal.metadata_log
        if lost := (yield from lost_end(log.journal, view)):
            raise lost
        view, _ = yield from decided(metadata_log, view, prune(view.state, context))
        fence = fence_and_expire(view.state, context, looks=not metadata_log.is_served)
        view, _ = yield from decided(metadata_log, view, fence)
        view = yield from _with_checkpoints_at_fence(metadata_log, view)
        look = partial(metadata_log.refresh, view)
        names, collected = yield from collect(view.state, context, look=look, notices_loss=True)
        view, _ = yield from decided(metadata_log, view, mark_own_root(view.state, context, collected, look))
        view = yield from mark_metadata(metadata_log, view)
        yield from metadata_log.expire_claims(view.state)
        yield from sweep_all(view.state, context, meta=not metadata_log.is_served)
        return names

    names = _run(log, run)
    on_brokers = RootCollector(log.journal).round(log.journal.refresh())
    if on_brokers.errors:
        raise next(iter(on_brokers.errors.values()))
    return names + on_brokers.names


def find_garbage(log: Log) -> list[str]:
    """The objects that `collect_garbage` would delete now.  Changes nothing."""

    def duty(state: State, context: Context) -> Steps[list[str]]:
        return (yield from garbage_from(state, context.clock.now_ms()))

    return _run_decided(log, duty)


# -------------------------------------------------------------------------------------------------------------- helpers


def _run(log: Log, steps: Callable[[LogView, Context], Steps[Result]]) -> Result:
    def run() -> Steps[Result]:
        metadata_log = log.journal.metadata_log
        view = yield from metadata_log.open()
        # Retention and sweeps use this clock even if no batch is written.
        yield from metadata_log.check_clock(view.state)
        return (yield from steps(view, log.journal.context))

    return log.journal.run(run())


def _run_decided(log: Log, steps: Callable[[State, Context], Steps[Result]]) -> Result:
    def run(view: LogView, context: Context) -> Steps[Result]:
        _, result = yield from decided(log.journal.metadata_log, view, steps(view.state, context))
        return result

    return _run(log, run)


def _expire(
    state: State, context: Context, on_failure: OnFailure, memory: MaintenanceMemory | None = None
) -> Steps[tuple[State, tuple[ExpiredTopic, ...]]]:
    after, removals = yield from expire_records(state, context, on_failure, memory)
    return after, expired_topics(state, removals)


def _with_checkpoints_at_fence(metadata_log: MetadataLog[LogView], view: LogView) -> Steps[LogView]:
    """The view, with checkpoints that name no object below its fence, as far as this process writes checkpoints.

    Otherwise, if the records after one of them are lost, the log continues with objects that are deleted.
    """
    with suppress(NoSpace):  # what is deleted makes room for it
        return (yield from metadata_log.checkpoint_from(view, view.state.fence))
    return view
