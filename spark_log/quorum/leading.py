"""The leader: appends entries, answers fetches, raises the high watermark, changes the voters, resigns."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from spark_log.quorum.core import Core
from spark_log.quorum.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Entry,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    Kind,
    NotLeaderResponse,
    Position,
    ReplicaKey,
)
from spark_log.quorum.ready import Kept, ReadChunk
from spark_log.quorum.roles import Leader, Progress
from spark_log.quorum.voters import Voters, encode_voters, majority_reached

ENTRIES = 1 << 62
"""Behind all parts of a snapshot, in the place where a part begins: a replica asks for entries."""


class VoterChange(str, Enum):
    """The answer to a change of voters, under the name of Kafka's error."""

    NONE = "NONE"
    """Begun: it is made when `Machine.high_watermark` has passed its entry."""
    NOT_LEADER_OR_FOLLOWER = "NOT_LEADER_OR_FOLLOWER"
    DUPLICATE_VOTER = "DUPLICATE_VOTER"
    """A voter has this id, maybe with another directory: remove that one first."""
    VOTER_NOT_FOUND = "VOTER_NOT_FOUND"
    INVALID_REQUEST = "INVALID_REQUEST"
    """The leader cannot be removed: it hands over first."""
    REQUEST_TIMED_OUT = "REQUEST_TIMED_OUT"
    """Try later: another change is not committed, a new leader has committed nothing, the new voter lacks entries, or
    no majority of the new voters has fetched lately.
    """


# ---------------------------------------------------------------------------------------------------- beginning, ending


def become_leader(core: Core) -> None:
    """A majority has voted: append the first entry of the epoch, and announce it."""
    core.role = role = Leader(start=core.log.end, progress={})
    for voter in core.other_voters():
        role.progress[voter] = Progress(fetched_ms=core.now_ms)
    append(core, role, Kind.LEADER, [b""])
    if core.log.voters_end == 0:
        # The voters are known from formatting alone: put them into the log, where replicas that join find them.
        append(core, role, Kind.VOTERS, [encode_voters(core.voters)])
    _begin_epoch(core, role)


def _begin_epoch(core: Core, role: Leader) -> None:
    """Announce the epoch to the voters that do not fetch."""
    for voter in core.other_voters():
        progress = role.progress[voter]
        if progress.begin_ms <= core.now_ms:
            progress.begin_ms = core.now_ms + core.config.fetch_timeout_ms // 2
            core.send(BeginQuorumEpoch(source=core.key, target=voter, epoch=core.epoch))


def resign(core: Core, role: Leader) -> None:
    """Lead no longer, and let the most up-to-date voter stand for election immediately."""
    others = core.other_voters()
    successors = tuple(sorted(others, key=lambda voter: (voter != role.successor, -role.progress[voter].end, voter)))
    for voter in others:
        core.send(EndQuorumEpoch(source=core.key, target=voter, epoch=core.epoch, successors=successors))
    core.ended_epoch = core.epoch
    core.become_unattached(core.draw_ms(core.config.fetch_timeout_ms, 1.5))


def hand_over(core: Core, role: Leader, successor: ReplicaKey | None) -> bool:
    """Append no more, and resign when everything is committed, and is on the successor's disk, or after the election
    timeout.  False if there is no other voter, or the successor is not one.
    """
    if not core.other_voters() or successor not in (None, *core.other_voters()):
        return False
    if role.ends_ms is None:
        role.ends_ms, role.successor = core.now_ms + core.config.election_timeout_ms, successor
    _maybe_end(core, role)
    return True


def _maybe_end(core: Core, role: Leader) -> None:
    """Resign if the removal of this replica, which another leader began, is committed, or at the end of a hand-over."""
    is_removed = core.key not in core.voters and core.high_watermark >= core.log.voters_end
    has_handed_over = _is_handed_over(core, role) or (role.ends_ms or 0) <= core.now_ms
    if is_removed or (role.ends_ms is not None and has_handed_over):
        resign(core, role)


def _is_handed_over(core: Core, role: Leader) -> bool:
    has_all = role.successor is None or role.progress[role.successor].end == core.log.end
    return has_all and core.high_watermark == core.log.end


def check_quorum_ms(core: Core, role: Leader) -> int | None:
    """When the leader has to resign because no majority has fetched; never if it is the only voter."""
    return None if core.voters == (core.key,) else _quorum_ends_ms(core, role, core.voters)


