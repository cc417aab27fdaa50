"""Schemas of topics in the state, and the records that set them."""

from __future__ import annotations

from dataclasses import replace

from spark_log.metadata import records as r
from spark_log.metadata.state import State, TopicSchemas
from spark_log.schema.topic_schema import TopicSchema

BYTES = 0
"""The version of rows that are not typed."""


def schemas_of(state: State, topic_id: str) -> tuple[TopicSchema, ...]:
    """All versions of a topic's schema, oldest first; () if its values are bytes."""
    known = state.schemas.get(topic_id)
    return () if known is None else tuple(TopicSchema(number, text) for number, text in enumerate(known.versions, 1))


def schema_of(state: State, topic_id: str) -> TopicSchema | None:
    """The newest version of a topic's schema; None if its values are bytes."""
    known = state.schemas.get(topic_id)
    return None if known is None else TopicSchema(len(known.versions), known.versions[-1])


def typed_from(state: State, topic_id: str, partition: int) -> int | None:
    """The offset from which on a partition has typed records; None if its topic has no schema."""
    known = state.schemas.get(topic_id)
    if known is None:
        return None
    return known.starts[partition] if partition < len(known.starts) else 0


def with_first_schema(state: State, topic_id: str, text: str, partitions: int) -> State:
    """The state with the schema of a new topic."""
    first = TopicSchemas((text,), (0,) * partitions)
    return replace(state, schemas=state.schemas.set(topic_id, first))


def replay_set_schema(state: State, record: r.SetSchemaRecord) -> State | None:
    """Void unless the topic is live and the version is the next one."""
    topic, known = state.topics.get(record.topic_id), state.schemas.get(record.topic_id)
    if topic is None or topic.deleted or record.version != (1 if known is None else len(known.versions) + 1):
        return None
    if known is None:
        ends = tuple(part.end for _, part in state.topic_partitions(record.topic_id))
        known = TopicSchemas((record.schema,), ends)
    else:
        known = known._replace(versions=(*known.versions, record.schema))
    return replace(state, schemas=state.schemas.set(record.topic_id, known))
