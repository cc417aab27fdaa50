"""The prober of brokers: checks the roots of brokers, fences those that fail, and takes back those that it had fenced.

A check puts a mark on the root, reads it, and looks for the mark of the last check.  If that one is gone, the root was
rolled back to an older copy or swapped.  The first check of a process, which may come after the machine was restarted,
looks for the newest object and some older ones instead.  Now and then a check also reads a byte of some object.  A root
that is not that of its broker is fenced immediately; one that does not answer when it has failed all checks for
`broker.session.timeout.ms`.  Time is measured by this process's own monotonic clock, and does not count while the
process was stopped.

Each root has a thread, so a hung one delays no other check.  Several processes may check the same roots.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from spark_log.client.admin.brokers import return_broker
from spark_log.client.log import Log
from spark_log.configs.settings import cluster_config
from spark_log.errors import SparkLogError, StorageError, WrongRoot
from spark_log.journal.failure_isolation import log_retry
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.maps.column_map import last_with_copies, rows_with_copies
from spark_log.metadata.replicas.replica_commands import FenceBroker
from spark_log.metadata.replicas.replica_state import Broker, FenceCause
from spark_log.metadata.replicas.replicas import epoch_of, has_copy
from spark_log.metadata.state import ObjectRow, State
from spark_log.roots.broker_roots import OtherLogId
from spark_log.roots.root_owner import check_first_use
from spark_log.runtime.daemon_tasks import Task
from spark_log.runtime.own_failures import is_own
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import upload_epoch
from spark_log.store.retry import RetryingStore

MARKS = "meta/probe-"
"""In the directory of a broker."""
MARK_MS_MAX = 600_000
"""After a pause of this length the mark of the last check may have been deleted as that of a dead process."""
DATA_MS = 30_000
"""How often a check also reads a byte of some object: the files of checks may be in a cache while the disk hangs."""
TICK_MS = 100
STOPPED_MS = 1_500
"""This process was stopped, or got no processor, if it did not look at its clock for so long."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The result of a round."""

    failing: tuple[str, ...] = ()
    """Roots that fail, and are not fenced yet: `broker 2: …`."""
    fenced: tuple[str, ...] = ()
    """The brokers that this round has fenced, with the reasons."""
    returned: tuple[int, ...] = ()
    """The brokers that it has taken back."""


class _Mark(NamedTuple):
    key: str
    put_ms: int
    """On the monotonic clock."""
    put_at_ms: int
    """On the wall clock, which shows that this machine was suspended since."""


@dataclass(slots=True)
class _Root:
    """Results of the checks of one root, under one registration, epoch and mount."""

    broker: int
    known: Broker
    mount: int
    task: Task[None] | None = None
    began_ms: int = 0
    """When the check under way began."""
    mark: _Mark | None = None
    """The mark of the last check."""
    failing_ms: int | None = None
    """Since when all checks have failed."""
    error: str = ""
    wrong: bool = False
    """The root is not that of its broker, so it need not be given time."""
    cause: FenceCause = "check"
    rolled_back: str = ""
    """The error if it lost a mark: later checks succeed, and it still has to be fenced."""
    read_ms: int | None = None
    """When an object was last read."""
    reading: str = ""
    """The object that is being read."""
    returning: Task[bool] | None = None


