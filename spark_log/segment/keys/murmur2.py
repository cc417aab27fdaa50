"""Kafka's hash of a record's key, over whole Arrow arrays.

32-bit MurmurHash2 with Kafka's seed (org.apache.kafka.common.utils.Utils.murmur2).  All keys are mixed in parallel: the
first word of every key, then the second, and so on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.segment.arrays.binary_arrays import Bytes, Ints, buffers_of, words_of

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_R = np.uint32(24)
_FEW = 16
"""With this few keys left, long ones, a Python loop over one key's words costs less than numpy's calls."""
_COPY_MAX = 1 << 20
"""Up to this many words are copied so that all are aligned: one more pass, then a lookup takes a fifth of the time."""

_Hashes = npt.NDArray[np.uint32]


def murmur2(keys: pa.Array) -> npt.NDArray[np.int32]:
    """The hash of each key, signed as in Kafka.  keys: binary; the result for a null is undefined."""
    if not len(keys):
        return np.zeros(0, dtype=np.int32)
    data, starts, lengths = buffers_of(keys)
    order = _longest_first(lengths)
    if order is None:
        return _mix(data, starts, lengths).view(np.int32)
    hashes = np.empty(len(lengths), dtype=np.uint32)
    hashes[order] = _mix(data, starts[order], lengths[order])
    return hashes.view(np.int32)


def to_positive(hashes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The hash without its sign bit, which differs from its absolute value (Utils.toPositive)."""
    return hashes & np.int32(0x7FFFFFFF)


def partition_for_key(keys: pa.Array, count: int | npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The partition of each key; -1 for a null; an empty key is hashed.

    keys: binary.  count: the number of partitions for all keys, or for each.
    """
    partitions = to_positive(murmur2(keys)) % np.asarray(count, np.int32)
    if keys.null_count:
        partitions[keys.is_null().to_numpy(zero_copy_only=False)] = -1
    return partitions


def _longest_first(lengths: Ints) -> npt.NDArray[Any] | None:
    """An order in which keys that have an n-th word are always a prefix; None if they are in such an order."""
    longest = int(lengths.max())
    if longest == int(lengths.min()):
        return None
    # For a small type numpy uses a radix sort.
    short = np.uint16 if longest <= 0xFFFF else np.uint32
    return np.argsort((longest - lengths).astype(short), kind="stable")


def _mix(data: Bytes, starts: Ints, lengths: Ints) -> _Hashes:
    """Hashes of keys sorted longest first."""
    words = words_of(data)
    if len(words) <= _COPY_MAX:
        words = words.copy()
    hashes = _SEED ^ lengths.astype(np.uint32)
    counts = lengths >> 2
    _mix_words(hashes, words, starts, counts)
    tails = starts + counts * 4
    _mix_rest(hashes, words[tails], (lengths & 3).astype(np.uint32))
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _mix_words(hashes: _Hashes, words: _Hashes, starts: Ints, counts: Ints) -> None:
    """In place.  counts: complete words of each key, descending."""
    ascending = -counts
    for number in range(int(counts[0])):
        active = int(np.searchsorted(ascending, -number))
        if active <= _FEW:
            _mix_long_keys(hashes, words, starts[:active], counts, number)
            break
        word = _scramble(words[starts[:active] + 4 * number])
        hashes[:active] = hashes[:active] * _M ^ word


def _mix_long_keys(hashes: _Hashes, words: _Hashes, starts: Ints, counts: Ints, done: int) -> None:
    for row, start in enumerate(starts):
        mixed = int(hashes[row])
        for word in _scramble(words[start + 4 * done : start + 4 * counts[row] : 4]).tolist():
            mixed = (mixed * 0x5BD1E995 & 0xFFFFFFFF) ^ word
        hashes[row] = mixed


def _scramble(words: _Hashes) -> _Hashes:
    mixed = words * _M
    mixed ^= mixed >> _R
    mixed *= _M
    return mixed


def _mix_rest(hashes: _Hashes, words: _Hashes, rest: _Hashes) -> None:
    """In place: the last 0 to 3 bytes of each key, the low bytes of `words`."""
    some = rest > 0
    mask = (np.uint32(1) << (rest * np.uint32(8))) - np.uint32(1)
    np.copyto(hashes, (hashes ^ (words & mask)) * _M, where=some)
