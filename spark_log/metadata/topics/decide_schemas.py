"""Decisions: schemas of topics, and commits of typed rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_log.errors import InvalidRecord
from spark_log.metadata import records as r
from spark_log.metadata.decision import Decision
from spark_log.metadata.state import State
from spark_log.metadata.topics.schemas import BYTES, schema_of, schemas_of
from spark_log.schema.column_configs import check_column_configs
from spark_log.schema.evolution import check_evolution
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import as_schema


def decide_set_schema(state: State, name: str, topic_id: str, text: str) -> Decision[int]:
    """Give a topic a schema, or the next version of it.  The reply is the version; no change if it is in place.

    Raises IncompatibleSchema, InvalidSchema.
    """
    wanted = as_schema(text)
    known = schema_of(state, topic_id)
    if known is not None:
        if known.columns.equals(wanted):
            return Decision((), known.version)
        check_evolution(name, known.columns, wanted)
    elif topic_id in state.topics:
        check_column_configs(name, state.topics[topic_id].configs, wanted)
    version = 1 if known is None else known.version + 1
    return Decision((r.SetSchemaRecord(topic_id=topic_id, version=version, schema=to_json(wanted)),), version)


def first_schema_records(state: State, wanted: Mapping[str, str]) -> tuple[r.AnyRecord, ...]:
    """The first schemas of topics that have none, by topic id, for a commit of rows that were converted by them.

    Raises InvalidRecord for a topic that has got another one meanwhile.
    """
    records: list[r.AnyRecord] = []
    for topic_id, text in wanted.items():
        topic, known = state.topics.get(topic_id), schemas_of(state, topic_id)
        if topic is not None and not known:
            records += decide_set_schema(state, topic.name, topic_id, text).records
        elif topic is not None and not known[0].columns.equals(as_schema(text)):
            raise InvalidRecord(
                f"topic {topic.name!r} got another schema while rows for it were uploaded: nothing was written; write the "
                "rows again, by that schema"
            )
    return tuple(records)


def check_versions(state: State, topic_ids: Sequence[str], versions: Mapping[str, int]) -> None:
    """Raises InvalidRecord for rows that were converted by a version that the topic does not have (any more).

    topic_ids:  of a commit.
    versions:   by topic id; topics with bytes are left out.
    """
    for topic_id in sorted(set(topic_ids)):
        newest, used = schema_of(state, topic_id), versions.get(topic_id, BYTES)
        name = state.topics[topic_id].name if topic_id in state.topics else topic_id
        if newest is not None and used == BYTES:
            raise InvalidRecord(
                f"topic {name!r} got a schema while bytes for it were uploaded: nothing was written; write the rows again, "
                "as columns"
            )
        if used > (newest.version if newest is not None else 0):
            raise InvalidRecord(
                f"rows for topic {name!r} were converted by version {used} of its schema, which the log does not have: "
                "nothing was written; write the rows again"
            )
