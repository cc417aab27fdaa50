"""The promises of a quorum, checked after each input of each replica.

The first five are those of Kafka's simulation of KRaft: the epoch never falls, one leader in an epoch, the high
watermark never falls, a majority has what is below it, and what was committed is the same everywhere.  "Has" means that
it is durable there.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from simulation.quorum_sim.disk import Disk
from simulation.quorum_sim.node import Node
from simulation.verdict import Violation
from spark_log.quorum.messages import (
    Entry,
    FetchRequest,
    Kind,
    Message,
    Position,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
)
from spark_log.quorum.voters import Voters, decode_voters


def digest_of(before: int, entry: Entry) -> int:
    """The digest of a log up to and with an entry."""
    return zlib.crc32(repr((entry.offset, entry.epoch, entry.kind.value, entry.data)).encode(), before)


class Oracle:
    """Knows everything that was committed, and who has said what."""

    def __init__(self, voters: Voters) -> None:
        self.committed: list[Entry] = []
        self.digests = [0]
        """The digest of everything before each offset."""
        self.voters = voters
        """The last committed ones."""
        self.leaders: dict[int, tuple[ReplicaKey, int]] = {}
        """By epoch: who led it, and at which start of its process."""
        self.votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        """The candidate for whom a voter has voted, by voter and epoch."""
        self.epochs: dict[ReplicaKey, int] = {}
        self.disks: dict[ReplicaKey, Disk] = {}
        """Also those that were replaced: what they had counts as of then."""

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(what)

    @property
    def end(self) -> int:
        """The end of what was committed."""
        return len(self.committed)

    # --------------------------------------------------------------------------------------------------- after an input

    def check(self, node: Node, nodes: Iterable[Node]) -> None:
        machine, disk = node.running, node.disk
        if not machine.epoch >= disk.epoch >= self.epochs.get(node.key, 0):
            raise Violation(f"the epoch of {node} fell")
        self.epochs[node.key] = disk.epoch
        if machine.high_watermark < node.high_watermark:
            raise Violation(f"the high watermark of {node} fell")
        rose, node.high_watermark = machine.high_watermark > node.high_watermark, machine.high_watermark
        if machine.is_leader:
            self._check_leader(node, rose)
            if rose:
                self._check_others(node, nodes)

    def _check_leader(self, node: Node, rose: bool) -> None:
        machine = node.running
        first = self.leaders.setdefault(machine.epoch, (node.key, node.starts))
        if first != (node.key, node.starts):
            raise Violation(f"{first[0]} and {node} lead epoch {machine.epoch}")
        if not node.was_leader:
            self._check_complete(node)
        changed = set(machine.voters) ^ set(self.voters)
        is_newest = machine.epoch == max(self.leaders)
        if is_newest and len(changed) > 1:
            raise Violation(f"voters of {node} and committed ones differ by {sorted(changed)}")
        if rose:
            epoch = machine.log.epoch_before(node.high_watermark)
            if epoch != machine.epoch:
                raise Violation(f"{node} leads epoch {machine.epoch}, and commits up to an entry of epoch {epoch}")
            self._check_majority(machine.voters, epoch, node.high_watermark)
        self._check_quorum(node)

    def _check_others(self, leader: Node, nodes: Iterable[Node]) -> None:
        """No replica that may be elected lacks an entry that the leader has committed."""
        end = leader.high_watermark
        entry = leader.running.log.read(end - 1, end)
        for node in nodes:
            if node.machine is None or not self._may_be_elected(node):
                continue
            log = node.machine.log
            if log.end < end or (log.start.offset < end and log.read(end - 1, end) != entry):
                raise Violation(f"{leader} commits {entry}, and {node} without it may be elected")

    def _check_quorum(self, node: Node) -> None:
        """A leader has heard from a majority within 1.5 fetch timeouts, or since it became one."""
        voters, now_ms = node.running.voters, node.clock_ms
        heard = sorted((now_ms if voter == node.key else node.heard.get(voter, 0) for voter in voters), reverse=True)
        oldest = max(heard[len(voters) // 2], node.led_ms)
        if len(voters) > 1 and now_ms >= oldest + node.config.fetch_timeout_ms * 3 // 2:
            raise Violation(f"{node} leads, and has heard from no majority for {now_ms - oldest} ms")

    def _check_complete(self, node: Node) -> None:
        """A new leader has everything that was committed."""
        log = node.running.log
        self.require(log.end >= self.end, f"{node} leads, with {log.end} of {self.end} committed entries")
        start = log.start.offset
        for entry in log.read(start, self.end):
            self.require(entry == self.committed[entry.offset], f"{node} leads, with another entry {entry.offset}")

    def _check_majority(self, voters: Voters, epoch: int, end: int) -> None:
        having = [voter for voter in voters if voter in self.disks and self.disks[voter].has(epoch, end)]
        self.require(
            len(having) * 2 > len(voters), f"the high watermark is {end}, which is durable at {having} of {voters}"
        )

    # ----------------------------------------------------------------------------------------------------- what is said

    def said(self, node: Node, message: Message) -> None:
        """Everything that a message promises is durable."""
        disk = node.disk
        if message.epoch != disk.epoch:
            raise Violation(f"{node} says epoch {message.epoch}, and {disk.epoch} is durable")
        if isinstance(message, VoteRequest) and not message.pre_vote:
            self._voted(disk, message.source)
        elif isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
            self._voted(disk, message.target)
        elif isinstance(message, FetchRequest):
            self.require(disk.has(*message.end), f"{node} fetches from {message.end}, and {disk.position} is durable")
            snapshot = node.running.log.snapshot
            self.require(disk.snapshot == snapshot, f"{node} knows the snapshot {snapshot}, its disk {disk.snapshot}")

    def _voted(self, disk: Disk, candidate: ReplicaKey) -> None:
        self.require(disk.voted == candidate, f"{disk.key} votes for {candidate}, and {disk.voted} is durable")
        first = self.votes.setdefault((disk.key, disk.epoch), candidate)
        self.require(first == candidate, f"{disk.key} votes for {first} and {candidate} in epoch {disk.epoch}")

    # ------------------------------------------------------------------------------------------------ what is committed

    def applied(self, node: Node, entries: Iterable[Entry]) -> None:
        """A replica gave out committed entries: in order, and the same as all others."""
        for entry in entries:
            if entry.offset != node.applied:
                raise Violation(f"{node} applies {entry.offset} after {node.applied}")
            if entry.offset == self.end:
                self.committed.append(entry)
                self.digests.append(digest_of(self.digests[-1], entry))
                if entry.kind is Kind.VOTERS:
                    self.voters = decode_voters(entry.data)
            if entry != self.committed[entry.offset]:
                raise Violation(f"{node} applies another entry {entry.offset}")
            node.applied += 1

    def restored(self, node: Node, snapshot: Position, data: bytes) -> None:
        """A replica loaded a snapshot: it is that of the committed entries."""
        self.require(snapshot.offset <= self.end, f"{node} restores {snapshot}, which is not committed")
        self.require(data == snapshot_of(self.digests[snapshot.offset]), f"{node} restores another state at {snapshot}")

    def check_log(self, node: Node, end_before: int) -> None:
        """After a truncation or a snapshot: entries were removed, and the voters are those of the log."""
        log = node.running.log
        self.require(log.end < end_before or log.start.offset >= end_before, f"{node} truncated nothing")
        before = self.committed[: log.start.offset]
        last = next(
            (one for one in [*before, *log.read(log.start.offset, log.end)][::-1] if one.kind is Kind.VOTERS), None
        )
        self.require(
            last is None or log.voters == decode_voters(last.data), f"{node} has voters that are not in its log"
        )

    def changed(self, leader: Node, nodes: Iterable[Node]) -> None:
        """The majorities overlap of any two sets of voters by which replicas may still be elected."""
        if not self._may_be_elected(leader):
            return
        voters = leader.running.voters
        for node in nodes:
            if node.machine is not None and self._may_be_elected(node):
                differ = set(node.machine.voters) ^ set(voters)
                self.require(
                    len(differ) <= 1,
                    f"{leader} changes voters, and {node} may be elected by voters that differ by {sorted(differ)}",
                )

    def _may_be_elected(self, node: Node) -> bool:
        """Whether a majority of the voters that it knows has no more than it has."""
        log = node.running.log
        willing = sum(self.disks[voter].position <= log.position for voter in log.voters)
        return node.key in {*log.voters, *log.voters_before} and willing * 2 > len(log.voters)

    def added(self, leader: Node, voter: ReplicaKey) -> None:
        """A new voter has everything that was committed when it was added."""
        machine = leader.running
        has = self.disks[voter].has(machine.log.epoch_before(machine.high_watermark), machine.high_watermark)
        self.require(has, f"{voter} becomes a voter without what is committed")


def snapshot_of(digest: int) -> bytes:
    """The application's state, in a few chunks."""
    return f"state {digest} ".encode() * 5
