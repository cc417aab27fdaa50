"""Coordinators in the metadata log: whose batches count."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import NotCoordinator
from spark_log.metadata.decide_coordinators import decide_release, decide_take_over
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.records import AnyRecord, Batch, CreateTopicRecord, ReleaseRecord, TakeOverRecord
from spark_log.metadata.replay import replay
from spark_log.metadata.state import Leadership, State
from tests.unit.metadata.checkpoints import frames_of


def batch(*records: AnyRecord, epoch: int = 0) -> Batch:
    return Batch(id="b", time=1000, epoch=epoch, records=records)


def take(epoch: int) -> Batch:
    return batch(TakeOverRecord(epoch=epoch, address=f"host{epoch}:9550", host="here", cluster_id="c"), epoch=epoch)


def topic(name: str, epoch: int = 0) -> Batch:
    return batch(CreateTopicRecord(topic_id=f"id-{name}", name=name, partitions=1), epoch=epoch)


def names(*batches: Batch) -> list[str]:
    return sorted(reduce(replay, batches, State()).names)


def test_embedded_commits_after_a_take_over_are_void() -> None:
    """A writer that did not notice the takeover changes nothing."""
    assert names(topic("before"), take(1), topic("after"), topic("led", epoch=1)) == ["before", "led"]


# Promise: service.md#leadership
def test_of_two_coordinators_the_higher_epoch_wins() -> None:
    """Writes of the previous one after its replacement are void."""
    assert names(take(1), topic("a", epoch=1), take(2), topic("b", epoch=1), topic("c", epoch=2)) == ["a", "c"]


def test_a_take_over_that_does_not_follow_is_void() -> None:
    """Two that take over from the same epoch cannot both have it.  A quorum may leave epochs out."""
    state = reduce(replay, [take(1), take(3), take(3), take(2)], State())
    assert state.coordinator == Leadership(3, "host3:9550", "here", 1000)


def test_after_a_release_embedded_commits_count_again_and_the_coordinators_do_not() -> None:
    """A graceful stop gives the log back."""
    assert names(take(1), batch(ReleaseRecord(epoch=1), epoch=1), topic("a"), topic("b", epoch=1)) == ["a"]


def test_a_release_by_hand_fences_the_coordinator_that_was_thought_dead() -> None:
    """It is under the next epoch: neither the commits nor the release of the old one count any more."""
    late = batch(ReleaseRecord(epoch=1), epoch=1)
    assert names(take(1), batch(ReleaseRecord(epoch=2)), topic("zombie", epoch=1), late, topic("a")) == ["a"]
    assert names(take(1), batch(ReleaseRecord(epoch=2)), take(3), late, topic("b", epoch=3)) == ["b"]


def test_who_was_slower_in_taking_over_hears_of_the_other() -> None:
    """The decision names the epoch to replace; if another one is current, it is refused with the address."""
    state = replay(State(), take(1))
    with pytest.raises(NotCoordinator) as refused:
        decide_take_over(state, 0, "late:1", "here", "c")
    assert (refused.value.address, refused.value.epoch) == ("host1:9550", 1)
    assert decide_take_over(state, 1, "next:1", "here", "c").reply == 2


@pytest.mark.parametrize(("epoch", "done"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_release_is_for_the_epoch_in_force_or_by_the_next(epoch: int, done: bool) -> None:
    """A coordinator that was replaced cannot release its successor's log."""
    decision = decide_release(replay(State(), take(1)), epoch)
    assert (decision.reply, bool(decision.records)) == (done, done)


def test_a_log_that_is_nobodys_cannot_be_released() -> None:
    """A second release writes nothing."""
    assert decide_release(State(), 1).reply is False


def test_epoch_and_holder_survive_batch_and_checkpoint() -> None:
    """The decoded value equals the encoded one."""
    written = topic("a", epoch=7)
    assert decode_batch(encode_batch(written), "x") == written
    state = replay(State(), take(1))
    assert decode_checkpoint(encode_checkpoint(state), "x").coordinator == state.coordinator


def test_a_log_without_coordinators_is_written_as_before() -> None:
    """Older versions can still read it."""
    assert b"epoch" not in encode_batch(topic("a")).splitlines()[1]
    ((_, _, header), *_) = frames_of(encode_checkpoint(replay(State(), topic("a"))))
    assert b'"version"' in header and b"coordinator" not in header


@given(st.lists(st.tuples(st.sampled_from(["take", "release", "free", "topic"]), st.integers(0, 4)), max_size=25))
def test_whatever_arrives_in_whatever_order_only_the_epoch_in_force_counts(steps: list[tuple[str, int]]) -> None:
    """Held against a model: one number for the last epoch, and whether somebody has the log under it."""
    state, last, held, expected = State(), 0, False, set()
    for number, (kind, epoch) in enumerate(steps):
        match kind:
            case "take":
                state = replay(state, take(epoch))
                if epoch > last:
                    last, held = epoch, True
            case "release" | "free":
                state = replay(state, batch(ReleaseRecord(epoch=epoch), epoch=epoch if kind == "release" else 0))
                if held and epoch in (last, last + 1):
                    last, held = epoch, False
            case _:
                state = replay(state, topic(f"t{number}", epoch=epoch))
                if epoch == (last if held else 0):
                    expected.add(f"t{number}")
        assert state.coordinator.epoch == last and bool(state.coordinator.address) is held
    assert set(state.names) == expected
