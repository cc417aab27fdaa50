"""Quotas of tokens: what counts, and what is refused."""

from __future__ import annotations

import pytest

from spark_log.errors import InvalidRequest, QuotaExceeded, ThrottlingQuotaExceeded
from spark_log.metadata.commands import AddPartitions, AnyCommand, CreateTopic, InitProducer, SeveralCommands
from spark_log.metadata.groups.group_commands import CommitOffsets, RenewSession
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State
from spark_log.server.quotas import Quota, Quotas, TokenBucket, parse_quotas
from spark_log.server.tokens import Grant

GRANT = Grant("billing", "admin", ("billing.",), ("billing-",))


def create(name: str, partitions: int = 1) -> CreateTopic:
    return CreateTopic(name=name, partitions=partitions, topic_id=f"id-{name}")


def commit(group: str) -> CommitOffsets:
    return CommitOffsets(commit=GroupCommit(group, -1, (OffsetEntry("id-billing.a", 0, 0),)))


def state_with(*commands: AnyCommand) -> State:
    state = next_version(State(), 1)
    for command in commands:
        state = replay_records(state, command(state, 1).records)
    return state


def refused(quotas: Quotas, state: State, *commands: AnyCommand) -> list[bool]:
    """Of commands that come in one request."""
    found, claim = [], quotas.claim(GRANT)
    for command in commands:
        try:
            claim.add(command, state, 0.0)
            found.append(False)
        except QuotaExceeded:
            found.append(True)
    claim.release()
    return found


# Promise: security.md#quotas
def test_topics_of_a_token_are_those_with_its_prefixes() -> None:
    """Others do not count; one that is there already is created by nobody."""
    quotas = Quotas({"billing": Quota(topics=2)})
    state = state_with(create("billing.a"), create("orders.a"), create("orders.b"))
    assert refused(quotas, state, create("billing.a"), create("billing.b"), create("billing.c")) == [False, False, True]
    assert refused(quotas, state, create("billing.c")) == [False], "what was not carried out counts no longer"
    other = quotas.claim(GRANT)
    other.add(create("billing.b"), state, 0.0)
    assert refused(quotas, state, create("billing.c")) == [True], "what another request is about to create counts"
    other.release()


# Promise: security.md#quotas
def test_partitions_count_over_all_topics() -> None:
    """Also those that are added; several commands as one count together."""
    quotas = Quotas({"billing": Quota(partitions=10)})
    state = state_with(create("billing.a", 6), create("orders.a", 50))
    assert refused(quotas, state, create("billing.b", 5), create("billing.b", 4)) == [True, False]
    add = [AddPartitions(name="billing.a", total=total) for total in (11, 10, 6)]
    assert refused(quotas, state, *add) == [True, False, False]
    assert refused(quotas, state, SeveralCommands(commands=(create("billing.b", 3), create("billing.c", 2)))) == [True]
    shrink = AddPartitions(name="billing.b", total=1)
    assert refused(quotas, state, SeveralCommands(commands=(create("billing.b", 5), shrink))) == [True]
    assert refused(quotas, state, create("billing.b", 4), shrink, create("billing.c")) == [False, False, True]


# Promise: security.md#quotas
def test_groups_count_when_they_are_new() -> None:
    """A commit of a known group is never refused for their number."""
    quotas = Quotas({"billing": Quota(groups=1)})
    state = state_with(create("billing.a"), commit("billing-1"), commit("others"))
    assert refused(quotas, state, commit("billing-1"), commit("billing-2")) == [False, True]
    claim = quotas.claim(GRANT)
    with pytest.raises(QuotaExceeded, match="the token 'billing' has a quota of groups=1, and would have 2"):
        claim.add_group("billing-2", state)


def test_commits_are_limited_by_the_second() -> None:
    """After a burst of one second's worth; the error says when there is room again, and heartbeats are free."""
    quotas = Quotas({"billing": Quota(commits=2)})
    state, claim = state_with(create("billing.a")), quotas.claim(GRANT)
    change = InitProducer(producer="txn:billing.x")
    for _ in range(2):
        claim.add(change, state, 10.0)
    with pytest.raises(
        ThrottlingQuotaExceeded, match=r"commits=2 a second; nothing was done, retry in 500 ms"
    ) as error:
        claim.add(change, state, 10.0)
    assert error.value.retriable and error.value.retry_after_ms == 500 and not error.value.maybe_applied
    claim.add(RenewSession(group="billing-1", generation=1), state, 10.0)
    claim.add(change, state, 10.5)
    (usage,) = quotas.usage([GRANT], state, lambda name: 7)
    assert usage == ("billing", 1, 1, 0, 7, 3, 1)


# Promise: security.md#quotas
def test_an_atomic_set_counts_as_many_as_it_has() -> None:
    """It begins as soon as one may, and the next ones wait for all of it; heartbeats in it are free."""
    quotas = Quotas({"billing": Quota(commits=2)})
    state, claim = state_with(create("billing.a")), quotas.claim(GRANT)
    change, beat = InitProducer(producer="txn:billing.x"), RenewSession(group="billing-1", generation=1)
    claim.add(SeveralCommands(commands=(change,) * 6 + (beat,) * 9), state, 10.0)
    claim.add(SeveralCommands(commands=(beat,) * 9), state, 10.0)
    with pytest.raises(ThrottlingQuotaExceeded, match="retry in 2500 ms"):
        claim.add(change, state, 10.0)
    claim.add(change, state, 12.5)
    (usage,) = quotas.usage([GRANT], state, lambda name: 7)
    assert (usage.commits, usage.refused) == (7, 1)


def test_a_bucket_holds_one_second() -> None:
    """However long nothing was taken, or if the clock stood still."""
    bucket = TokenBucket(3)
    assert [bucket.take(100.0) for _ in range(4)] == [0, 0, 0, pytest.approx(1 / 3)]
    assert [bucket.take(1000.0) for _ in range(4)][:3] == [0, 0, 0]


def test_other_quotas_leave_no_burst_to_those_that_stay() -> None:
    """A reload fills no bucket whose rate is the same."""
    quotas = Quotas({"billing": Quota(commits=1)})
    claim = quotas.claim(GRANT)
    claim.add(create("billing.a"), State(), 0.0)
    quotas.replace({"billing": Quota(commits=1, topics=9)})
    with pytest.raises(ThrottlingQuotaExceeded):
        claim.add(create("billing.b"), State(), 0.0)
    quotas.replace({})
    claim.add(create("billing.b"), State(), 0.0)


def test_a_line_of_the_configuration_names_each_limit() -> None:
    """A limit that is not named does not exist."""
    assert parse_quotas({"billing": "topics=10 commits=100"}, ["billing"]) == {"billing": Quota(topics=10, commits=100)}


@pytest.mark.parametrize(
    "text", ["topics", "topics=0", "topics=x", "topic=1", "topics=1 topics=2", "topics=-1", "topics=١"]
)
def test_a_quota_that_is_none_is_named(text: str) -> None:
    """With what is possible."""
    with pytest.raises(InvalidRequest, match="quotas: billing: 'topic.* is invalid; expected topics=N, partitions=N"):
        parse_quotas({"billing": text}, ["billing"])
    with pytest.raises(InvalidRequest, match="no token is called 'other'; .tokens. has billing"):
        parse_quotas({"other": "topics=1"}, ["billing"])
