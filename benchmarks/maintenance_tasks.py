"""How much faster are maintenance and verification of many small objects with several tasks than with one?

The log has small objects, each with one slice of 10 records, in 100 partitions.  On a store with the latency of S3 for
each request, 1 and 4 processes do the shares that the tasks of `jobs/maintain.py` and `jobs/verify.py` do: merge all
slices, look at the size of each object, and read all bytes.  Spark adds some tenths of a second to each.

By hand, for 100,000 objects: 100,000 requests of 15 ms, 48 at a time, are 31 s of waiting, which 4 processes do in a
quarter of the time.  Merging takes 250 µs of CPU a slice besides, 25 s: with two cores it cannot become four times as
fast.  Merging has 10 shares, so four processes do it in three turns, at most 3.3 times as fast.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from typing import Any

import common
import pyarrow as pa

import spark_log
from simulation.harness.slow_store import SlowStore
from spark_log import Log, NewTopic
from spark_log.client.producer.commit import PlainProducer, Uploaded
from spark_log.journal.failure_isolation import Failures, ReportedFailures
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import maintain_round, merge_share
from spark_log.maintenance.workers import CompactionShare
from spark_log.model import DataObject
from spark_log.recovery.verify import verify
from spark_log.rewriting.compaction_rounds import CompactionTally
from spark_log.rewriting.merge import Tally
from spark_log.rewriting.merge_shares import MergeShare
from spark_log.roots.broker_roots import Roots
from spark_log.segment.schema import RECORD_SCHEMA
from spark_log.segment.writer import SegmentWriter
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import data_key
from spark_log.store.open import open_store

PARTITIONS = 100
AT_ONCE = 1000
"""Objects of one commit of the log that is measured."""


def build(url: str, objects: int) -> None:
    with spark_log.connect(url, durability="os") as log:
        log.create_topic(NewTopic("small", PARTITIONS))
        state, store, producer = log.journal.refresh(), log.journal.objects, PlainProducer(log.journal)
        values = pa.array([b"event number %080d" % n for n in range(10)], pa.binary())
        times = pa.array([log.journal.context.clock.now_ms() * 1000] * 10, pa.timestamp("us", "UTC"))
        rows = pa.record_batch([values, values, times], schema=RECORD_SCHEMA)
        for first in range(0, objects, AT_ONCE):
            epoch, uploads = log.journal.state.version, list[Uploaded]()
            for number in range(first, min(first + AT_ONCE, objects)):
                writer = SegmentWriter()
                writer.append(state.names["small"], number % PARTITIONS, rows)
                written = writer.finish()
                name = data_key(epoch, f"{uuid.uuid4().hex}.seg")
                store.put(name, written.chunks())
                runs = tuple((0, run) for run in written.runs)
                uploads.append(Uploaded((DataObject(name, written.size, written.index_position),), runs))
            producer.commit(epoch, uploads)


def slow(url: str) -> ObjectStore:
    return SlowStore(open_store(url, durability="os"))


def merge_one(url: str, share: MergeShare) -> tuple[Tally, ReportedFailures]:
    """Does what a task of `jobs/maintain.py` does."""
    journal, failures = kept(url), Failures(url)
    journal.refresh()
    tally = merge_share(Log(journal), share, failures)
    journal.finish_maintenance()
    return tally, failures.reported(share.aside)


@cache
def kept(url: str) -> Journal:
    """A process that does several shares opens the log once, as Python workers of Spark do."""
    return Journal.open(slow(url), create=False)


def check_one(url: str, cluster_id: str, work: Callable[[Roots, Any], Any], share: Any) -> Any:
    """Does what a task of `jobs/verify.py` does."""
    return work(Roots(slow(url), cluster_id, dict, lambda _: (0,)), share)


class Processes:
    """Do shares, as the tasks of a Spark job."""

    def __init__(self, pool: ProcessPoolExecutor, log: Log) -> None:
        self._pool, self._log = pool, log
        self.merge_seconds = 0.0

    def merge(self, shares: Sequence[MergeShare]) -> list[tuple[Tally, ReportedFailures]]:
        found = list[tuple[Tally, ReportedFailures]]()
        work = partial(merge_one, self._log.url)
        self.merge_seconds += common.clock(lambda: found.extend(self._pool.map(work, shares)))
        return found

    def compact(self, shares: Sequence[CompactionShare]) -> Iterable[tuple[CompactionTally, ReportedFailures]]:
        return ()

    def spread(self, work: Callable[[Roots, Any], Any], shares: Iterable[Any]) -> Iterator[Any]:
        return self._pool.map(partial(check_one, self._log.url, self._log.cluster_id, work), shares)


def measured(url: str, processes: int) -> dict[str, float]:
    """Seconds of each kind of work."""
    with spark_log.connect(url, durability="os") as log, pool_of(processes) as pool:
        workers = Processes(pool, log)
        sizes = common.clock(lambda: check(verify(log, spread=workers.spread)))
        deep = common.clock(lambda: check(verify(log, deep=True, spread=workers.spread)))
        check(maintain_round(log, workers=workers).problems)
    return {"sizes": sizes, "deep": deep, "merge": workers.merge_seconds}


def pool_of(processes: int) -> ProcessPoolExecutor:
    """Processes that have begun, and have imported this module."""
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    list(pool.map(time.sleep, [0.5] * processes))
    return pool


def check(problems: Sequence[object]) -> None:
    assert not problems, problems


def main() -> None:
    given = common.arguments(__doc__, rows=100_000, of="objects", rounds=None, warm=None)
    with common.folder() as folder:
        build(f"{folder}/one", given.rows)
        shutil.copytree(f"{folder}/one", f"{folder}/four")
        one, four = measured(f"{folder}/one", 1), measured(f"{folder}/four", 4)
    figures = {f"{name}_seconds_of_{n}": found[name] for n, found in ((1, one), (4, four)) for name in found}
    ratios = {f"{name}_times_as_fast": one[name] / four[name] for name in one}
    common.report("maintenance_tasks", objects=given.rows, **figures, **ratios, target=3.0)


if __name__ == "__main__":
    main()
