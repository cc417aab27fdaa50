"""Warnings about records without a key in a topic that becomes compacted: compaction removes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from spark_log.client.reader.positions_to_offsets import partitions_of
from spark_log.client.reader.scan import scan
from spark_log.configs.settings import has_cleanup_policy
from spark_log.errors import CorruptObject, StorageError
from spark_log.journal.journal import Journal
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.model import TopicPartition

PARTITIONS_MAX = 16
"""Partitions whose newest records are read."""
OFFSETS_MAX = 100
"""The newest offsets that are read of each."""


def keyless_warnings(journal: Journal, topic: str) -> Iterator[str]:
    """A warning if a topic is compacted and some of its newest records have no key."""
    state = journal.refresh()
    if not has_cleanup_policy(topic_named(state, topic)[1].configs, "compact"):
        return
    with suppress(StorageError, CorruptObject):  # the policy was set already, and reads report the failure
        found = _newest_without_key(journal, state, topic)
        if found is not None:
            tp, offset = found
            yield (
                f"topic {topic!r} has records without a key, such as offset {offset} of {topic}-{tp.partition}: "
                "compaction removes them, and new ones are refused"
            )


def _newest_without_key(journal: Journal, state: State, topic: str) -> tuple[TopicPartition, int] | None:
    with_records = [tp.partition for tp in partitions_of(state, topic) if _has_records(state, tp)]
    batches = scan(
        journal,
        topic,
        with_records[:PARTITIONS_MAX],
        f"latest-{OFFSETS_MAX}",
        "latest",
        ["partition", "offset", "key"],
        None,
    )
    for batch in batches:
        rows = np.flatnonzero(batch.column("key").is_null())
        if len(rows):
            row = int(rows[-1])
            return TopicPartition(topic, batch.column("partition")[row].as_py()), batch.column("offset")[row].as_py()
    return None


def _has_records(state: State, tp: TopicPartition) -> bool:
    part = state.partitions[state.names[tp.topic], tp.partition]
    return part.start < part.readable_end
