"""Decisions: topics, partitions and configs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from spark_log.configs.settings import (
    check_config_names,
    check_together,
    cluster_config,
    topic_config,
    validate_cluster_configs,
    validate_topic_configs,
)
from spark_log.configs.topic_names import check_topic_name, collision_key, not_text
from spark_log.errors import (
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    OffsetOutOfRange,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from spark_log.metadata import records as r
from spark_log.metadata.decision import Decision
from spark_log.metadata.projection import Projected
from spark_log.metadata.replicas.decide_replicas import check_min_insync, decide_replicas, fewest_synchronous
from spark_log.metadata.replicas.replicas import group_at, group_number, group_numbers
from spark_log.metadata.state import State, Topic, TopicKey
from spark_log.metadata.topics.schemas import schema_of
from spark_log.model import PROGRESS_TOPIC
from spark_log.schema.column_configs import check_column_configs
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import as_schema
from spark_log.text import counted

PARTITIONS_MAX = 100_000
_TOPIC_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def topic_named(state: State, name: str) -> tuple[str, Topic]:
    """(id, topic) of a live topic.  Raises UnknownTopicOrPartition, with the nearest names; InvalidTopic if the name is
    not text."""
    if not isinstance(name, str):
        raise not_text(name)
    topic_id = state.names.get(name)
    if topic_id is None:
        refuse_progress_topic(name)
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist{_nearest(name, state.names)}")
    return topic_id, state.topics[topic_id]


def refuse_progress_topic(name: str) -> None:
    """Raises InvalidTopic for `__consumer_offsets`, in operations that do not support it."""
    if name == PROGRESS_TOPIC:
        raise InvalidTopic(
            f"topic {name!r} has the positions of groups and is read-only: read it by Spark with the option subscribe, "
            "log.read, log.scan and `pylog consume`; change groups by `pylog group seek` and `pylog group delete`"
        )


def _nearest(name: str, names: Mapping[str, str]) -> str:
    near = [] if isinstance(names, Projected) else get_close_matches(name, list(names), n=3)
    return f"; did you mean {' or '.join(near)}?" if near else "; `pylog topic list` shows the topics"


def _check_topic_id(topic_id: str) -> None:
    """A client draws it.  It is in the names of objects, and an empty one means the whole log."""
    if _TOPIC_ID.fullmatch(topic_id) is None:
        raise InvalidRequest(f"topic_id: {topic_id[:80]!r} is not an id: expected 1 to 64 of A-Z, a-z, 0-9, ., _ and -")


def decide_create_topic(
    state: State,
    name: str,
    partitions: int,
    configs: Mapping[str, str],
    topic_id: str,
    *,
    replication_factor: int | None = None,
    replicas: Sequence[tuple[int, ...]] = (),
    schema: str = "",
) -> Decision[str]:
    """Create a topic with the caller's id.  The reply is the id.

    replicas:  the brokers of each partition, instead of `replication_factor`.
    schema:    in any form; empty: values are bytes.
    """
    check_topic_name(name)
    _check_topic_id(topic_id)
    refuse_progress_topic(name)
    values, _ = validate_topic_configs(configs)
    check_together(values)
    if state.names.get(name) == topic_id:
        return Decision((), topic_id)
    if name in state.names:
        raise TopicAlreadyExists(f"topic {name!r} exists already")
    key = collision_key(name)
    twin = (
        next((other for other in state.names if collision_key(other) == key), None)
        if "." in name or "_" in name
        else None
    )
    if twin is not None:
        raise InvalidTopic(
            f"topic {name!r} collides with {twin!r}: names that differ only in '.' and '_' are equal in Kafka's tools"
        )
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidPartitions(
            f"topic {name!r}: {partitions} partitions; expected a number from 1 to {PARTITIONS_MAX}"
        )
    lists = decide_replicas(state, name, topic_id, 0, partitions, replication_factor, replicas)
    check_min_insync(name, int(topic_config(values, "min.insync.replicas")), fewest_synchronous(state, lists))
    if schema:
        columns = as_schema(schema)
        check_column_configs(name, values, columns)
        schema = to_json(columns)
    created = r.CreateTopicRecord(
        topic_id=topic_id, name=name, partitions=partitions, configs=values, replicas=lists, schema=schema
    )
    return Decision((created,), topic_id)


def decide_add_partitions(state: State, name: str, total: int) -> Decision[None]:
    """Raise a topic's partition count to `total`; as in Kafka, it never decreases."""
    topic_id, topic = topic_named(state, name)
    if total <= topic.partitions:
        raise InvalidPartitions(
            f"topic {name!r} has {counted(topic.partitions, 'partition')} "
            f"already; expected a larger new total, not {total}"
        )
    if total > PARTITIONS_MAX:
        raise InvalidPartitions(f"topic {name!r}: {total} partitions; expected at most {PARTITIONS_MAX}")
    factor = len(group_at(state, group_number(state, (topic_id, 0))).replicas)
    lists = decide_replicas(state, name, topic_id, topic.partitions, total, factor, ())
    return Decision((r.AddPartitionsRecord(topic_id=topic_id, total=total, replicas=lists),), None)


