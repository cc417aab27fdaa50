"""Hashes of record keys to 16 bytes, over whole Arrow arrays: as good as the keys, to tell whether they are equal.

Multilinear hashing, four times (Lemire and Kaser, "Strongly universal string hashing is fast", 2014): the length and
the 32-bit words of a key, each times a random 64-bit number, are added modulo 2**64, and the upper half of the sum is
kept. Two different keys have the same hash with a probability of 2**-128.  This holds also for keys that an attacker
has chosen, because the numbers are drawn after they were written.  Hashes of different hashers cannot be compared.
"""

from __future__ import annotations

import hashlib
import random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.segment.arrays.binary_arrays import Ints, Words, buffers_of, words_of

WORDS_MAX = 64
"""Longer keys, above 256 bytes, are hashed one by one: a hash function has enough bytes to do in each call."""
_LANES = 4
_HALF = np.uint64(32)
_UPPER = np.uint64(0xFFFFFFFF00000000)

Half = npt.NDArray[np.uint64]


class Hashes(NamedTuple):
    """Hashes of keys, in two halves."""

    high: Half
    low: Half


class KeyHasher:
    """Hashes keys with numbers that it draws once."""

    def __init__(self, rng: random.Random) -> None:
        self._secret = rng.randbytes(32)
        numbers = [[rng.getrandbits(64) for _ in range(WORDS_MAX + 2)] for _ in range(_LANES)]
        self._constants, self._of_length, *of_words = np.array(numbers, np.uint64).T[:, :, np.newaxis]
        self._of_words = of_words

    def hash(self, keys: pa.Array) -> Hashes:
        """The hash of each key; that of a null is undefined.  keys: binary."""
        if not len(keys):
            return Hashes(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        data, starts, lengths = buffers_of(keys)
        words, counts = words_of(data), (lengths + 3) >> 2
        sums = self._constants + self._of_length * lengths.astype(np.uint64)
        for count in np.flatnonzero(np.bincount(counts[counts <= WORDS_MAX])).tolist():
            found = np.flatnonzero(counts == count)
            rows = found if len(found) < len(keys) else slice(None)  # without copies
            sums[:, rows] += self._dot(words, starts[rows], lengths[rows], count)
        first, second, third, fourth = sums
        hashes = Hashes(_joined(first, second), _joined(third, fourth))
        for row in np.flatnonzero(counts > WORDS_MAX).tolist():
            key = data[starts[row] : starts[row] + lengths[row]].tobytes()
            digest = hashlib.blake2b(key, digest_size=16, key=self._secret).digest()
            hashes.high[row], hashes.low[row] = np.frombuffer(digest, np.uint64)
        return hashes

    def _dot(self, words: Words, starts: Ints, lengths: Ints, count: int) -> npt.NDArray[np.uint64]:
        """The words of keys with `count` words each, times the numbers of each lane, added.  Shape: (lanes, keys)."""
        sums = np.zeros((_LANES, len(starts)), np.uint64)
        for number in range(count):
            word = words[starts + 4 * number].astype(np.uint64)
            if number == count - 1:  # without the bytes of the next key
                word &= (np.uint64(1) << (8 * (lengths - 4 * number)).astype(np.uint64)) - np.uint64(1)
            sums += word * self._of_words[number]
        return sums


def _joined(upper: Half, lower: Half) -> Half:
    """The upper halves of two numbers as one."""
    return (upper & _UPPER) | (lower >> _HALF)
