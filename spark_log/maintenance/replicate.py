"""Where the prober and the replicator run for long: in a coordinator, and in `pylog replicate`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from spark_log.client.log import Log
from spark_log.errors import BrokerNotAvailable, SparkLogError
from spark_log.journal.failure_isolation import log_retry
from spark_log.log_lines import logger
from spark_log.maintenance.partition_moves import Mover, move_every
from spark_log.metadata.replicas.replicas import epoch_of
from spark_log.replication.broker_prober import Prober, probe_every
from spark_log.replication.copy_threads import Copier
from spark_log.replication.copy_throttle import pace_of
from spark_log.replication.leader_balance import LeaderBalance
from spark_log.replication.replicator import ReplicationReport, Replicator
from spark_log.rewriting.rewrite import Progress
from spark_log.text import unknown_brokers

EVERY_MS = 1_000
"""How often a coordinator looks for what brokers lack."""


def replicate_once(
    log: Log,
    *,
    bytes_per_s: int | None = None,
    brokers: Collection[int] | None = None,
    copier: Copier | None = None,
    progress: Progress | None = None,
) -> ReplicationReport:
    """Check the roots of brokers, copy all that can be copied now, then move partitions.

    Returns one report for all rounds.

    bytes_per_s:  limit of all copying and moving; None: only the limit of the log.
    brokers:      check these brokers and copy to them, and move nothing; None: all brokers.
    copier:       copies the objects that active brokers have, instead of threads of this process.  Then nothing is
                  moved.
    progress:     called with ("copy", bytes so far, bytes in all), and then with ("move", …) for each portion.
    Raises BrokerNotAvailable for an unknown broker.
    """
    check_known(log, brokers)
    Prober(log, brokers).until_sure()
    pace, moves = pace_of(log, bytes_per_s), brokers is None and copier is None
    replicator = Replicator(log, pace=pace, brokers=brokers, copier=copier)
    total = ReplicationReport(version=0)
    while True:
        one = replicator.round()
        total = replace(
            one,
            objects=total.objects + one.objects,
            bytes=total.bytes + one.bytes,
            joined=(*total.joined, *one.joined),
            removed=(*total.removed, *one.removed),
            found=total.found + one.found,
        )
        if progress is not None:
            progress("copy", total.bytes, total.bytes + sum(lag.bytes for lag in one.lag.values()))
        if replicator.is_done(one):
            return _with_moves(Mover(log, pace), total, progress) if moves else total


def check_known(log: Log, brokers: Collection[int] | None) -> None:
    """Raises BrokerNotAvailable for brokers that are not registered."""
    state = log.journal.state
    if unknown := [broker for broker in brokers or () if epoch_of(state, broker) is None]:
        raise BrokerNotAvailable(unknown_brokers(unknown))


def _with_moves(mover: Mover, report: ReplicationReport, progress: Progress | None) -> ReplicationReport:
    """The report, after all was moved that can be."""
    found, problems = mover.move_all(progress)
    return replace(
        report,
        moved_partitions=found.partitions,
        moved_bytes=found.bytes,
        problems=(*report.problems, *problems),
    )


def replicate_every(
    log: Log,
    interval_ms: int,
    *,
    bytes_per_s: int | None = None,
    brokers: Collection[int] | None = None,
    copier: Copier | None = None,
    stop: threading.Event | None = None,
    probes: bool = True,
) -> Iterator[ReplicationReport]:
    """Copy in rounds, which start every `interval_ms`, or without a pause while there is more to copy.

    Yields a report of each round, and ends when `stop` is set.  Meanwhile, other threads move partitions and, if
    `probes`, check roots.  Errors of the first round are raised; errors of later rounds are logged.  Other arguments
    are as for `replicate_once`.
    Raises BrokerNotAvailable for an unknown broker.
    """
    check_known(log, brokers)
    stop, ended = stop or threading.Event(), threading.Event()
    clock = log.journal.context.clock
    pace, moves = pace_of(log, bytes_per_s), brokers is None and copier is None
    replicator = Replicator(log, pace=pace, brokers=brokers, copier=copier)
    mover, balance, is_first = Mover(log, pace), LeaderBalance(log.journal), True
    try:
        has_ended = lambda: ended.is_set() or stop.is_set()  # noqa: E731
        if moves:
            threading.Thread(target=move_every, args=(mover, clock, has_ended), name="pylog-mover", daemon=True).start()
        if probes:
            threading.Thread(
                target=probe_every, args=(log, has_ended, brokers), name="pylog-prober", daemon=True
            ).start()
        while not stop.is_set():
            began_ms = clock.monotonic_ms()
            try:
                report = replicator.round()
                if brokers is None:
                    balance.round()
            except Exception as error:  # nobody else may copy
                if is_first:
                    raise
                log_retry(f"replication of {log.url} failed, retrying", error, stop.is_set)
            else:
                is_first, moved = False, mover.take()
                yield replace(report, moved_partitions=moved.partitions, moved_bytes=moved.bytes)
                if report.busy:
                    continue
            stop.wait(max(0.0, began_ms + interval_ms - clock.monotonic_ms()) / 1000)
    finally:
        ended.set()


def keep_brokers(
    open_log: Callable[[], Log],
    has_brokers: Callable[[], bool],
    stop: threading.Event,
    note: Callable[[ReplicationReport], None],
) -> None:
    """Do a coordinator's work for brokers, until `stop` is set: check roots, copy, and move partitions, in separate
    threads.

    open_log:     opens the log; called only if the log has brokers.
    has_brokers:  whether the log has brokers now.
    note:         called with each report.
    """
    while not stop.wait(EVERY_MS / 1000):
        if not has_brokers():
            continue
        try:
            for report in replicate_every(open_log(), EVERY_MS, stop=stop):
                note(report)
        except SparkLogError as error:
            if not stop.is_set():
                logger.warning("replication did not begin, retrying: %s", error)
        except Exception:
            logger.exception("replication failed, restarting it")