def _quorum_ends_ms(core: Core, role: Leader, voters: Voters) -> int:
    """When a majority of these voters will not have fetched for 1.5 fetch timeouts."""
    fetched = [core.now_ms if voter == core.key else role.progress[voter].fetched_ms for voter in voters]
    return majority_reached(fetched) + core.config.fetch_timeout_ms * 3 // 2


def tick(core: Core, role: Leader) -> None:
    """Resign if the quorum is lost; answer fetches that waited long enough; announce the epoch again."""
    deadline = check_quorum_ms(core, role)
    if deadline is not None and deadline <= core.now_ms:
        resign(core, role)
        return
    for replica, progress in list(role.progress.items()):
        if progress.parked is not None and progress.parked_until_ms <= core.now_ms:
            _answer_parked(core, role, progress)
        if replica not in core.voters and progress.fetched_ms + core.config.observer_timeout_ms <= core.now_ms:
            del role.progress[replica]
    _begin_epoch(core, role)
    _maybe_end(core, role)


def next_deadline(core: Core, role: Leader) -> int | None:
    """When `tick` has something to do."""
    times = [progress.parked_until_ms for progress in role.progress.values() if progress.parked is not None]
    times += [role.progress[voter].begin_ms for voter in core.other_voters()]
    times += [time for time in (check_quorum_ms(core, role), role.ends_ms) if time is not None]
    return min(times, default=None)


# -------------------------------------------------------------------------------------------- appending and replicating


def append(core: Core, role: Leader, kind: Kind, data: Iterable[bytes]) -> int:
    """The offset of the first of the new entries.  Followers get them while this replica still writes them."""
    start = core.log.end
    core.log.append(Entry(start + index, core.epoch, kind, one) for index, one in enumerate(data))
    answer_waiting(core, role)
    return start


def durable_at(core: Core, role: Leader, voter: ReplicaKey) -> int:
    """Everything before is durable at the voter.  The leader counts itself only up to what its disk has reported."""
    return core.durable_end if voter == core.key else role.progress[voter].end


def maybe_raise_high_watermark(core: Core, role: Leader) -> None:
    """Commit what a majority of the voters has."""
    reached = majority_reached([durable_at(core, role, voter) for voter in core.voters])
    if may_be_committed(role, reached) and core.raise_high_watermark(reached):
        answer_waiting(core, role)
        _maybe_end(core, role)


def may_be_committed(role: Leader, end: int) -> bool:
    """Whether the leader's first entry is before `end`: entries of earlier epochs alone may still be replaced, however
    many replicas have them (Raft 5.4.2).
    """
    return end > role.start


def fetch(core: Core, role: Leader, request: FetchRequest) -> None:
    """Answer a follower or an observer, or let it wait.  Its request acknowledges what it has."""
    before_ms = role.progress[request.source].fetched_ms if request.source in role.progress else core.now_ms
    progress = _fetched(core, role, request.source, (request.end, ENTRIES))
    if progress.parked is not None and _is_older(request, progress.parked):
        return
    progress.parked = None
    progress.confirms = max(progress.confirms, request.confirms)
    if _needs_snapshot(core, request.end):
        progress.snapshot = core.log.snapshot
        core.send(_response(core, role, request, snapshot=core.log.snapshot))
        return
    known = core.log.end_of_epoch(request.end.epoch)
    if diverges(known, request.end):
        core.send(_response(core, role, request, diverging=known))
        return
    progress.end = max(progress.end, request.end.offset)
    if progress.end >= core.log.snapshot.offset:
        progress.snapshot = None
    _note_caught_up(core, progress, before_ms)
    maybe_raise_high_watermark(core, role)
    if core.role is role:
        _maybe_end(core, role)
    if core.role is not role:
        return
    maybe_confirm(core, role)
    progress.parked, progress.parked_until_ms = request, core.now_ms + core.config.fetch_wait_ms
    _answer_if_due(core, role, progress)


def _note_caught_up(core: Core, progress: Progress, before_ms: int) -> None:
    """It had everything now, or when it fetched before: then it has what there was at that time."""
    if progress.end >= core.log.end:
        progress.caught_up_ms = core.now_ms
    elif progress.end >= progress.leader_end > 0:
        progress.caught_up_ms = before_ms
    progress.leader_end = core.log.end


def _is_older(request: FetchRequest, parked: FetchRequest) -> bool:
    """Whether a request is a late copy: its sender has more than that, and waits for another answer."""
    return (request.end, request.high_watermark) < (parked.end, parked.high_watermark)


