"""The result of a round of maintenance, and the plan of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_log.maintenance.retention import ExpiredTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainReport:
    """The result of one run."""

    version: int
    """Version of the log at the end."""
    expired_records: int
    """Records that retention removed."""
    expired_bytes: int
    """Size of their slices.  Objects without live slices are deleted after `gc.fence.age.ms`."""
    expired_topics: tuple[ExpiredTopic, ...]
    """Expired records by topic."""
    merged_slices: int
    segments: int
    """New segments that replaced the merged slices."""
    segment_bytes: int
    cleaned_partitions: int = 0
    """Partitions of compacted topics whose pass of compaction has ended."""
    removed_records: int = 0
    """Records that compaction removed."""
    removed_bytes: int = 0
    """By how much it made slices smaller.  Less than 0 if small ones grew, because they have a column of offsets.
    Replaced objects are deleted after `gc.fence.age.ms`."""
    uncleaned: int = 0
    """Partitions that compaction cleans in the next rounds, because a round reads a limited amount."""
    uncleanable: tuple[str, ...] = ()
    """Partitions of which compaction leaves out records that it could not read, as `orders-0`."""
    set_aside: tuple[str, ...] = ()
    """Objects that could not be read.  Merging, compaction and moves leave them as they are, and rewrite the others.
    The `problems` of the round that found one say why."""
    dirty_ratios: Mapping[str, float] = field(default_factory=dict, repr=False)
    """The highest dirty ratio of the partitions of each compacted topic, where it is known."""
    fence: int
    """Uploads and pins at or below it are invalid."""
    truncated: int
    """Deleted records of the metadata log, and checkpoints."""
    collected: int
    """Deleted objects."""
    pins: int
    """Deleted pins of ended Spark queries."""
    unfinished: int
    """Deleted temporary files of dead writers."""
    waiting: int = 0
    """Objects without references: they are deleted when the fence has passed the version that dropped them, or that of
    the list with their names."""
    fence_age_ms: int = 0
    """`gc.fence.age.ms`: the fence advances after this time, in two steps if nobody writes meanwhile."""
    fenced_brokers: tuple[str, ...] = ()
    """Brokers whose roots failed, with the reasons."""
    returned_brokers: tuple[int, ...] = ()
    """Brokers that are back."""
    copied: int = 0
    """Copies of objects that were made, of those that brokers lacked."""
    copied_bytes: int = 0
    joined: int = 0
    """Replicas that began to join their ISR."""
    moved_partitions: int = 0
    """Partitions of which nothing is left in objects of other brokers than their replicas."""
    moved_bytes: int = 0
    """Size of the new objects with records of partitions that move."""
    second_logs: tuple[str, ...] = ()
    """Sentences about other logs at previous URLs of this one.  Clients with such a URL write to them."""
    problems: tuple[str, ...] = ()
    """Failed duties, with the errors; the other duties were completed."""
    no_space: bool = False
    """A duty failed because the disk is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The changes that a run would make now."""

    expired_records: int
    """Records that retention would remove."""
    expired_bytes: int
    merged_slices: int
    merged_bytes: int
    """Size of the merged slices."""
    cleaned_partitions: int
    """Partitions that would be compacted."""
    cleaned_bytes: int
    """Size of the records in them that no pass has seen."""
    collected: int
    """Objects that would be deleted."""
    collected_bytes: int
