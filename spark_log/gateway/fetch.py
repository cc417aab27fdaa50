"""The answer to Fetch: records of partitions, as soon as there are enough of them or the client's time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spark_log.errors import SparkLogError
from spark_log.gateway.error_codes import (
    FETCH_SESSION_ID_NOT_FOUND,
    NONE,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    code_of,
)
from spark_log.gateway.followed_state import FollowedState, logger
from spark_log.gateway.leader_epochs import fetch_error
from spark_log.gateway.messages import (
    FetchedFrom,
    FetchedPartition,
    FetchedTopicRecords,
    FetchRecordsRequest,
    FetchRecordsResponse,
)
from spark_log.gateway.storage_reads import KnownToHang, StillReading, StorageReads
from spark_log.gateway.stored_batches import StoredBatches
from spark_log.gateway.topics import ServedTopics
from spark_log.metadata.state import State, TopicKey

ANSWER_BYTES_MAX = 16 << 20
"""Bytes of records in an answer, whatever a client allows: they are held until it has taken them."""
ANSWERS_BYTES_MAX = 256 << 20
"""Bytes of records in all answers that are being read, or that clients have not taken.  Beyond it, each gets one batch.
"""
WAIT_MS_MAX = 60_000
"""Longest wait, whatever a client allows."""
AGAIN_S = 1.0
"""After this time a waiting request looks again at what hung."""


class _Answer:
    """The answer to a request so far."""

    def __init__(self, request: FetchRecordsRequest, version: int, now_s: float) -> None:
        self.request = request
        self.version = version
        self.until_s = now_s + min(request.max_wait_ms, WAIT_MS_MAX) / 1000
        self.bytes = 0
        self.failed = False
        """A partition has an error, which a client gets without a wait."""
        self.hangs = False
        """A partition cannot be read now, which a client gets after its time."""

    @property
    def is_enough(self) -> bool:
        # A client may wait for more bytes than an answer can have.
        return self.failed or self.bytes >= min(self.request.min_bytes, ANSWER_BYTES_MAX // 2)


class Fetcher:
    """Answers for all connections.  Belongs to one event loop."""

    def __init__(
        self, followed: FollowedState, batches: StoredBatches, served: ServedTopics, unsent: Callable[[], int]
    ) -> None:
        """unsent:  bytes of answers that clients have not taken."""
        self._followed = followed
        self._unsent = unsent
        self._held = 0
        """Bytes of records that unfinished answers have, or are about to read."""
        self._batches = batches
        self._served = served
        self._reads = StorageReads("pylog-gateway-read")

    async def fetch(self, request: FetchRecordsRequest, version: int) -> FetchRecordsResponse:
        """Raises SparkLogError if the log cannot be followed."""
        if request.session_id:  # none is given out: each request names all of its partitions
            return FetchRecordsResponse(error_code=FETCH_SESSION_ID_NOT_FOUND)
        answer = _Answer(request, version, asyncio.get_running_loop().time())
        try:
            return await self._answered(answer)
        finally:
            self._held -= answer.bytes

    async def _answered(self, answer: _Answer) -> FetchRecordsResponse:
        state = await self._followed.recent()
        response = await self._read(state, answer)
        if answer.failed or not answer.is_enough:
            state = await self._followed.newest()
            response = await self._read(state, answer)
        while not answer.is_enough:
            again_s = asyncio.get_running_loop().time() + AGAIN_S if answer.hangs else answer.until_s
            newer = await self._followed.after(state, min(again_s, answer.until_s))
            if newer is state and again_s >= answer.until_s:
                break
            state = newer
            response = await self._read(state, answer)
        return response

    async def _read(self, state: State, answer: _Answer) -> FetchRecordsResponse:
        self._held -= answer.bytes
        answer.bytes, answer.failed, answer.hangs = 0, False, False
        request, topics = answer.request, []
        for topic in request.topics:
            if answer.version >= 13:
                code, topic_id = self._served.by_id(state, topic.topic_id), topic.topic_id
            else:
                code, topic_id = self._served.by_name(state, topic.topic)
            partitions = []
            for asked in topic.partitions:
                partitions.append(await self._partition(state, code, topic_id, asked, answer))
            topics.append(FetchedTopicRecords(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions))
        return FetchRecordsResponse(responses=topics)

    def _left(self, answer: _Answer) -> int:
        """How many bytes an answer may still get: one batch, whatever others hold."""
        left = min(answer.request.max_bytes, ANSWER_BYTES_MAX) - answer.bytes
        of_all = ANSWERS_BYTES_MAX - self._held - self._unsent()
        return min(left, of_all if answer.bytes else max(1, of_all))

    async def _partition(
        self, state: State, code: int, topic_id: str, asked: FetchedFrom, answer: _Answer
    ) -> FetchedPartition:
        number, offset, records = asked.partition, asked.fetch_offset, b""
        part = state.partitions.get((topic_id, number))
        if code != NONE or part is None:
            answer.failed = True
            return FetchedPartition(partition_index=number, error_code=code or UNKNOWN_TOPIC_OR_PARTITION, records=b"")
        code = fetch_error(state, (topic_id, number), offset, asked.current_leader_epoch, asked.last_fetched_epoch)
        if code == NONE and not part.start <= offset <= part.end:
            code = OFFSET_OUT_OF_RANGE
        answer.failed = answer.failed or code != NONE
        if code == NONE and offset < part.readable_end:
            code, records = await self._records(state, (topic_id, number), asked, answer)
        return FetchedPartition(
            partition_index=number,
            error_code=code,
            high_watermark=part.readable_end,
            last_stable_offset=part.readable_end,
            log_start_offset=part.start,
            records=records,
        )

    async def _records(self, state: State, key: TopicKey, asked: FetchedFrom, answer: _Answer) -> tuple[int, bytes]:
        """An error code, and records that there are.  The first batch of a partition may be larger than the limits."""
        left = self._left(answer)
        if left <= 0:
            return NONE, b""
        size = max(0, min(asked.partition_max_bytes, left))
        self._held += size  # others count what this may find
        try:
            read = self._batches.read, state, key, asked.fetch_offset, size
            records = b"".join(await self._reads.read(key, answer.until_s, *read))
        except SparkLogError as error:
            if not isinstance(error, KnownToHang):
                logger.warning("%s-%d, offset %d: %s", state.topics[key[0]].name, key[1], asked.fetch_offset, error)
            answer.hangs = answer.hangs or isinstance(error, StillReading)
            answer.failed = answer.failed or not isinstance(error, StillReading)
            return code_of(error), b""
        finally:
            self._held -= size
        answer.bytes, self._held = answer.bytes + len(records), self._held + len(records)
        return NONE, records

    def close(self) -> None:
        self._reads.close()
