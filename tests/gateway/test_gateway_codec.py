"""Messages and record batches, compared with kafka-python's, and fuzzed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import kafka.protocol.admin.configs as kafka_configs
import kafka.protocol.admin.topics as kafka_topics
import kafka.protocol.consumer as kafka_consumer
import kafka.protocol.metadata as kafka_metadata
import kafka.protocol.producer as kafka_producer
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

import spark_log.gateway.admin_messages as a
from spark_log.gateway.api import (
    ALTER_CONFIGS,
    API_VERSIONS,
    APIS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    Api,
    parse_request,
)
from spark_log.gateway.codec import FrameBytes, MalformedFrame, layout
from spark_log.gateway.messages import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    EpochAsked,
    EpochEnd,
    EpochEndsOfTopic,
    EpochsOfTopic,
    FetchedFrom,
    FetchedPartition,
    FetchedTopic,
    FetchedTopicRecords,
    FetchRecordsRequest,
    FetchRecordsResponse,
    ForgottenPartitions,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedOffset,
    ListedTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    ProduceTopicResult,
    RefusedRecord,
)
from spark_log.gateway.record_batch import record_batch
from spark_log.segment.schema import RECORD_SCHEMA_HEADERS
from tests.gateway.group_examples import GROUP_EXAMPLES, GROUP_PEERS
from tests.gateway.running import frame

ID = "0123456789abcdef" * 2
LONG = "é" * 200
EXAMPLES: dict[Api, tuple[Any, Any]] = {
    API_VERSIONS: (
        ApiVersionsRequest(client_software_name="a", client_software_version="1"),
        ApiVersionsResponse(api_keys=[ApiVersion(api_key=1, min_version=4, max_version=17)], throttle_time_ms=3),
    ),
    METADATA: (
        MetadataRequest(topics=[MetadataRequestTopic(name=LONG, topic_id=ID)], allow_auto_topic_creation=True),
        MetadataResponse(
            brokers=[MetadataBroker(node_id=0, host="h", port=9092)],
            cluster_id="c",
            controller_id=0,
            topics=[
                MetadataTopic(
                    name=LONG,
                    topic_id=ID,
                    partitions=[MetadataPartition(partition_index=3, replica_nodes=(0, 1), isr_nodes=(0,))],
                )
            ],
        ),
    ),
    LIST_OFFSETS: (
        ListOffsetsRequest(
            replica_id=-1,
            topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=1, timestamp=-2)])],
        ),
        ListOffsetsResponse(topics=[ListedTopic(name="t", partitions=[ListedOffset(offset=1 << 40, timestamp=5)])]),
    ),
    FETCH: (
        FetchRecordsRequest(
            max_wait_ms=500,
            max_bytes=1 << 20,
            topics=[
                FetchedTopic(topic="t", topic_id=ID, partitions=[FetchedFrom(fetch_offset=n) for n in range(3)]),
            ],
            forgotten_topics_data=[ForgottenPartitions(topic="u", topic_id=ID, partitions=(1, 2))],
            rack_id="a",
        ),
        FetchRecordsResponse(
            responses=[
                FetchedTopicRecords(
                    topic="t",
                    topic_id=ID,
                    partitions=[
                        FetchedPartition(partition_index=1, high_watermark=9, records=b"r" * 300),
                        FetchedPartition(aborted_transactions=None),
                    ],
                )
            ]
        ),
    ),
    PRODUCE: (
        ProduceRequest(
            acks=-1, topics=[ProducedTopic(name="t", partitions=[ProducedPartition(index=1, records=b"abc")])]
        ),
        ProduceResponse(
            topics=[
                ProduceTopicResult(
                    name="t",
                    partitions=[ProduceResult(error_message="no", record_errors=[RefusedRecord(message="m")])],
                )
            ]
        ),
    ),
    OFFSET_FOR_LEADER_EPOCH: (
        OffsetForLeaderEpochRequest(topics=[EpochsOfTopic(topic="t", partitions=[EpochAsked(leader_epoch=5)])]),
        OffsetForLeaderEpochResponse(topics=[EpochEndsOfTopic(topic="t", partitions=[EpochEnd(end_offset=1 << 40)])]),
    ),
    INIT_PRODUCER_ID: (
        InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=5, producer_id=1 << 40, producer_epoch=3),
        InitProducerIdResponse(producer_id=1 << 61, producer_epoch=2),
    ),
    CREATE_TOPICS: (
        a.CreateTopicsRequest(
            topics=[
                a.TopicToCreate(
                    name="t",
                    assignments=[a.PartitionReplicas(partition_index=1, broker_ids=(0, 1))],
                    configs=[a.NamedValue(name="c", value=None), a.NamedValue(name="d", value=LONG)],
                )
            ],
            validate_only=True,
        ),
        a.CreateTopicsResponse(
            topics=[a.CreatedTopic(name="t", topic_id=ID, configs=[a.CreatedConfig(name="c", value="v")])]
        ),
    ),
    DELETE_TOPICS: (
        a.DeleteTopicsRequest(topics=[a.TopicToDelete(name=None, topic_id=ID)], topic_names=["t", LONG], timeout_ms=3),
        a.DeleteTopicsResponse(responses=[a.DeletedTopic(name="t", topic_id=ID, error_message="no")]),
    ),
    CREATE_PARTITIONS: (
        a.CreatePartitionsRequest(
            topics=[a.TopicToGrow(name="t", count=3, assignments=[a.ReplicasOfNew(broker_ids=(1,))])]
        ),
        a.CreatePartitionsResponse(results=[a.GrownTopic(name="t", error_code=3)]),
    ),
    DESCRIBE_CONFIGS: (
        a.DescribeConfigsRequest(
            resources=[a.ConfigsAsked(resource_type=2, resource_name="t", configuration_keys=["a", "b"])]
        ),
        a.DescribeConfigsResponse(
            results=[
                a.DescribedConfigs(
                    resource_type=2,
                    resource_name="t",
                    configs=[a.DescribedConfig(name="c", value="v", synonyms=[a.ConfigSynonym(name="s", source=5)])],
                )
            ]
        ),
    ),
    ALTER_CONFIGS: (
        a.AlterConfigsRequest(
            resources=[
                a.ConfigChanges(
                    resource_type=2, resource_name="t", configs=[a.ConfigChange(name="c", config_operation=1)]
                )
            ]
        ),
        a.AlterConfigsResponse(responses=[a.AlteredConfigs(error_message="no", resource_type=2, resource_name="t")]),
    ),
    **GROUP_EXAMPLES,
}
PEERS = {
    CREATE_TOPICS: (kafka_topics.CreateTopicsRequest, kafka_topics.CreateTopicsResponse),
    DELETE_TOPICS: (kafka_topics.DeleteTopicsRequest, kafka_topics.DeleteTopicsResponse),
    CREATE_PARTITIONS: (kafka_topics.CreatePartitionsRequest, kafka_topics.CreatePartitionsResponse),
    DESCRIBE_CONFIGS: (kafka_configs.DescribeConfigsRequest, kafka_configs.DescribeConfigsResponse),
    ALTER_CONFIGS: (kafka_configs.IncrementalAlterConfigsRequest, kafka_configs.IncrementalAlterConfigsResponse),
    INIT_PRODUCER_ID: (kafka_producer.InitProducerIdRequest, kafka_producer.InitProducerIdResponse),
    OFFSET_FOR_LEADER_EPOCH: (
        kafka_consumer.OffsetForLeaderEpochRequest,
        kafka_consumer.OffsetForLeaderEpochResponse,
    ),
    API_VERSIONS: (kafka_metadata.ApiVersionsRequest, kafka_metadata.ApiVersionsResponse),
    METADATA: (kafka_metadata.MetadataRequest, kafka_metadata.MetadataResponse),
    LIST_OFFSETS: (kafka_consumer.ListOffsetsRequest, kafka_consumer.ListOffsetsResponse),
    FETCH: (kafka_consumer.FetchRequest, kafka_consumer.FetchResponse),
    PRODUCE: (kafka_producer.ProduceRequest, kafka_producer.ProduceResponse),
    **GROUP_PEERS,
}


def versions() -> Iterator[tuple[Api, int, int]]:
    """Each version of each request and response that kafka-python has, too."""
    for api in APIS.values():
        for side in (0, 1):
            for version in range(api.first, min(api.last, PEERS[api][side].max_version) + 1):
                yield api, side, version


@pytest.mark.parametrize(
    ("api", "side", "version"), list(versions()), ids=lambda one: str(one.key) if isinstance(one, Api) else str(one)
)
def test_bytes_are_those_of_kafka_python(api: Api, side: int, version: int) -> None:
    """It reads ours, and writes the same again; so do we."""
    kind = (api.request, api.response)[side]
    form, parts = layout(kind, version, version >= api.flexible), list[bytes]()
    form.write(EXAMPLES[api][side], parts.append)
    ours = b"".join(parts)
    theirs = PEERS[api][side][version].decode(memoryview(ours))
    theirs._header = None
    assert bytes(theirs.encode(version=version)) == ours
    again = list[bytes]()
    form.write(form.read(FrameBytes(ours)), again.append)
    assert b"".join(again) == ours and form.smallest <= len(ours)


# Promise: gateway.md#limits
@given(st.data())
def test_any_bytes_are_a_request_or_malformed(data: st.DataObject) -> None:
    """Real requests with flipped, cut and added bytes, and any bytes at all."""
    api = data.draw(st.sampled_from(sorted(APIS.values())))
    version = data.draw(st.integers(api.first, api.last))
    sent = bytearray(frame(api, version, EXAMPLES[api][0])[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(sent)))
    for body in (bytes(sent), bytes(sent[:cut]), bytes(sent[:8]) + data.draw(st.binary(max_size=60))):
        with suppress(MalformedFrame):
            parse_request(body)


HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=80)), max_size=3)
DATA = st.none() | st.binary(max_size=80) | st.binary(min_size=100, max_size=9000)
RECORDS = st.lists(st.tuples(DATA, DATA, st.integers(0, 1 << 42), st.none() | HEADERS), max_size=20)


@given(RECORDS, st.lists(st.integers(1, 1 << 20), min_size=21, max_size=21), st.integers(0, 1 << 50), st.booleans())
def test_batches_are_read_by_kafka_python(rows: list[Any], gaps: list[int], base: int, append_time: bool) -> None:
    """Keys, values, times, headers and offsets with holes, from slices of larger columns as well."""
    times = [time * 1000 + 1 for _, _, time, _ in rows]
    headers = [None if one is None else [{"key": k, "value": v} for k, v in one] for _, _, _, one in rows]
    columns = [[row[0] for row in rows], [row[1] for row in rows], times, headers]
    fields = list(RECORD_SCHEMA_HEADERS)
    whole = pa.RecordBatch.from_arrays(
        [pa.array([one[:1] * 2 + one][0], field.type) for one, field in zip(columns, fields, strict=True)],
        schema=RECORD_SCHEMA_HEADERS,
    )
    records = whole.slice(len(whole) - len(rows))
    offsets = [base + sum(gaps[:n]) for n in range(len(rows))]
    end = (offsets[-1] if rows else base) + gaps[20]
    array = pa.array(offsets, pa.int64()).to_numpy(zero_copy_only=False)
    batch = DefaultRecordBatch(record_batch(records, array, end, append_time=append_time))
    assert batch.validate_crc() and batch.next_offset == end
    found = list(batch)
    assert [one.offset for one in found] == offsets
    plain = [
        (None if one.key is None else bytes(one.key), None if one.value is None else bytes(one.value)) for one in found
    ]
    assert plain == [row[:2] for row in rows]
    assert [[(k, None if v is None else bytes(v)) for k, v in one.headers] for one in found] == [
        row[3] or [] for row in rows
    ]
    latest = max((row[2] for row in rows), default=0)
    assert [one.timestamp for one in found] == [latest if append_time else row[2] for row in rows]
