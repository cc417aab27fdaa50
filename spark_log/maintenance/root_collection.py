"""Garbage collection on the roots of brokers: what is deleted in the log's own root is deleted there, too.

A directory of a broker has objects under their names, so the same rules hold: dropped objects and uploads that no
commit has named are garbage once the fence has passed them.  Copies that no record says exist are kept while the object
is live: they may be recorded later.  In a directory that the broker had before its disk was replaced, all is garbage.

A root that fails its checks may be full, and its garbage is what fills it.  So it is collected as far as it answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from spark_log.client.admin.brokers import PUT_MS_MAX
from spark_log.configs.settings import cluster_config
from spark_log.errors import SparkLogError, StorageUnavailable
from spark_log.journal.garbage_collection import DELETED_UNSEEN, Collected, Look, collect, collect_dropped
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import Report
from spark_log.metadata.erasures import waits_for, wiped_upto
from spark_log.metadata.lines import is_of_plan, plan_of
from spark_log.metadata.records import WipedRecord
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.replicas.replicas import is_active
from spark_log.metadata.state import State
from spark_log.replication.broker_prober import MARK_MS_MAX, MARKS
from spark_log.roots.root_owner import check_owner
from spark_log.runtime.daemon_tasks import Task
from spark_log.store.object_names import DATA, META, listed

WAIT_S = 30.0
"""How long a round waits for a root; a slower one continues, and the next round asks again."""
FENCED_WAIT_S = 1.0
"""How long a round waits for the roots of fenced brokers."""


@dataclass(slots=True)
class CollectedRoots:
    """The result of a round."""

    names: list[str] = field(default_factory=list)
    """Deleted copies, as `broker 2: data/…`."""
    unfinished: int = 0
    """Deleted files of dead writers, and marks of dead probers."""
    errors: dict[int, Exception] = field(default_factory=dict)
    """By broker; the other roots were collected."""


@dataclass(slots=True)
class _Root:
    """The memory of the directory of one registration or return: a disk may come back with what was deleted."""

    directory: str
    epoch: int
    log: str = ""
    """The log of the last round, as `plan_of` says: what was deleted there is garbage of that one."""
    collected: Collected | None = None
    dropped: int | None = None
    """The version up to which old copies were deleted, of a broker that keeps only the newest objects."""
    former: set[str] = field(default_factory=set)
    """Directories that were replaced, of which nothing is left."""
    swept_ms: int | None = None
    oldest_ms: float | None = None
    """When the oldest unfinished file that was left was last written."""
    task: Task[tuple[list[str], int]] | None = None


class RootCollector:
    """Collects garbage on all brokers, except those that were fenced by hand.

    Not thread-safe; a root that hangs delays the others by `WAIT_S`.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._roots: dict[int, _Root] = {}

    def round(self, state: State) -> CollectedRoots:
        """state: confirmed."""
        found = CollectedRoots()
        begun = [broker for broker in sorted(state.brokers) if broker != OWN_BROKER and self._begin(broker, state)]
        clock = self._journal.context.clock
        began_ms = clock.monotonic_ms()
        for broker in begun:
            root, is_fenced = self._roots[broker], not is_active(state, broker)
            until_ms = began_ms + (FENCED_WAIT_S if is_fenced else WAIT_S) * 1000
            assert root.task is not None, "it has begun"
            root.task.wait((until_ms - clock.monotonic_ms()) / 1000)
            if not root.task.ended:
                if not is_fenced:
                    found.errors[broker] = StorageUnavailable(f"the root of broker {broker} does not answer")
                continue
            task, root.task = root.task, None
            try:
                names, unfinished = task.result()
            except (SparkLogError, OSError, KeyError) as error:
                if not is_fenced:  # it is known that its root fails
                    found.errors[broker] = error
            else:
                found.names += [f"broker {broker}: {name}" for name in names]
                found.unfinished += unfinished
        return found

    def _begin(self, broker: int, state: State) -> bool:
        known = state.brokers[broker]
        if known.fenced and not known.returns:
            return False
        root = self._roots.get(broker)
        place = known.directory, known.epoch
        if root is None or (root.directory, root.epoch) != place or not is_of_plan(state, root.log):
            root = self._roots[broker] = _Root(*place)
        root.log = plan_of(state)
        if root.task is None:
            kept = root
            root.task = Task(
                lambda: self._collect(broker, kept, state), f"pylog-gc-{broker}", self._journal.context.threads
            )
        return True

    def _collect(self, broker: int, root: _Root, state: State) -> tuple[list[str], int]:
        journal = self._journal
        journal.roots.check(broker, again=True)
        check_owner(journal.roots.root(broker), journal.roots.own.url)
        look: Look = partial(journal.metadata_log.refresh, journal.view)
        names, root.collected = journal.run(
            collect(state, journal.context, root.collected, broker, look, notices_loss=True)
        )
        dropped, root.dropped = journal.run(collect_dropped(state, journal.context, broker, root.dropped, look))
        names += dropped + self._collect_former(broker, root, state, look)
        is_current = root.collected is not None and root.collected.fence >= state.fence
        is_wiped = is_current and waits_for(state, (broker, root.directory))
        if is_wiped:
            root.swept_ms = None  # the files of writers that died may have such records
        unfinished = self._sweep(broker, root, state)
        upto = wiped_upto(state, (broker, root.directory), root.oldest_ms, PUT_MS_MAX) if is_wiped else None
        if upto is not None:
            # All of the root: an upload may have come after the garbage of its time was deleted.
            more, everything = journal.run(collect(state, journal.context, None, broker, look))
            names += more
            if everything:
                wiped = Report.of(state, WipedRecord(broker=broker, directory=root.directory, upto=upto))
                journal.propose(wiped)
        return names, unfinished

    def _collect_former(self, broker: int, root: _Root, state: State, look: Look) -> list[str]:
        """Delete what late uploads to a bucket have left in directories that were replaced before the fence.

        Nobody reads them any more, and no commit can name a copy in them, unless an older copy of the log was restored.
        """
        store, found = self._journal.roots.root(broker), list[str]()
        for directory in _replaced(state, broker):
            if directory not in root.former:
                names = listed(store, f"{directory}/", f"{directory}/")
                for at in range(0, len(names), DELETED_UNSEEN):
                    if directory not in _replaced(self._journal.run(look()).state, broker):
                        return found + names[:at]
                    store.delete(names[at : at + DELETED_UNSEEN])
                root.former.add(directory)
                found += names
                if names and directory in state.former_roots:  # otherwise they may be on another disk
                    self._journal.propose(
                        Report.of(state, WipedRecord(broker=broker, directory=directory, upto=state.fence))
                    )
        return found

    def _sweep(self, broker: int, root: _Root, state: State) -> int:
        """Sweeps as in the log's own root, once in `PUT_MS_MAX`.

        The files have the times of the root's storage, whose clock may be years behind: the newest mark shows that.
        """
        journal = self._journal
        now_ms = journal.context.clock.now_ms()
        if root.swept_ms is not None and 0 <= now_ms - root.swept_ms < PUT_MS_MAX:
            return 0
        store = journal.roots[broker]
        marks = [name for name in listed(store, META) if name.startswith(MARKS)]
        times = {name: written_ms for name in marks if (written_ms := store.written_ms(name))}
        there_ms = min(now_ms, max(times.values(), default=now_ms))
        old = [name for name, written_ms in times.items() if there_ms - written_ms > PUT_MS_MAX + MARK_MS_MAX]
        store.delete(old)
        before_ms = there_ms - max(cluster_config(state.configs, "gc.fence.age.ms"), PUT_MS_MAX)
        root.swept_ms = now_ms
        swept = store.sweep(DATA, before_ms)
        root.oldest_ms = swept.oldest_ms
        return swept.deleted + store.sweep(META, before_ms).deleted + len(old)


def _replaced(state: State, broker: int) -> list[str]:
    """Directories of a broker that were replaced before the fence."""
    known = state.brokers.get(broker)
    return [] if known is None else [directory for directory, version in known.former if version <= state.fence]
