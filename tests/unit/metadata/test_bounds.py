"""Nothing in the state grows with time, only with what is live (docs/decisions/0052-dropped-objects.md)."""

from __future__ import annotations

from pathlib import Path

from immutables import Map

from spark_log.metadata.commits.decide_transactional_ids import decide_init_producer
from spark_log.metadata.commits.kafka_batches import KafkaBatch, KafkaBatches
from spark_log.metadata.commits.kafka_producers import producer_id
from spark_log.metadata.formats.checkpoint_format import encode_checkpoint
from spark_log.metadata.groups.decide_groups import decide_commit_offsets, decide_delete_offsets
from spark_log.metadata.maintenance.decide_maintenance import decide_expire, decide_fence
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.replay import FORMER_HOLDERS, TIMES_PER_AGE
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_schemas import decide_set_schema
from spark_log.metadata.topics.decide_topics import decide_delete_topic, decide_trim
from tests.unit.metadata.history import History, positions

RECORD = Path(__file__).parents[3] / "docs" / "decisions" / "0052-dropped-objects.md"
DAY = 86_400_000
IDENTITIES_DAYS = 90
"""streaming.identity.retention.ms: the longest that anything is remembered."""


def live_through_a_day(log: History, topic: str, day: int) -> None:
    """New writers of every kind, groups, topics and objects; what was there yesterday goes."""
    for number in range(3):
        batches = KafkaBatches(topic, 0, (KafkaBatch(producer_id(log.now, number), 0, 0, 10, 0),))
        log.commit((topic, 0, 10), producer=f"plain {day}.{number}", kafka_batches=(batches,))
        log.now += DAY // 4
    log.commit((topic, 0, 10), producer=f"query:{day}", birth=-1, dense=False)
    log.commit((topic, 0, 1), producer="sink:s", epoch=day, holder=f"query {day}", birth=-1, dense=False)
    log.do(lambda state, now: decide_init_producer(state, f"txn:{day}"))
    short = log.create(f"day-{day}")
    log.commit((short, 0, 5))
    log.do(lambda state, now: decide_set_schema(state, f"day-{day}", short, "a int"))
    log.do(lambda state, now: decide_set_schema(state, f"day-{day}", short, "a int, b string"))
    for group in (f"g{day}", f"h{day}"):
        log.do(lambda state, now, group=group: decide_commit_offsets(state, (positions(group, short, 3),), now))
        log.do(lambda state, now, group=group: decide_commit_offsets(state, (positions(group, topic, 3),), now))
    log.do(lambda state, now: decide_delete_offsets(state, f"g{day}", ()))
    log.do(lambda state, now: decide_delete_topic(state, f"day-{day}"))
    log.prune((short, 0))
    log.seal((topic, 0))
    log.do(lambda state, now: decide_trim(state, {(topic, 0): state.partitions[topic, 0].end - 5}))
    log.prune((topic, 0))
    log.now += DAY // 4
    log.do(decide_fence)
    log.do(decide_expire)


def sizes(state: State) -> dict[str, int]:
    """Of each part of the state that has a size."""
    found = {
        field: len(value)
        for field in State.__dataclass_fields__
        if isinstance(value := getattr(state, field), Map | LayeredMap | tuple)
    }
    found["entries"] = sum(len(part.entries) for part in state.partitions.values())
    found["positions"] = sum(len(group.offsets) for group in state.groups.values())
    found["former"] = max((len(known.former) for known in state.producers.values()), default=0)
    return found


def test_after_the_longest_retention_nothing_grows_any_more() -> None:
    """Days of the same work: the state is as large on day 240 as on day 120."""
    log, found, bytes_of = History(), {}, {}
    topic = log.create()
    for day in range(240):
        live_through_a_day(log, topic, day)
        found[day + 1], bytes_of[day + 1] = sizes(log.state), len(encode_checkpoint(log.state))
    assert found[240] == found[120]
    assert bytes_of[240] < bytes_of[120] * 1.05
    assert found[240]["former"] == FORMER_HOLDERS
    assert found[240]["producers"] <= 2 * IDENTITIES_DAYS + 20
    assert 0 < found[240]["kafka_producers"] <= 10
    assert found[240]["dropped"] <= 10


def test_versions_with_their_times_are_about_as_many_as_steps_of_the_fence() -> None:
    """However many commits there are: an entry for each 128th of the age, and the fence removes those it has passed."""
    log = History()
    topic = log.create()
    for number in range(2000):
        log.commit((topic, 0, 1), producer="p", sequence=number, birth=0)
        log.now += DAY // 500
        if number % 50 == 0:
            log.do(decide_fence)
    assert TIMES_PER_AGE * 0.9 <= len(log.state.times) <= TIMES_PER_AGE * 1.2


def test_the_record_says_what_bounds_each_part_of_the_state() -> None:
    """A new part is added there, and to the days above if it can be."""
    bounds = RECORD.read_text().partition("## What bounds the rest")[2]
    assert [
        field for field in sizes(State()) if f"`{field}`" not in bounds and field not in ("entries", "positions")
    ] == []
