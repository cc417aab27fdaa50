"""Hashes of keys, which compaction compares in place of the keys."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given, settings

from spark_log.segment.keys.key_hashes import WORDS_MAX, KeyHasher

keys_ = st.lists(st.none() | st.binary(max_size=40) | st.binary(min_size=250, max_size=270), min_size=1, max_size=30)


def hashed(keys: list[bytes | None], seed: int = 1, *, skip: int = 0) -> list[tuple[int, int]]:
    """skip: leading elements that a slice of an array leaves out."""
    array = pa.array([*[b"other"] * skip, *keys], pa.binary()).slice(skip)
    found = KeyHasher(random.Random(seed)).hash(array)
    return list(zip(found.high.tolist(), found.low.tolist(), strict=True))


def multilinear(key: bytes, seed: int = 1) -> tuple[int, int]:
    """As the paper has it, word by word."""
    rng = random.Random(seed)
    rng.randbytes(32)
    lanes = [[rng.getrandbits(64) for _ in range(WORDS_MAX + 2)] for _ in range(4)]
    words = [len(key), *(int.from_bytes(key[at : at + 4], "little") for at in range(0, len(key), 4))]
    parts = [(lane[0] + sum(m * s for m, s in zip(lane[1:], words, strict=False))) % 2**64 >> 32 for lane in lanes]
    return parts[0] << 32 | parts[1], parts[2] << 32 | parts[3]


@settings(max_examples=100, deadline=None)
@given(keys=keys_, skip=st.integers(0, 3))
def test_keys_have_one_hash_if_they_are_equal(keys: list[bytes | None], skip: int) -> None:
    """Whatever stands beside them, and in slices of arrays."""
    found = hashed(keys, skip=skip)
    by_key = {key: value for key, value in zip(keys, found, strict=True) if key is not None}
    assert len(set(by_key.values())) == len(by_key)
    assert by_key == {key: hashed([key])[0] for key in by_key}


@settings(max_examples=50, deadline=None)
@given(keys=st.lists(st.binary(max_size=4 * WORDS_MAX), min_size=1, max_size=10))
def test_short_keys_have_the_hash_of_the_paper(keys: list[bytes]) -> None:
    """Word by word in Python gives the same."""
    assert hashed(list(keys)) == [multilinear(key) for key in keys]


def test_trailing_zeros_count() -> None:
    """A key is filled with zeros to whole words, so its length is part of the hash."""
    keys: list[bytes | None] = [b"", b"\0", b"\0\0\0\0", b"\0\0\0\0\0", b"a", b"a\0", b"a\0\0\0"]
    assert len(set(hashed(keys))) == len(keys)


def test_a_hasher_draws_its_own_numbers() -> None:
    """So nobody can choose keys with equal hashes."""
    for key in (b"key", b"k" * 300):
        assert hashed([key], seed=1) != hashed([key], seed=2)


def test_no_keys_have_no_hashes() -> None:
    assert hashed([]) == []
