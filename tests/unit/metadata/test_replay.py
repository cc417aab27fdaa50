"""The fold: the same from the beginning and from any checkpoint, and total."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import SparkLogError
from spark_log.groups.group import Roster, RosterMember
from spark_log.groups.member_share import Share
from spark_log.metadata import records as r
from spark_log.metadata.commands import Report, ResetClock
from spark_log.metadata.commits.decide_transactional_ids import decide_init_producer, epoch_of_holder
from spark_log.metadata.commits.kafka_batches import KafkaBatch, KafkaBatches
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.groups.decide_groups import (
    decide_commit_offsets,
    decide_delete_offsets,
    decide_join_group,
    decide_set_generation,
)
from spark_log.metadata.maintenance.decide_maintenance import decide_expire
from spark_log.metadata.replay import replay
from spark_log.metadata.state import Partition, State
from spark_log.metadata.topics.decide_topics import (
    decide_add_partitions,
    decide_delete_topic,
    decide_set_configs,
    decide_trim,
)
from tests.unit.metadata.history import History, positions

COMMANDS = (
    "create", "create", "delete", "grow", "configs", "trim", "commit", "commit", "commit", "commit", "kafka", "stream", "sink",
    "init", "transaction", "positions", "join", "number", "share", "forget", "seal", "prune", "fence", "expire",
    "erase", "clean", "clock", "restore",
)  # fmt: skip
commands = st.lists(
    st.tuples(st.sampled_from(COMMANDS), st.integers(0, 3), st.integers(0, 5)), min_size=15, max_size=60
)


def carry_out(command: Iterable[tuple[str, int, int]]) -> History:
    """A log after commands; those that are refused change nothing."""
    log = History()
    for kind, which, amount in command:
        try:
            _carry_out(log, kind, which, amount)
        except SparkLogError:
            continue
    return log


def _carry_out(log: History, kind: str, which: int, amount: int) -> None:
    name = f"t{which}"
    topic = log.state.names.get(name, "nothing")
    key = (topic, amount % 2)
    match kind:
        case "create":
            log.create(name, 1 + amount % 3, message_timestamp_type="LogAppendTime" if amount == 5 else "CreateTime")
        case "delete":
            log.do(lambda state, now: decide_delete_topic(state, name))
        case "grow":
            log.do(lambda state, now: decide_add_partitions(state, name, amount))
        case "configs":
            changes = {"retention.ms": str(amount) if amount else None}
            log.do(lambda state, now: decide_set_configs(state, name, changes))
        case "trim":
            log.do(lambda state, now: decide_trim(state, {key: amount}))
        case "commit":
            log.commit((topic, 0, amount + 1), (*key, 1), groups=(positions("g", topic, amount),) if amount % 2 else ())
        case "kafka":
            part = log.state.partitions.get((topic, 0), Partition())
            batch = KafkaBatch(which, 0, part.end, 1 + amount, 0)
            log.commit((topic, 0, amount + 1), kafka_batches=(KafkaBatches(topic, 0, (batch,)),))
        case "stream":
            log.commit((*key, 1), producer="q", birth=-1, dense=False, sequence=len(log.batches))
        case "sink":
            epoch = epoch_of_holder(log.state, "s", name)
            log.commit((*key, 1), producer="s", holder=name, epoch=epoch, birth=-1, dense=False, sequence=amount)
        case "init":
            log.do(lambda state, now: decide_init_producer(state, "x"))
        case "transaction":
            known = log.state.producers.get("x", None)
            epoch, last = (known.epoch, known.last) if known else (0, -1)
            log.commit((*key, 2), producer="x", epoch=epoch, birth=-1, sequence=last + 1)
        case "positions":
            log.do(lambda state, now: decide_commit_offsets(state, (positions("h", topic, amount),), now))
        case "join":
            session = {"token": name, "owner": "a query", "timeout_ms": amount}
            log.do(lambda state, now: decide_join_group(state, "g", f"m{amount}", **session))
        case "number":
            share, session = Share(amount % 2, 2 + which), {"token": f"q{amount}", "owner": "a query", "timeout_ms": 1}
            log.do(lambda state, now: decide_join_group(state, "g", f"n{amount}", share=share, **session))
        case "share":
            people = tuple(RosterMember(f"m{n}", None, "", "", 1, 1, b"", bytes([n])) for n in range(amount))
            at = log.state.groups["g"].generation if "g" in log.state.groups else 0
            log.do(lambda state, now: decide_set_generation(state, "g", Roster(at + which, members=people)))
        case "forget":
            log.do(lambda state, now: decide_delete_offsets(state, "g", (key,) if amount else ()))
        case _:
            _maintain(log, kind, key, amount)


def _maintain(log: History, kind: str, key: tuple[str, int], amount: int) -> None:
    match kind:
        case "seal" | "prune":
            for topic_key in sorted(log.state.partitions):
                log.seal(topic_key) if kind == "seal" else log.prune(topic_key)
        case "fence":
            log.pass_fence()
        case "expire":
            log.do(decide_expire)
        case "erase":
            log.do(Report(record=r.ErasedRecord(topic_id=key[0], incomplete=amount == 0)))
        case "clean":
            part = log.state.partitions.get(key, Partition())
            log.write(r.CleanedRecord(partitions=(r.Cleaned(*key, part.end),)))
        case "clock":
            log.now = max(1, log.now - 10**amount)
            log.do(ResetClock(force=True))
        case "restore":
            log.write(r.RestoreRecord(history=f"h{len(log.batches)}", version=log.state.version))


# Promise: format/metadata.md#checkpoints
@given(commands, st.data())
def test_a_checkpoint_and_what_follows_it_give_the_same_state_as_all_records(
    given_commands: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    """replay(all) == replay(rest) on top of what a checkpoint at any version gives back."""
    log = carry_out(given_commands)
    at = data.draw(st.integers(0, len(log.batches)))
    state = decode_checkpoint(encode_checkpoint(log.states[at]), "checkpoint")
    assert state == log.states[at]
    for batch in log.batches[at:]:
        state = replay(state, decode_batch(encode_batch(batch), "batch"))
    assert state == log.state
    assert encode_checkpoint(state) == encode_checkpoint(log.state)


@given(commands)
def test_objects_count_their_live_slices(given_commands: list[tuple[str, int, int]]) -> None:
    """Whatever was committed, sealed, trimmed, pruned and deleted; partitions have no gaps and reach to their end."""
    log = carry_out(given_commands)
    assert log.counts() == log.recount()
    assert not set(log.counts()) & set(log.state.dropped)
    for key, part in log.state.partitions.items():
        slices = log.slices(key)
        assert all(left.end == right.start for left, right in pairwise(slices))
        if part.end > part.start:
            assert slices[0].start <= part.start and slices[-1].end == part.end


@given(commands, commands)
def test_records_of_another_log_are_replayed_without_an_error(
    ours: list[tuple[str, int, int]], theirs: list[tuple[str, int, int]]
) -> None:
    """Replay is total: a reader may fold leftovers that do not follow its state, until a listing tells it."""
    state = carry_out(ours).state
    for batch in carry_out(theirs).batches:
        version = state.version
        state = replay(state, batch)
        assert state.version == version + 1


@given(commands)
def test_the_time_of_a_log_never_goes_back(given_commands: list[tuple[str, int, int]]) -> None:
    """Also when clocks do; only an administrator sets it back."""
    log = carry_out(one for one in given_commands if one[0] != "clock")
    log.now = 1
    log.create("late")
    times = [state.time for state in log.states]
    assert times == sorted(times)


def test_a_void_record_changes_nothing_but_the_version() -> None:
    """A commit of a fenced producer, a second swap, a topic that exists."""
    log = History()
    topic = log.create()
    commit = log.upload((topic, 0, 1), producer="p")
    log.write(commit)
    before = log.state
    late = r.CommitRecord(
        producer="p", sequence=5, birth=1, upload_epoch=1, objects=commit.objects, slices=commit.slices
    )
    swap = r.SwapRecord(upload_epoch=1, changes=(r.Change(topic, 0, 9, 0, 1),))
    twin = r.CreateTopicRecord(topic_id="other", name="t", partitions=3)
    log.write(commit, late, swap, twin, r.DeleteTopicRecord(topic_id="nothing"), r.FenceRecord(upto=99))
    for field in (
        "topics",
        "names",
        "partitions",
        "objects",
        "dropped",
        "producers",
        "groups",
        "forgotten",
        "progressed",
        "fence",
    ):
        assert getattr(log.state, field) == getattr(before, field)


def test_a_holder_takes_over_in_replay_as_in_decisions() -> None:
    """A commit that was decided before the takeover and comes after it is void."""
    log = History()
    topic = log.create()
    late = log.upload((topic, 0, 1), producer="s", holder="q1", birth=-1, dense=False, sequence=1)
    log.commit((topic, 0, 1), producer="s", holder="q1", birth=-1, dense=False, sequence=0)
    log.commit((topic, 0, 1), producer="s", holder="q2", epoch=1, birth=-1, dense=False, sequence=0)
    log.write(late)
    assert log.state.partitions[topic, 0].end == 2


def test_an_object_that_lost_its_last_slice_is_remembered_until_the_fence_has_passed() -> None:
    """So that readers that planned before have their grace."""
    log = History()
    topic = log.create()
    log.commit((topic, 0, 3))
    (name,) = log.state.objects
    log.do(lambda state, now: decide_trim(state, {(topic, 0): 3}))
    log.prune((topic, 0))
    assert dict(log.state.objects) == {} and dict(log.state.dropped) == {name: log.state.version}
    log.pass_fence()
    log.pass_fence()
    assert dict(log.state.dropped) == {}


@pytest.mark.parametrize("seed", range(3))
def test_replay_is_the_same_in_any_order_of_a_state_s_maps(seed: int) -> None:
    """Maps have no order that could leak: a shuffled copy of a state is the same state, and so is what follows."""
    rng = random.Random(seed)
    log = carry_out([(rng.choice(COMMANDS), rng.randrange(4), rng.randrange(6)) for _ in range(60)])
    copy: State = decode_checkpoint(encode_checkpoint(log.states[30 % len(log.states)]), "checkpoint")
    for batch in log.batches[copy.version :]:
        copy = replay(copy, batch)
    assert encode_checkpoint(copy) == encode_checkpoint(log.state)
