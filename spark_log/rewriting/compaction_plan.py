"""Which partitions compaction cleans next."""

from __future__ import annotations

from collections.abc import Container, Iterator

from spark_log.configs.settings import has_cleanup_policy
from spark_log.journal.failure_isolation import OnFailure, raise_failure, resolve_each
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.store_operations import Steps
from spark_log.metadata.state import State, TopicKey
from spark_log.rewriting.dirty_part import DirtyPart, dirty_part
from spark_log.rewriting.maintenance_memory import MaintenanceMemory, NotDue
from spark_log.rewriting.rewrite_packs import PACK_BYTES

DirtyParts = dict[TopicKey, DirtyPart]


def find_dirty_parts(
    state: State,
    now_ms: int,
    on_failure: OnFailure = raise_failure,
    memory: MaintenanceMemory | None = None,
    only: Container[TopicKey] | None = None,
) -> Steps[DirtyParts]:
    """The dirty parts of the partitions that are due for compaction, by descending dirty ratio.

    Looks only at compacted partitions that have changed since the last plan, and at those that may have become due with
    time.

    on_failure:  called for a partition that cannot be planned; if it returns, the others are planned.
    memory:      the results of earlier rounds of this process.
    only:        plan only these partitions; None: all.
    """
    memory = memory or MaintenanceMemory()
    keys = [key for key in _compacted(state, now_ms, memory) if only is None or key in only]
    parts = {key: state.partitions[key] for key in keys}
    resolved = yield from resolve_each(
        state, {key: part.entries for key, part in parts.items()}, on_failure, memory.aside
    )
    due: DirtyParts = {}
    for key, slices in resolved.items():
        start = parts[key].start
        live = [piece for piece in slices if piece.end > start]
        configs, passed = state.topics[key[0]].configs, memory.aside.passed.get(key, 0)
        found = dirty_part(live, start, state.cleaned.get(key), configs, now_ms, state.time, passed)
        memory.set_not_due(state, key, NotDue(now_ms if found.due else found.until_ms, found.ratio))
        if found.due is not None:
            due[key] = found
    return dict(sorted(due.items(), key=lambda each: (-each[1].ratio, each[0])))


def group_parts(due: DirtyParts, limits: StepLimits) -> tuple[list[DirtyParts], list[DirtyParts]]:
    """Large partitions, each one alone, and groups of small ones that are cleaned together.  Both keep the order."""
    large: list[DirtyParts] = []
    small: list[DirtyParts] = [{}]
    size = keys = 0
    for key, dirty in due.items():
        part_bytes, part_keys = dirty.clean_bytes + dirty.bytes, dirty.end - dirty.start
        if part_bytes > PACK_BYTES or part_keys > limits.clean_keys:
            large.append({key: dirty})
            continue
        size, keys = size + part_bytes, keys + part_keys
        if size > PACK_BYTES or keys > limits.clean_keys or len(small[-1]) >= limits.changes_max:
            small.append({})
            size, keys = part_bytes, part_keys
        small[-1][key] = dirty
    return large, [group for group in small if group]


def _compacted(state: State, now_ms: int, memory: MaintenanceMemory) -> Iterator[TopicKey]:
    for topic_id, topic in sorted(state.topics.items()):
        if not topic.deleted and has_cleanup_policy(topic.configs, "compact"):
            for number, part in state.topic_partitions(topic_id):
                if part.entries and memory.may_be_due(state, (topic_id, number), part, now_ms):
                    yield topic_id, number