def diverges(known: Position, end: Position) -> bool:
    """Whether a log that ends at `end` has other entries than the leader's, whose entries up to that epoch end at
    `known`.
    """
    return known.epoch != end.epoch or known.offset < end.offset


def _needs_snapshot(core: Core, end: Position) -> bool:
    start = core.log.start
    return end.offset < start.offset or end.epoch < start.epoch or (end.offset == start.offset and end != start)


def _fetched(core: Core, role: Leader, replica: ReplicaKey, asked: tuple[Position, int]) -> Progress:
    progress = role.progress.setdefault(replica, Progress())
    _note_arrival(core, progress, asked)
    progress.fetched_ms, progress.has_fetched = core.now_ms, True
    progress.begin_ms = core.now_ms + core.config.fetch_timeout_ms // 2
    return progress


def _response(
    core: Core,
    role: Leader,
    request: FetchRequest,
    entries: tuple[Entry, ...] = (),
    diverging: Position | None = None,
    snapshot: Position | None = None,
) -> FetchResponse:
    return FetchResponse(
        source=core.key,
        target=request.source,
        epoch=core.epoch,
        end=request.end,
        high_watermark=core.high_watermark,
        entries=entries,
        diverging=diverging,
        snapshot=snapshot,
        confirm=role.confirm,
    )


def answer_after_ms(core: Core, role: Leader, request: FetchRequest) -> int:
    """How long a fetch waits: not at all if the follower lacks entries or the question of a read, and not long if it
    lacks the high watermark, which the next entries may take along.
    """
    if request.end.offset < core.log.end or request.confirms < max(role.reads, default=0):
        return 0
    lacks_high_watermark = request.high_watermark < core.high_watermark
    return core.config.high_watermark_wait_ms if lacks_high_watermark else core.config.fetch_wait_ms


def _answer_if_due(core: Core, role: Leader, progress: Progress) -> None:
    """Answer the fetch that waits, or note when that has to be done at the latest."""
    if progress.parked is not None:
        latest_ms = core.now_ms + answer_after_ms(core, role, progress.parked)
        progress.parked_until_ms = min(progress.parked_until_ms, latest_ms)
        if progress.parked_until_ms <= core.now_ms:
            _answer_parked(core, role, progress)


def _answer_parked(core: Core, role: Leader, progress: Progress) -> None:
    request, progress.parked = progress.parked, None
    if request is not None:
        entries = core.log.read_bytes(request.end.offset, core.config.fetch_bytes)
        is_large = sum(len(entry.data) for entry in entries) > core.config.large_bytes
        if not is_large or sends_now(core, progress, (request.end, ENTRIES)):
            core.send(_response(core, role, request, entries=entries))


