"""Runs that several packs of a rewrite need are read once, as far as memory allows."""

from __future__ import annotations

from typing import TypeVar

import pytest

from spark_log.errors import CorruptObject, StorageUnavailable
from spark_log.journal.store_operations import Get, Op, Steps
from spark_log.model import Slice
from spark_log.rewriting.run_cache import HELD_BYTES, HeldRuns
from spark_log.rewriting.slice_reads import WHOLE_BYTES_MAX

Result = TypeVar("Result")
BYTES = 10
NAMES = ("a", "b")


def run(name: str, number: int, *, position: int | None = None, length: int = BYTES) -> Slice:
    return Slice(0, 1, name, number * BYTES if position is None else position, length, 0, 1, 0, 0)


class Reads:
    """Answers the requests of steps, and counts them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[tuple[str, int, int | None]] = []
        self._error = error

    def of(self, steps: Steps[Result]) -> Result:
        answer: object = None
        try:
            while True:
                ops = steps.send(answer)
                if self._error is not None:
                    steps.throw(self._error)
                assert isinstance(ops, list)
                answer = [self._get(op) for op in ops]
        except StopIteration as stop:
            result: Result = stop.value
            return result

    def _get(self, op: Op) -> bytes | None:
        assert isinstance(op, Get)
        self.asked.append((op.key, op.start, op.end))
        return None if op.key == "missing" else bytes(range(256))[op.start : op.end]


def expected(pack: list[Slice]) -> dict[tuple[str, int], bytes]:
    return {(one.object, one.position): bytes(range(256))[one.position : one.position + BYTES] for one in pack}


PACKS = [[run(name, number) for name in NAMES] for number in range(4)]


def test_each_object_is_read_once() -> None:
    """Four packs need a run of each of two objects: two requests in all."""
    held, reads = HeldRuns(PACKS), Reads()
    for pack in PACKS:
        reads.of(held.fetch(pack))
        assert reads.of(held.read(pack)) == expected(pack)
    assert reads.asked == [("a", 0, 40), ("b", 0, 40)]


def test_a_pack_that_is_read_again_reads_its_own_runs() -> None:
    """As when a new object could not be written, and its partitions are tried one by one."""
    held, reads = HeldRuns(PACKS), Reads()
    reads.of(held.fetch(PACKS[0]))
    for _ in range(2):
        assert reads.of(held.read(PACKS[0])) == expected(PACKS[0])
    assert reads.asked[2:] == [("a", 0, 10), ("b", 0, 10)]


def test_an_object_of_a_single_pack_is_not_held() -> None:
    """It is read with its pack."""
    held, reads = HeldRuns([[run("a", 0), run("a", 1)], [run("b", 0)]]), Reads()
    reads.of(held.fetch([run("a", 0)]))
    assert reads.asked == []


@pytest.mark.parametrize(
    "packs",
    [
        [[run("a", 0)], [run("a", 1, position=WHOLE_BYTES_MAX)]],
        [[run("a", 0, length=HELD_BYTES)], [run("a", 1)]],
    ],
)
def test_large_objects_are_not_held(packs: list[list[Slice]]) -> None:
    """The runs of each pack are read for it."""
    held, reads = HeldRuns(packs), Reads()
    for pack in packs:
        reads.of(held.fetch(pack))
    assert reads.asked == []


def test_held_runs_are_bounded() -> None:
    """Objects above the limit are read pack by pack."""
    size = WHOLE_BYTES_MAX // 2
    names = [f"o{number}" for number in range(HELD_BYTES // size)]
    packs = [[run(name, 0, position=half * size, length=size) for name in names] for half in range(2)]
    held, reads = HeldRuns(packs), Reads()
    reads.of(held.fetch(packs[0]))
    assert len({name for name, _, _ in reads.asked}) == len(names) // 2


def test_a_missing_object_has_no_run() -> None:
    """The other runs of the pack are there."""
    packs = [[run("a", number), run("missing", number)] for number in range(2)]
    held, reads = HeldRuns(packs), Reads()
    reads.of(held.fetch(packs[0]))
    assert reads.of(held.read(packs[0])) == expected(packs[0][:1])


def test_an_object_that_cannot_be_read_is_left_to_each_pack() -> None:
    """So that the pack reports its partition, and the others are rewritten."""
    held = HeldRuns(PACKS)
    Reads(CorruptObject("damaged")).of(held.fetch(PACKS[0]))
    assert Reads().of(held.read(PACKS[0])) == expected(PACKS[0])
    with pytest.raises(StorageUnavailable):
        Reads(StorageUnavailable("gone")).of(HeldRuns(PACKS).fetch(PACKS[0]))
