"""`pylog maintain`: all duties that keep a log small, once or periodically; each duty is also available separately.

A maintainer is an ordinary process: several may run concurrently, beside writers and readers, and each may be killed
at any time.  It works on a separate view, so writers in the same process do not wait for it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, TypeVar, cast

from spark_log.client.log import Log
from spark_log.errors import NoSpace
from spark_log.journal.garbage_collection import collect, garbage
from spark_log.journal.metadata_log import View, decided
from spark_log.journal.object_names import DATA, META
from spark_log.journal.proposal import Context
from spark_log.journal.reserve import has_reserve, keep_reserve
from spark_log.journal.sealing import prune, seal
from spark_log.journal.store_operations import OWN_ROOT, List, Steps, Sweep
from spark_log.journal.upkeep import fence_and_expire
from spark_log.metadata.decide.topics import decide_trim
from spark_log.metadata.decide.upkeep import decide_fence
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State, TopicKey
from spark_log.node.failure_isolation import Failures, OnFailure, log_failure
from spark_log.node.lost_index import prune_lost
from spark_log.node.merge import Progress, Tally, plan_merge
from spark_log.node.merge import merge as merge_steps
from spark_log.node.retention import expire_records, find_expired
from spark_log.settings import cluster_config

Result = TypeVar("Result")
PUT_MS_MAX = 3_600_000
"""A temporary file without writes for this long belongs to a dead put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainReport:
    """The result of one run."""

    version: int
    """Version of the log at the end."""
    expired_records: int
    """Records that retention removed."""
    merged_slices: int
    segments: int
    """New segments that replaced the merged slices."""
    segment_bytes: int
    fence: int
    """Uploads and pins at or below it are invalid."""
    truncated: int
    """Deleted records of the metadata log, and checkpoints."""
    collected: int
    """Deleted objects."""
    pins: int
    """Deleted pins of ended Spark queries."""
    unfinished: int
    """Deleted temporary files of dead writers."""
    waiting: int = 0
    """Objects without references: they are deleted when the fence has passed the version that dropped them."""
    fence_age_ms: int = 0
    """`gc.fence.age.ms`: the fence advances after this time, in two steps if nobody writes meanwhile."""
    problems: tuple[str, ...] = ()
    """Failed duties, with the errors; the other duties were completed."""
    no_space: bool = False
    """A duty failed because the disk is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The changes that a run would make now."""

    expired_records: int
    """Records that retention would remove."""
    merged_slices: int
    merged_bytes: int
    """Size of the merged slices."""
    collected: int
    """Objects that would be deleted."""
    collected_bytes: int


def plan_round(log: Log) -> Plan:
    """Compute the changes of a run, without sealing and checkpoints.  Writes nothing."""

    def plan(state: State) -> Steps[Plan]:
        now = log.journal.context.clock.now_ms()
        starts = yield from find_expired(state, now)
        trims = decide_trim(state, starts).records
        stretches, _ = yield from plan_merge(replay_records(next_version(state, now), trims))
        names = yield from _find_garbage(state, now)
        return Plan(
            expired_records=_count_expired(state, starts),
            merged_slices=sum(len(stretch.slices) for stretch in stretches),
            merged_bytes=sum(piece.length for stretch in stretches for piece in stretch.slices),
            collected=len(names),
            collected_bytes=sum(log.journal.objects.size(name) or 0 for name in names),
        )

    def run() -> Steps[Plan]:
        metadata_log = log.journal.metadata_log
        view = yield from metadata_log.open()
        _, found = yield from decided(metadata_log, view, plan(view.state))
        return found

    return log.journal.run(run())


def maintain_once(log: Log, *, progress: Progress | None = None) -> MaintainReport:
    """Apply retention, advance the fence, delete garbage, merge small slices, seal, write a checkpoint, and delete the
    metadata that it replaces.

    progress:  called with (name of the work, progress, total).
    Raises the first failure after all duties were tried.  Completed work is kept, and the next run does the rest.
    """
    report, failures = _run_duties(log, progress)
    failures.raise_first()
    return report


def maintain_round(log: Log, *, progress: Progress | None = None) -> MaintainReport:
    """As `maintain_once`, but failures are logged and listed in the report.

    Raises the errors of opening the log and of reaching its coordinator.
    """
    return _run_duties(log, progress)[0]


def maintain_every(log: Log, interval_ms: int, *, progress: Progress | None = None) -> Iterator[MaintainReport]:
    """Runs that start every `interval_ms`, until the caller stops iterating.

    The first run raises as `maintain_round` does, so that the caller sees whether upkeep works.  Later failures
    are logged.
    """
    clock = log.journal.context.clock
    began = clock.monotonic_ms()
    yield maintain_round(log, progress=progress)
    while True:
        clock.sleep_ms(max(0, began + interval_ms - clock.monotonic_ms()))
        began = clock.monotonic_ms()
        try:
            report = maintain_round(log, progress=progress)
        except Exception as error:  # noqa: BLE001  the next round may succeed
            log_failure(f"upkeep of {log.url} failed, retrying in its next run", error)
        else:
            yield report


