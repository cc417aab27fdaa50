"""The protocol's rules, each removed in turn: the simulation has to notice.

Product code has no switches for this.  A mutation replaces functions of the product's modules for the length of a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as with_fields
from typing import Any

from msgspec.structs import replace as with_values

from simulation.log_sim import readers_and_maintenance
from simulation.log_sim.commit_mutations import COMMIT_MUTATIONS
from simulation.log_sim.compaction_mutations import COMPACTION_MUTATIONS
from simulation.log_sim.erasure_mutations import ERASURE_MUTATIONS
from simulation.log_sim.history_mutations import HISTORY_MUTATIONS
from simulation.log_sim.promises.oracle import LINK, unlinked
from simulation.log_sim.setting import Simulation
from simulation.mutation import Mutation, Patch, replaying
from spark_log.configs.settings import cluster_config
from spark_log.journal import dropped_lists, garbage_collection, sealing
from spark_log.journal import maintenance as journal_maintenance
from spark_log.journal.context import Context
from spark_log.journal.storage import checkpointing, commit_protocol, opening
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import Delete, List, Put, Steps
from spark_log.maintenance import retention
from spark_log.metadata import decide_coordinators as coordinators
from spark_log.metadata import records as r
from spark_log.metadata import replay
from spark_log.metadata.commits import decide_commits as commits
from spark_log.metadata.commits.last_commit import LastCommit, last_commit
from spark_log.metadata.decision import Decision
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.formats.dropped_list_format import encode_list
from spark_log.metadata.groups import decide_groups as groups
from spark_log.metadata.groups import replay_groups
from spark_log.metadata.maintenance import decide_maintenance as maintenance
from spark_log.metadata.maintenance import swaps
from spark_log.metadata.replay import admits
from spark_log.metadata.state import GroupState, ProducerState, State, TopicKey
from spark_log.model import Slice
from spark_log.rewriting import segment_swaps
from spark_log.rewriting.segment_swaps import Replacement
from spark_log.store import object_names
from spark_log.store.object_names import CHECKPOINTS, LOG, checkpoint_key, checkpoint_version

EVER = 2**60
"""An epoch above every fence."""


# ------------------------------------------------------------------------------------------------ the fence and its kin


def _unfenced(state: State, record: Any) -> Any:
    """The record, as of an upload that began above the fence."""
    return with_values(record, upload_epoch=max(record.upload_epoch, state.fence + 1))


def _commit_unfenced(state: State, record: r.CommitRecord) -> State | None:
    return replay._commit(state, _unfenced(state, record))


_without_positions = replay_groups.without_positions
_decide_commit, _decide_swap, _decide_expire = commits.decide_commit, maintenance.decide_swap, maintenance.decide_expire


def _decide_commit_unfenced(state: State, commit: r.CommitRecord, **named: Any) -> Decision[Any]:
    decision = _decide_commit(state, _unfenced(state, commit), **named)
    return Decision((commit,), decision.reply) if decision.records else decision


def _swap_unfenced(state: State, record: r.SwapRecord) -> State | None:
    return replay._swap(state, _unfenced(state, record))


def _decide_swap_unfenced(state: State, swap: r.SwapRecord) -> Decision[bool]:
    decision = _decide_swap(state, _unfenced(state, swap))
    return Decision((swap,), decision.reply) if decision.records else decision


def _decide_fence_by_own_time(state: State, now_ms: int, copied: int | None = None) -> Decision[int]:
    limit = now_ms - cluster_config(state.configs, "gc.fence.age.ms")
    upto = max((version for version, time in state.times if time <= limit), default=0)
    return Decision((r.FenceRecord(upto=upto),) if upto > state.fence else (), upto)


def _decide_no_fence(state: State, now_ms: int, copied: int | None = None) -> Decision[int]:
    return Decision((), state.fence)


def _garbage_by_age(state: State, names: Iterable[str]) -> Steps[list[str]]:
    listed = set[str]()
    yield from dropped_lists.read_lists(state.dropped_lists, listed.update)
    limit = state.time - cluster_config(state.configs, "gc.fence.age.ms")
    old = max((version for version, time in state.times if time <= limit), default=0)
    return [
        name
        for name in names
        if object_names.upload_epoch(name) < old and name not in state.objects and state.dropped.get(name, 0) < old
        if name not in listed and name not in state.dropped_lists
    ]


_read_lists = dropped_lists.read_lists


def _list_of_older_state(dropped: Mapping[str, int], name: str) -> bytes:
    newest = max(dropped.values())
    return encode_list((name for name, version in dropped.items() if version < newest), name)


def _lists_unread(lists: Iterable[str], use: Callable[[list[str]], object]) -> Steps[dict[str, str]]:
    return {}
    yield


def _lost_lists_empty(lists: Iterable[str], use: Callable[[list[str]], object]) -> Steps[dict[str, str]]:
    yield from _read_lists(lists, use)
    return {}


def _expire_any(state: State, record: r.ExpireProducersRecord) -> State:
    return with_fields(replay._expire_producers(with_fields(state, fence=EVER), record), fence=state.fence)


def _decide_expire_any(state: State, now_ms: int, *only: Any) -> Decision[int]:
    return _decide_expire(with_fields(state, fence=EVER), now_ms)


def _expire_often(state: State, context: Context) -> Steps[State]:
    """Without the wait for a fence that advances."""
    state = yield from sealing.seal(state, context)
    state = yield from sealing.prune(state, context)
    state = yield from journal_maintenance.fence_and_expire(state, context)
    return (yield from dropped_lists.list_dropped(state, context))


def _admits_any_birth(state: State, record: r.CommitRecord) -> bool:
    return (record.producer not in state.producers and record.sequence == 0) or admits(state, record)


def _admits_any_epoch(state: State, record: r.CommitRecord) -> bool:
    known = state.producers.get(record.producer)
    return admits(state, record) or (known is not None and record.epoch < known.epoch)


def _groups_hold_always(state: State, commits: object) -> bool:
    return True


def _check_no_generation(state: State, commit: object) -> None:
    return None


def _free_always(*_: object) -> None:
    return None


def _without_positions_untold(state: State, name: str, keys: Iterable[TopicKey]) -> State:
    return with_fields(_without_positions(state, name, keys), forgotten=state.forgotten)


def _led_by_nobody(state: State, context: Context) -> bool:
    return False


_decide_take_over = coordinators.decide_take_over


def _take_over_from_any(state: State, expected: int, *rest: Any) -> Decision[int]:
    decision = _decide_take_over(state, state.coordinator.epoch, *rest)
    return Decision(decision.records, expected + 1)


def _grace_from_plan(sim: Simulation, before_load: int | None = None) -> int:
    return sim.now


# ----------------------------------------------------------------------------------------------------- counts and swaps

_counted, _build_swap, _last_commit = replay._counted, swaps.build_swap, last_commit


def _last_commit_without_ranges(*args: Any) -> LastCommit:
    return _last_commit(*args).without_ranges()


def _counted_and_forgotten(state: State, record: r.SwapRecord) -> State | None:
    after = _counted(state, record)
    return None if after is None else with_fields(after, dropped=state.dropped)


def _build_uncounted(epoch: int, rewrites: Sequence[swaps.Rewrite], name: str, *more: Any) -> Any:
    swap, data = _build_swap(epoch, rewrites, name, *more)
    hidden = Counter(piece.object for rw in rewrites if rw.sealed for piece in rw.new_slices)
    return with_values(swap, removed=dict(Counter(swap.removed) + hidden)), data


def _build_unnamed(epoch: int, rewrites: Sequence[swaps.Rewrite], name: str, *more: Any) -> Any:
    swap, data = _build_swap(epoch, rewrites, name, *more)
    visible = {entry.object for rw in rewrites for entry in rw.old}
    return with_values(swap, removed={key: n for key, n in swap.removed.items() if key in visible}), data


def _any_edition(state: State, changes: Iterable[r.Change]) -> tuple[r.Change, ...]:
    return tuple(
        change._replace(edition=part.edition)
        if (part := state.partitions.get((change.topic_id, change.partition)))
        else change
        for change in changes
    )


def _swap_any_edition(state: State, record: r.SwapRecord) -> State | None:
    return replay._swap(state, with_values(record, changes=_any_edition(state, record.changes)))


def _decide_swap_any_edition(state: State, swap: r.SwapRecord) -> Decision[bool]:
    return _decide_swap(state, with_values(swap, changes=_any_edition(state, swap.changes)))


# ------------------------------------------------------------------------------------------- checkpoints and truncation


def _write_linked(view: View, context: Context) -> Steps[tuple[View, frozenset[str]]]:
    data = encode_checkpoint(view.state)
    if view.checkpoint and context.rng.random() < 0.5:
        data = LINK + view.checkpoint.encode() + b"\n" + data
    key = checkpoint_key(view.state.version, context.unique())
    yield Put(key, (data,))
    return view.moved(view.state, (yield List(CHECKPOINTS)), (view.before, view.head)), frozenset([key])


def _decode_linked(data: bytes, name: str) -> State:
    return decode_checkpoint(unlinked(data), name)


def _truncate_to_view(view: View, context: Context) -> Steps[int]:
    names = yield List(CHECKPOINTS)
    old = [name for name in names if checkpoint_version(name) < checkpoint_version(max(names))]
    records = [name for name in (yield List(LOG)) if int(name.removeprefix(LOG)[:20]) <= view.state.version]
    yield Delete([*old, *records])
    return 0


def _confirmed_if_damaged(view: View, names: Sequence[str], base: opening.Base | None) -> bool:
    return bool(base and view.damaged) or opening.follows_checkpoint(view, max(names, default=""))


# -------------------------------------------------------------------------------------------- what is removed, and when

_trim, _expired = replay._trim, retention.expired


def _trim_one_too_many(state: State, record: r.TrimRecord) -> State | None:
    return _trim(state, with_values(record, start=record.start + 1)) or _trim(state, record)


def _expired_one_too_many(entries: Sequence[retention.Entry], limits: retention.RetentionLimits) -> int:
    count = _expired(entries, limits)
    return min(count + 1, len(entries)) if count else 0


def _expired_one_too_few(entries: Sequence[retention.Entry], limits: retention.RetentionLimits) -> int:
    return max(_expired(entries, limits) - 1, 0)


def _check_no_clock(*given: object) -> Steps[None]:
    return
    yield


def _no_garbage(state: State, names: Iterable[str]) -> Steps[list[str]]:
    return []
    yield


def _nothing_expires(state: State, now_ms: int, *only: Any) -> Decision[int]:
    return Decision((), 0)


def _never_timed_out(known: ProducerState, now_ms: int) -> bool:
    return False


def _generation_after_the_last(state: State, group: str) -> int:
    return state.groups.get(group, GroupState()).generation + 1


def _replaced_blindly(old: Sequence[Slice], found: Sequence[Replacement]) -> tuple[list[Slice], list[Replacement]]:
    numbers = {piece.start: number for number, piece in enumerate(old)}
    new: list[Slice] = []
    placed, at = [one for one in found if one.new.start in numbers], 0
    for one in placed:
        first = numbers[one.new.start]
        new += [*old[at:first], one.new]
        at = first + len(one.old)
    return [*new, *old[at:]], placed


def _truncate_to_checkpoint(view: View, context: Context) -> Steps[int]:
    newest = max((yield List(CHECKPOINTS)), default="")
    records = [name for name in (yield List(LOG)) if int(name.removeprefix(LOG)[:20]) <= checkpoint_version(newest)]
    yield Delete(records)
    return len(records)


MUTATIONS = {
    "one_checkpoint": Mutation(
        "the newest two checkpoints are kept, with the records after the older one",
        (Patch(checkpointing, "KEPT_CHECKPOINTS", 1),),
    ),
    "opened_unconfirmed": Mutation(
        "a log that is opened from the older checkpoint is listed again afterwards",
        (Patch(opening, "_is_confirmed", _confirmed_if_damaged),),
    ),
    "no_fence_on_commit": Mutation(
        "commits at or below the fence are void",
        (replaying(r.CommitRecord, _commit_unfenced), Patch(commits, "decide_commit", _decide_commit_unfenced)),
    ),
    "no_fence_on_swap": Mutation(
        "swaps at or below the fence are void",
        (replaying(r.SwapRecord, _swap_unfenced), Patch(maintenance, "decide_swap", _decide_swap_unfenced)),
    ),
    "any_edition": Mutation(
        "swaps of the same partition exclude each other",
        (replaying(r.SwapRecord, _swap_any_edition), Patch(maintenance, "decide_swap", _decide_swap_any_edition)),
    ),
    "dropped_immediately": Mutation(
        "dropped objects are remembered until the fence has passed",
        (Patch(replay, "_counted", _counted_and_forgotten),),
    ),
    "list_of_older_state": Mutation(
        "a list has all objects that were dropped up to its version",
        (Patch(dropped_lists, "encode_list", _list_of_older_state),),
    ),
    "lists_unread": Mutation(
        "garbage collection reads the lists of dropped objects",
        (Patch(garbage_collection, "read_lists", _lists_unread),),
    ),
    "lost_list_empty": Mutation(
        "while a list of dropped objects cannot be read, nothing is deleted",
        (Patch(garbage_collection, "read_lists", _lost_lists_empty),),
    ),
    "linked_checkpoint": Mutation(
        "no checkpoint refers to the file of another",
        (
            Patch(checkpointing, "checkpoint", _write_linked),
            Patch(checkpointing, "check_checkpoint", lambda data, name: None),
            Patch(opening, "decode_checkpoint", _decode_linked),
        ),
    ),
    "log_above_checkpoint": Mutation(
        "log records are deleted up to the newest checkpoint, not to the state just loaded",
        (Patch(checkpointing, "truncate", _truncate_to_view),),
    ),
    "age_gc": Mutation(
        "garbage is what lies below a fence, not what is old",
        (Patch(garbage_collection, "garbage", _garbage_by_age), Patch(maintenance, "decide_fence", _decide_no_fence)),
    ),
    "fence_by_own_time": Mutation(
        "the fence goes to the version before the newest one that is old enough",
        (Patch(maintenance, "decide_fence", _decide_fence_by_own_time),),
    ),
    "sealed_uncounted": Mutation(
        "sealing does not forget the objects of the sealed slices",
        (Patch(sealing, "build_swap", _build_uncounted),),
    ),
    "sealed_drop_unnamed": Mutation(
        "a swap of sealed slices names the data objects that it drops",
        (Patch(sealing, "build_swap", _build_unnamed),),
    ),
    "expire_any": Mutation(
        "a producer expires only when its last commit is at or below the fence",
        (
            replaying(r.ExpireProducersRecord, _expire_any),
            Patch(maintenance, "decide_expire", _decide_expire_any),
            Patch(journal_maintenance, "seal_and_expire", _expire_often),
        ),
    ),
    "no_birth": Mutation(
        "an unknown producer starts only under an id that was drawn above the fence",
        (Patch(replay, "admits", _admits_any_birth), Patch(commits, "admits", _admits_any_birth)),
    ),
    "any_epoch": Mutation(
        "a producer's older epochs are fenced",
        (Patch(replay, "admits", _admits_any_epoch), Patch(commits, "admits", _admits_any_epoch)),
    ),
    "any_generation": Mutation(
        "a group's older generations are fenced",
        (
            Patch(replay, "groups_hold", _groups_hold_always),
            Patch(replay_groups, "groups_hold", _groups_hold_always),
            Patch(groups, "check_generation", _check_no_generation),
            Patch(commits, "check_generation", _check_no_generation),
        ),
    ),
    "taken_alive": Mutation(
        "a group is not taken from a member whose session has not run out",
        (Patch(groups, "check_group_free", _free_always),),
    ),
    "written_by_all": Mutation(
        "while a coordinator has the log, nobody else writes",
        (Patch(commit_protocol, "is_led_elsewhere", _led_by_nobody),),
    ),
    "taken_from_any": Mutation(
        "a log is taken over from the coordinator that was known to be gone, not from a newer one",
        (Patch(coordinators, "decide_take_over", _take_over_from_any),),
    ),
    "forgotten_immediately": Mutation(
        "a position that was removed is remembered as such for a while",
        (
            Patch(replay, "without_positions", _without_positions_untold),
            Patch(replay_groups, "without_positions", _without_positions_untold),
        ),
    ),
    "hold_from_plan": Mutation(
        "a reader counts its grace from the start of its load",
        (Patch(readers_and_maintenance, "grace_start", _grace_from_plan),),
    ),
    "any_clock": Mutation(
        "a clock that is far from the store's stamps nothing",
        (Patch(commit_protocol, "check_clock", _check_no_clock),),
    ),
    "trim_one_too_many": Mutation(
        "a trim takes the records before its offset, and no more",
        (replaying(r.TrimRecord, _trim_one_too_many),),
    ),
    "retention_one_too_many": Mutation(
        "retention leaves the first slice that is not old",
        (Patch(retention, "expired", _expired_one_too_many),),
    ),
    "retention_one_too_few": Mutation(
        "retention removes every slice at the front that is old",
        (Patch(retention, "expired", _expired_one_too_few),),
    ),
    "anything_covers": Mutation(
        "a swap whose entries do not cover the records that it replaces is void",
        (Patch(replay, "_covers", lambda entries, start, end: True),),
    ),
    "no_garbage_collection": Mutation(
        "objects that nothing refers to are deleted",
        (Patch(garbage_collection, "garbage", _no_garbage),),
    ),
    "no_expiry": Mutation(
        "producers and groups that are idle too long are forgotten",
        (Patch(maintenance, "decide_expire", _nothing_expires),),
    ),
    "no_transaction_timeout": Mutation(
        "a transaction commits within its time",
        (Patch(commits, "is_timed_out", _never_timed_out),),
    ),
    "offsets_forgotten": Mutation(
        "the last commit of a producer is recognized with its offsets",
        (Patch(replay, "last_commit", _last_commit_without_ranges),),
    ),
    "one_former_holder": Mutation(
        "a holder from which an identity has passed on does not get it back",
        (Patch(replay, "FORMER_HOLDERS", 1),),
    ),
    "generation_repeats": Mutation(
        "a group that was forgotten goes on with higher generations",
        (
            Patch(replay_groups, "next_generation", _generation_after_the_last),
            Patch(groups, "next_generation", _generation_after_the_last),
        ),
    ),
    "records_above_fence": Mutation(
        "log records are kept until the fence has passed them, though a checkpoint has them",
        (Patch(checkpointing, "truncate", _truncate_to_checkpoint),),
    ),
    "merged_blindly": Mutation(
        "a merged segment takes the place of the slices that it was made of, and of no others",
        (Patch(segment_swaps, "_replaced", _replaced_blindly),),
    ),
    **COMMIT_MUTATIONS,
    **COMPACTION_MUTATIONS,
    **ERASURE_MUTATIONS,
    **HISTORY_MUTATIONS,
}
