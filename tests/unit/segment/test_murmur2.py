"""The hash is Kafka's, for whole arrays of keys."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import given

from spark_log.segment.keys.murmur2 import murmur2, partition_for_key, to_positive


def one_by_one(key: bytes) -> int:
    """The definition, a byte at a time, signed (kafka: Utils.murmur2)."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for start in range(0, whole, 4):
        k = int.from_bytes(key[start : start + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if key[whole:]:
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


@given(st.lists(st.binary(max_size=30), max_size=60), st.integers(0, 5))
def test_arrays_hash_as_single_keys_do(keys: list[bytes], start: int) -> None:
    """Any mix of lengths, in any order, sliced or not."""
    array = pa.array(keys, pa.binary())[start:]

    assert murmur2(array).tolist() == [one_by_one(key) for key in keys[start:]]


def test_long_keys_among_short_ones_hash_as_single_keys_do() -> None:
    """A few keys much longer than the rest leave the side-by-side path in the middle."""
    rng = np.random.default_rng(11)
    keys = [rng.bytes(int(size)) for size in [*rng.integers(0, 12, 500), 70_001, 999, 1000, 1001, 1002]]
    rng.shuffle(keys)

    assert murmur2(pa.array(keys)).tolist() == [one_by_one(key) for key in keys]


def test_keys_of_one_length_hash_as_single_keys_do() -> None:
    """The path without sorting."""
    rng = np.random.default_rng(12)
    for size in range(9):
        keys = [rng.bytes(size) for _ in range(100)]
        assert murmur2(pa.array(keys, pa.binary())).tolist() == [one_by_one(key) for key in keys]


# Promise: spark.md#columns
def test_hashes_that_kafkas_own_tests_assert() -> None:
    """UtilsTest.testMurmur2."""
    keys = [b"21", b"foobar", b"a-little-bit-long-string", b"abc"]

    assert murmur2(pa.array(keys)).tolist() == [-973932308, -790332482, -985981536, 479470107]


def test_a_null_key_has_no_partition_and_an_empty_one_does() -> None:
    """-1 marks a null; the empty key is a key like others."""
    keys = pa.array([None, b"", b"a", None], pa.binary())

    assert partition_for_key(keys, 1000).tolist() == [-1, 681, 524, -1]


def test_the_positive_part_is_not_the_absolute_value() -> None:
    """-2147483648 becomes 0."""
    assert to_positive(np.array([-(2**31), -1, 5], np.int32)).tolist() == [0, 2**31 - 1, 5]
