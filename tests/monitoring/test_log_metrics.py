"""Metrics that are kept between scrapes, against those that are computed from the state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_log.groups.group import ConsumerGroupState, Group
from spark_log.metadata.replay import replay
from spark_log.metadata.state import State
from spark_log.monitoring.log_metrics import GroupMetrics, TopicMetrics
from spark_log.server.quotas import Quotas, group_names, topic_sizes
from spark_log.server.tokens import ANYBODY, Grant
from tests.unit.metadata.history import History
from tests.unit.metadata.test_replay import carry_out, commands

GRANTS = (ANYBODY, Grant("a", "write", ("t0", "t2"), ("g0",)), Grant("none", "write", ("x",), ("x",)))
visits = st.lists(st.sampled_from(("note", "scrape", "pass")), min_size=60, max_size=60)


def group(name: str, generation: int) -> Group:
    state = ConsumerGroupState.STABLE if generation % 2 else ConsumerGroupState.PREPARING_REBALANCE
    return Group(group_id=name, state=state, generation=generation)


@given(commands, visits)
def test_a_scrape_of_what_changed_is_a_scrape_of_everything(
    command: list[tuple[str, int, int]], visit: list[str]
) -> None:
    """Whatever happened between two scrapes, in any order and number of versions."""
    log = carry_out(command)
    topics, groups, quotas = TopicMetrics(), GroupMetrics(), Quotas({})
    for number, (state, kind) in enumerate(zip(log.states, visit * 2, strict=False)):
        if kind == "note":
            topics.note(state), groups.note(state), quotas.note(state)
        if kind == "scrape" or number == len(log.states) - 1:
            shared = {f"g{number % 3}": group(f"g{number % 3}", number), "unwritten": group("unwritten", number // 9)}
            fresh, all_groups = TopicMetrics(), GroupMetrics()
            assert sorted(topics.lines(state)) == sorted(fresh.lines(state))
            assert topics.objects_bytes == fresh.objects_bytes == sum(row.size for row in state.objects.values())
            expected = all_groups.text(state, shared, number).splitlines()
            assert sorted(groups.text(state, shared, number).splitlines()) == sorted(expected)
            assert_counts(quotas, state)


@given(commands, commands)
def test_a_scrape_after_records_of_another_log_is_a_scrape_of_everything(
    ours: list[tuple[str, int, int]], theirs: list[tuple[str, int, int]]
) -> None:
    """Many of them are void: their changes name topics, partitions and groups that the state does not have."""
    state = carry_out(ours).state
    topics, groups, quotas = TopicMetrics(), GroupMetrics(), Quotas({})
    for batch in (None, *carry_out(theirs).batches):
        state = state if batch is None else replay(state, batch)
        assert sorted(topics.lines(state)) == sorted(TopicMetrics().lines(state))
        assert sorted(groups.text(state, {}, 0).splitlines()) == sorted(GroupMetrics().text(state, {}, 0).splitlines())
        assert_counts(quotas, state)


def test_a_scrape_after_a_commit_to_a_partition_that_does_not_exist_is_as_before() -> None:
    """The commit is void, and its topic exists."""
    log, topics = History(), TopicMetrics()
    topic_id = log.create("t", 1)
    log.commit((topic_id, 0, 5))
    before = topics.lines(log.state)
    log.write(log.upload((topic_id, 1, 5)))
    assert topics.lines(log.state) == before


def assert_counts(quotas: Quotas, state: State) -> None:
    for grant, usage in zip(GRANTS, quotas.usage(GRANTS, state, lambda name: 0), strict=True):
        sizes = topic_sizes(grant, state)
        assert usage[1:4] == (len(sizes), sum(sizes.values()), len(group_names(grant, state)))


@given(commands)
def test_a_scrape_says_what_the_state_has(command: list[tuple[str, int, int]]) -> None:
    """Records by topic, and the lag of each group by topic."""
    state = carry_out(command).state
    lines = set(TopicMetrics().lines(state)) | set(GroupMetrics().text(state, {}, 0).splitlines())
    for name, topic_id in state.names.items():
        records = sum(part.end - part.start for _, part in state.topic_partitions(topic_id))
        assert f'pylog_topic_records{{topic="{name}"}} {records}' in lines
    for name, stored in state.groups.items():
        for topic_id in {key[0] for key in stored.offsets}:
            lag = sum(
                max(0, state.partitions[key].end - max(state.partitions[key].start, position.offset))
                for key, position in stored.offsets.items()
                if key[0] == topic_id
            )
            assert f'pylog_group_lag{{group="{name}",topic="{state.topics[topic_id].name}"}} {lag}' in lines
