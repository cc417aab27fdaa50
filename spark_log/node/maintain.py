"""`pylog maintain`: everything that keeps a log small, once or every so often; each duty also alone.

A maintainer is a process like any other: any number may run, at any time, beside writers and readers, and each may be
killed at any point.  It works on a view of its own, so writers of the same process do not wait for it.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, TypeVar, cast

from spark_log.client.log import Log
from spark_log.errors import SparkLogError
from spark_log.journal.ops import List, Steps, Sweep
from spark_log.journal.protocol import CHECKPOINTS, DATA, META, Context, View, checkpoint_version, open_view
from spark_log.journal.upkeep import checkpoint as write_checkpoint
from spark_log.journal.upkeep import collect, fence_and_expire, garbage, prune, seal, truncate
from spark_log.metadata.decide import decide_fence
from spark_log.metadata.replay import next_version, replay_records
from spark_log.node.merge import Progress, Tally
from spark_log.node.merge import merge as merge_steps
from spark_log.node.pins import drop_pins
from spark_log.node.retention import expire_records
from spark_log.settings import cluster_config

Result = TypeVar("Result")
logger = logging.getLogger("spark_log")
PUT_MS_MAX = 3_600_000
"""A put of a file that nobody wrote to for so long has died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one round did."""

    version: int
    """Of the log, at the end."""
    expired_records: int
    """That retention removed."""
    merged_slices: int
    segments: int
    """That took the place of the merged slices."""
    segment_bytes: int
    fence: int
    """Uploads and pins at or below it are void."""
    truncated: int
    """Old records and checkpoints that were deleted."""
    collected: int
    """Objects that were deleted."""
    pins: int
    """Of Spark queries long gone, deleted."""
    unfinished: int
    """Files that writers which died had begun, deleted."""


def maintain_once(log: Log, *, progress: Progress | None = None) -> Report:
    """Apply retention, advance the fence, collect garbage, merge, seal, checkpoint, and truncate.

    progress:  called with (what is done, how far it is, where it ends).
    Raises what the storage raises; what was done until then stays done, and the rest is done the next time.
    """

    def run(view: View, context: Context) -> Steps[Report]:
        view, expired = yield from _expire(view, context)
        view = yield from prune(view, context)
        # Before merging, which takes space: a full disk is emptied by what retention drops.
        view = yield from fence_and_expire(view, context)
        collected = yield from _collect(view)
        view, tally = yield from merge_steps(view, context, open_spool, progress)
        view = yield from seal(view, context)
        yield from _checkpoint(view, context)
        truncated = yield from truncate(view)
        return Report(
            version=view.state.version,
            expired_records=expired,
            merged_slices=tally.slices,
            segments=tally.segments,
            segment_bytes=tally.bytes,
            fence=view.state.fence,
            truncated=truncated,
            collected=collected,
            pins=(yield from _drop_pins(view, context)),
            unfinished=(yield from _sweep(view, context)),
        )

    return _run(log, run)


def maintain_every(log: Log, interval_ms: int, *, progress: Progress | None = None) -> Iterator[Report]:
    """Rounds, one whenever `interval_ms` have passed since the last one began, until the caller stops asking.

    Raises what the first one raises, so that whoever starts it sees that it works; a later one that fails is a warning.
    """
    clock = log.journal.context.clock
    began = clock.monotonic_ms()
    yield maintain_once(log, progress=progress)
    while True:
        clock.sleep_ms(max(0, began + interval_ms - clock.monotonic_ms()))
        began = clock.monotonic_ms()
        try:
            report = maintain_once(log, progress=progress)
        except SparkLogError as error:
            logger.warning("upkeep of %s was put off: %s", log.url, error)
        else:
            yield report


# ------------------------------------------------------------------------------------------------------- duties, each alone


def expire(log: Log) -> int:
    """Apply retention.  How many records went."""

    def run(view: View, context: Context) -> Steps[int]:
        view, count = yield from _expire(view, context)
        yield from prune(view, context)
        return count

    return _run(log, run)


def merge(log: Log, *, progress: Progress | None = None) -> Tally:
    """Rewrite small slices as segments."""

    def run(view: View, context: Context) -> Steps[Tally]:
        _, tally = yield from merge_steps(view, context, open_spool, progress)
        return tally

    return _run(log, run)


def checkpoint(log: Log) -> int:
    """Seal, write a checkpoint, and delete what it replaces.  The version that was written."""

    def run(view: View, context: Context) -> Steps[int]:
        view = yield from seal(view, context)
        yield from _checkpoint(view, context)
        yield from truncate(view)
        return view.state.version

    return _run(log, run)


def collect_garbage(log: Log) -> list[str]:
    """Advance the fence and delete the objects that nothing refers to and nothing will; their names."""

    def run(view: View, context: Context) -> Steps[list[str]]:
        view = yield from prune(view, context)
        view = yield from fence_and_expire(view, context)
        names = yield from collect(view)
        yield from _drop_pins(view, context)
        yield from _sweep(view, context)
        return names

    return _run(log, run)


def find_garbage(log: Log) -> list[str]:
    """The objects that `collect_garbage` would delete now.  Changes nothing."""

    def run(view: View, context: Context) -> Steps[list[str]]:
        now = context.clock.now_ms()
        state = next_version(view.state, now)
        fenced = replay_records(state, decide_fence(state, now).records)
        return garbage(fenced, (yield List(DATA)))

    return _run(log, run)


# --------------------------------------------------------------------------------------------------------------- helpers


def open_spool() -> BinaryIO:
    """A file for encoded batches that do not fit in memory; it is gone when it is closed."""
    return cast(BinaryIO, tempfile.TemporaryFile(prefix="pylog-"))


def _run(log: Log, steps: Callable[[View, Context], Steps[Result]]) -> Result:
    journal = log.journal

    def run() -> Steps[Result]:
        return (yield from steps((yield from open_view()), journal.context))

    journal.check_store()
    return journal.run(run())


def _expire(view: View, context: Context) -> Steps[tuple[View, int]]:
    before = view.state
    view, starts = yield from expire_records(view, context)
    return view, sum(start - before.partitions[key].start for key, start in starts.items())


def _checkpoint(view: View, context: Context) -> Steps[None]:
    """Write a checkpoint, unless the newest one is of this very version."""
    names: list[str] = yield List(CHECKPOINTS)
    if checkpoint_version(max(names, default="")) < view.state.version:
        yield from write_checkpoint(view, context)


def _drop_pins(view: View, context: Context) -> Steps[int]:
    age_ms = cluster_config(view.state.configs, "gc.fence.age.ms")
    return (yield from drop_pins(view.state.fence, context.clock.now_ms() - age_ms))


def _sweep(view: View, context: Context) -> Steps[int]:
    """Delete what is older than any upload that may still be committed, and than any put that is under way."""
    age_ms = cluster_config(view.state.configs, "gc.fence.age.ms")
    before = context.clock.now_ms() - max(age_ms, PUT_MS_MAX)
    in_data: int = yield Sweep(DATA, before)
    in_meta: int = yield Sweep(META, before)
    return in_data + in_meta


def _collect(view: View) -> Steps[int]:
    """Delete garbage until there is none; `collect` deletes so much at a time."""
    count = 0
    while names := (yield from collect(view)):
        count += len(names)
    return count
