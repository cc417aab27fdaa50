"""Creation of topics by clients: explicit, or with the first record."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import pyarrow as pa
from msgspec import structs

from spark_log.configs.settings import cluster_config, validate_topic_configs
from spark_log.errors import InvalidReplicaAssignment, TopicAlreadyExists, UnknownTopicOrPartition
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import CreateTopic, SetSchema
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.model import NewTopic
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import TopicSchema, as_schema
from spark_log.text import printable_lines

DEAD_LETTER_CONFIGS = {"max.message.bytes": str(2**31 - 1), "message.timestamp.after.max.ms": str(2**63 - 1)}
"""Configs of a dead-letter topic that pylog creates: the defaults would reject rows that other topics reject."""


def create_topic(journal: Journal, topic: NewTopic, deadline_ms: int | None = None) -> str:
    """Create a topic and return its id.

    Gives a UserWarning for configs that are accepted but have no effect.
    """
    _, notes = validate_topic_configs(topic.configs)
    for note in notes:
        warnings.warn(printable_lines(note), stacklevel=4)
    return journal.propose(create_command(topic, new_topic_id(journal)), deadline_ms)


def create_command(topic: NewTopic, topic_id: str) -> CreateTopic:
    """The command that creates a topic.  Raises InvalidReplicaAssignment unless an assignment names each partition."""
    assigned = topic.replica_assignment
    if assigned is not None and sorted(assigned) != list(range(topic.num_partitions)):
        raise InvalidReplicaAssignment(
            f"topic {topic.name!r}: the assignment has partitions {sorted(assigned)}, expected 0 to "
            f"{topic.num_partitions - 1}"
        )
    return CreateTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        configs=validate_topic_configs(topic.configs)[0],
        topic_id=topic_id,
        replication_factor=topic.replication_factor,
        replicas=tuple(tuple(brokers) for _, brokers in sorted((assigned or {}).items())),
        schema="" if topic.schema is None else to_json(as_schema(topic.schema)),
    )


def set_schema(journal: Journal, topic: str, schema: pa.Schema, deadline_ms: int | None = None) -> TopicSchema:
    """Give a topic its first schema, or the next version of it.  Changes nothing if the topic has this schema already.

    schema:  in the canonical form (`as_schema`).
    Raises IncompatibleSchema, UnknownTopicOrPartition.
    """
    command = _schema_command(journal, topic, schema, deadline_ms)
    return TopicSchema(journal.propose(command, deadline_ms), command.schema)


def set_first_schema(journal: Journal, topic: str, schema: pa.Schema) -> None:
    """Give a topic its schema with the first typed write (`schema.auto`).  If another one was faster, its schema stays.

    schema:  in the canonical form.
    Raises UnknownTopicOrPartition.
    """
    journal.propose(structs.replace(_schema_command(journal, topic, schema, None), first=True), None)


def _schema_command(journal: Journal, topic: str, schema: pa.Schema, deadline_ms: int | None) -> SetSchema:
    journal.require([topic], deadline_ms=deadline_ms)
    topic_id, _ = topic_named(journal.refresh(deadline_ms), topic)
    return SetSchema(name=topic, topic_id=topic_id, schema=to_json(schema))


def ensure_topic(
    journal: Journal, topic: str, configs: Mapping[str, str] | None = None, deadline_ms: int | None = None
) -> None:
    """Create a topic with these configs if it does not exist, and if `auto.create.topics.enable` allows it.

    deadline_ms:  how long to wait for a coordinator or a bucket that does not reply, on the monotonic clock; None: the
                  default for changes.
    Raises UnknownTopicOrPartition if the topic does not exist and cannot be created.
    """
    journal.require([topic], deadline_ms=deadline_ms)
    if topic in journal.newest.names:
        return
    state = journal.refresh(deadline_ms)
    if topic in state.names:
        return
    if not auto_creates(state):
        raise no_such_topic(topic)
    try:
        count = cluster_config(state.configs, "num.partitions")
        create_topic(journal, NewTopic(topic, count, configs or {}), deadline_ms)
    except TopicAlreadyExists:
        journal.refresh(deadline_ms)


def auto_creates(state: State) -> bool:
    """Whether appending to a topic that does not exist creates it."""
    return bool(cluster_config(state.configs, "auto.create.topics.enable"))


def no_such_topic(topic: str) -> UnknownTopicOrPartition:
    """The error for a missing topic when `auto.create.topics.enable` is false."""
    return UnknownTopicOrPartition(
        f"topic {topic!r} does not exist and auto.create.topics.enable is false; create it with `pylog topic create`"
    )


def new_topic_id(journal: Journal) -> str:
    """A random id, 128 bits."""
    return journal.context.unique() + journal.context.unique()
