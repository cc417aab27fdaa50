"""The rules of a state of the log, and of a state and a later one, as named predicates.  Pure.

Each predicate is a generator: it yields a sentence for each thing that breaks its rule.  Its docstring is the rule, and
its name begins each sentence about it.  Simulations check all of them after each version, tests of replay after each
batch, `pylog verify` checks the newest state, and a process with `PYLOG_CHECK_INVARIANTS=1` refuses a command that
would break one (docs/decisions/0122-invariants.md).

The rules are those of a whole state: a client that holds some topics only has no such state (projection.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from spark_log.metadata.invariants import clients, partitions, replicas, steps, transitions, versions
from spark_log.metadata.state import State

StateRule = Callable[[State], Iterator[str]]
STATE_RULES: tuple[StateRule, ...] = (
    partitions.names_are_of_live_topics,
    partitions.topics_have_their_partitions,
    partitions.partitions_are_ranges,
    partitions.entries_have_no_gaps,
    partitions.slices_have_records,
    partitions.slices_share_no_bytes,
    partitions.objects_count_their_slices,
    partitions.dropped_objects_are_not_live,
    partitions.pending_commits_follow_the_high_watermark,
    partitions.pending_commits_are_in_order,
    partitions.pending_commits_wait,
    partitions.pending_objects_are_marked,
    replicas.brokers_have_their_directories,
    replicas.only_fenced_brokers_have_reasons,
    replicas.brokers_delete_what_they_have_dropped,
    replicas.former_roots_are_not_in_use,
    replicas.replicas_are_registered,
    replicas.leaders_are_in_sync,
    replicas.in_sync_replicas_lack_nothing,
    replicas.copies_are_on_replicas,
    replicas.copies_count_their_objects,
    replicas.keys_of_copies_were_made,
    replicas.assignments_name_groups,
    replicas.reassignments_name_groups,
    replicas.partitions_elsewhere_move,
    clients.producers_have_one_holder,
    clients.last_commits_are_of_their_producers,
    clients.last_commits_count_their_rows,
    clients.lost_sequences_are_not_ahead,
    clients.aborted_transactions_have_no_commit,
    clients.batches_of_kafka_are_in_order,
    clients.groups_have_one_kind_of_owner,
    clients.shares_do_not_overlap,
    clients.rosters_are_of_their_generation,
    clients.positions_are_of_partitions,
    clients.positions_are_progress,
    clients.removed_positions_are_gone,
    versions.versions_are_not_ahead,
    versions.times_are_not_ahead,
    versions.remembered_times_ascend,
    versions.fence_is_behind,
    versions.fence_ends_what_it_passes,
    versions.cleaner_points_are_in_partitions,
    versions.lost_ranges_are_in_partitions,
    versions.schemas_are_of_topics,
    versions.erasures_are_of_topics,
    versions.restores_are_in_order,
    versions.levels_are_supported,
    versions.coordinators_have_an_epoch,
)
STEP_RULES: tuple[Callable[[State, State], Iterator[str]], ...] = (
    steps.counters_never_fall,
    steps.time_falls_by_a_reset_only,
    steps.restores_stay,
    steps.topic_ids_are_never_used_again,
    steps.offsets_never_fall,
    steps.partitions_go_with_their_topics,
    steps.entries_change_by_swaps_only,
    steps.objects_are_live_once,
    steps.schemas_grow,
    steps.cleaner_points_never_fall,
    steps.lost_ranges_stay,
    steps.erasures_never_fall,
    steps.sequences_never_fall,
    steps.producers_expire_behind_the_fence,
    steps.kafkas_producers_expire_behind_the_fence,
    steps.generations_never_fall,
    steps.positions_have_the_version_of_their_commit,
    steps.group_numbers_are_never_used_again,
    steps.keys_of_copies_are_never_used_again,
    steps.leader_epochs_never_fall,
    steps.isr_keeps_a_member,
    steps.broker_epochs_never_fall,
    transitions.roles_change_as_they_may,
)


def check_state(state: State, rules: Iterable[StateRule] = STATE_RULES) -> Iterator[str]:
    """The rules that a state breaks: for each thing, the name of its rule and a sentence.

    Looks at everything: 0.6 s of CPU for 10,000 partitions with ten slices each, and 100,000 committed positions.
    """
    for rule in rules:
        try:
            yield from (f"{rule.__name__}: {text}" for text in rule(state))
        except LookupError as error:
            yield f"{rule.__name__}: a row that others name is not there: {error!r}"


def check_step(old: State, new: State) -> Iterator[str]:
    """The rules that a state and a later one of the same log break, as `check_state` gives them.

    Looks at what differs.  The later one may be some versions later, or of the same version.
    """
    for rule in STEP_RULES:
        yield from (f"{rule.__name__}: {text}" for text in rule(old, new))


def new_problems(old: State, new: State) -> list[str]:
    """The rules that a change breaks, in a state that may have broken others before."""
    found = [*check_step(old, new), *check_state(new)]
    known = set(check_state(old)) if found else set()
    return [text for text in found if text not in known]
