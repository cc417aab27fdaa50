"""A set of record keys, to find the records that have one of them, over whole Arrow arrays."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.segment.keys.key_hashes import KeyHasher


class KeySet:
    """Hashes of keys, 16 bytes for each.

    A key of the set is always found.  Another key is found with a probability of 2**-128.
    """

    def __init__(self, keys: pa.Array, rng: random.Random) -> None:
        """
        keys: binary, without nulls.  Duplicates are allowed.
        """
        distinct = pc.unique(keys)
        while True:
            self._hasher = KeyHasher(rng)
            high, low = self._hasher.hash(distinct)
            order = np.argsort(high)
            self._high, self._low = high[order], low[order]
            if (self._high[1:] != self._high[:-1]).all():  # the search compares one key only
                return

    def __len__(self) -> int:
        return len(self._high)

    def matches(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Which of the keys are in the set; a null is not.  keys: binary."""
        if not len(self) or not len(keys):
            return np.zeros(len(keys), bool)
        high, low = self._hasher.hash(keys)
        order = np.argsort(high)  # neighbours are near each other in memory
        at = np.empty(len(keys), np.int64)
        at[order] = np.minimum(np.searchsorted(self._high, high[order]), len(self) - 1)
        found: npt.NDArray[np.bool_] = (self._high[at] == high) & (self._low[at] == low)
        return found & keys.is_valid().to_numpy(zero_copy_only=False) if keys.null_count else found
