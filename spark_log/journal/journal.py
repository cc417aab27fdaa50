"""The metadata of a log in one process: opens it, refreshes it, and changes it by proposals.

The threads of a process share a view of a metadata log (`metadata_log.py`): here are its refreshes, its maintenance,
and the link to a coordinator.  Proposals of several threads wait in `proposal_queue.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from spark_log.configs.settings import cluster_config
from spark_log.configs.topic_names import check_topic_name
from spark_log.errors import (
    AuthenticationFailed,
    CommitUnknown,
    CoordinatorNotAvailable,
    CorruptObject,
    InconsistentClusterId,
    InvalidRequest,
    LogMoved,
    LogRestored,
    NotCoordinator,
    SparkLogError,
    StorageError,
    WrongRoot,
)
from spark_log.journal import store_operations as ops
from spark_log.journal.context import Context, Proposal, is_led_elsewhere
from spark_log.journal.maintenance import seal_and_expire
from spark_log.journal.maintenance_limits import LIMITS, StepLimits
from spark_log.journal.maintenance_thread import MaintenanceThread
from spark_log.journal.metadata_log import LogView, MetadataLog, MetadataReader, decided
from spark_log.journal.proposal_queue import ProposalQueue, fail, failure_of, late_error, stores_until
from spark_log.journal.record_wait import await_record
from spark_log.journal.storage.storage_log import open_storage_log
from spark_log.journal.store_operations import OWN_ROOT, Link, Steps, Stores, beside, run
from spark_log.journal.topic_feed import FeedView, TopicFeed, unanswered_ms
from spark_log.metadata.command_base import Command
from spark_log.metadata.decide_coordinators import decide_release, decide_take_over, moved_error, moved_to, moving_to
from spark_log.metadata.decision import Decision
from spark_log.metadata.projection import holds, is_projected, object_row
from spark_log.metadata.records import TakeOverPurpose
from spark_log.metadata.replicas.replica_state import Broker
from spark_log.metadata.replicas.replicas import holders
from spark_log.metadata.set_backs import following
from spark_log.metadata.state import ObjectRow, State
from spark_log.roots.broker_roots import ANY_ROOT, ReplicatedStore, Roots
from spark_log.roots.root_options import DEFAULT_OPTIONS, RootOptions
from spark_log.runtime.clock import Clock, SystemClock, ticks_of
from spark_log.runtime.fork_safety import renew_after_fork
from spark_log.runtime.threads import SYSTEM_THREADS, Threads
from spark_log.store.base import ObjectStore
from spark_log.store.retry import answer_until, with_retries

LONG_POLL_MS_MAX = 5000
"""Maximum time of one request to a coordinator for changes: the caller has other work."""
UNREACHABLE_WAIT_MS = 250
"""Wait for an unreachable coordinator before the storage is read instead."""
UNANSWERED = (CoordinatorNotAvailable, NotCoordinator, AuthenticationFailed, InconsistentClusterId, InvalidRequest)
"""A client that may read the storage may read the log, even if the coordinator rejects it, is older or requires TLS."""
UNREAD = (InvalidRequest,)
"""After these, a client of a served log reads the whole log: it may hold more topics than may be asked for."""
Result = TypeVar("Result")


class Journal:
    """The metadata of one log.  Thread-safe; concurrent proposals share one put."""

    def __init__(
        self,
        metadata_log: MetadataLog[Any],
        stores: Stores,
        link: Link | None = None,
        *,
        partial: bool = False,
        root_options: RootOptions = DEFAULT_OPTIONS,
        one_root: bool = False,
    ) -> None:
        """one_root:  all objects are in one root, whatever the state says: this is a mirror."""
        self._one_root = one_root
        self.metadata_log = metadata_log
        own = stores.objects[OWN_ROOT]
        roots = Roots(own, metadata_log.cluster_id, self._brokers, self._holders, root_options, self.context.clock)
        self.stores = Stores(stores.metadata, roots)
        self._unread = UNREAD if metadata_log.is_served else UNANSWERED
        """The errors of a coordinator after which the metadata log is read instead."""
        self._log: MetadataReader[Any] = TopicFeed(metadata_log) if partial else metadata_log
        """Where the view comes from: the log, or a coordinator that sends the changes of some topics."""
        self.link = link
        self.cluster_id = metadata_log.cluster_id
        self.after_fork()
        renew_after_fork(self)
        self._now_s = ticks_of(self.context.clock)
        self.refreshed_s = self._now_s()
        """When the last refresh began, by a monotonic clock: the view has what was written before."""
        self.view: LogView = self._opened()
        """The newest view in this process, from which maintenance begins, without changes of other threads."""

    def _brokers(self) -> Mapping[int, Broker]:
        return {} if self._one_root else self.newest.brokers

    def _holders(self, name: str) -> Sequence[int]:
        """A row may be absent because a later version has dropped the object, or because only some topics are held."""
        state = self.newest
        row = state.objects.get(name)
        return (OWN_ROOT, *sorted(self._brokers())) if row is None else holders(state, row)

    def _opened(self) -> LogView:
        try:
            view: LogView = self.run(self._log.open())
        except self._unread:
            if self._log is self.metadata_log:
                raise
            self._log = self.metadata_log
            view = self.run(self._log.open())
        return view

    def after_fork(self) -> None:
        """Creates new locks; proposals that the parent's threads had queued stay with the parent."""
        threads = self.context.threads
        self._proposals = ProposalQueue(threads, self.context.clock)
        self._is_ahead = False
        """A change has found that this process has seen versions which the log, restored from a copy, does not have."""
        self._reading = threads.lock()
        """Held during a read of new records: one reader reads for all."""
        self._installing = threads.lock()
        self._maintenance = MaintenanceThread(self._do_maintenance, threads, self.context.clock, self.metadata.url)

    @classmethod
    def open(
        cls,
        metadata: ObjectStore,
        objects: ObjectStore | None = None,
        *,
        create: bool,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        link: Link | None = None,
        served: bool = False,
        tag: str = "",
        partial: bool = False,
        limits: StepLimits = LIMITS,
        threads: Threads = SYSTEM_THREADS,
        root_options: RootOptions = DEFAULT_OPTIONS,
    ) -> Journal:
        """Open the log whose metadata is in `metadata`, or create one there if `create`.

        objects: the store of its records; None: also `metadata`.
        link:    connects to the coordinator of the log, if it has one.
        served:  all changes go through a coordinator.
        tag:     as in `Context`.
        partial: of a served log, hold the topics that `require` names, as long as nothing needs the whole state.
        limits:  bounds of the log's maintenance.
        root_options: how the roots of brokers are opened.
        Raises NoLog if there is none and `create` is False, UnsupportedVersion for a newer format, another kind of
        file or a lost `meta/format`, StoreNotExclusive if the storage cannot hold a log.
        """
        context = Context(
            clock or SystemClock(), rng or random.SystemRandom(), served=served, tag=tag, limits=limits, threads=threads
        )
        metadata = with_retries(metadata, context.clock, context.random())
        if objects is not None:
            objects = with_retries(objects, context.clock, context.random())
        stores = Stores.of(metadata, objects)
        log = open_storage_log(stores, context, create=create, opens_later=partial)
        if log.form.mirrors:
            link, partial = None, False  # its state names the coordinator of the log that it mirrors
        one_root = bool(log.form.mirrors)
        return cls(log, stores, link, partial=partial, root_options=root_options, one_root=one_root)

    @property
    def is_mirror(self) -> bool:
        """Whether this is a mirror, which `pylog mirror run` alone changes."""
        return self._one_root

    @property
    def context(self) -> Context:
        """The environment of this process."""
        return self.metadata_log.context

    @property
    def metadata(self) -> ObjectStore:
        """The store of the metadata log."""
        return self.stores.metadata

    @property
    def objects(self) -> ObjectStore:
        """The store of the records.  Reads go to any root that has an object, all else to the log's own root."""
        return self.stores.at(ANY_ROOT)

    def objects_near(self, rack: str) -> ObjectStore:
        """`objects` for a reader in a rack; empty: in that of the process."""
        return ReplicatedStore(self.roots, rack=rack) if rack and self._brokers() else self.objects

    @property
    def roots(self) -> Roots:
        """The roots of the log's objects."""
        assert isinstance(self.stores.objects, Roots), "a journal has them from the start"
        return self.stores.objects

    def run(self, steps: Steps[Result]) -> Result:
        """Carry out steps of the protocol on this log's stores."""
        return run(steps, self.stores, self.context.clock, self.link)

    def refresh_if_there(self, *, peek: bool = False) -> bool:
        """`refresh`, and in the same round whether the log still exists; False if it was deleted, replaced or moved:
        then this journal must not be used any more.

        peek:  only `newest` has to be refreshed, in one round if possible.
        Raises LogRestored if an older copy of this log was restored.
        """
        read = self._log.peek if peek else self._log.refresh
        try:
            view, there = self._read_beside(read, self.metadata_log.is_still_there())
        except (LogMoved, InconsistentClusterId):
            return False
        except (CorruptObject, LogRestored, WrongRoot):
            if self.run(self.metadata_log.is_still_there()):
                raise
            return False
        if there and self.newest.version < view.newest.version:
            self.refresh()  # another thread has installed a view without the records that the peek found
        return there

    @property
    def state(self) -> State:
        """The newest state in this process."""
        return self.view.state

    @property
    def newest(self) -> State:
        """The state on which the next change is decided: what `refresh_if_there` has seen, confirmed or not.

        Only changes may depend on it, and what is prepared for them, such as uploads."""
        return self.view.newest

    def state_at(self, version: int) -> State | None:
        """The state at a recent version; None if it cannot be rebuilt any more."""
        state = self.state
        return state if state.version == version else self.run(self.metadata_log.state_at(version))

    def refresh(self, deadline_ms: int | None = None) -> State:
        """The state at the end of the log.

        deadline_ms:  on the monotonic clock, for a bucket.  Raises StorageUnavailable then.
        """
        direct = self.metadata.local and self.view.held is None and not self.metadata_log.is_served
        if deadline_ms is not None and not direct:
            return answer_until(deadline_ms, self.context.clock, self.metadata.url, self.refresh)
        return self._or_whole(self._refresh)

    def _refresh(self) -> State:
        with self._reading:
            known, began_s = self.view, self._now_s()
            self.adopt(self.run(self._log.refresh(known)), known)
            self.refreshed_s = began_s
        return self.view.state

    def require(
        self, topics: Iterable[str] | None, groups: Iterable[str] = (), deadline_ms: int | None = None
    ) -> State:
        """A state that has these topics, by name, and groups; None: all.  Call it before you look for them in a state.

        deadline_ms:  as in `refresh`.
        """
        if topics is None:
            return self._require_all()
        self._check_is_here()
        wanted, of_groups = tuple(topics), tuple(groups)
        if holds(self.newest, wanted, of_groups):
            return self.view.state
        for name in wanted:
            if not (isinstance(name, str) and name.isascii()):
                check_topic_name(name)
        if deadline_ms is not None:
            url, clock = self.metadata.url, self.context.clock
            return answer_until(deadline_ms, clock, url, lambda: self.require(wanted, of_groups))
        return self._or_whole(lambda: self._require(wanted, of_groups))

    def _require(self, topics: Sequence[str], groups: Sequence[str]) -> State:
        # Both locks: no read or change in progress installs a view without these topics afterwards.
        if not self._proposals.turn.acquire(timeout=unanswered_ms(self.metadata_log) / 1000):
            return self._require_all()  # a change waits for a coordinator
        try:
            with self._reading:
                known = self.view
                if isinstance(self._log, TopicFeed) and isinstance(known, FeedView):
                    self.view = self.run(self._log.require(known, topics, groups))
        finally:
            self._proposals.turn.release()
        return self.view.state

    def _require_all(self) -> State:
        """Reads the log, and follows it from now on.  Does not wait for a change that waits for a coordinator."""
        if self.view.held is not None:
            with self._reading:
                if self._log is not self.metadata_log:
                    whole = self.run(self.metadata_log.open())
                    with self._installing:
                        whole = whole._replace(state=following(whole.state, self.view.state))
                        self.view, self._log = whole, self.metadata_log
        return self.view.state

    def _or_whole(self, read: Callable[[], State]) -> State:
        """The result of `read`; if no coordinator sends topics, the whole state from the log."""
        try:
            return read()
        except self._unread:
            if self.view.held is None:
                raise
        return self._require_all()

    def object_rows(self, state: State, names: Iterable[str]) -> Mapping[str, ObjectRow] | None:
        """The rows of objects; None if some are gone by now: then a newer state does not refer to them.

        A state of some topics lacks those whose slices are in indexes: a coordinator is asked for them.
        """
        if not is_projected(state):
            return state.objects
        wanted = set(names)
        rows = {name: row for name in wanted if (row := state.objects.get(name)) is not None}
        if absent := sorted(wanted - rows.keys()):
            assert self.link is not None, "topics are held through a coordinator"
            try:
                found = self.link.objects(ops.AskObjects(state.coordinator, absent))
            except UNANSWERED:
                self._require_all()
                return None
            rows |= {name: object_row(row) for name, row in found.items()}
        return rows if len(rows) == len(wanted) else None

    def recent(self, deadline_ms: int | None = None) -> State:
        """The newest state in this process, refreshed if it is old.

        Under an old state, an upload or a producer would begin at or below the fence.

        deadline_ms:  as in `refresh`.
        """
        state = self.state
        age = cluster_config(state.configs, "gc.fence.age.ms")
        return self.refresh(deadline_ms) if abs(self.context.clock.now_ms() - state.time) > age // 4 else state

    def refresh_beside(self, steps: Steps[Result]) -> tuple[State, Result]:
        """`refresh`, and other reads in the same rounds of requests."""
        _, result = self._read_beside(self._log.refresh, steps)
        return self.view.state, result

    def _read_beside(self, read: Callable[[LogView], Steps[LogView]], steps: Steps[Result]) -> tuple[LogView, Result]:
        """The view that was read, and the result of `steps`."""
        with self._reading:
            known = self.view
            if known.held is None:
                view, result = self.run(beside(read(known), steps))
            else:
                view, result = self.run(read(known)), self.run(steps)
            self.adopt(view, known)
        return view, result

    def adopt(self, view: LogView, known: LogView) -> None:
        """Continue with a view that follows `known`.  Readers and changes do not wait for each other.

        If another thread has installed a view meanwhile, the newer one is kept; one of the whole state in any case.
        """
        with self._installing:
            now = self.view
            if now.held is None and view.held is not None:
                return
            follows = now is known and view.state.version >= known.state.version
            self.view = view if follows else self._log.newer(view, now)
        self._check_is_here()

    def _check_is_here(self) -> None:
        """Raises LogMoved, also after the first time: whatever this process would read is old.

        While a log is being moved, it can be read where it was.  A process without a link moves the log.
        """
        if self.link is not None and (url := moved_to(self.view.state.coordinator)):
            raise moved_error(url)

    def poll(self) -> State:
        """Like `refresh`, for a waiting reader: one get if nothing happened, or one request to the coordinator."""
        self._check_is_here()
        return self._or_whole(lambda: self._ask_coordinator(0) if self._follows_coordinator() else self._look())

    def wait(
        self,
        poll_ms: float,
        timeout_ms: float,
        clock: Clock | None = None,
        group: str = "",
        topics: Sequence[str] | None = None,
    ) -> State:
        """Wait for a change.  A coordinator reports one immediately; a storage is polled after `poll_ms`.

        clock:  the caller's clock, if it is not the journal's: the time must pass on the clock that the caller reads.
        group:  a coordinator also reports the start of a rebalance of this group.
        topics: ids; a coordinator does not report records of other topics before the time is over.
        """
        self._check_is_here()
        if self._follows_coordinator():
            wait_ms = int(min(timeout_ms, LONG_POLL_MS_MAX))
            return self._or_whole(lambda: self._ask_coordinator(wait_ms, group, topics))
        await_record(self.metadata, self.view.state.version + 1, poll_ms, clock or self.context.clock)
        return self._look()

    def _follows_coordinator(self) -> bool:
        state = self.view.state
        return self.link is not None and is_led_elsewhere(state, self.context) and not moving_to(state.coordinator)

    def _ask_coordinator(self, wait_ms: int, group: str = "", topics: Sequence[str] | None = None) -> State:
        """Ask the coordinator for changes; the lock is not held meanwhile."""
        known = self.view
        try:
            changed = self._changes(known, wait_ms, group, topics)
        except UNANSWERED:
            self.context.clock.sleep_ms(min(wait_ms, UNREACHABLE_WAIT_MS))
            return self._look()
        if changed is not None:
            with self._reading:
                view = self.view
                if view.state.version == known.state.version and view.held is known.held:
                    self.adopt(changed(view), view)
        return self.view.state

    def _changes(
        self, known: LogView, wait_ms: int, group: str, topics: Sequence[str] | None
    ) -> Callable[[Any], LogView] | None:
        """Makes the view that the coordinator reports from one at the version of `known`; None if nothing changed."""
        assert self.link is not None, "only a link reports changes"
        state, log = known.state, self._log
        if known.held is not None and isinstance(log, TopicFeed):
            found = self.link.topics(ops.AskTopics(state.coordinator, known.held, False, wait_ms, group, topics))
            if found.version < state.version:  # a standby that is behind, or a restored log
                return lambda view: self.run(log.refresh(view))
            return lambda view: log.applied(view, found)
        asked = ops.AskChanges(state.coordinator, state.version, known.head, False, wait_ms, group, topics)
        changes = self.link.changes(asked)
        if changes.lacks_head:
            return lambda view: self.run(self.metadata_log.refresh(view))
        if changes.version <= state.version:
            return None
        return lambda view: self.run(self.metadata_log.follow(view, changes))

    def _look(self) -> State:
        with self._reading:
            known = self.view
            view = self.run(self._log.look(known))
            if view is not known:
                self.adopt(view, known)
        return self.view.state

    def propose(
        self,
        decide: Callable[[State, int], Decision[Result]],
        deadline_ms: int | None = None,
        *,
        maintenance: bool = True,
        set_back: str | None = None,
    ) -> Result:
        """Apply a decision: when this returns its reply, the change is durable.

        deadline_ms:  limits the wait for a coordinator, on the monotonic clock; None: that of the context.
        maintenance:  call `maintenance_after_commit` afterwards; a caller with waiting threads calls it after
                      releasing them.
        set_back:     as in `Proposal`.
        Raises the decision's errors, CommitUnknown if the storage failed and the change may have been applied.
        """
        self._check_is_here()
        if isinstance(decide, Command):
            decide.check_types()
        deadline_ms = self._deadline_ms() if deadline_ms is None else deadline_ms
        command = Proposal(decide, deadline_ms=deadline_ms, set_back=set_back)
        self._proposals.add(command)
        if self._proposals.wait_for_turn(command, self._late):
            try:
                if not command.done:
                    self.carry_out(self._proposals.take())
            finally:
                self._proposals.turn.release()
        if maintenance:
            self.maintenance_after_commit()
        if command.error is not None:
            raise command.error
        return command.reply

    def _deadline_ms(self) -> int | None:
        """The deadline of a change without one: it waits for a coordinator no longer than the changes before it."""
        context = self.context
        return context.clock.monotonic_ms() + context.coordinator_wait_ms if self._follows_coordinator() else None

    def _late(self) -> SparkLogError:
        address = self.view.state.coordinator.address if self._follows_coordinator() else None
        return late_error(address, self.metadata.url)

    def carry_out(self, commands: list[Proposal]) -> None:
        """Apply commands together; afterwards each has its reply or its error."""
        with self._proposals.turn:
            self._carry_out(commands)

    def _carry_out(self, commands: list[Proposal]) -> None:
        try:
            if self._is_ahead:
                self._or_whole(self._refresh)  # raises LogRestored again, before anything is sent
                self._is_ahead = False
            with self._installing:
                known, log = self.view, self._log
            stores = stores_until(self.stores, commands, self.context.clock)
            self.adopt(run(log.propose(known, commands), stores, self.context.clock, self.link), known)
            if known.held is not None and self.view.held is None:
                self._see_own()
            self._is_ahead = any(isinstance(command.error, LogRestored) for command in commands)
        except SparkLogError as error:
            fail(commands, failure_of(error))
        except BaseException as error:
            # An interrupt, or a bug: threads that wait for other commands must not take them for applied.
            fail(commands, CommitUnknown(f"a change was interrupted by {error!r} and may have been applied"))
            raise

    def _see_own(self) -> None:
        """Read the commands of this process, which were applied while another thread read the whole state.

        If this fails, later reads see them.
        """
        with suppress(StorageError):
            self._refresh()

    # ------------------------------------------------------------------------------------------------- as a coordinator

    def take_over(
        self, expected: int, address: str, host: str, purpose: TakeOverPurpose = "lead", *, version: int | None = None
    ) -> int:
        """Become the log's coordinator after epoch `expected`, or close the log for a move; returns the new epoch.

        version:  the last one of the log; None: any.
        Raises NotCoordinator if another process was faster, ConcurrentChange if the log has another version.
        """
        take_over = (expected, address, host, self.cluster_id, purpose, version)
        take = Proposal(lambda state, now: decide_take_over(state, *take_over), takes_over=True)
        with self._proposals.turn:
            before = self.context
            self.metadata_log.context = replace(before, epoch=expected + 1)
            try:
                self._carry_out([take])
            finally:
                if take.error is not None:  # another process may have that epoch
                    self.metadata_log.context = before
            if take.error is not None:
                raise take.error
        return expected + 1

    def release(self, epoch: int) -> bool:
        """Release the log to embedded writers; False if it is not led under that epoch, or the one before."""
        release = Proposal(lambda state, now: decide_release(state, epoch), takes_over=True, releases=True)
        self.carry_out([release])
        if release.error is not None:
            raise release.error
        return bool(release.reply)

    # ------------------------------------------------------------------------------------------------------- maintenance

    def maintenance_after_commit(self) -> None:
        """Start maintenance after a change, in its thread, if it is due and is not running."""
        if not is_led_elsewhere(self.view.state, self.context) and self.metadata_log.is_due(self.view):
            self._maintenance.start()

    def run_maintenance(self) -> None:
        """Seal, prune and checkpoint if it is due; an error is logged, never raised."""
        self.poll()
        if self.metadata_log.is_due(self.view):
            self._maintenance.run()

    def finish_maintenance(self) -> None:
        """Wait for the maintenance that this process has started, at most a minute.

        The end of a process waits too, unless it ends by `os._exit`.
        """
        self._maintenance.join()

    def _do_maintenance(self) -> None:
        known = self.view
        self.adopt(self.run(self.metadata_log.look_again(known)), known)
        known = self.view
        if not self.metadata_log.is_due(known):
            return  # another process has done it
        # With a separate view, as another process: commits do not wait for it.
        view, _ = self.run(decided(self.metadata_log, known, seal_and_expire(known.state, self.context)))
        self.adopt(view, known)
        kept = self.run(self.metadata_log.checkpoint_and_truncate(view, known.state.fence))
        self.adopt(kept, view)
        if kept.state is not view.state:
            with self._proposals.turn:  # a change in progress would install a state with the columns of before
                known = self.view
                self.adopt(self.metadata_log.rebased(known, view, kept), known)
