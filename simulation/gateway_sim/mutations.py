"""The rules of sequences, each removed in turn: the simulation has to notice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulation.mutation import Mutation, Patch
from spark_log.gateway import rounds
from spark_log.metadata import records as r
from spark_log.metadata.commits import decide_commits, kafka_producers
from spark_log.metadata.commits.kafka_producers import Numbered
from spark_log.metadata.state import KafkaProducer, State, TopicKey

_accept = rounds.accept


def _any_batches(state: State, commit: r.CommitRecord, rows: Mapping[TopicKey, int]) -> None:
    """Whatever the log has."""


def _never_written(state: State, key: TopicKey, batch: Numbered) -> None:
    """No batch is one that is sent again."""


def _by_any_state(state: State, bodies: Sequence[Any], now_ms: int, *, is_newest: bool) -> Any:
    return _accept(state, bodies, now_ms, is_newest=True)


def _may_have_expired(state: State, producer: int) -> bool:
    return True


def _begins_with_0(known: KafkaProducer, key: TopicKey, batch: Numbered) -> bool:
    return known.topic_id != key[0] and batch.first == 0


MUTATIONS = {
    "no_decision": Mutation(
        "a commit is refused if a batch is in the log, or not the next one",
        (Patch(decide_commits, "check_batches", _any_batches),),
    ),
    "no_repeats": Mutation(
        "a batch that is in the log is answered with its offset", (Patch(rounds, "written", _never_written),)
    ),
    "two_kept": Mutation("the last five batches are kept", (Patch(kafka_producers, "BATCHES_KEPT", 2),)),
    "old_state": Mutation(
        "a batch is refused as out of order by the newest state only", (Patch(rounds, "accept", _by_any_state),)
    ),
    "begins_anywhere": Mutation(
        "an unknown producer that cannot have expired begins with 0",
        (Patch(kafka_producers, "_may_have_expired", _may_have_expired),),
    ),
    "begins_with_0": Mutation(
        "in a topic that was created again, a producer may begin with a batch that had no answer",
        (Patch(kafka_producers, "_begins", _begins_with_0),),
    ),
}
