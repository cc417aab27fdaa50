"""The promises of a flow with state: each of its commits is compared with the log before it.

effect   a commit has the output of each record between its positions, once and in order, and nothing else
state    it has the state of the keys of these records: the state before, with these records
back     positions never go back, unless the log is restored
erased   after a key was erased from the state, its state has records that were processed since, and no others
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from simulation.log_sim.memoized_functions import MemoizedFunctions
from simulation.verdict import Violation
from spark_log.metadata import records as r
from spark_log.metadata import replay
from spark_log.metadata.state import GroupState, State
from spark_log.model import Slice
from spark_log.segment.reader import Place, decode_run
from spark_log.store.object_names import DATA, LOG

FLOW, SOURCE, TARGET, STATE = "count", "words", "out", "counts"
ERASED = b"e"
"""The key that is erased from the state, and that nobody writes there by hand."""


class Stored(NamedTuple):
    """A record."""

    offset: int
    key: bytes | None
    value: bytes | None


class FlowOracle:
    """Sees every change of the store."""

    def __init__(self, memoized: MemoizedFunctions) -> None:
        self.seen = Counter[str]()
        self.files: Mapping[str, Mapping[str, Any]] = {}
        self.state = memoized.state_in(None, "")
        self.erasures: dict[str, dict[int, int]] = {}
        """By the name of one that is running, the positions of the flow when it began."""
        self._memoized = memoized
        self._decoded: dict[tuple[str, int], list[Stored]] = {}
        """By object and place, with offsets from the start of the slice."""

    def written(self, key: str, content: Any, decided: State | None, now: int) -> None:
        if not key.startswith(LOG) or int(key.removeprefix(LOG)[:20]) != self.state.version + 1:
            return
        batch = self._memoized.decode_batch(content, key)
        if replay.is_in_line(self.state, batch):
            state = replay.next_version(self.state, batch.time)
            for record in batch.records:
                after = replay.replay_records(state, [record])
                self.seen[type(record).__name__] += 1
                if isinstance(record, r.CommitRecord):
                    self._check(record, state, after)
                elif isinstance(record, r.ErasedRecord):
                    self._note_erasure(record, after)
                state = after
        self.state = self._memoized.replay(self.state, batch)

    def deleted(self, key: str, now: int) -> None:
        """Nothing that is needed is deleted in this time."""

    def _check(self, commit: r.CommitRecord, before: State, after: State) -> None:
        moved = {
            entry.partition: (self.position(before, entry.partition), entry.offset)
            for group in commit.groups
            for entry in group.offsets
            if group.group == FLOW
        }
        added = {key[:2]: list(self._new(key, before, after)) for key in _keys(commit)}
        outputs = [row.value or b"" for row in added.pop((before.names[TARGET], 0), [])]
        expected = list[bytes]()
        for number, (start, end) in sorted(moved.items()):
            if end < start:
                raise Violation(f"back: the position in {SOURCE}-{number} goes from {start} to {end}")
            inputs = list(self.rows(after, SOURCE, number, start, end))
            expected += [f"{number}-{row.offset}".encode() for row in inputs]
            self._check_state(before, number, inputs, added.pop((before.names[STATE], number), []))
        if sorted(outputs) != sorted(expected) or _by_partition(outputs) != _by_partition(expected):
            raise Violation(f"effect: a commit moves positions by {moved}, and has the outputs {outputs}")
        self.seen["effects"] += len(expected)

    def _check_state(self, before: State, number: int, inputs: list[Stored], new: list[Stored]) -> None:
        known = {row.key: int(row.value or b"0") for row in self.rows(before, STATE, number)}
        known = {row.key: known.get(row.key, 0) + n for row, n in _counted(inputs)}
        found = {row.key: int(row.value or b"0") for row in new}
        if ERASED in found and _is_erasing(before):  # it was read before the last swap, or after that
            known[ERASED] = found[ERASED]
        if found != known or len(found) != len(new):
            raise Violation(f"state: a commit of {SOURCE}-{number} writes {found}, and not {known}")

    def _note_erasure(self, record: r.ErasedRecord, state: State) -> None:
        if record.begins:
            at = {number: self.position(state, number) for _, number in _of_topic(state, SOURCE)}
            self.erasures.setdefault(record.begins, at)
        began = self.erasures.pop(record.ends, None)
        if began is None or record.incomplete:
            return
        for number, start in began.items():
            values = [int(row.value or b"0") for row in self.rows(state, STATE, number) if row.key == ERASED]
            inputs = self.rows(state, SOURCE, number, start, self.position(state, number))
            if values and values[-1] > (since := sum(row.key == ERASED for row in inputs)):
                raise Violation(f"erased: the state in {STATE}-{number} is {values[-1]}, of {since} records since")
        self.seen["erasures"] += 1

    def position(self, state: State, number: int) -> int:
        key = state.names[SOURCE], number
        at = state.groups.get(FLOW, GroupState()).offsets.get(key)
        return state.partitions[key].start if at is None else at.offset

    def _new(self, key: tuple[str, int], before: State, after: State) -> Iterator[Stored]:
        return self._rows(after, key, before.partitions[key].end, after.partitions[key].end)

    def rows(self, state: State, topic: str, number: int, start: int = 0, end: int = 2**62) -> Iterator[Stored]:
        """The records of a partition, between offsets."""
        return self._rows(state, (state.names[topic], number), start, end)

    def _rows(self, state: State, key: tuple[str, int], start: int, end: int) -> Iterator[Stored]:
        for piece in state.partitions[key].entries:
            assert isinstance(piece, Slice), "the log is too small for index objects"
            if piece.start < end and start < piece.end:
                for row in self._decode(piece, key):
                    at = piece.start + row.offset
                    if start <= at < end:
                        yield row._replace(offset=at)

    def _decode(self, piece: Slice, key: tuple[str, int]) -> list[Stored]:
        known = self._decoded.get((piece.object, piece.position))
        if known is None:
            content = self.files[DATA][piece.object][piece.position : piece.position + piece.length]
            known = self._decoded[piece.object, piece.position] = []
            for offsets, records in decode_run(
                content, piece, ["key", "value"], place=Place(piece.object, key[0], *key)
            ):
                columns = (records.column(name).to_pylist() for name in ("key", "value"))
                known += map(Stored, map(int, offsets), *columns)
        return known


def _of_topic(state: State, topic: str) -> list[tuple[str, int]]:
    return [key for key in state.partitions if key[0] == state.names[topic]]


def _is_erasing(state: State) -> bool:
    known = state.erasures.get(state.names[STATE])
    return known is not None and any(one.incomplete for one in known.unfinished)


def _keys(commit: r.CommitRecord) -> set[tuple[str, int]]:
    assert not commit.pieces, "the commits are too small for index objects"
    return {(run.topic_id, run.partition) for _, run in commit.slices}


def _by_partition(places: list[bytes]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for place in places:
        found.setdefault(place.partition(b"-")[0], []).append(place)
    return found


def _counted(inputs: list[Stored]) -> list[tuple[Stored, int]]:
    """A record of each key, and how many there are."""
    counts = Counter(row.key for row in inputs)
    return [(row, counts[row.key]) for row in {row.key: row for row in inputs}.values()]
