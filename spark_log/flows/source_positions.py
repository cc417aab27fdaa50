"""The group's positions in the sources of a flow: where its first start begins, and what is not processed yet."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from spark_log.client.reader.positions_to_offsets import partitions_of, resolve
from spark_log.errors import ConcurrentChange, GroupInUse
from spark_log.flows.flow_options import FlowOptions
from spark_log.journal.journal import Journal
from spark_log.metadata.groups.group_commands import UNFENCED, CommitOffsets, Stand
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.restores import history_of
from spark_log.metadata.set_backs import lineage_of
from spark_log.metadata.state import GroupPosition, GroupState, State, TopicKey


def set_starts(journal: Journal, options: FlowOptions, text: str = "") -> None:
    """Commit the positions at which a flow begins, with a text as their metadata, unless its group has some.

    One commit has all of them: later, a partition without a position is a new one, and read from its first record.
    A topic that was created again is read from its first record, too, although its group may have no positions left.
    """
    state = newest_state(journal, options)
    if options.name in state.groups:
        return
    tps = [tp for topic in options.sources(state) for tp in partitions_of(state, topic)]
    offsets = resolve(journal, dict.fromkeys(tps, options.start))
    keys = {tp: (journal.state.names[tp.topic], tp.partition) for tp in tps}
    commit = GroupCommit(options.name, UNFENCED, tuple(OffsetEntry(*keys[tp], at, text) for tp, at in offsets.items()))
    expected = tuple(Stand(*key, None) for key in keys.values())
    with suppress(GroupInUse, ConcurrentChange):  # another process of the flow has done it, or the tasks will say why
        if commit.offsets:
            command = CommitOffsets(commit=commit, live_only=True, expected=expected, history=history_of(state))
            journal.propose(command, set_back=lineage_of(state).set_back)


def newest_state(journal: Journal, options: FlowOptions) -> State:
    """The state at the end of the log, with the sources and the group."""
    journal.require(None if options.pattern is not None else options.topics, [options.name])
    return journal.refresh()


def unprocessed(state: State, options: FlowOptions) -> dict[TopicKey, int]:
    """How many records of each partition the group has not committed yet; partitions without some are left out."""
    found, committed = {}, _committed(state, options)
    for name in options.sources(state):
        topic_id = state.names[name]
        for number in range(state.topics[topic_id].partitions):
            part = state.partitions[topic_id, number]
            at = committed.get((topic_id, number))
            if (count := part.readable_end - (part.start if at is None else max(part.start, at.offset))) > 0:
                found[topic_id, number] = count
    return found


def has_processed(state: State, options: FlowOptions, ends: Mapping[TopicKey, int]) -> bool:
    """Whether the group's positions are at these ends, or beyond, or at the ends of a copy that was restored since."""
    committed = _committed(state, options)
    for key, end in ends.items():
        at, part = committed.get(key), state.partitions.get(key)
        if at is None or at.offset < (end if part is None else min(end, part.readable_end)):
            return False
    return True


def _committed(state: State, options: FlowOptions) -> Mapping[TopicKey, GroupPosition]:
    return state.groups.get(options.name, GroupState()).offsets
