"""Rows of topics and of configs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from spark_log.model import PROGRESS_TOPIC

if TYPE_CHECKING:
    from spark_log.client.log import Log
    from spark_log.metadata.state import State


def topic_rows(state: State, *, internal: bool, names: Collection[str] | None = None) -> list[dict[str, Any]]:
    """A row per topic, from the state alone.

    names:  the topics; None: all.
    """
    from spark_log.client.reader.plan import chunks
    from spark_log.metadata.groups.consumer_offsets import PARTITIONS, progress_of

    rows = []
    for name in sorted(state.names if names is None else names):
        topic_id = state.names[name]
        parts = [part for _, part in state.topic_partitions(topic_id)]
        size = sum(chunk.bytes for part in parts for chunk in chunks(part, part.start, part.readable_end))
        records = sum(part.readable_end - part.start for part in parts)
        appended = sum(part.readable_end for part in parts)
        rows.append({"topic": name, "partitions": len(parts), "records": records, "bytes": size, "end": appended})
    if internal:
        records = len(progress_of(state).records)
        rows.append({"topic": PROGRESS_TOPIC, "partitions": PARTITIONS, "records": records, "bytes": 0, "end": records})
    return rows


def config_rows(log: Log, name: str | None, *, everything: bool) -> list[dict[str, Any]]:
    """The configs of a topic, or of the log for None: those in force, and those that were set.

    everything:  all of them.
    """
    entries = log.admin.describe_configs([name])[name]
    return [
        {
            "config": config,
            "value": entry.value,
            "source": entry.source,
            "in_force": entry.in_force,
            "meaning": entry.doc,
        }
        for config, entry in entries.items()
        if everything or entry.in_force or not entry.is_default
    ]
