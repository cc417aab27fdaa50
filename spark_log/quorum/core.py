"""The state of a replica that elections, leading and following share: its disk, its log, its messages and its role.

Two rules are here because everything rests on them.  A message leaves only when the epoch and the vote are durable.
And the log is truncated only while nothing is being written, so a report of the disk cannot be about an entry that was
removed meanwhile and replaced by another one with the same offset.
"""

from __future__ import annotations

from collections import deque
from random import Random

from spark_log.quorum.messages import Message, Position, ReplicaKey
from spark_log.quorum.ready import Config, Persist, ReadChunk, Ready, Restored, SnapshotPart
from spark_log.quorum.replica_log import ReplicaLog
from spark_log.quorum.roles import Download, Follower, Leader, Prospective, Role, Unattached
from spark_log.quorum.voters import Voters


class Core:
    """Changes of state that are legal in any role.  `ready` takes what there is to do."""

    def __init__(self, key: ReplicaKey, restored: Restored, config: Config, rng: Random, now_ms: int) -> None:
        self.key, self.config, self.rng, self.now_ms = key, config, rng, now_ms
        self.met: dict[int, ReplicaKey] = {}
        """By node: the replica that runs there, as far as it is known."""
        self.log = ReplicaLog.restore(restored.snapshot, restored.voters, restored.entries)
        self.epoch = max(restored.epoch, self.log.position.epoch)
        self.voted = restored.voted if self.epoch == restored.epoch else None
        self.ended_epoch = -1
        """The leader of this epoch has said that it leads no longer: it is not followed again."""
        self.high_watermark = max(restored.high_watermark, self.log.snapshot.offset)
        self.role: Role = Unattached(now_ms + (self._start_delay_ms() if self.other_voters() and self.may_stand else 0))

        self.durable_end = self.log.end
        """Everything before is durable here."""
        self._durable = self._number = self._state_number = 0
        """Numbers of the last write that is durable, of the last one, and of the last one with the epoch and vote."""
        self._writing: deque[tuple[int, int]] = deque()
        """Writes that are not reported, with the log end that each makes durable."""
        self._state_changed = False
        self._handed_end = self.log.end
        """Entries before were given to the disk."""
        self._truncate_to: int | None = None
        # The replica died after it received a snapshot, and before it deleted the log that the snapshot replaces.
        self._reset_to = self.log.snapshot if restored.entries and self.log.end == self.log.snapshot.offset else None
        self.chunk: SnapshotPart | None = None
        """To be written."""
        self.received: SnapshotPart | None = None
        """The last part of a leader's snapshot.  The disk forgets older ones then, so the snapshot replaces the log in
        any role: another replica may lead by the time at which it is durable.
        """

        self._outbox: list[Message] = []
        self.reads: list[ReadChunk] = []
        """Chunks of snapshots that followers ask for."""
        self.confirmed: list[int] = []
        self._restore: Position | None = None
        self._committed_end = self.log.snapshot.offset

    def _start_delay_ms(self) -> int:
        """For a leader that there may be to announce itself.  One voter alone, or a replica that is none, has no reason
        to wait.
        """
        return self.draw_ms(self.config.fetch_timeout_ms, 1.5)

    # ----------------------------------------------------------------------------------------------------- for any role

    def draw_ms(self, shortest_ms: int, factor: float) -> int:
        """A random time, so that replicas do not stand for election together."""
        return self.rng.randrange(shortest_ms, max(shortest_ms + 1, int(shortest_ms * factor)))

    @property
    def voters(self) -> Voters:
        return self.log.voters

    @property
    def may_stand(self) -> bool:
        """A voter stands for election, and one whose removal is not committed: it may be the only one that has the
        entry of the removal, and the others cannot be elected without its vote (Raft's thesis, 4.2.2).
        """
        log = self.log
        is_changing = log.voters_end > self.high_watermark
        return self.key in log.voters or (is_changing and self.key in log.voters_before)

    @property
    def leader(self) -> ReplicaKey | None:
        """The leader of the epoch, if it is known."""
        match self.role:
            case Leader():
                return self.key
            case Follower(leader=leader) | Prospective(leader=leader):
                return leader
            case _:
                return None

    def other_voters(self) -> tuple[ReplicaKey, ...]:
        return tuple(voter for voter in self.log.voters if voter != self.key)

    def send(self, message: Message) -> None:
        self._outbox.append(message)

    # ------------------------------------------------------------------------------------------------- epoch and leader

    def set_epoch(self, epoch: int, voted: ReplicaKey | None) -> None:
        """Enter an epoch, or vote in the present one.  Messages of earlier epochs that were kept back are void."""
        if epoch < self.epoch or (epoch == self.epoch and self.voted not in (None, voted)):
            raise AssertionError(f"epoch {epoch} and vote {voted} after epoch {self.epoch} and vote {self.voted}")
        if epoch > self.epoch:
            self._outbox.clear()
            self.reads.clear()
        self.epoch, self.voted, self._state_changed = epoch, voted, True

    def become_unattached(self, after_ms: int, download: Download | None = None) -> None:
        """Wait for a leader; a voter stands for election after a time."""
        self.role = Unattached(self.now_ms + after_ms, download)

    def enter_epoch(self, epoch: int) -> None:
        """A higher epoch exists: whatever this replica was, it is not any more."""
        self.set_epoch(epoch, None)
        self.become_unattached(self.draw_ms(self.config.election_timeout_ms, 2))

    # -------------------------------------------------------------------------------------------------------------- log

    def truncate(self, end: int) -> None:
        """Remove entries that diverge from the leader's log; never one that is committed.

        Nothing is being written: the fetch that found the difference waited for that.
        """
        if end < self.high_watermark:
            raise AssertionError(
                f"{self.key} would truncate its log {self.log.position} to {end}, below its high watermark "
                f"{self.high_watermark}: committed entries were lost by a majority of the voters"
            )
        self.log.truncate(end)
        self._truncate_to = self._handed_end = self.durable_end = end

    def install(self, snapshot: Position, voters: Voters) -> None:
        """The disk has the whole snapshot: it replaces the log, and the application's state."""
        self.log.reset(snapshot, voters)
        self.durable_end = self._handed_end = self._committed_end = snapshot.offset
        self._reset_to = self._restore = snapshot
        self.raise_high_watermark(snapshot.offset)

    def raise_high_watermark(self, offset: int) -> bool:
        """Whether it is higher than before: it never falls."""
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    # ------------------------------------------------------------------------------------------------------------- disk

    @property
    def is_state_durable(self) -> bool:
        """The epoch and the vote are durable: they may be said."""
        return not self._state_changed and self._state_number <= self._durable

    @property
    def is_durable(self) -> bool:
        """Nothing waits for the disk."""
        return not self._writing and not self._has_changes()

    def _has_changes(self) -> bool:
        return (
            self._state_changed
            or self._handed_end < self.log.end
            or self._truncate_to is not None
            or self._reset_to is not None
            or self.chunk is not None
        )

    def persisted(self, number: int) -> None:
        """Write `number`, and all before it, are durable; so is a snapshot that was fetched, if nothing else waits."""
        while self._writing and self._writing[0][0] <= number:
            self._durable, self.durable_end = self._writing.popleft()
        if self.received is not None and self.is_durable:
            self.install(self.received.snapshot, self.received.voters)
            self.received = None

    def _next_write(self) -> Persist | None:
        if not self._has_changes():
            return None
        self._number += 1
        if self._state_changed:
            self._state_number = self._number
        persist = Persist(
            number=self._number,
            epoch=self.epoch,
            voted=self.voted,
            chunk=self.chunk,
            reset_to=self._reset_to,
            truncate_to=self._truncate_to,
            entries=self.log.read(self._handed_end, self.log.end),
            high_watermark=self.high_watermark,
        )
        self._writing.append((self._number, self.log.end))
        self._state_changed, self._handed_end = False, self.log.end
        self.chunk = self._reset_to = self._truncate_to = None
        return persist

    def ready(self) -> Ready:
        """Everything to do since the last call."""
        persist = self._next_write()
        send = tuple(self._outbox) if self.is_state_durable else ()
        committed = self.log.read(self._committed_end, min(self.high_watermark, self.log.end))
        ready = Ready(
            persist=persist,
            send=send,
            read=tuple(self.reads),
            restore=self._restore,
            committed=committed,
            confirmed=tuple(self.confirmed),
        )
        self._committed_end += len(committed)
        del self._outbox[: len(send)]
        self.reads, self.confirmed, self._restore = [], [], None
        return ready
