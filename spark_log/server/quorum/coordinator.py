"""The coordinator on a node of a quorum: the leader of the quorum decides, and the others follow its log.

It belongs to the event loop of its node.  `commands.py` has what it decides, `take_over.py` how it begins
to lead.  Replies, clients that read, and groups see final states only.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from spark_log.client.log import Log
from spark_log.errors import (
    InconsistentClusterId,
    InvalidRequest,
    LogMoved,
    NotCoordinator,
    NotLeaderOrFollower,
    SparkLogError,
)
from spark_log.http.connection_limits import Connections
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.metadata_log import MetadataLog
from spark_log.journal.store_operations import Answered, Steps, Stores, run
from spark_log.log_lines import logger
from spark_log.metadata.command_base import HeldPosition
from spark_log.metadata.commands import AnyCommand
from spark_log.metadata.features import METADATA_VERSION, SUPPORTED
from spark_log.metadata.groups.group_commands import SetGeneration
from spark_log.metadata.projection import Delta, Holdings, delta
from spark_log.metadata.state import State
from spark_log.monitoring.coordinator_metrics import Metrics
from spark_log.monitoring.quota_usage import Usage
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.node import Node
from spark_log.quorum.node.node_config import NodeConfig
from spark_log.quorum.node.node_host import NodeHost
from spark_log.quorum.node.node_metrics import metrics_text
from spark_log.roots.broker_roots import Roots
from spark_log.roots.root_options import DEFAULT_OPTIONS, RootOptions
from spark_log.rpc.messages import Health, QuorumInfo
from spark_log.runtime.clock import Clock
from spark_log.server.change_feed import ChangeFeed
from spark_log.server.coordinator_duties import Duties
from spark_log.server.local_link import LocalLink
from spark_log.server.pending_commands import pending_commands
from spark_log.server.quorum.commands import QuorumCommands
from spark_log.server.quorum.description import quorum_reply
from spark_log.server.quorum.forgetting import Forgetting
from spark_log.server.quorum.leader import KnownLeader
from spark_log.server.quorum.leader_watch import LeaderWatch
from spark_log.server.quorum.log import FinalLog, QuorumLog
from spark_log.server.quorum.root_snapshots import RootSnapshots
from spark_log.server.quorum.state import AnyOffer, Content, QuorumState
from spark_log.server.quorum.state_comparison import StateComparison
from spark_log.server.quorum.take_over import TakeOver
from spark_log.server.service import Rule
from spark_log.store.base import ObjectStore
from spark_log.store.retry import with_retries

CONFIRM_S = 1.0
"""How often a leader confirms that it leads."""

Result = TypeVar("Result")


class QuorumCoordinator:
    """Implements `Service` for the server, and `QuorumLeader` for its parts."""

    def __init__(
        self,
        config: NodeConfig,
        store: ObjectStore,
        *,
        prepare: Callable[[], Awaitable[None]],
        keep_folder: Callable[[], None] = lambda: None,
        maintain_ms: int | None = None,
        root_options: RootOptions = DEFAULT_OPTIONS,
        host: NodeHost | None = None,
    ) -> None:
        """
        store:         the storage of the objects.
        prepare:       called before this node leads.  If it raises an error, the node does not lead.
        keep_folder:   called now and then while this node leads, in a thread.  Raises LogMoved, InconsistentClusterId
                       or InvalidRequest if the folder of the records does not belong to this quorum any more.
        maintain_ms:   interval of maintenance (`pylog maintain`); None: never.
        root_options:  how to open the roots of brokers.
        host:          the node's machine; None: this machine.
        """
        self.address = ""
        """Address for clients; set before it starts."""
        self._host = host or NodeHost()
        self.cluster_id = config.cluster_id
        self.storage = store.url
        self.epoch = 0
        """The epoch under which it leads; 0: it does not lead."""
        self.confirmed_s = 0.0
        """When, on the monotonic clock, it last began a check that found it leading."""
        self.clock: Clock = QuorumClock(lambda: self.node.time_ms(), self._host.clock)
        self.metrics = Metrics()
        self.change_feed = ChangeFeed()
        self.on_change: Callable[[], None] = lambda: None
        """Called after a new version or a change of the leader."""
        self.held: Callable[[], tuple[HeldPosition, ...]] = tuple
        """Positions that must not expire now."""
        self._loop = asyncio.get_running_loop()
        self._log = QuorumState(self._applied, self._restored, self._later, self._compare, config.digest_ms)
        config = replace(config, level=SUPPORTED[METADATA_VERSION])
        self.node = Node(config, self._log, self._led, self._host, self._judged)
        self.node.application_problem = self._lead_problem
        self._forgetting = Forgetting(self.node.status, self.node.forget)
        self._digests = StateComparison(self._host, self._log.digest, self.node)
        self._rng = self._host.ids()
        self._root_options = root_options
        self._open_storage(with_retries(store, self.clock, self._rng))
        self.duties = Duties(self, self.open_log, self.metrics, self.clock, maintain_ms, self._host.threads)
        self._duties_end = threading.Event()
        self.root_snapshots = RootSnapshots(
            self._stores.metadata, self.clock, self.unique, self._final_content, self._is_still_ours, self._host.threads
        )
        self._keep_folder = keep_folder
        self.node.copy_problem = lambda: self.root_snapshots.problem() if self.leading else ""
        self._leader_watch = LeaderWatch(self.node, self._host, lambda: self.state)
        self._take_over = TakeOver(self, prepare)
        self._commands = QuorumCommands(self, self._log)
        self._published = State()
        self._is_publishing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_stopping = False

    def _open_storage(self, store: ObjectStore) -> None:
        self._stores = Stores.of(store)
        self.roots = Roots(
            store, self.cluster_id, lambda: self.state.brokers, lambda name: (), self._root_options, self.clock
        )
        self.log = QuorumLog(self._context(), self.cluster_id, self._log, self._forgetting)
        """For requests of clients."""

    # -------------------------------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Raises the errors of `Node.start`."""
        await self.node.start()
        self._publish()
        self.spawn(self._confirm_often())

    async def stop(self) -> None:
        """Hand over, if this node leads, and stop."""
        self.is_stopping = True
        await self.node.stop()
        self._digests.close()
        self._step_down()
        for task in self._tasks:
            task.cancel()

    def spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _later(self, work: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(work)

    # -------------------------------------------------------------------------------------------------- what is served

    @property
    def state(self) -> State:
        """The newest final state."""
        return self._log.final

    @property
    def founding(self) -> str:
        """The id of the quorum, if it has taken the log over."""
        return self._log.founding

    @property
    def published(self) -> State:
        return self.state

    @property
    def leading(self) -> bool:
        return self.epoch > 0

    @property
    def leader(self) -> KnownLeader:
        return self._leader_watch.leader

    @property
    def followed_s(self) -> float:
        """With a wrong state it answers nobody."""
        return -math.inf if self.node.digests.is_wrong else self._leader_watch.followed_s

    def has_followed_since(self, asked_s: float) -> bool:
        """Only a leader can say that its state has everything that was acknowledged."""
        raise self.not_leading()

    async def leader_known(self) -> None:
        if not self.is_stopping:  # it would not hear of the leader
            await self._leader_watch.settled()

    @property
    def answers_final(self) -> bool:
        return True

    def not_leading(self) -> NotCoordinator | LogMoved:
        """The error for requests to a node that does not lead."""
        return self._leader_watch.not_leading(self._take_over.obstacle, self._take_over.replaced_at)

    def health(self) -> Health:
        problem = self._problem()
        return Health(
            cluster_id=self.cluster_id,
            leading=self.leading,
            epoch=self.state.coordinator.epoch,
            version=self.state.version,
            healthy=not problem,
            reason=problem,
            set_aside=self.metrics.compaction.set_aside,
        )

    def _problem(self) -> str:
        status = self.node.status()
        if status is None:
            return "this node has not found the other nodes of its quorum yet"
        if status.is_full:
            return f"the disk of {self.node.config.directory} is full"
        if status.is_state_wrong:
            return status.state_problem
        if self._take_over.obstacle:
            return f"this node cannot lead: {self._take_over.obstacle}"
        return self._leader_watch.problem()

    def _lead_problem(self) -> str:
        return "" if self.leading else self._take_over.obstacle or self._leader_watch.problem()

    def describe_quorum(self) -> QuorumInfo:
        """For clients, on the leader."""
        status = self.node.status()
        if status is None or status.role != "leader":
            raise self.not_leading()
        return quorum_reply(status, self.clock.now_ms(), self._forgetting.former)

    def after(self, since: int, upto: int, limit: int) -> Sequence[bytes]:
        return self._log.records.after(since, upto, limit)

    def head(self, version: int) -> str:
        return self._log.records.head(version).decode()

    def published_with_head(self) -> tuple[State, str]:
        state = self.state
        return state, self.head(state.version)

    def _final_content(self) -> Content:
        state = self.state
        return Content(state, self._log.records.head(state.version), self.founding)

    def _is_still_ours(self) -> bool:
        """A quorum that was replaced while it runs stops leading."""
        epoch = self.epoch
        if not epoch:
            return False
        try:
            self._keep_folder()
        except (LogMoved, InconsistentClusterId, InvalidRequest) as error:
            self._later(partial(self._folder_lost, epoch, error))
            return False
        return True

    def _folder_lost(self, epoch: int, error: SparkLogError) -> None:
        if self.epoch != epoch:
            return
        self._take_over.note_obstacle(error)
        self._step_down()
        if not isinstance(error, LogMoved):  # that is final
            self.spawn(self._lead(self.leader))

    def ask_log(self, steps: Callable[[MetadataLog[Any]], Steps[Result]]) -> Result:
        return run(steps(self.log), self._stores, self.clock, LocalLink(self))

    def open_log(self) -> Log:
        """The log for duties, like any other client: through this coordinator."""
        return self._opened(QuorumLog(self._context(), self.cluster_id, self._log, self._forgetting))

    def open_final(self) -> Log:
        """The log as this node knows it, for pages: also while another node leads, or none."""
        return self._opened(FinalLog(self._context(), self.cluster_id, self._log, self._forgetting))

    def _opened(self, log: QuorumLog) -> Log:
        return Log(Journal(log, self._stores, LocalLink(self), root_options=self._root_options))

    def _context(self) -> Context:
        return Context(self.clock, self._rng, served=True)

    def delta(self, held: Holdings) -> Delta:
        state = self.state
        return delta(state, self.head(state.version), held, self.head(held.version))

    def metrics_text(self, *, polls: int, connections: Connections, usage: Sequence[Usage]) -> str:
        """With those of the node."""
        status = self.node.status()
        copy = self.root_snapshots.metric() if self.leading else ""
        return (
            ("" if status is None else metrics_text(status))
            + copy
            + self.metrics.text(
                self.state,
                epoch=self.epoch,
                polls=polls,
                connections=connections,
                usage=usage,
                storage_age_s=0,
            )
        )

    # -------------------------------------------------------------------------------------------------------- commands

    def submit(self, commands: Sequence[AnyCommand | SetGeneration], allow: Rule | None = None) -> Future[Answered]:
        """Apply commands, possibly in one batch with other commands.  May be called in any thread.

        Without commands, it confirms that the state has everything that was acknowledged before the call.

        allow:  as in `Service.submit`.
        The returned future fails with NotCoordinator if nothing was applied because this node does not lead or has
        stopped leading, and with CoordinatorNotAvailable if the queue is full.  If it is unknown whether the commands
        were applied, the future fails with CoordinatorNotAvailable with `maybe_applied` set.
        """
        copied = self.root_snapshots.copied
        asked = pending_commands([command.keeping(self.held, copied) for command in commands], allow)
        try:
            self._later(partial(self._commands.enqueue, asked))
        except RuntimeError:  # the loop is closed: the process ends
            asked.give_up(self.not_leading())
        return asked.answer

    def unique(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"

    # ---------------------------------------------------------------------------------------------------- final states

    def _applied(self, offer: AnyOffer | None) -> None:
        if offer is not None:
            self._commands.final(offer.replies)
        self.publish_soon()

    def _compare(self, state: State) -> None:
        self.spawn(self._digests.add(state))

    def _judged(self) -> None:
        """A comparison of the nodes' states has another result: one that is wrong must not decide."""
        self._log.is_compared_often = self.node.digests.do_differ
        if self.node.digests.is_wrong and self.leading:
            self._step_down()
            self.spawn(self._lead(self.leader))  # it hands over
        self.on_change()

    def _restored(self) -> None:
        self._later(self.publish_soon)

    def publish_soon(self) -> None:
        """Once for all batches that become final together."""
        if not self._is_publishing:
            self._is_publishing = True
            self._loop.call_soon(self._publish)

    def _publish(self) -> None:
        """Pass a new state on to requests that wait for one, to the metrics, and to groups; then answer commands."""
        self._is_publishing = False
        before, state = self._published, self.state
        if state is not before:
            self._leader_watch.note_settled(leads=self.leading)
            changes = state.changes_since(before)
            self._published = state
            self.change_feed.note(state.version, None if changes is None or changes.concerns_all else changes.appended)
            self.metrics.topics.note(state)
            self.metrics.replicas.note(state)
            self.on_change()
        self._commands.complete()

    # --------------------------------------------------------------------------------------------------------- leading

    def _led(self, epoch: int, key: ReplicaKey | None) -> None:
        """There is a new epoch, or its leader is known."""
        self._leader_watch.note(KnownLeader(epoch, key))
        self._step_down()
        self._leader_watch.note_settled(leads=self.leading)
        if key == self.node.key:
            self.spawn(self._lead(self.leader))

    async def _lead(self, leader: KnownLeader) -> None:
        if await self._take_over.run(leader):
            self._begin(leader)

    def _begin(self, leader: KnownLeader) -> None:
        self.epoch, self.confirmed_s = leader.epoch, self._host.monotonic_s()
        self.change_feed.note(self.state.version, None)
        logger.info("%s leads %s now, with epoch %d", self.address, self.storage, self.epoch)
        self._duties_end = self.duties.begin()
        self.root_snapshots.begin(self._duties_end)
        self._leader_watch.note_settled(leads=self.leading)
        self.on_change()

    def _step_down(self) -> None:
        if not self.leading:
            return
        logger.warning("not leading %s any more", self.storage)
        self.epoch = 0
        self._duties_end.set()  # before the commands of the duties fail
        self._commands.give_up_waiting()
        self.on_change()

    async def _confirm_often(self) -> None:
        while True:
            self._log.forget_held(self.clock.monotonic_ms() / 1000)
            self._log.compare_if_idle(self._host.monotonic_s())
            self._forgetting.look(self.state)
            if self.leading:
                began_s = self._host.monotonic_s()
                try:
                    await self.node.confirm()
                except NotLeaderOrFollower:
                    pass
                else:
                    self.confirmed_s = began_s
            await asyncio.sleep(CONFIRM_S)


class QuorumClock:
    """For commits, and also for duties: retention deletes by this clock."""

    def __init__(self, time_ms: Callable[[], int], clock: Clock) -> None:
        """
        time_ms:  may be called in any thread.
        clock:    of the machine.
        """
        self._time_ms = time_ms
        self.monotonic_ms, self.sleep_ms = clock.monotonic_ms, clock.sleep_ms

    def now_ms(self) -> int:
        return self._time_ms()
