"""Elections: pre-votes, votes, and who gets them."""

from __future__ import annotations

from spark_log.quorum import following, leading
from spark_log.quorum.core import Core
from spark_log.quorum.messages import ReplicaKey, VoteRequest, VoteResponse
from spark_log.quorum.roles import Candidate, Follower, Leader, Prospective
from spark_log.quorum.voters import is_majority

# ------------------------------------------------------------------------------------------------------------- standing


def stand(core: Core) -> None:
    """Ask for pre-votes in the present epoch, which does not end by that: a replica that only lost its connection
    disturbs nobody when it returns.
    """
    download = core.role.download if isinstance(core.role, Follower) else None
    role = core.role = Prospective(core.leader, _timeout(core), granted={core.key}, download=download)
    _request_votes(core, pre_vote=True)
    _maybe_win_pre_vote(core, role)


def _timeout(core: Core) -> int:
    return core.now_ms + core.draw_ms(core.config.election_timeout_ms, 2)


def _request_votes(core: Core, pre_vote: bool) -> None:
    for voter in core.other_voters():
        core.send(
            VoteRequest(source=core.key, target=voter, epoch=core.epoch, end=core.log.position, pre_vote=pre_vote)
        )


def _maybe_win_pre_vote(core: Core, role: Prospective) -> None:
    if is_majority(role.granted, core.voters):
        core.set_epoch(core.epoch + 1, core.key)
        core.role = Candidate(_timeout(core))
        _request_votes(core, pre_vote=False)


def persisted(core: Core, role: Candidate) -> None:
    """A candidate counts its own vote when it is durable."""
    if core.is_state_durable:
        role.granted.add(core.key)
        _maybe_win(core, role)


def _maybe_win(core: Core, role: Candidate) -> None:
    if is_majority(role.granted, core.voters):
        leading.become_leader(core)


def voted(core: Core, response: VoteResponse) -> None:
    """Count an answer, if it is one to what this replica asks at present."""
    role = core.role
    if not isinstance(role, Prospective | Candidate) or response.pre_vote != isinstance(role, Prospective):
        return
    (role.granted if response.granted else role.rejected).add(response.source)
    if len(core.voters) - sum(voter in role.rejected for voter in core.voters) <= len(core.voters) // 2:
        lose(core)
    elif isinstance(role, Prospective):
        _maybe_win_pre_vote(core, role)
    else:
        _maybe_win(core, role)


def lose(core: Core) -> None:
    """Follow the leader again, or wait for one for a random time."""
    if core.leader is not None and core.ended_epoch != core.epoch:
        following.follow(core, core.leader)
    else:
        core.become_unattached(core.draw_ms(core.config.election_timeout_ms, 2))


# --------------------------------------------------------------------------------------------------------------- voting


def vote(core: Core, request: VoteRequest) -> None:
    """Answer a candidate.  The machine keeps the answer back until the vote is durable."""
    if request.pre_vote:
        granted = grants_pre_vote(core, request)
    else:
        granted = grants_vote(core, request)
        if granted and core.voted is None:
            core.set_epoch(core.epoch, request.source)
            core.become_unattached(core.draw_ms(core.config.election_timeout_ms, 2))
    core.send(
        VoteResponse(
            source=core.key,
            target=request.source,
            epoch=core.epoch,
            granted=granted,
            pre_vote=request.pre_vote,
            leader=core.leader,
        )
    )


def is_up_to_date(core: Core, request: VoteRequest) -> bool:
    """Whether the candidate's log is at least as up to date as this one: by epoch, then by end (Raft 5.4.1)."""
    return request.end >= core.log.position


def grants_vote(core: Core, request: VoteRequest) -> bool:
    """One vote in an epoch, for a candidate that is up to date, and none if the epoch has a leader."""
    if core.voted is not None or core.leader is not None:
        return core.voted == request.source
    return is_up_to_date(core, request)


def grants_pre_vote(core: Core, request: VoteRequest) -> bool:
    """Not while this replica leads, or hears from a leader."""
    if has_live_leader(core):
        return False
    return is_up_to_date(core, request)


def has_live_leader(core: Core) -> bool:
    """Whether this replica leads, or its leader has answered in this epoch and is not overdue."""
    role = core.role
    return isinstance(role, Leader) or (isinstance(role, Follower) and role.has_fetched)


def ended(core: Core, leader: ReplicaKey, successors: tuple[ReplicaKey, ...]) -> None:
    """The leader has resigned: stand for election, the most up-to-date replica first."""
    core.ended_epoch = core.epoch
    if core.leader not in (None, leader) or isinstance(core.role, Leader | Candidate):
        return
    core.become_unattached(following.end_delay_ms(core, successors))
