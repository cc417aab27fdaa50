"""Swaps, prepared: what objects gain and lose, and which entries are sealed."""

from __future__ import annotations

import random

from spark_log.metadata.formats.slice_index import IndexPart, encode_index
from spark_log.metadata.maintenance.swaps import seal_range
from spark_log.metadata.records import Piece
from spark_log.metadata.state import Partition
from spark_log.model import DataObject, Slice
from tests.unit.metadata.history import History


def test_rewrites_keep_the_counts_of_objects_equal_to_a_recount() -> None:
    """Sealing, sealing again, merging inline and sealed, pruning: in any order."""
    rng = random.Random(7)
    log = History()
    topic = log.create(partitions=2)
    for step in range(150):
        key = (topic, rng.randrange(2))
        log.commit((topic, 0, 2), (topic, 1, 3))
        entries = log.state.partitions[key].entries
        low = rng.randrange(len(entries))
        high = rng.randint(low + 1, len(entries))
        match rng.randrange(4):
            case 0:
                log.seal(key)
            case 1:
                log.swap(key, low, high, sealed=True)
            case 2:
                name = f"data/{log.state.version:016x}/merged{step}.seg"
                new = (Slice(entries[low].start, entries[high - 1].end, name, 0, 1, 0, 1, 0, 0),)
                log.swap(key, low, high, new=new, sealed=rng.random() < 0.5, objects=[DataObject(name, 1, 1)])
        assert log.counts() == log.recount()
        assert log.slices(key)[-1].end == log.state.partitions[key].end


# Promise: measurements.md#the-same-where-pylog-maintain-runs
def test_ten_thousand_appends_leave_few_pieces() -> None:
    """Sealed every 50 appends, a piece folds into the next one while it is at most twice as large: about log n are
    left.
    """
    part = Partition()
    most = 0
    for number in range(10_000):
        one = Slice(number, number + 1, f"o{number}", 0, 1, 0, 1, 0, 0)
        part = part._replace(end=number + 1, entries=(*part.entries, one))
        if number % 50 == 49:
            low, high = seal_range(part)
            part = part._replace(entries=(*part.entries[:low], _piece(part.entries[low:high])))
            most = max(most, len(part.entries))
    assert sum(entry.slices for entry in part.entries if isinstance(entry, Piece)) == 10_000
    assert most <= 9


def _piece(entries: tuple[Slice | Piece, ...]) -> Piece:
    count = sum(entry.slices if isinstance(entry, Piece) else 1 for entry in entries)
    return Piece(entries[0].start, entries[-1].end, "i", 0, 1, 0, count, 1, 0, 0)


def test_every_slice_is_sealed_a_few_times_only() -> None:
    """The rewritten part of indexes grows with n log n."""
    part, written = Partition(), 0
    for number in range(10_000):
        one = Slice(number, number + 1, "o", 0, 1, 0, 1, 0, 0)
        part = part._replace(end=number + 1, entries=(*part.entries, one))
        if number % 50 == 49:
            low, high = seal_range(part)
            piece = _piece(part.entries[low:high])
            written += piece.slices
            part = part._replace(entries=(*part.entries[:low], piece))
    assert written <= 10_000 * 10


def test_a_sealed_piece_alone_is_left_alone() -> None:
    """Sealing twice in a row changes nothing the second time."""
    _, (piece,) = encode_index("i", [IndexPart("t", 0, [Slice(0, 1, "o", 0, 1, 0, 1, 0, 0)])])
    low, high = seal_range(Partition(0, 1, 0, (piece,)))
    assert low == high
