"""The state of a node of a quorum, while a snapshot of it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from spark_log.errors import UnsupportedVersion
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import folded
from spark_log.metadata.maps.column_map import ColumnMap
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.records import Batch, CreateTopicRecord, FeatureLevelRecord
from spark_log.metadata.replay import replay
from spark_log.metadata.state import ObjectRow, State
from spark_log.quorum.node.node_config import DIGEST_MS
from spark_log.server.quorum.pipeline import Offer
from spark_log.server.quorum.state import HELD_MAX, HELD_S, LEFT_FOR_THE_LOOP, STATES_MAX, Content, QuorumState

MANY = {f"data/{1:016x}/{number:016x}.seg": ObjectRow(5000, 1000, 1) for number in range(11_000)}
"""Objects that a snapshot puts into columns."""


class Node:
    """A state, and the calls that wait for the event loop."""

    def __init__(self, digest_ms: int = DIGEST_MS) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.compared: list[int] = []
        """Versions."""
        self.state = QuorumState(
            lambda offer: None,
            lambda: None,
            self.waiting.append,
            lambda state: self.compared.append(state.version),
            digest_ms,
        )
        self.state.pipeline.state = replace(State(), objects=LayeredMap(MANY))

    def apply(self, count: int) -> None:
        for _ in range(count):
            self.state.apply(0, self.batch())

    def batch(self, time_ms: int = 1) -> bytes:
        name = f"topic-{self.state.final.version}"
        record = CreateTopicRecord(topic_id=f"id-of-{name}", name=name, partitions=1)
        return encode_batch(Batch(id="b", time=time_ms, epoch=0, records=(record,)))

    def apply_at(self, *minutes: float) -> None:
        for minute in minutes:
            self.state.apply(0, self.batch(int(minute * 60_000)))

    def run_waiting(self) -> None:
        for call in self.waiting:
            call()


def test_after_a_snapshot_many_rows_are_in_columns() -> None:
    """With what was applied meanwhile, and what is not final yet; the event loop replays some batches only."""
    node = Node()
    pieces: Iterator[bytes] = iter(node.state.snapshot())
    next(pieces)
    node.apply(300)
    assert list(pieces)
    node.apply(LEFT_FOR_THE_LOOP)
    data = node.batch()
    offered = end_state(node.state.final, data)
    node.state.pipeline.offer(Offer(1, data, offered, []))
    before = node.state.final
    node.run_waiting()
    after = node.state.final
    assert after == before and after is not before
    assert isinstance(after.objects.base, ColumnMap) and not after.objects.changes
    assert node.state.pipeline.newest == offered
    assert isinstance(node.state.pipeline.newest.objects.base, ColumnMap)


def end_state(state: State, data: bytes) -> State:
    return replay(state, decode_batch(data, "a batch"))


def test_a_state_that_is_too_far_ahead_keeps_its_rows() -> None:
    """The next snapshot puts them into columns."""
    node = Node()
    list(node.state.snapshot())
    node.apply(500)
    before = node.state.final
    node.run_waiting()
    assert node.state.final is before


def test_a_version_that_a_query_reads_is_kept() -> None:
    """For an hour after it was last asked for, and only so many of them; others are forgotten when they are old."""
    node = Node()
    node.apply(1)
    first = node.state.final
    node.state.hold(first.version, 0.0)
    node.apply(1)
    node.apply(STATES_MAX)
    assert node.state.state_at(first.version) is first and node.state.state_at(first.version + 1) is None
    newest = node.state.final.version
    for version in range(newest - HELD_MAX + 2, newest + 1):
        node.state.hold(version, 1.0)
    assert node.state.state_at(first.version) is first
    node.state.hold(newest - HELD_MAX + 1, HELD_S - 1)
    assert node.state.state_at(first.version) is None
    node.apply(STATES_MAX)
    assert node.state.state_at(newest) is not None
    node.state.forget_held(HELD_S)
    assert node.state.state_at(newest) is not None
    node.state.forget_held(HELD_S + 2)
    assert node.state.state_at(newest) is None


def test_a_level_of_a_newer_pylog_ends_a_node() -> None:
    """With what to do, and the state as it was."""
    node = Node()
    record = FeatureLevelRecord(name="metadata.version", level=99)
    before = node.state.final
    with pytest.raises(
        UnsupportedVersion, match="level 99 of metadata.version, this pylog supports up to 1 .*: update pylog"
    ):
        node.state.apply(7, encode_batch(Batch(id="b", time=1, epoch=0, records=(record,))))
    assert node.state.final is before


# Promise: quorum.md#when-the-states-of-nodes-differ
def test_states_are_compared_at_versions_that_all_nodes_know() -> None:
    """The first one in ten minutes, and in each minute while nodes differ."""
    node = Node()
    node.apply_at(1, 9, 10, 10.5, 19, 20)
    assert node.compared == [3, 6]
    node.state.is_compared_often = True
    node.apply_at(20.5, 21, 21.5, 25)
    assert node.compared == [3, 6, 8, 10]


def test_what_is_compared_often_is_what_others_compare_and_more() -> None:
    """Whatever the interval: they may not know yet that nodes differ."""
    node, often = Node(digest_ms=25), Node(digest_ms=25)
    often.state.is_compared_often = True
    for time_ms in range(60):
        for one in (node, often):
            one.state.apply(0, one.batch(time_ms))
    assert node.compared == [26, 51] and {26, 51} < {*often.compared}


# Promise: quorum.md#when-the-states-of-nodes-differ
def test_the_last_state_of_an_idle_log_is_compared() -> None:
    """Once; again after it was replaced by a snapshot.  So a node that was restarted is known to be right."""
    node = Node()
    node.state.compare_if_idle(0)
    node.apply_at(1, 2)
    for now_s in (1, 60, 61, 62, 200):
        node.state.compare_if_idle(now_s)
    assert node.compared == [2]
    node.apply_at(3)
    node.state.compare_if_idle(201)
    node.state.compare_if_idle(230)
    assert node.compared == [2]
    node.state.restore(iter([*Content(folded(end_state(node.state.final, node.batch()))).pieces()]))
    for now_s in (231, 290, 291):
        node.state.compare_if_idle(now_s)
    assert node.compared == [2, 4]
