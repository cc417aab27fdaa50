"""The values that a machine gives to the shell around it, and that the shell gives to a new machine."""

from __future__ import annotations

from dataclasses import dataclass

from spark_log.quorum.messages import (
    EMPTY,
    Entry,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Message,
    Position,
    ReplicaKey,
)
from spark_log.quorum.voters import Voters


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Times and sizes.  Random times are drawn from the shortest one that is given here up to a longer one."""

    fetch_timeout_ms: int = 1000
    """A follower that has no answer to its fetches for this time, up to 1.5 times as long, stands for election.  A
    leader resigns if no majority has fetched for 1.5 times as long.
    """
    election_timeout_ms: int = 500
    """How long to wait for votes or for a leader, up to twice as long."""
    fetch_wait_ms: int = 250
    """The leader answers a fetch after this time if it has nothing to say."""
    high_watermark_wait_ms: int = 0
    """The leader answers a fetch after this time if all it has to say is a higher high watermark: the next entries
    may take that along."""
    retry_ms: int = 500
    """A follower repeats a fetch that has no answer for this time: more than `fetch_wait_ms` and the way there."""
    large_bytes: int = 64 << 10
    """An answer with more bytes of entries is not sent again as soon as a follower repeats its fetch, nor is a part of
    a snapshot: a slow network carries it still.
    """
    again_ms: int = 8_000
    """How long the leader waits with that at most.  It begins with twice the time that the answer before needed, and
    with half of `retry_ms` at least.
    """
    observer_timeout_ms: int = 300_000
    """The leader forgets a replica that is not a voter and has not fetched for this time."""
    fetch_bytes: int = 1 << 20
    """Data in one answer to a fetch, unless a single entry has more."""
    keep_bytes: int = 512 << 20
    """Bytes of entries that the leader keeps at most for a follower that fetches a snapshot, or the entries behind
    it."""
    keep_ms: int = 10_000
    """The leader keeps nothing for a follower that has not asked for this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The content of a replica's disk.

    A new disk has epoch 0, no vote, and the snapshot (0, 0) with the first voters, or with none for a replica that is
    to join: it finds them in the leader's log.
    """

    epoch: int = 0
    voted: ReplicaKey | None = None
    """For whom the replica voted in `epoch`."""
    snapshot: Position = EMPTY
    voters: Voters
    """At the snapshot's end."""
    entries: tuple[Entry, ...] = ()
    """In order, from the snapshot's end or from an earlier offset on."""
    high_watermark: int = 0
    """The last one that was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart:
    """A part of a snapshot that the leader sent.  A chunk that starts at 0 replaces what there was of it."""

    snapshot: Position
    start: int
    data: bytes
    voters: Voters
    """At the snapshot's end: stored with it."""
    is_last: bool
    """The snapshot is complete: it becomes the newest one as soon as it is durable, atomically."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Changes of the disk, in the order of the fields.  Write them, fsync, then call `Machine.persisted(number)`.

    Each is written after the one before it.  A crash may lose the last ones and a part of the last but whole ones
    before it, no other.
    """

    number: int
    epoch: int
    voted: ReplicaKey | None
    """With the epoch: to be replaced atomically if they differ from what the disk has."""
    chunk: SnapshotPart | None = None
    reset_to: Position | None = None
    """Delete the log: it begins at the end of this snapshot, which the disk has."""
    truncate_to: int | None = None
    """Delete the entries from this offset on: they will never be committed."""
    entries: tuple[Entry, ...] = ()
    """Append them."""
    high_watermark: int = 0
    """To be written with the entries."""


@dataclass(frozen=True, slots=True)
class Kept:
    """This stays on the disk beside a new snapshot; the rest may be deleted."""

    keep_from: int
    """Entries from this offset on."""
    older: Position | None = None
    """An older snapshot, which a follower is fetching."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChunk:
    """A follower asks for a chunk of a snapshot: send `answer(...)`, or nothing if the disk fails."""

    request: FetchSnapshotRequest
    voters: Voters

    def answer(self, data: bytes, size: int | None) -> FetchSnapshotResponse:
        """The bytes from `request.start` on, and the size of the whole snapshot; None if it was deleted."""
        return FetchSnapshotResponse(
            source=self.request.target,
            target=self.request.source,
            epoch=self.request.epoch,
            snapshot=self.request.snapshot,
            start=self.request.start,
            size=size,
            data=data,
            voters=self.voters,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Work for the shell, in the order of the fields.

    Nothing here depends on a `persist` that was not reported: the machine keeps messages back until what they say is
    durable.  So a shell may fsync in the background, and give the machine other inputs meanwhile.
    """

    persist: Persist | None
    send: tuple[Message, ...]
    read: tuple[ReadChunk, ...]
    restore: Position | None
    """The application's state becomes that of this snapshot, before `committed`."""
    committed: tuple[Entry, ...]
    """In order, each once, from the snapshot on; control entries are among them.  A majority has them on disk, which
    need not include this replica.
    """
    confirmed: tuple[int, ...]
    """Reads that may be answered: see `Machine.confirm`."""