def decide_set_configs(state: State, name: str | None, changes: Mapping[str, str | None]) -> Decision[None]:
    """Set configs of a topic, or of the log if `name` is None; a value of None restores the default."""
    given = {key: value for key, value in changes.items() if value is not None}
    unset = {key: None for key, value in changes.items() if value is None}
    validate = validate_cluster_configs if name is None else validate_topic_configs
    values, _ = validate(given)
    topic_id, current = "", state.configs
    if name is not None:
        topic_id, topic = topic_named(state, name)
        current = topic.configs
    # The configs in place may come from a newer pylog.
    check_config_names((key for key in unset if key not in current), cluster=name is None)
    new: dict[str, str | None] = {**values, **unset}
    if all(current.get(key) == value for key, value in new.items()):
        return Decision((), None)
    if name is not None:
        result = {key: value for key, value in {**current, **new}.items() if value is not None}
        check_together(result)
        if (known := schema_of(state, topic_id)) is not None:
            check_column_configs(name, result, known.columns)
        if "min.insync.replicas" in values:  # an earlier pylog may have stored any
            groups = set(group_numbers(state, topic_id))
            replicas = fewest_synchronous(state, [group_at(state, number).replicas for number in groups])
            check_min_insync(name, int(topic_config(result, "min.insync.replicas")), replicas)
    return Decision((r.SetConfigsRecord(topic_id=topic_id, configs=new),), None)


def decide_delete_topic(state: State, name: str) -> Decision[str]:
    """Delete a topic: its name is free immediately, and its positions are removed.  The reply is its id."""
    topic_id, _ = topic_named(state, name)
    if not cluster_config(state.configs, "delete.topic.enable"):
        raise TopicDeletionDisabled(f"topic {name!r}: delete.topic.enable is false for this log")
    return Decision((r.DeleteTopicRecord(topic_id=topic_id),), topic_id)


def decide_trim(state: State, starts: Mapping[TopicKey, int]) -> Decision[dict[TopicKey, int]]:
    """Raise partitions' starts; a lower start changes nothing.  The reply is the starts in effect."""
    records, reply = [], {}
    for key, start in starts.items():
        part = state.partitions.get(key)
        if part is None:
            raise UnknownTopicOrPartition(f"partition {key[1]} of topic id {key[0]} does not exist")
        if not 0 <= start <= part.readable_end:
            raise OffsetOutOfRange(
                f"cannot trim {state.topics[key[0]].name}-{key[1]} to {start}: "
                f"expected an offset from {part.start} to its end, {part.readable_end}",
                start=part.start,
                end=part.readable_end,
            )
        if start > part.start:
            records.append(r.TrimRecord(topic_id=key[0], partition=key[1], start=start))
        reply[key] = max(start, part.start)
    return Decision(tuple(records), reply)
