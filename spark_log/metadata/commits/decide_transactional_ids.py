"""Decisions: transactional ids and other producers whose holders replace each other."""

from __future__ import annotations

from spark_log.configs.settings import (
    cluster_config,
)
from spark_log.errors import (
    InvalidTxnTimeout,
    ProducerFenced,
)
from spark_log.metadata import records as r
from spark_log.metadata.decision import Decision
from spark_log.metadata.state import ProducerState, State


def is_timed_out(known: ProducerState, now_ms: int) -> bool:
    """Whether a transaction has not been committed in time."""
    return known.timeout_ms > 0 and known.last_commit is None and now_ms - known.time > known.timeout_ms


def decide_init_producer(state: State, producer: str, timeout_ms: int = 0) -> Decision[int]:
    """Take over a transactional id.  The reply is the new epoch; the previous holder is fenced.

    timeout_ms:  timeout of the transaction that begins; 0: no transaction begins.
    Raises InvalidTxnTimeout if it exceeds the log's maximum.
    """
    limit = cluster_config(state.configs, "transaction.max.timeout.ms")
    if timeout_ms > limit:
        raise InvalidTxnTimeout(
            f"transaction {producer.partition(':')[2]!r}: transaction_timeout_ms={timeout_ms} is above this log's "
            f"transaction.max.timeout.ms, {limit}: use a shorter timeout, or raise the limit with `pylog config alter`"
        )
    known = state.producers.get(producer)
    record = r.InitProducerRecord(producer=producer, timeout_ms=timeout_ms)
    return Decision((record,), 0 if known is None else known.epoch + 1)


def epoch_of_holder(state: State, producer: str, holder: str) -> int:
    """Epoch under which `holder` may commit for an identity with successive holders.

    Raises ProducerFenced if a later holder has replaced it.
    """
    known = state.producers.get(producer)
    if known is None:
        return 0
    if holder in known.former:
        raise ProducerFenced(f"{producer}: {holder} was replaced by {known.holder}", current=known.epoch)
    return known.epoch if holder == known.holder else known.epoch + 1
