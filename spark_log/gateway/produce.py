"""The answers to Produce and InitProducerId."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable

from spark_log.bounds import INT16_MAX
from spark_log.errors import InvalidRequest
from spark_log.gateway.error_codes import (
    INVALID_REQUIRED_ACKS,
    MESSAGE_CHARS,
    NONE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from spark_log.gateway.followed_state import FollowedState
from spark_log.gateway.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    ProduceTopicResult,
    RefusedRecord,
)
from spark_log.gateway.produced_batches import TRANSACTIONAL, RefusedBatch, parse_batch
from spark_log.gateway.round_queues import RoundQueues
from spark_log.gateway.rounds import Waiting, WriteOutcome
from spark_log.gateway.stored_batches import StoredBatches
from spark_log.gateway.topics import ServedTopics
from spark_log.journal.journal import Journal
from spark_log.metadata.commits.kafka_producers import RANDOM_BITS, producer_id
from spark_log.metadata.state import State
from spark_log.text import printable

NO_TRANSACTIONS = "the gateway serves no transactions: leave out transactional.id"


class ProduceRequests:
    """Belongs to one event loop."""

    def __init__(self, journal: Journal, followed: FollowedState, served: ServedTopics, batches: StoredBatches) -> None:
        self._followed = followed
        self._served = served
        self._clock = journal.context.clock
        self._queues = RoundQueues(journal, batches)
        self._loop = asyncio.get_running_loop()

    async def produce(self, request: ProduceRequest, version: int) -> ProduceResponse | None:
        """None if the client waits for no answer.  Raises InvalidRequest then, if a batch was not written: the
        connection is closed, as Kafka does.

        Batches are queued before the first wait, so requests of a connection stay in order.  If the client goes away,
        those that wait for a round are not written: it sends them again.
        """
        state = self._followed.state
        topics = [
            (topic.name, [(one.index, self._queued(state, request, topic.name, one)) for one in topic.partitions])
            for topic in request.topics
        ]
        results = []
        try:
            for name, queued in topics:
                partitions = []
                for index, written in queued:
                    outcome = written if isinstance(written, WriteOutcome) else await asyncio.shield(written)
                    partitions.append(_result(index, outcome, self._start(name, index)))
                results.append(ProduceTopicResult(name=name, partitions=partitions))
        except asyncio.CancelledError:
            if request.acks:
                _give_up(one for _, queued in topics for _, one in queued)
            raise
        if request.acks:
            return ProduceResponse(topics=results)
        for topic in results:
            for one in topic.partitions:
                if one.error_code != NONE:
                    raise InvalidRequest(printable(f"{topic.name[:250]}-{one.index}, acks=0: {one.error_message}"))
        return None

    def _start(self, topic: str, partition: int) -> int:
        """The first offset of a partition; -1: it does not exist."""
        state = self._followed.state
        part = state.partitions.get((state.names.get(topic, ""), partition))
        return -1 if part is None else part.start

    def _queued(
        self, state: State, request: ProduceRequest, topic: str, one: ProducedPartition
    ) -> WriteOutcome | asyncio.Future[WriteOutcome]:
        code, topic_id = self._served.by_name(state, topic)
        if request.acks not in (-1, 0, 1):
            return WriteOutcome(INVALID_REQUIRED_ACKS, f"acks={request.acks}, expected 0, 1 or all")
        if code != NONE or (topic_id, one.index) not in state.partitions:
            return WriteOutcome(
                code or UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{one.index} does not exist, or is not served"
            )
        try:
            batch = parse_batch(one.records or b"")
        except RefusedBatch as error:
            return WriteOutcome(error.code, str(error))
        if batch.attributes & TRANSACTIONAL or request.transactional_id is not None:
            return WriteOutcome(TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
        done: asyncio.Future[WriteOutcome] = self._loop.create_future()
        self._queues.write(Waiting(topic, topic_id, one.index, batch, request.acks, request.timeout_ms, done))
        return done

    async def init_producer_id(self, request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            return InitProducerIdResponse(error_code=TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        producer, epoch = request.producer_id, request.producer_epoch
        if producer < 0 or epoch >= INT16_MAX - 1:
            return InitProducerIdResponse(producer_id=producer_id(self._clock.now_ms(), secrets.randbits(RANDOM_BITS)))
        return InitProducerIdResponse(producer_id=producer, producer_epoch=epoch + 1)

    def close(self) -> None:
        self._queues.close()


def _give_up(batches: Iterable[WriteOutcome | asyncio.Future[WriteOutcome]]) -> None:
    for one in batches:
        if isinstance(one, asyncio.Future):
            one.cancel()


def _result(index: int, outcome: WriteOutcome, start: int) -> ProduceResult:
    return ProduceResult(
        index=index,
        error_code=outcome.code,
        base_offset=outcome.offset,
        log_append_time_ms=outcome.time_ms,
        log_start_offset=-1 if outcome.code else start,
        record_errors=[RefusedRecord(batch_index=at, message=text[:MESSAGE_CHARS]) for at, text in outcome.wrong],
        error_message=None if outcome.message is None else outcome.message[:MESSAGE_CHARS],
    )