def sends_now(core: Core, progress: Progress, answer: tuple[Position, int]) -> bool:
    """Whether to send a large answer.  Not if it was sent a short time ago: a slow network carries it still, and with
    a copy for each time that the replica asks, every next answer would take longer.  So the time doubles each time.  It
    begins with twice the time that the answer before needed.
    """
    config = core.config
    if progress.sent != answer:
        progress.sent, progress.sent_ms = answer, core.now_ms
    elif core.now_ms < progress.again_ms:
        return False
    wait_ms = max(2 * progress.needed_ms, config.retry_ms // 2, core.now_ms - progress.sent_ms)
    progress.again_ms = core.now_ms + min(wait_ms, config.again_ms)
    return True


def _note_arrival(core: Core, progress: Progress, asked: tuple[Position, int]) -> None:
    """Measure a large answer: it has arrived if the replica asks for what is behind it."""
    if progress.sent is not None and asked > progress.sent:
        progress.needed_ms, progress.sent = core.now_ms - progress.sent_ms, None


def forget_sent(role: Leader, replica: ReplicaKey) -> None:
    """There is a new connection to a replica: a large answer that the former one carried is lost, or has arrived."""
    if replica in role.progress:
        role.progress[replica].sent = None


def answer_waiting(core: Core, role: Leader) -> None:
    """Answer the fetches that wait for what there is now."""
    for progress in role.progress.values():
        _answer_if_due(core, role, progress)


def fetch_snapshot(core: Core, role: Leader, request: FetchSnapshotRequest) -> None:
    """Let the shell read a chunk of a snapshot that is kept, or say that there is a newer one."""
    progress = _fetched(core, role, request.source, (request.snapshot, request.start))
    if request.snapshot in (core.log.snapshot, role.older):
        progress.snapshot = request.snapshot
        if sends_now(core, progress, (request.snapshot, request.start)):
            voters = core.log.voters_at(request.snapshot.offset)
            core.reads.append(ReadChunk(request=request, voters=voters))
    else:
        core.send(ReadChunk(request=request, voters=()).answer(b"", None))


def keep_for_followers(core: Core, role: Leader, keep_from: int) -> Kept:
    """There is a new snapshot.  A follower that fetches an older one goes through with it, and then through the entries
    behind it: otherwise one that is slower than the leader's snapshots would begin again each time.

    One older snapshot is kept.  A second follower that fetches another one begins again.
    """
    slow = [progress for progress in role.progress.values() if _is_kept_for(core, progress)]
    fetched = [progress.snapshot for progress in slow if progress.end < _lacks_from(progress)]
    role.older = next((one for one in (role.older, core.log.snapshot) if one in fetched), None)
    return Kept(min([keep_from, *map(_lacks_from, slow)]), role.older)


def _lacks_from(progress: Progress) -> int:
    """The offset that a follower will ask for next, which fetches a snapshot or the entries behind it."""
    return progress.end if progress.snapshot is None else max(progress.end, progress.snapshot.offset)


def _is_kept_for(core: Core, progress: Progress) -> bool:
    return (
        progress.snapshot is not None
        and progress.fetched_ms + core.config.keep_ms > core.now_ms
        and core.log.size_from(_lacks_from(progress)) <= core.config.keep_bytes
    )


# ----------------------------------------------------------------------------------------------------- reads and voters


def confirm(core: Core, role: Leader) -> int | None:
    """A number for a read, or None as long as nothing of this epoch is committed."""
    if core.high_watermark <= role.start:
        return None
    role.confirm += 1
    role.reads.append(role.confirm)
    maybe_confirm(core, role)
    answer_waiting(core, role)
    return role.confirm


def maybe_confirm(core: Core, role: Leader) -> None:
    """Reads that a majority has answered since they were asked."""
    if role.reads:
        values = [role.confirm if voter == core.key else role.progress[voter].confirms for voter in core.voters]
        confirmed = majority_reached(values)
        core.confirmed += [number for number in role.reads if number <= confirmed]
        role.reads = [number for number in role.reads if number > confirmed]


def add_voter(core: Core, role: Leader, voter: ReplicaKey) -> VoterChange:
    """One that fetches, and has everything that is committed."""
    if any(voter.id == other.id for other in core.voters):
        return VoterChange.DUPLICATE_VOTER
    if not may_change_voters(core, role) or not has_caught_up(core, role, voter):
        return VoterChange.REQUEST_TIMED_OUT
    return _change(core, role, tuple(sorted([*core.voters, voter])))


def remove_voter(core: Core, role: Leader, voter: ReplicaKey) -> VoterChange:
    """Not the leader itself."""
    if voter not in core.voters:
        return VoterChange.VOTER_NOT_FOUND
    if voter == core.key:
        return VoterChange.INVALID_REQUEST
    if not may_change_voters(core, role):
        return VoterChange.REQUEST_TIMED_OUT
    return _change(core, role, tuple(other for other in core.voters if other != voter))


def may_change_voters(core: Core, role: Leader) -> bool:
    """The last change is committed, and so is an entry of this epoch: any two sets of voters that may be in force
    somewhere then differ by one voter, and their majorities overlap.
    """
    return role.ends_ms is None and core.high_watermark > role.start and core.high_watermark >= core.log.voters_end


def has_caught_up(core: Core, role: Leader, voter: ReplicaKey) -> bool:
    """A new voter that lacks entries would delay everything that is to be committed."""
    progress = role.progress.get(voter)
    return (
        progress is not None
        and progress.end >= core.high_watermark
        and progress.fetched_ms + core.config.fetch_timeout_ms > core.now_ms
    )


def _change(core: Core, role: Leader, voters: Voters) -> VoterChange:
    if _quorum_ends_ms(core, role, voters) <= core.now_ms:
        return VoterChange.REQUEST_TIMED_OUT
    append(core, role, Kind.VOTERS, [encode_voters(voters)])
    maybe_raise_high_watermark(core, role)
    return VoterChange.NONE


def not_leader(core: Core, target: ReplicaKey) -> NotLeaderResponse:
    """The answer of a replica that does not lead, or knows a higher epoch."""
    return NotLeaderResponse(source=core.key, target=target, epoch=core.epoch, leader=core.leader)
