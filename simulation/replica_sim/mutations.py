"""The rules of replicas, each removed in turn: the simulation has to notice.

Product code has no switches for this.  A mutation replaces functions of the product, or of the steps with which the
actors of the simulation do what the product's threads do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from simulation.mutation import Mutation, Patch, replaying
from simulation.replica_sim import copying, maintenance
from spark_log.journal import garbage_collection
from spark_log.journal.journal import Journal
from spark_log.journal.store_operations import Steps
from spark_log.metadata import records as r
from spark_log.metadata import replay
from spark_log.metadata.commits import decide_commits as commits
from spark_log.metadata.commits import pending_commits
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.maintenance import decide_maintenance
from spark_log.metadata.replicas import decide_replicas as decide
from spark_log.metadata.replicas import leader_election, replay_reassignments, replay_replicas
from spark_log.metadata.replicas.replica_state import PlacementGroup, ReplicaMember
from spark_log.metadata.replicas.replicas import can_lead, epoch_of, group_number, is_active, is_current
from spark_log.metadata.state import PendingCommit, State, TopicKey
from spark_log.model import ACKS_ALL
from spark_log.recovery import mirror_recovery, whole_copies
from spark_log.replication.lost_commits import lose_in_own_root


def _nothing(*_: object) -> Steps[None]:
    yield from ()


def _true(*_: object) -> Steps[bool]:
    yield from ()
    return True


def _false(*_: object) -> Steps[bool]:
    yield from ()
    return False


# ------------------------------------------------------------------------------------------------------------- commits


def _any_epoch(state: State, broker: int, epoch: int) -> bool:
    return epoch_of(state, broker) is not None


def _misses_ignored(state: State, placed: object, upload_epoch: int) -> State:
    return state


def _late_stays(state: State, member: ReplicaMember, upload_epoch: int) -> ReplicaMember:
    return member if member.since > upload_epoch else _MISSED(state, member, upload_epoch)


_MISSED = replay_replicas._missed


def _answers_pending(state: State, commit: r.CommitRecord, committed: Committed) -> Committed:
    return committed


# --------------------------------------------------------------------------------------------------------------- moves


def _in_own_group(state: State, key: TopicKey, group: int, upload_epoch: int) -> bool:
    return group == group_number(state, key)


def _ended_blindly(state: State, record: r.MovedRecord) -> State | None:
    seen = tuple(one._replace(seen=state.version) for one in record.partitions)
    return replay_reassignments.replay_moved(state, r.MovedRecord(partitions=seen))


_WITHOUT_ENDED = replay_reassignments.without_ended


def _used_only(state: State) -> State:
    """Without groups that no partition and no object is in."""
    rows = {key: row._replace(former=()) for key, row in state.reassignments.items()}
    kept = _WITHOUT_UNUSED(replace(state, reassignments=state.reassignments.update(rows)))
    return replace(kept, reassignments=state.reassignments)


_WITHOUT_UNUSED = replay_reassignments._without_unused


# ---------------------------------------------------------------------------------------------------------- ISR, leaders


def _joins_at_once(state: State, record: r.JoinIsrRecord) -> State:
    for number, broker in record.members:
        if number in state.placement_groups and can_lead(state, broker):
            state = replay_replicas._with_roles(state, number, {broker: "isr"})
    return state


def _nobody_stays(state: State, groups: Iterable[int]) -> State:
    some = sorted(groups)
    state = _SETTLED(state, some)
    for number in some:
        gone = [one for one in state.placement_groups[number].isr if not is_active(state, one)]
        state = replay_replicas._with_roles(state, number, dict.fromkeys(gone, "out"))
    return state


_SETTLED = replay_replicas._settled


def _lacking_stay(state: State, groups: Iterable[int]) -> State:
    """Fenced brokers leave, and replicas with a deficit do not."""
    before = {number: state.placement_groups[number].isr for number in groups}
    state = _SETTLED(state, before)
    for number, isr in before.items():
        still = [one for one in isr if is_active(state, one)]
        state = replay_replicas._with_roles(state, number, dict.fromkeys(still, "isr"))
    return state


def _leader_stays(state: State, group: PlacementGroup) -> int:
    return group.leader if group.leader in group.replicas else _NEXT_LEADER(state, group)


_NEXT_LEADER = leader_election.next_leader


# ---------------------------------------------------------------------------------------------------------------- brokers


def _keeps_copies(state: State, record: r.RegisterBrokerRecord) -> State:
    return replace(replay_replicas.replay_register(state, record), copies=state.copies)


def _not_fenced(state: State, record: r.FenceBrokerRecord) -> State | None:
    """The broker is fenced, and stays in the ISRs."""
    after = replay_replicas.replay_fence(state, record)
    return None if after is None else replace(after, placement_groups=state.placement_groups)


def _ignored(state: State, record: object) -> None:
    return None


# -------------------------------------------------------------------------------------------------------- reads, deletes


def _any_garbage(state: State, names: Iterable[str]) -> Steps[list[str]]:
    yield from ()
    return sorted(set(names) - set(state.objects) - set(state.dropped))


def _dropped_garbage(state: State, names: Iterable[str]) -> Steps[list[str] | None]:
    return (yield from _GARBAGE(replace(state, dropped=State().dropped), names))


_GARBAGE = garbage_collection.garbage


# -------------------------------------------------------------------------------------------------------------- copies


def _give_up_in_turn(journal: Journal, lacking: Sequence[PendingCommit]) -> list[str]:
    return [lose_in_own_root(journal, commit) for commit in lacking]


MUTATIONS: Mapping[str, Mutation] = {
    "copies_without_pending": Mutation(
        "a copy of the log has the objects of commits with positions, also while readers do not see them",
        (Patch(whole_copies, "optional_copies", pending_commits.pending_copies),),
    ),
    "given_up_in_turn": Mutation(
        "a copy gives up all commits that it lacks before readers see one of them",
        (Patch(mirror_recovery, "give_up", _give_up_in_turn),),
    ),
    "any_broker_epoch": Mutation(
        "a copy that was put before the last return of its broker does not count",
        (Patch(replay_replicas, "is_current", _any_epoch),),
    ),
    "fenced_counts": Mutation(
        "a copy on a fenced broker does not count", (Patch(replay_replicas, "_counts", is_current),)
    ),
    "below_min": Mutation(
        "a commit needs `min.insync.replicas` members of the ISR",
        (Patch(decide, "min_insync", lambda state, topic_id: 1),),
    ),
    "misses_ignored": Mutation(
        "a replica that did not get a commit leaves the ISR", (Patch(replay, "with_missed", _misses_ignored),)
    ),
    "late_stays": Mutation(
        "a replica that entered after the upload began leaves the ISR as well",
        (Patch(replay_replicas, "_missed", _late_stays),),
    ),
    "shown_on_one": Mutation(
        "readers see a commit when all in-sync replicas have it", (Patch(pending_commits, "_is_held", lambda *_: True),)
    ),
    "shown_below_min": Mutation(
        "readers see nothing new while the ISR is below `min.insync.replicas`",
        (Patch(pending_commits, "_is_below_min", lambda *_: False),),
    ),
    "shown_out_of_order": Mutation(
        "a commit waits for earlier ones of its partitions", (Patch(pending_commits, "_is_next", lambda *_: True),)
    ),
    "all_passes_pending": Mutation(
        "a commit with acks=all behind a pending one is pending",
        (Patch(replay, "must_wait", lambda state, record, keys: record.acks != ACKS_ALL),),
    ),
    "answers_pending": Mutation(
        "a commit with acks=all is acknowledged when readers see it",
        (Patch(commits, "_with_pending", _answers_pending),),
    ),
    "led_by_nobody": Mutation(
        "a commit with acks=1 is on an in-sync replica",
        (Patch(replay, "is_led", lambda *_: True), Patch(commits, "check_replicas", lambda *_: None)),
    ),
    "pending_for_ever": Mutation(
        "a replica without the objects of a commit that readers see has a deficit",
        (Patch(pending_commits, "not_pending", lambda state, names: state),),
    ),
    "loses_held": Mutation(
        "a commit that an active broker has is not lost",
        (Patch(pending_commits, "_is_away", lambda *_: True),),
    ),
    "gives_up_early": Mutation(
        "a commit that was lost stays for a while: the disk may come back",
        (Patch(maintenance, "has_waited", lambda sim, since: True),),
    ),
    "joins_with_deficit": Mutation(
        "a joining replica enters the ISR when it lacks nothing", (replaying(r.JoinIsrRecord, _joins_at_once),)
    ),
    "lacking_stay": Mutation(
        "a replica that lacks an object leaves the ISR", (Patch(replay_replicas, "_settled", _lacking_stay),)
    ),
    "nobody_stays": Mutation(
        "the last member stays in the ISR when it is fenced", (Patch(replay_replicas, "_settled", _nobody_stays),)
    ),
    "fenced_in_isr": Mutation("a fenced broker leaves the ISRs", (replaying(r.FenceBrokerRecord, _not_fenced),)),
    "async_in_isr": Mutation("an asynchronous broker is in no ISR", (Patch(replay_replicas, "can_lead", is_active),)),
    "leader_stays": Mutation(
        "a leader that leaves the ISR leads no more", (Patch(leader_election, "next_leader", _leader_stays),)
    ),
    "swap_anywhere": Mutation(
        "a swap waits until all in-sync replicas have the new objects",
        (
            Patch(decide_maintenance, "has_copies", lambda state, swap: True),
            Patch(replay, "lacking_isr", lambda state, placed: {}),
        ),
    ),
    "swap_forgets": Mutation(
        "a swap waits for the replicas that have the old objects",
        (Patch(decide, "_is_waited_for", lambda state, broker: False),),
    ),
    "late_refused": Mutation(
        "an upload for the replicas that a partition had when it began commits",
        (Patch(decide, "may_be_in", _in_own_group),),
    ),
    "late_forgotten": Mutation(
        "a partition moves again when such an upload commits",
        (Patch(replay, "with_late_slices", lambda state, record: state),),
    ),
    "ends_blindly": Mutation(
        "the end of a move is void if such an upload was committed since its slices were looked at",
        (replaying(r.MovedRecord, _ended_blindly),),
    ),
    "forgets_before_fence": Mutation(
        "the former replicas of a partition are known until the fence has passed",
        (Patch(replay, "without_ended", lambda state, fence: _WITHOUT_ENDED(state, state.version)),),
    ),
    "groups_go_early": Mutation(
        "a group stays while uploads for it may be committed",
        (Patch(replay_reassignments, "_without_unused", _used_only),),
    ),
    "moves_anywhere": Mutation(
        "the swap of a move waits for all synchronous replicas", (Patch(decide, "moves_to", lambda state, keys: {}),)
    ),
    "swaps_to_former": Mutation(
        "a swap that was prepared before its partition got other replicas is void",
        (Patch(decide, "_misplaced_groups", lambda state, swap: set()),),
    ),
    "returns_blindly": Mutation(
        "a broker returns without the copies that its root lacks", (Patch(maintenance, "missing_in", lambda *_: []),)
    ),
    "keeps_copies": Mutation(
        "a broker with a new directory has no copies", (replaying(r.RegisterBrokerRecord, _keeps_copies),)
    ),
    "missing_ignored": Mutation(
        "a copy that was found damaged or absent does not count", (replaying(r.MissingRecord, _ignored),)
    ),
    "root_unchecked": Mutation(
        "a writer reads `broker.json` before its puts and after them", (Patch(copying, "check_root", _nothing),)
    ),
    "root_not_checked_again": Mutation(
        "a writer reads `broker.json` after its last put", (Patch(copying, "check_root_again", _nothing),)
    ),
    "sizes_unchecked": Mutation(
        "a writer looks at the sizes of what it put, after its last put", (Patch(copying, "is_whole", _true),)
    ),
    "checksums_unchecked": Mutation(
        "a reader checks what it reads, and goes on to the next copy",
        (Patch(copying, "is_damaged", lambda content: False),),
    ),
    "unknown_stay": Mutation(
        "a replicator looks for objects without a known copy", (Patch(maintenance, "has_unknown", _false),)
    ),
    "collects_above_fence": Mutation(
        "a collector deletes no upload above the fence", (Patch(garbage_collection, "garbage", _any_garbage),)
    ),
    "collects_dropped": Mutation(
        "a collector deletes no object that was dropped above the fence",
        (Patch(garbage_collection, "garbage", _dropped_garbage),),
    ),
}
