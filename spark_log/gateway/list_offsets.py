"""The answers to ListOffsets and OffsetForLeaderEpoch: where partitions and epochs end, and which record was the first
at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_log.client.reader.plan import OffsetRange, plan_reads
from spark_log.client.reader.positions_to_offsets import offsets_for_times, timestamps_ms
from spark_log.client.reader.scan_batches import fetch_ranges
from spark_log.errors import SparkLogError
from spark_log.gateway.error_codes import (
    INVALID_REQUEST,
    NONE,
    REQUEST_TIMED_OUT,
    UNKNOWN_TOPIC_OR_PARTITION,
    code_of,
)
from spark_log.gateway.leader_epochs import UNDEFINED, end_of_epoch, epoch_error, leader_epoch
from spark_log.gateway.messages import (
    EpochEnd,
    EpochEndsOfTopic,
    ListedOffset,
    ListedTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from spark_log.gateway.storage_reads import StillReading, StorageReads
from spark_log.gateway.topics import ServedTopics
from spark_log.journal.journal import Journal
from spark_log.metadata.state import Partition, State, TopicKey
from spark_log.model import TopicPartition

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""In place of a time.  No record of a log is in another tier."""
US_PER_MS = 1000
TIMEOUT_MS = 10_000
"""For the storage, if a request does not say."""
Read = Callable[..., Awaitable[Any]]
"""Calls a function that reads a partition, in a thread."""


async def list_offsets(
    journal: Journal, reads: StorageReads, served: ServedTopics, state: State, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """Reads the storage, for times.  A partition that is named again gets INVALID_REQUEST, as in Kafka."""
    wait_s = (request.timeout_ms or TIMEOUT_MS) / 1000
    until_s, seen = asyncio.get_running_loop().time() + wait_s, set[TopicPartition]()
    topics = []
    for topic in request.topics:
        code, topic_id = served.by_name(state, topic.name)
        found = []
        for asked in topic.partitions:
            key = topic_id, asked.partition_index
            wrong = code or _wrong(state, key, asked.current_leader_epoch)
            if (tp := TopicPartition(topic.name, asked.partition_index)) in seen:
                wrong = INVALID_REQUEST
            seen.add(tp)
            if wrong == NONE:
                found.append(await _listed(journal, partial(reads.read, key, until_s), state, tp, asked))
            else:
                found.append(ListedOffset(partition_index=asked.partition_index, error_code=wrong))
        topics.append(ListedTopic(name=topic.name, partitions=found))
    return ListOffsetsResponse(topics=topics)


def offsets_for_leader_epochs(
    served: ServedTopics, state: State, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Where the epochs end that clients have read."""
    topics = []
    for topic in request.topics:
        code, topic_id = served.by_name(state, topic.topic)
        found = []
        for asked in topic.partitions:
            key = topic_id, asked.partition
            wrong = code or _wrong(state, key, asked.current_leader_epoch)
            epoch, end = end_of_epoch(state, key, asked.leader_epoch) if wrong == NONE else (UNDEFINED, UNDEFINED)
            found.append(EpochEnd(error_code=wrong, partition=key[1], leader_epoch=epoch, end_offset=end))
        topics.append(EpochEndsOfTopic(topic=topic.topic, partitions=found))
    return OffsetForLeaderEpochResponse(topics=topics)


def _wrong(state: State, key: TopicKey, epoch: int) -> int:
    """The error code for a partition that does not exist, or of which a client knows another leader epoch."""
    return epoch_error(epoch, leader_epoch(state, key[0])) if key in state.partitions else UNKNOWN_TOPIC_OR_PARTITION


async def _listed(
    journal: Journal, read: Read, state: State, tp: TopicPartition, asked: ListOffsetsPartition
) -> ListedOffset:
    topic_id, number, time_ms = state.names[tp.topic], tp.partition, asked.timestamp
    part, epoch = state.partitions[topic_id, number], leader_epoch(state, topic_id)
    fixed: Mapping[int, int] = {LATEST: part.readable_end, EARLIEST: part.start, EARLIEST_LOCAL: part.start}
    if time_ms in fixed:
        return ListedOffset(partition_index=number, offset=fixed[time_ms], leader_epoch=epoch)
    try:
        if time_ms == MAX_TIMESTAMP:
            time_ms = await read(_latest_us, journal, tp, topic_id, part) // US_PER_MS
        offset, at_ms = (-1, -1) if time_ms < 0 else await read(_first_at, journal, tp, time_ms)
    except StillReading:
        return ListedOffset(partition_index=number, error_code=REQUEST_TIMED_OUT)
    except SparkLogError as error:
        return ListedOffset(partition_index=number, error_code=code_of(error))
    return ListedOffset(partition_index=number, offset=offset, timestamp=at_ms, leader_epoch=epoch)


def _latest_us(journal: Journal, tp: TopicPartition, topic_id: str, part: Partition) -> int:
    """The time of the latest record; -1 if there is none.  Records before the start do not count."""
    latest_us = max((entry.max_us for entry in part.entries if entry.start >= part.start), default=-1)
    cut = [entry.end for entry in part.entries if entry.start < part.start < entry.end and entry.max_us > latest_us]
    ranges = [OffsetRange(tp.topic, topic_id, tp.partition, part.start, end) for end in cut]
    for read in plan_reads(journal, ranges):
        if read.start == read.slice.start:
            latest_us = max(latest_us, read.slice.max_us)
        else:
            for found in fetch_ranges(journal, [read], ["timestamp"]):
                latest_us = max(latest_us, pc.max(found.records.column("timestamp").view(pa.int64())).as_py() or -1)
    return latest_us


def _first_at(journal: Journal, tp: TopicPartition, time_ms: int) -> tuple[int, int]:
    """Offset and time of the first record at or after a time; -1 and -1 if there is none."""
    while (offset := offsets_for_times(journal, {tp: time_ms})[tp]) is not None:
        if found := timestamps_ms(journal, {tp: offset}):
            return offset, found[tp]
        journal.refresh()  # compaction has removed the record since it was found
    return -1, -1