def _run_duties(log: Log, progress: Progress | None) -> tuple[MaintainReport, Failures]:
    failed = Failures(log.url)
    attempt, metadata_log = failed.attempt, log.journal.metadata_log

    def change(what: str, view: View, steps: Steps[Result], otherwise: Result) -> Steps[tuple[View, Result]]:
        """Attempt a duty that changes the log."""
        return (yield from attempt(what, decided(metadata_log, view, steps), (view, otherwise)))

    def run(view: View, context: Context) -> Steps[MaintainReport]:
        view, (_, expired) = yield from change("retention", view, _expire(view.state, context, failed), (view.state, 0))
        view, _ = yield from change("pruning without slice indexes", view, prune_lost(view.state, context), None)
        view, _ = yield from change("pruning", view, prune(view.state, context), view.state)
        # Before merging, which needs space: retention frees space on a full disk.
        view, _ = yield from change("advancing the fence", view, fence_and_expire(), view.state)
        collected = yield from attempt("garbage collection", _collect(view.state, context), 0)
        merging = merge_steps(view.state, context, open_spool, progress, failed)
        view, tally = yield from change("merging", view, merging, Tally())
        view, _ = yield from change("sealing", view, seal(view.state, context), view.state)
        view = yield from attempt("the checkpoint", metadata_log.checkpoint(view), view)
        truncated = yield from attempt("truncation", metadata_log.truncate(view), 0)
        pins = yield from attempt("deleting pins", metadata_log.expire_claims(view.state), 0)
        unfinished = yield from attempt("deleting unfinished files", _sweep(view.state, context), 0)
        if has_reserve(log.journal.metadata):
            yield from attempt("making the reserve", keep_reserve(), None)
        return MaintainReport(
            version=view.state.version,
            expired_records=expired,
            merged_slices=tally.slices,
            segments=tally.segments,
            segment_bytes=tally.bytes,
            fence=view.state.fence,
            truncated=truncated,
            collected=collected,
            pins=pins,
            unfinished=unfinished,
            waiting=len(view.state.dropped),
            fence_age_ms=cluster_config(view.state.configs, "gc.fence.age.ms"),
            problems=tuple(failed.problems),
            no_space=any(isinstance(error, NoSpace) for error in failed.errors),
        )

    return _run(log, run), failed


# --------------------------------------------------------------------------------------------------- duties, each alone


def expire(log: Log) -> int:
    """Apply retention, and return the number of removed records.  Raises the first failure after trying all
    partitions."""
    failed = Failures(log.url)

    def duty(state: State, context: Context) -> Steps[int]:
        state, count = yield from _expire(state, context, failed)
        yield from prune(state, context)
        return count

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


def checkpoint(log: Log) -> int:
    """Seal, write a checkpoint, and delete replaced files.  Returns the version of the checkpoint."""

    def run(view: View, context: Context) -> Steps[int]:
        metadata_log = log.journal.metadata_log
        view, _ = yield from decided(metadata_log, view, seal(view.state, context))
        view = yield from metadata_log.checkpoint(view)
        yield from metadata_log.truncate(view)
        return view.state.version

    return _run(log, run)


def collect_garbage(log: Log) -> list[str]:
    """Advance the fence, and delete unreferenced objects.  Returns their names."""

    def duty(state: State, context: Context) -> Steps[list[str]]:
        yield from prune(state, context)
        state = yield from fence_and_expire()
        names = yield from collect(state, context)
        yield from log.journal.metadata_log.expire_claims(state)
        yield from _sweep(state, context)
        return names

    return _run_decided(log, duty)


def find_garbage(log: Log) -> list[str]:
    """The objects that `collect_garbage` would delete now.  Changes nothing."""

    def duty(state: State, context: Context) -> Steps[list[str]]:
        return (yield from _find_garbage(state, context.clock.now_ms()))

    return _run_decided(log, duty)


# -------------------------------------------------------------------------------------------------------------- helpers


def open_spool() -> BinaryIO:
    """A temporary file for encoded batches that do not fit in memory; closing deletes it."""
    return cast(BinaryIO, tempfile.TemporaryFile(prefix="pylog-"))


def _run(log: Log, steps: Callable[[View, Context], Steps[Result]]) -> Result:
    journal = log.journal

    def run() -> Steps[Result]:
        view = yield from journal.metadata_log.open()
        # Retention and sweeps use this clock even if no batch is written.
        yield from journal.metadata_log.check_clock(view.state)
        return (yield from steps(view, journal.context))

    return journal.run(run())


def _run_decided(log: Log, steps: Callable[[State, Context], Steps[Result]]) -> Result:
    def run(view: View, context: Context) -> Steps[Result]:
        _, result = yield from decided(log.journal.metadata_log, view, steps(view.state, context))
        return result

    return _run(log, run)


def _find_garbage(state: State, now_ms: int) -> Steps[list[str]]:
    """Objects that can be deleted once the fence has advanced as far as it may now."""
    state = next_version(state, now_ms)
    fenced = replay_records(state, decide_fence(state, now_ms).records)
    return garbage(fenced, (yield List(DATA, OWN_ROOT)))


def _expire(state: State, context: Context, on_failure: OnFailure) -> Steps[tuple[State, int]]:
    after, starts = yield from expire_records(state, context, on_failure)
    return after, _count_expired(state, starts)


def _count_expired(state: State, starts: Mapping[TopicKey, int]) -> int:
    return sum(start - state.partitions[key].start for key, start in starts.items())


def _sweep(state: State, context: Context) -> Steps[int]:
    """Delete temporary files older than any upload that can still be committed, and than any put in progress."""
    age_ms = cluster_config(state.configs, "gc.fence.age.ms")
    before = context.clock.now_ms() - max(age_ms, PUT_MS_MAX)
    in_data: int = yield Sweep(DATA, before, OWN_ROOT)
    in_meta: int = yield Sweep(META, before)
    return in_data + in_meta


def _collect(state: State, context: Context) -> Steps[int]:
    """Delete garbage until there is none; one call of `collect` deletes a limited number."""
    count = 0
    while names := (yield from collect(state, context)):
        count += len(names)
    return count
