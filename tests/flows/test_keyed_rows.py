"""Rows by key, held against a dictionary."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from spark_log.flows.keyed_rows import KeyedRows
from spark_log.segment.keys.key_hashes import Hashes, KeyHasher

SCHEMA = pa.schema([("key", pa.binary()), ("n", pa.int64())])


class CollidingHasher(KeyHasher):
    """Hashes that agree in their first half."""

    def hash(self, keys: pa.Array) -> Hashes:
        found = super().hash(keys)
        return Hashes(found.high & np.uint64(3), found.low)


def rows_of(pairs: list[tuple[bytes, int | None]]) -> pa.Table:
    return pa.table([[key for key, _ in pairs], [n for _, n in pairs]], schema=SCHEMA)


def found(rows: KeyedRows, keys: list[bytes]) -> dict[bytes, int]:
    table = rows.find(pa.array(keys, pa.binary()))
    assert table.schema == SCHEMA
    got = dict(zip(table["key"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert len(got) == table.num_rows
    return got


@pytest.mark.parametrize("hasher", [KeyHasher, CollidingHasher])
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_a_dictionary(hasher: type[KeyHasher], seed: int) -> None:
    """After any changes and deletions, also several of a key in one change; an older state stays as it was."""
    rng = random.Random(seed)
    keys = [f"{n}".encode() * rng.randrange(1, 3) for n in range(200)]
    rows, known = KeyedRows(SCHEMA, hasher(rng)), dict[bytes, int]()
    for _ in range(60):
        pairs = [
            (rng.choice(keys), None if rng.random() < 0.3 else rng.randrange(1000))
            for _ in range(rng.choice([0, 1, 5, 60]))
        ]
        table, before, was = rows_of(pairs), rows, dict(known)
        rows = rows.changed(table, np.asarray(table["n"].is_null()))
        for key, n in pairs:
            if n is None:
                known.pop(key, None)
            else:
                known[key] = n
        wanted = sorted(set(rng.sample(keys, 40)))
        assert found(rows, wanted) == {key: known[key] for key in wanted if key in known}
        assert found(before, wanted) == {key: was[key] for key in wanted if key in was}
        assert len(rows) == len(known)
