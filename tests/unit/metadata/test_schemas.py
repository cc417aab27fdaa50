"""Schemas in the metadata: their records, their decisions, and what a commit of typed rows must say."""

from __future__ import annotations

import pytest
from immutables import Map

from spark_log.errors import IncompatibleSchema, InvalidRecord, InvalidSchema
from spark_log.metadata import records as r
from spark_log.metadata.formats.batch_format import encode_batch
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.projection import apply, delta, held_of, nothing_held
from spark_log.metadata.replay import replay
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_schemas import check_versions, decide_set_schema
from spark_log.metadata.topics.decide_topics import decide_create_topic, decide_delete_topic
from spark_log.metadata.topics.schemas import schema_of, schemas_of, typed_from
from spark_log.model import DataObject, Run
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import as_schema

V1 = to_json(as_schema("id BIGINT"))
V2 = to_json(as_schema("id BIGINT, name STRING"))


def after(state: State, *records: r.AnyRecord) -> State:
    return replay(state, r.Batch(id="x", time=state.time + 1, records=records))


def with_topic(schema: str = "") -> State:
    return after(State(), *decide_create_topic(State(), "orders", 2, {}, "t1", schema=schema).records)


def with_rows(state: State, rows: int) -> State:
    run = Run("t1", 0, 0, 10, 0, rows, 1, 0, 0)
    name = f"data/{state.version:016x}/a{state.version}.seg"
    commit = r.CommitRecord(
        producer=name, sequence=0, upload_epoch=state.version, objects=(DataObject(name, 10, 5),), slices=((0, run),)
    )
    return after(state, commit)


def test_a_topic_is_created_with_a_schema_of_any_form() -> None:
    state = with_topic("id BIGINT")
    schema = schema_of(state, "t1")
    assert schema is not None
    assert (schema.version, schema.text) == (1, V1)
    assert [typed_from(state, "t1", number) for number in range(3)] == [0, 0, 0]


def test_versions_follow_one_another_and_only_additions_are_accepted() -> None:
    state = with_topic("id BIGINT")
    assert decide_set_schema(state, "orders", "t1", "id BIGINT").records == ()
    decision = decide_set_schema(state, "orders", "t1", "id BIGINT, name STRING")
    assert decision.reply == 2
    state = after(state, *decision.records)
    assert [schema.text for schema in schemas_of(state, "t1")] == [V1, V2]
    with pytest.raises(IncompatibleSchema, match="topic 'orders': column 'name'"):
        decide_set_schema(state, "orders", "t1", "id BIGINT")
    with pytest.raises(InvalidSchema, match="does not parse"):
        decide_set_schema(state, "orders", "t1", "id BIGINT,")


def test_a_record_of_another_version_is_void() -> None:
    state = with_topic("id BIGINT")
    again = after(state, r.SetSchemaRecord(topic_id="t1", version=1, schema=V2))
    assert again.schemas == state.schemas
    assert after(state, r.SetSchemaRecord(topic_id="t9", version=1, schema=V2)).schemas == state.schemas


def test_a_topic_that_gets_its_schema_later_is_typed_from_its_ends_on() -> None:
    state = with_rows(with_topic(), 7)
    state = after(state, *decide_set_schema(state, "orders", "t1", V1).records)
    assert [typed_from(state, "t1", number) for number in range(2)] == [7, 0]
    state = after(with_rows(state, 3), *decide_set_schema(state, "orders", "t1", V2).records)
    assert typed_from(state, "t1", 0) == 7


def test_a_commit_by_another_version_is_refused() -> None:
    untyped, typed = with_topic(), with_topic(V1)
    check_versions(untyped, ["t1"], {})
    check_versions(typed, ["t1"], {"t1": 1})
    with pytest.raises(InvalidRecord, match="'orders' got a schema while bytes"):
        check_versions(typed, ["t1"], {})
    with pytest.raises(InvalidRecord, match="version 2 of its schema"):
        check_versions(typed, ["t1"], {"t1": 2})
    with pytest.raises(InvalidRecord, match="version 1 of its schema"):
        check_versions(untyped, ["t1"], {"t1": 1})


def test_checkpoints_and_clients_of_a_coordinator_have_schemas() -> None:
    state = with_topic(V1)
    assert decode_checkpoint(encode_checkpoint(state), "c").schemas == state.schemas
    held = nothing_held(["orders"])
    assert apply(held, delta(state, "h", held_of(held), "")).schemas == state.schemas


def test_a_deleted_topic_leaves_no_schema() -> None:
    state = with_topic(V1)
    assert after(state, *decide_delete_topic(state, "orders").records).schemas == Map()


def test_a_log_without_schemas_has_no_trace_of_them() -> None:
    state = with_topic()
    assert b"schema" not in encode_checkpoint(state)
    (created,) = decide_create_topic(state, "other", 1, {}, "t2").records
    assert b"schema" not in encode_batch(r.Batch(id="x", time=0, records=(created,)))
