"""The batches that a leader has decided on: which become final, which are truncated, and which replies are sent."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from spark_log.metadata.state import State
from spark_log.server.quorum.pipeline import Offer, Pipeline

BASE = State()


def at(version: int) -> State:
    """A state that tests tell from others by its version."""
    return replace(BASE, version=version)


def offer(index: int, *replies: str, version: int | None = None) -> Offer[str]:
    return Offer(index, b"batch %d" % index, at(index if version is None else version), list(replies))


def test_replies_wait_until_their_batch_is_final() -> None:
    """And the next batch is decided on the state after it."""
    line: Pipeline[str] = Pipeline(at(0))
    line.offer(offer(5, "a"))
    line.offer(offer(6, "b"))
    assert line.newest == at(6) and line.state == at(0)
    found = line.final(5, b"batch 5")
    assert found is not None and found.replies == ["a"] and line.state == at(5) and line.newest == at(6)


def test_a_reply_without_records_waits_for_the_state_it_was_decided_on() -> None:
    line: Pipeline[str] = Pipeline(at(0))
    assert not line.attach(["now"])
    line.offer(offer(5, "a"))
    assert line.attach(["refused"])
    assert line.truncated(5) == ["a", "refused"]


def test_a_batch_of_another_leader_at_the_same_index_is_not_ours() -> None:
    line: Pipeline[str] = Pipeline(at(0))
    line.offer(offer(5, "a"))
    assert line.final(5, b"another") is None and line.state == at(0)
    assert line.truncated(5) == ["a"]


# Promise: service.md#keep-the-metadata-in-a-quorum
@settings(max_examples=60)
@given(st.lists(st.sampled_from(["offer", "attach", "final", "truncate", "lose"]), max_size=60), st.randoms())
def test_every_reply_is_told_once_and_only_as_the_log_says(steps: list[str], rng) -> None:  # type: ignore[no-untyped-def]
    """Against a log that is a list: replies of final batches come from `final`, in order; others are given up."""
    line: Pipeline[str] = Pipeline(at(0))
    log: list[tuple[int, list[str]]] = []
    final, done, lost = 0, list[str](), list[str]()
    expected_done, expected_lost = list[str](), list[str]()
    for made, step in enumerate(steps):
        name = f"reply {made}"
        if step == "offer":
            line.offer(offer(made, name))
            log.append((made, [name]))
        elif step == "attach":
            waits = line.attach([name])
            assert waits == (final < len(log))
            (log[-1][1] if waits else expected_done).append(name)
            if not waits:
                done.append(name)
        elif step == "final" and final < len(log):
            index, replies = log[final]
            found = line.final(index, b"batch %d" % index)
            assert found is not None
            done += found.replies
            expected_done += replies
            final += 1
        elif step == "truncate":
            cut = rng.randint(final, len(log))
            index = log[cut][0] if cut < len(log) else made
            lost += line.truncated(index)
            expected_lost += [name for _, replies in log[cut:] for name in replies]
            del log[cut:]
        elif step == "lose" and final < len(log):
            lost += line.unknown(log[final][0])
            expected_lost += log[final][1]
            del log[final]
        assert done == expected_done and lost == expected_lost
        assert line.newest == (at(log[-1][0]) if final < len(log) else line.state) and len(line) == len(log) - final