class Prober:
    """Rounds of checks of one log's brokers.  Not thread-safe."""

    def __init__(self, log: Log, brokers: Iterable[int] | None = None) -> None:
        """brokers:  check the roots of these only; None: of all."""
        self._only = None if brokers is None else frozenset(brokers)
        self._journal: Journal = log.journal
        self._clock = log.journal.context.clock
        self._unique = log.journal.context.unique()
        """Identifies this process: its marks are its own."""
        self._count = 0
        self._roots: dict[int, _Root] = {}
        self._awake_ms = self._clock.monotonic_ms()
        """When this process was last seen running."""

    def round(self, wait_ms: int | None = None) -> ProbeReport:
        """Check all roots once.

        wait_ms:  how long to wait for their answers; None: `broker.heartbeat.interval.ms`.
        Raises the errors of reading the log, and of changing it.
        """
        self._journal.require(None)
        state = self._journal.refresh()
        if not state.brokers:
            return ProbeReport()
        if wait_ms is None:
            wait_ms = cluster_config(state.configs, "broker.heartbeat.interval.ms")
        self._look_at_the_clock(2 * cluster_config(state.configs, "broker.heartbeat.interval.ms"))
        self._update()
        for root in self._roots.values():
            self._begin(root)
        self._wait(wait_ms)
        return self._judge()

    def until_sure(self) -> ProbeReport:
        """Check until each root has answered, or has failed for long enough to be fenced."""
        report = self.round()
        fenced, returned = list(report.fenced), list(report.returned)
        while report.failing:
            self._clock.sleep_ms(TICK_MS)
            report = self.round()
            fenced += report.fenced
            returned += report.returned
        return ProbeReport((), tuple(fenced), tuple(returned))

    def _update(self) -> None:
        """Another registration, a return, or another mount is another root: what was known about it does not count, and
        a check that hangs with the former mount is left alone."""
        brokers = {
            broker: known
            for broker, known in self._journal.state.brokers.items()
            if self._only is None or broker in self._only
        }
        for broker, known in brokers.items():
            before, mount = self._roots.get(broker), self._journal.roots.mount(broker)
            if known.url and (before is None or (before.mount, _identity(before.known)) != (mount, _identity(known))):
                self._roots[broker] = _Root(broker, known, mount)
            elif before is not None:
                before.known = known
        for broker in [one for one in self._roots if one not in brokers]:
            del self._roots[broker]

    def _begin(self, root: _Root) -> None:
        if root.task is None:
            self._count += 1
            key, now_ms = f"{MARKS}{self._unique}-{self._count}", self._clock.monotonic_ms()
            last = root.mark if root.mark is not None and self._is_kept(root.mark) else None
            root.began_ms = now_ms
            root.task = Task(
                lambda: self._check(root, key, last), f"pylog-probe-{root.broker}", self._journal.context.threads
            )

    def _check(self, root: _Root, key: str, last: _Mark | None) -> None:
        """Raises if the root fails."""
        roots = self._journal.roots
        roots.check(root.broker, again=True)
        check_first_use(roots, root.broker)
        store = _once(roots[root.broker])
        content = key.encode()
        store.put(key, (content,))
        if store.get(key) != content:
            raise StorageError(f"{store.url}/{key}: a read after a write returned different data")
        if last is not None and not self._is_kept(last):  # this machine was suspended during the check
            last = None
        gone = last is not None and store.size(last.key) is None
        root.mark = _Mark(key, self._clock.monotonic_ms(), self._clock.now_ms())
        if last is not None:
            with suppress(StorageError):  # collected later
                store.delete([last.key])
        gone = gone or (last is None and self._lacks_any(root.broker, store))
        if gone:
            root.rolled_back = f"{store.url} does not have what was put there before: it was rolled back, or swapped"
        self._read_object(root, store)

    def _is_kept(self, mark: _Mark) -> bool:
        """Whether nobody can have deleted a mark as that of a dead process."""
        ages_ms = self._clock.monotonic_ms() - mark.put_ms, abs(self._clock.now_ms() - mark.put_at_ms)
        return max(ages_ms) < MARK_MS_MAX

    def _read_object(self, root: _Root, store: ObjectStore) -> None:
        """Only whether it is answered counts: one bad object says nothing about the others."""
        now_ms = self._clock.monotonic_ms()
        if root.read_ms is not None and now_ms - root.read_ms < DATA_MS:
            return
        if found := _some_object_on(self._journal.newest, root.broker, self._journal.context.random()):
            root.reading, row = found
            with suppress(SparkLogError, OSError):
                store.get(root.reading, row.size // 2, row.size // 2 + 1)
        root.reading, root.read_ms = "", self._clock.monotonic_ms()

    def _lacks_any(self, broker: int, store: ObjectStore) -> bool:
        """Whether one of `_samples_on` is not there."""
        state = self._journal.newest
        gone = next((name for name in _samples_on(state, broker) if store.size(name) is None), None)
        if gone is None:
            return False
        # It may have been deleted, or recorded as missing, since this state was read.
        now = self._journal.refresh()
        return has_copy(now, broker, gone) and epoch_of(now, broker) == epoch_of(state, broker)

    def _wait(self, wait_ms: int) -> None:
        """Wait for the checks under way."""
        until_ms = self._clock.monotonic_ms() + wait_ms
        while not self._look_at_the_clock() and self._clock.monotonic_ms() < until_ms:
            task = next((root.task for root in self._roots.values() if root.task and not root.task.ended), None)
            if task is None:
                return
            task.wait(TICK_MS / 1000)

    def _look_at_the_clock(self, usual_ms: int = 0) -> bool:
        """Whether this process was stopped since the last call, or its caller did nothing: then no root was silent.

        usual_ms:  the time between two calls.
        """
        now_ms, before_ms = self._clock.monotonic_ms(), self._awake_ms
        self._awake_ms = now_ms
        if now_ms - before_ms <= max(usual_ms, STOPPED_MS):
            return False
        for root in self._roots.values():
            root.began_ms = now_ms
            if root.failing_ms is not None:
                root.failing_ms = now_ms
        return True

    def _judge(self) -> ProbeReport:
        timeout_ms = cluster_config(self._journal.state.configs, "broker.session.timeout.ms")
        failing, fenced, returned = list[str](), list[str](), list[int]()
        for root in list(self._roots.values()):
            self._note(root)
            if root.known.fenced:
                returned += [root.broker] if self._take_back(root) else []
            elif root.failing_ms is not None:
                failed_ms = self._clock.monotonic_ms() - root.failing_ms
                if (root.wrong or failed_ms >= timeout_ms) and not self._look_at_the_clock():
                    fenced += self._fence(root, failed_ms)
                else:
                    failing.append(f"broker {root.broker}: {root.error}")
        return ProbeReport(tuple(failing), tuple(fenced), tuple(returned))

    def _note(self, root: _Root) -> None:
        """Note the result of a check that has ended, or that it has not."""
        task = root.task
        if task is None:
            return
        if not task.ended:
            what = f" to a read of {root.reading}" if root.reading else ""
            root.error = f"no answer for {(self._clock.monotonic_ms() - root.began_ms) / 1000:.0f} s{what}"
            root.failing_ms = root.began_ms if root.failing_ms is None else root.failing_ms
            return
        root.task = None
        try:
            task.result()
        except Exception as error:  # noqa: BLE001  of one root; the others are checked
            if is_own(error):
                self._leave_out(root, error)
            else:
                root.error, root.wrong = str(error) or repr(error), isinstance(error, WrongRoot)
                root.cause = "other_id" if isinstance(error, OtherLogId) else "check"
                root.failing_ms = root.began_ms if root.failing_ms is None else root.failing_ms
        else:
            root.error, root.wrong, root.failing_ms = "", False, None
        if root.known.fenced:
            root.rolled_back = ""
        elif root.rolled_back:
            root.error, root.wrong, root.failing_ms = root.rolled_back, True, root.began_ms

    @staticmethod
    def _leave_out(root: _Root, error: Exception) -> None:
        """This process cannot check a root that may be in order: another one has to."""
        if root.error != str(error):
            logger.warning("the root of broker %d is not checked: %s", root.broker, error)
        root.error, root.wrong, root.failing_ms = str(error), False, None

    def _fence(self, root: _Root, failed_ms: int) -> list[str]:
        why = "is not usable" if root.wrong else f"has failed all checks for {failed_ms / 1000:.0f} s"
        reason, cause = f"its root {why}: {root.error}", root.cause
        fence = FenceBroker(broker=root.broker, epoch=root.known.epoch, reason=reason, cause=cause)
        if not self._journal.propose(fence):
            return []
        logger.warning("broker %d is fenced: %s", root.broker, reason)
        root.mark = None
        return [f"broker {root.broker}: {reason}"]

    def _take_back(self, root: _Root) -> bool:
        """Whether a fenced broker is back.  Its root is listed in a thread, over several rounds if that takes long."""
        if root.returning is not None:
            if not root.returning.ended:
                return False
            task, root.returning = root.returning, None
            try:
                is_back = task.result()
            except (SparkLogError, OSError, KeyError) as error:
                logger.warning("broker %d stays fenced: %s", root.broker, error)
                return False
            if is_back:
                logger.warning("broker %d is back", root.broker)
            return is_back
        if root.task is None and not root.error and root.known.returns:
            broker, journal = root.broker, self._journal
            root.returning = Task(
                lambda: return_broker(journal, broker), f"pylog-return-{broker}", self._journal.context.threads
            )
            root.returning.wait(1.0)
            if root.returning.ended:
                return self._take_back(root)
        return False


def probe_every(log: Log, has_ended: Callable[[], bool], brokers: Iterable[int] | None = None) -> None:
    """Check the roots every `broker.heartbeat.interval.ms`, until the caller says so.  Failures are logged."""
    prober, clock = Prober(log, brokers), log.journal.context.clock
    while not has_ended():
        began_ms = clock.monotonic_ms()
        try:
            prober.round()
        except Exception as error:  # noqa: BLE001  nobody else would check them
            log_retry(f"the roots of {log.url} were not checked", error, has_ended)
        interval_ms = cluster_config(log.journal.state.configs, "broker.heartbeat.interval.ms")
        left_ms = began_ms + interval_ms - clock.monotonic_ms()
        while left_ms > 0 and not has_ended():
            clock.sleep_ms(min(left_ms, TICK_MS))
            left_ms = began_ms + interval_ms - clock.monotonic_ms()


def _samples_on(state: State, broker: int) -> Iterator[str]:
    """Objects of which a broker has a copy: the newest, and the first after the version that is 1, 2, 4, 8, … before.

    A disk that was set back may have got new objects since, and lacks those from before.  With as many versions between
    these as there were since, one of them is usually among the samples.
    """
    held = {number for number, copies in state.copies.items() if broker in copies.brokers}
    newest = last_with_copies(state.objects, held) if held else None
    if newest is None:
        return
    yield (last := newest[0])
    version, back = upload_epoch(last), 1
    while back <= version:
        if (found := next(rows_with_copies(state.objects, held, version - back - 1), None)) and found[0] != last:
            yield (last := found[0])
        back *= 2


def _some_object_on(state: State, broker: int, rng: random.Random) -> tuple[str, ObjectRow] | None:
    """An object of which a broker has a copy, of any age."""
    held = {number for number, copies in state.copies.items() if broker in copies.brokers}
    after = rng.randrange(-1, max(1, state.version))
    return next(rows_with_copies(state.objects, held, after), None) or next(rows_with_copies(state.objects, held), None)


def _identity(known: Broker) -> tuple[str, str, int]:
    return known.url, known.directory, known.epoch


def _once(store: ObjectStore) -> ObjectStore:
    """The store without retries: the next check is one."""
    return store.inner if isinstance(store, RetryingStore) else store
