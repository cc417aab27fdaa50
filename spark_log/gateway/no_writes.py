"""The answer to Produce of a gateway that only reads.

librdkafka reads from no broker that does not announce Produce, so it is announced, and refused.
"""

from __future__ import annotations

from spark_log.errors import InvalidRequest
from spark_log.gateway.error_codes import TOPIC_AUTHORIZATION_FAILED
from spark_log.gateway.messages import ProduceRequest, ProduceResponse, ProduceResult, ProduceTopicResult

REASON = "this gateway serves reads only; write by pylog's clients or by Spark"


async def refuse_writes(request: ProduceRequest, version: int) -> ProduceResponse:
    """Raises InvalidRequest if the client waits for no answer: the connection is closed, as Kafka does."""
    if request.acks == 0:
        raise InvalidRequest(REASON)
    return ProduceResponse(
        topics=[
            ProduceTopicResult(
                name=topic.name,
                partitions=[
                    ProduceResult(index=one.index, error_code=TOPIC_AUTHORIZATION_FAILED, error_message=REASON)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
