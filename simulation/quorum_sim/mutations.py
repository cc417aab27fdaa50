"""The rules of the machine, each removed in turn: the simulation has to notice.

The machine has no switches for this.  A mutation replaces functions of its modules for the length of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from simulation.mutation import Mutation, Patch
from spark_log.quorum import election, following, leading, machine
from spark_log.quorum.core import Core
from spark_log.quorum.messages import FetchRequest, FetchResponse, Position, ReplicaKey, VoteRequest
from spark_log.quorum.ready import Config, Kept, Restored
from spark_log.quorum.replica_log import ReplicaLog
from spark_log.quorum.roles import Candidate, Download, Follower, Leader
from spark_log.quorum.voters import Voters, majority_reached

DIRECTORY_KEPT = "directory_kept"


def _yes(*_: object) -> bool:
    return True


def _no(*_: object) -> bool:
    return False


# ----------------------------------------------------------------------------------------------------------------- disk


def _any_report(core: Core, number: int) -> None:
    core._writing.clear()
    core._durable, core.durable_end = core._number, core.log.end


def _all_appended(core: Core, role: Leader, voter: ReplicaKey) -> int:
    return core.log.end if voter == core.key else role.progress[voter].end


class _Resumed(Core):
    """A replica that voted for itself before a restart is a candidate of the same epoch again."""

    def __init__(self, key: ReplicaKey, restored: Restored, config: Config, rng: Random, now_ms: int) -> None:
        super().__init__(key, restored, config, rng, now_ms)
        if self.voted == key:
            self.role = Candidate(now_ms + config.election_timeout_ms, granted={key})
            election._request_votes(self, pre_vote=False)


# ------------------------------------------------------------------------------------------------------------ elections


def _grants_to_all(core: Core, request: VoteRequest) -> bool:
    return core.leader is None and election.is_up_to_date(core, request)


def _is_longer(core: Core, request: VoteRequest) -> bool:
    return request.end.offset >= core.log.end


def _is_in_set(core: Core) -> bool:
    return core.key in core.voters


def _half(some: set[ReplicaKey], voters: Voters) -> bool:
    return sum(voter in some for voter in voters) * 2 >= len(voters)


def _stand_immediately(core: Core) -> None:
    core.set_epoch(core.epoch + 1, core.key)
    core.role = Candidate(election._timeout(core))
    election._request_votes(core, pre_vote=False)


def _never_timed_out(self: machine.Machine) -> None:
    if not isinstance(self._core.role, Follower):
        _timed_out(self)


_timed_out = machine.Machine._timed_out


def _follow_even_itself(self: machine.Machine, leader: ReplicaKey, answer: Any = None) -> None:
    if self._core.leader is None:
        following.follow(self._core, leader, answer)


# ---------------------------------------------------------------------------------------------------------- replication


def _half_reached(values: Sequence[int]) -> int:
    return sorted(values, reverse=True)[(len(values) - 1) // 2]


def _all_counted(core: Core, role: Leader) -> None:
    ends = [core.durable_end, *(progress.end for progress in role.progress.values())]
    reached = majority_reached(ends)
    if reached > role.start and core.raise_high_watermark(reached):
        leading.answer_waiting(core, role)


def _leaders_end(core: Core, diverging: Position) -> int:
    return max(min(diverging.offset, core.log.end), core.high_watermark)


def _set_high_watermark(core: Core, offset: int) -> bool:
    core.high_watermark, before = offset, core.high_watermark
    return offset > before


def _waits_with_high_watermark(core: Core, role: Leader, request: FetchRequest) -> int:
    return 0 if request.end.offset < core.log.end else core.config.fetch_wait_ms


def _any_chunk(download: Download, response: Any) -> bool:
    return bool(response.snapshot == download.snapshot)


def _any_answer(core: Core, response: FetchResponse) -> bool:
    return not response.entries or response.end == core.log.position


_enter_epoch = Core.enter_epoch


def _forget_received(core: Core, epoch: int) -> None:
    _enter_epoch(core, epoch)
    core.received = None


_install = Core.install


def _install_with_old_voters(core: Core, snapshot: Position, voters: Voters) -> None:
    _install(core, snapshot, core.voters)


# ----------------------------------------------------------------------------------------------------------- the leader


def _time_only(self: machine.Machine, now_ms: int) -> None:
    self._core.now_ms = max(self._core.now_ms, now_ms)


_advance = machine.Machine._advance


def _tick(self: machine.Machine, now_ms: int) -> None:
    _advance(self, now_ms)


def _resign_silently(core: Core, role: Leader) -> None:
    core.ended_epoch = core.epoch
    core.become_unattached(core.draw_ms(core.config.fetch_timeout_ms, 1.5))


def _hand_over_immediately(core: Core, role: Leader, successor: ReplicaKey | None) -> bool:
    leading.resign(core, role)
    return True


def _all_confirmed(core: Core, role: Leader) -> None:
    core.confirmed += role.reads
    role.reads = []


# --------------------------------------------------------------------------------------------------------------- voters


def _changes_overlap(core: Core, role: Leader) -> bool:
    return role.ends_ms is None and core.high_watermark > role.start


def _change_before_own(core: Core, role: Leader) -> bool:
    return role.ends_ms is None and core.high_watermark >= core.log.voters_end


def _fetches(core: Core, role: Leader, voter: ReplicaKey) -> bool:
    return voter in role.progress


_truncate = ReplicaLog.truncate


def _truncate_entries(log: ReplicaLog, end: int) -> None:
    voters = log._voters
    log._voters = voters[:1]
    _truncate(log, end)
    log._voters = voters


MUTATIONS = {
    "said_before_durable": Mutation(
        "a message leaves when the epoch and the vote are durable",
        (Patch(Core, "is_state_durable", property(_yes)),),
    ),
    "fetched_before_fsync": Mutation(
        "a fetch leaves when what it acknowledges is durable", (Patch(following, "may_fetch", _yes),)
    ),
    "leader_counts_appended": Mutation(
        "the leader counts itself up to its own fsync", (Patch(leading, "durable_at", _all_appended),)
    ),
    "any_report": Mutation("a report is about the write that it names", (Patch(Core, "persisted", _any_report),)),
    "candidate_after_restart": Mutation(
        "a replica does not lead an epoch again after a restart", (Patch(machine, "Core", _Resumed),)
    ),
    DIRECTORY_KEPT: Mutation("a disk that was replaced has another directory id", ()),
    "votes_for_all": Mutation("one vote in an epoch", (Patch(election, "grants_vote", _grants_to_all),)),
    "any_log_elected": Mutation("a vote is for a log that is up to date", (Patch(election, "is_up_to_date", _yes),)),
    "longest_log_elected": Mutation(
        "of two logs, the one with the later epoch is more up to date", (Patch(election, "is_up_to_date", _is_longer),)
    ),
    "removed_voter_waits": Mutation(
        "a voter whose removal is not committed stands for election", (Patch(Core, "may_stand", property(_is_in_set)),)
    ),
    "half_elects": Mutation("a leader has more than half of the votes", (Patch(election, "is_majority", _half),)),
    "no_pre_vote": Mutation("a pre-vote before a new epoch", (Patch(election, "stand", _stand_immediately),)),
    "pre_vote_despite_leader": Mutation(
        "no pre-vote from a replica that hears from a leader", (Patch(election, "has_live_leader", _no),)
    ),
    "no_fetch_timeout": Mutation(
        "a follower without answers stands for election", (Patch(machine.Machine, "_timed_out", _never_timed_out),)
    ),
    "follows_itself": Mutation(
        "a replica does not follow itself", (Patch(machine.Machine, "_begin", _follow_even_itself),)
    ),
    "half_commits": Mutation(
        "more than half of the voters have what is committed", (Patch(leading, "majority_reached", _half_reached),)
    ),
    "observers_counted": Mutation("only voters count", (Patch(leading, "maybe_raise_high_watermark", _all_counted),)),
    "any_epoch_commits": Mutation(
        "the first entry that a leader commits is of its own epoch", (Patch(leading, "may_be_committed", _yes),)
    ),
    "unchecked_fetch": Mutation("the leader checks where a follower's log ends", (Patch(leading, "diverges", _no),)),
    "truncated_too_little": Mutation(
        "a log is truncated to the end of the common epoch in the shorter log",
        (Patch(following, "common_end", _leaders_end),),
    ),
    "high_watermark_falls": Mutation(
        "the high watermark never falls", (Patch(Core, "raise_high_watermark", _set_high_watermark),)
    ),
    "late_answers": Mutation("an answer is to the present end of the log", (Patch(following, "answers", _any_answer),)),
    "any_chunk": Mutation("a chunk follows those that there are", (Patch(following, "continues", _any_chunk),)),
    "parked_despite_news": Mutation(
        "a higher high watermark ends the wait of a fetch",
        (Patch(leading, "answer_after_ms", _waits_with_high_watermark),),
    ),
    "older_replaces_parked": Mutation(
        "a late copy of a fetch does not replace the one that waits", (Patch(leading, "_is_older", _no),)
    ),
    "fetched_snapshot_dropped": Mutation(
        "a snapshot that a follower fetches is kept, and the entries behind it",
        (Patch(leading, "keep_for_followers", lambda core, role, keep_from: Kept(keep_from)),),
    ),
    "no_check_quorum": Mutation(
        "a leader without a majority resigns", (Patch(leading, "check_quorum_ms", lambda core, role: None),)
    ),
    "timers_last": Mutation(
        "every input handles the timers first",
        (Patch(machine.Machine, "_advance", _time_only), Patch(machine.Machine, "tick", _tick)),
    ),
    "resigns_silently": Mutation(
        "a leader that resigns tells the others", (Patch(leading, "resign", _resign_silently),)
    ),
    "hands_over_immediately": Mutation(
        "a hand-over waits until everything is committed", (Patch(leading, "hand_over", _hand_over_immediately),)
    ),
    "reads_unconfirmed": Mutation(
        "a read waits until a majority has fetched again", (Patch(leading, "maybe_confirm", _all_confirmed),)
    ),
    "changes_overlap": Mutation(
        "one change of voters at a time", (Patch(leading, "may_change_voters", _changes_overlap),)
    ),
    "change_before_own": Mutation(
        "no change of voters before an entry of the leader's epoch is committed",
        (Patch(leading, "may_change_voters", _change_before_own),),
    ),
    "joins_behind": Mutation("a new voter has what is committed", (Patch(leading, "has_caught_up", _fetches),)),
    "voters_of_truncated": Mutation(
        "a change of voters that is truncated is void", (Patch(ReplicaLog, "truncate", _truncate_entries),)
    ),
    "received_forgotten": Mutation(
        "a snapshot that is on the disk replaces the log, whoever leads by then",
        (Patch(Core, "enter_epoch", _forget_received),),
    ),
    "asks_voters_only": Mutation(
        "a replica that is not a voter asks all nodes for the leader", (Patch(machine.Machine, "meet", _no),)
    ),
    "snapshot_without_voters": Mutation(
        "a snapshot brings its voters", (Patch(Core, "install", _install_with_old_voters),)
    ),
}
