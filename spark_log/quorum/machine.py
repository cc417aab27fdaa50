"""A replica of a quorum, as a pure machine: inputs with a time go in, `ready` says what to do.

    machine = Machine(key, restored, config, rng, now_ms)
    loop:
        machine.step(message, now_ms)           a message arrived
        machine.tick(now_ms)                    at `machine.next_deadline()`, at the latest
        machine.append([data, ...], now_ms)     the application wants to add entries
        machine.persisted(number, now_ms)       a write is durable
        ready = machine.ready()
        hand ready.persist to the disk; send ready.send; apply ready.committed

The time is a monotonic clock in milliseconds.  Every input looks at the clock first: a leader that was stopped for a
while, and continues, resigns before it takes in what waited for it.

Elections are in `election.py`, what a leader does in `leading.py` and a follower in `following.py`, the disk and the
messages in `core.py`.  The machine holds the log from the last snapshot on in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from typing_extensions import assert_never

from spark_log.quorum import election, following, leading
from spark_log.quorum.core import Core
from spark_log.quorum.leading import VoterChange
from spark_log.quorum.messages import (
    REQUESTS,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Kind,
    Message,
    NotLeaderResponse,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
)
from spark_log.quorum.ready import Config, Kept, Ready, Restored
from spark_log.quorum.replica_log import ReplicaLog
from spark_log.quorum.roles import Candidate, Follower, Leader, Prospective, Unattached
from spark_log.quorum.voters import Voters

AWAY_MS = 3_000
"""A replica that has not fetched for this long does not count as reachable."""


class Replication(NamedTuple):
    """How far another replica is."""

    end: int
    """The end of its log, as far as it is durable."""
    fetched_ms: int
    """When it last fetched."""
    caught_up_ms: int | None
    """When it last had everything that the leader had; None: not yet, in this epoch."""
    has_fetched: bool
    """From this leader; otherwise `fetched_ms` is the beginning of its epoch."""


class Machine:
    """One replica.  Not safe for several threads."""

    def __init__(self, key: ReplicaKey, restored: Restored, config: Config, rng: Random, now_ms: int) -> None:
        self._core = Core(key, restored, config, rng, now_ms)

    # ---------------------------------------------------------------------------------------------------------- looking

    @property
    def key(self) -> ReplicaKey:
        return self._core.key

    @property
    def epoch(self) -> int:
        return self._core.epoch

    @property
    def leader(self) -> ReplicaKey | None:
        """The leader of the epoch, if it is known."""
        return self._core.leader

    @property
    def is_leader(self) -> bool:
        """Whether it leads the epoch, as far as this replica knows: `confirm` makes certain."""
        return isinstance(self._core.role, Leader)

    @property
    def role(self) -> str:
        """Its name, for people."""
        return type(self._core.role).__name__.lower()

    @property
    def voters(self) -> Voters:
        """That are in force, be their entry committed or not."""
        return self._core.voters

    @property
    def high_watermark(self) -> int:
        """Entries before this offset are committed."""
        return self._core.high_watermark

    @property
    def log(self) -> ReplicaLog:
        """To be read only.  Entries behind the high watermark may be truncated."""
        return self._core.log

    @property
    def durable_end(self) -> int:
        """Entries before this offset are durable on this replica's disk."""
        return self._core.durable_end

    def replication(self) -> dict[ReplicaKey, Replication]:
        """On the leader, for each other replica that fetches."""
        role = self._core.role
        progress = role.progress if isinstance(role, Leader) else {}
        return {
            replica: Replication(one.end, one.fetched_ms, one.caught_up_ms, one.has_fetched)
            for replica, one in sorted(progress.items())
        }

    def next_deadline(self) -> int | None:
        """When to call `tick`, at the latest; None: this replica waits for its disk."""
        role = self._core.role
        match role:
            case Leader():
                return leading.next_deadline(self._core, role)
            case Follower():
                return following.next_deadline(self._core, role)
            case _:
                return role.deadline_ms

    def ready(self) -> Ready:
        """Everything that there is to do since the last call."""
        return self._core.ready()

    # ----------------------------------------------------------------------------------------------------------- inputs

    def tick(self, now_ms: int) -> None:
        """Handle the timers that have expired."""
        self._advance(now_ms)

    def persisted(self, number: int, now_ms: int) -> None:
        """The write `number` of a `Ready`, and all before it, are durable."""
        self._advance(now_ms)
        core = self._core
        core.persisted(number)
        match core.role:
            case Candidate() as role:
                election.persisted(core, role)
            case Leader() as role:
                leading.maybe_raise_high_watermark(core, role)
            case Follower() as role:
                following.persisted(core, role)
            case _:
                pass

    def unreachable(self, replica: ReplicaKey, now_ms: int) -> None:
        """The transport was refused a connection: nobody is there.  A voter does not wait for its leader then."""
        self._advance(now_ms)
        if isinstance(self._core.role, Follower) and self._core.leader == replica and self._core.may_stand:
            election.stand(self._core)

    def meet(self, replica: ReplicaKey, now_ms: int) -> None:
        """The transport has a new connection to another replica, be it a voter or not.  This one asks it for the
        leader, if it is not a voter: the voters in its log may all be gone.
        """
        self._advance(now_ms)
        self._core.met[replica.id] = replica
        if isinstance(self._core.role, Leader):
            leading.forget_sent(self._core.role, replica)

    def append(self, data: Sequence[bytes], now_ms: int) -> int | None:
        """Add entries to the log.  The offset of the first one, or None if this replica does not lead, or hands over.

        They are committed when they are in `Ready.committed`.  If this replica stops leading before that, they may be
        committed or truncated.
        """
        self._advance(now_ms)
        role = self._core.role
        if not isinstance(role, Leader) or role.ends_ms is not None:
            return None
        return leading.append(self._core, role, Kind.DATA, data)

    def confirm(self, now_ms: int) -> int | None:
        """Make certain that this replica leads, for a linearizable read; None if it does not, or has just begun to.

        Note `high_watermark` now.  When `Ready.confirmed` has the number that is returned, the noted high watermark
        covers everything that any replica had committed before this call.  The number never comes if this replica stops
        leading first: forget the reads that wait then.
        """
        self._advance(now_ms)
        role = self._core.role
        return leading.confirm(self._core, role) if isinstance(role, Leader) else None

    def add_voter(self, voter: ReplicaKey, now_ms: int) -> VoterChange:
        """Begin to add a replica that fetches already, on the leader."""
        self._advance(now_ms)
        role = self._core.role
        return (
            leading.add_voter(self._core, role, voter)
            if isinstance(role, Leader)
            else VoterChange.NOT_LEADER_OR_FOLLOWER
        )

    def remove_voter(self, voter: ReplicaKey, now_ms: int) -> VoterChange:
        """Begin to remove another replica, on the leader."""
        self._advance(now_ms)
        role = self._core.role
        if not isinstance(role, Leader):
            return VoterChange.NOT_LEADER_OR_FOLLOWER
        return leading.remove_voter(self._core, role, voter)

    def hand_over(self, now_ms: int, successor: ReplicaKey | None = None) -> bool:
        """Stop leading, in favour of one voter or of the most up-to-date one, when everything that was appended is
        committed.

        False if this replica does not lead, is the only voter, or the successor is not another voter.
        """
        self._advance(now_ms)
        role = self._core.role
        return isinstance(role, Leader) and leading.hand_over(self._core, role, successor)

    def snapshotted(self, end: int, keep_from: int, now_ms: int) -> Kept:
        """The application has made a durable snapshot of all entries before `end`, which are committed.

        Entries before `keep_from` are forgotten: a follower that lacks some of them gets the snapshot.  On a leader
        more may stay, for followers that are fetching an older snapshot: delete nothing that the answer names.
        """
        self._advance(now_ms)
        core = self._core
        if not core.log.snapshot.offset <= end <= core.high_watermark or keep_from > end:
            raise AssertionError(f"a snapshot up to {end} between {core.log.snapshot} and {core.high_watermark}")
        kept = Kept(keep_from)
        if isinstance(core.role, Leader):
            kept = leading.keep_for_followers(core, core.role, keep_from)
        core.log.compact(end, kept.keep_from)
        return kept

    def step(self, message: Message, now_ms: int) -> None:
        """Take in a message of another replica."""
        self._advance(now_ms)
        core = self._core
        if not is_addressed(core, message):
            return
        if message.epoch < core.epoch:
            if isinstance(message, REQUESTS):
                core.send(leading.not_leader(core, message.source))
            return
        if message.epoch > core.epoch:
            core.enter_epoch(message.epoch)
        self._dispatch(message)

    # ---------------------------------------------------------------------------------------------------------- private

    def _advance(self, now_ms: int) -> None:
        """Handle the timers first."""
        core = self._core
        core.now_ms = max(core.now_ms, now_ms)
        match core.role:
            case Leader() as role:
                leading.tick(core, role)
            case Follower() as role:
                if core.is_durable and role.deadline_ms <= core.now_ms:
                    self._timed_out()
                else:
                    following.tick(core, role)
            case role:
                if role.deadline_ms <= core.now_ms:
                    self._timed_out()

    def _timed_out(self) -> None:
        core = self._core
        match core.role:
            case Prospective(leader=leader) if leader is not None:
                election.lose(core)
            case Leader():
                pass
            case _ if core.may_stand:
                election.stand(core)
            case _:
                self._ask_for_leader()

    def _ask_for_leader(self) -> None:
        """A replica that is not a voter asks another one, again and again."""
        core = self._core
        download = core.role.download if isinstance(core.role, Follower | Unattached) else None
        core.become_unattached(core.config.retry_ms, download)
        others = {voter.id: voter for voter in core.voters if voter.id != core.key.id} | core.met
        if following.may_fetch(core) and others:
            core.send(following.fetch_request(core, core.rng.choice([*others.values()])))

    def _dispatch(self, message: Message) -> None:
        core, role = self._core, self._core.role
        match message:
            case VoteRequest():
                election.vote(core, message)
            case VoteResponse() | NotLeaderResponse():
                self._learn(message)
            case BeginQuorumEpoch():
                self._begin(message.source)
            case EndQuorumEpoch():
                election.ended(core, message.source, message.successors)
            case FetchRequest():
                if isinstance(role, Leader):
                    leading.fetch(core, role, message)
                else:
                    core.send(leading.not_leader(core, message.source))
            case FetchSnapshotRequest():
                if isinstance(role, Leader):
                    leading.fetch_snapshot(core, role, message)
                else:
                    core.send(leading.not_leader(core, message.source))
            case FetchResponse() | FetchSnapshotResponse():
                if isinstance(role, Follower) and role.leader == message.source:
                    following.take(core, role, message)
                else:
                    self._begin(message.source, message)  # It answers as the leader.
            case _ as never:
                assert_never(never)

    def _learn(self, response: VoteResponse | NotLeaderResponse) -> None:
        """Count a vote; follow a leader that the other replica knows, and not one that says that it does not lead."""
        core, role = self._core, self._core.role
        if isinstance(role, Follower) and isinstance(response, NotLeaderResponse) and role.leader == response.source:
            core.become_unattached(core.draw_ms(core.config.election_timeout_ms, 2))
        if response.leader is not None and core.leader is None and core.ended_epoch != core.epoch:
            self._begin(response.leader)
        elif isinstance(response, VoteResponse):
            election.voted(core, response)

    def _begin(self, leader: ReplicaKey, answer: FetchResponse | FetchSnapshotResponse | None = None) -> None:
        """There is a leader in this epoch; there is one only.  A replica that led it before a restart may have lost
        entries that it had announced, so it does not lead it again.

        answer:  of the leader, if that says so.
        """
        core = self._core
        if leader == core.key:
            return
        if core.leader not in (None, leader):
            raise AssertionError(
                f"{leader} and {core.leader} lead epoch {core.epoch}, and only one can have a majority"
            )
        if not isinstance(core.role, Follower):
            following.follow(core, leader, answer)


def is_addressed(core: Core, message: Message) -> bool:
    """Whether a message is for this replica, and not for the disk that its node had before."""
    return message.target == core.key
