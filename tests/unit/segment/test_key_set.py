"""A set of keys finds exactly the records that have one of them."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import given

from spark_log.segment.keys.key_hashes import KeyHasher
from spark_log.segment.keys.key_set import KeySet

KEYS = st.lists(st.binary(max_size=9))


@given(wanted=KEYS, keys=st.lists(st.none() | st.binary(max_size=9)), cut=st.integers(0, 5))
def test_the_same_as_a_set_of_bytes(wanted: list[bytes], keys: list[bytes | None], cut: int) -> None:
    """Duplicates, the empty key, nulls, and a slice of an array."""
    found = KeySet(pa.array(wanted, pa.binary()), random.Random(1))
    assert len(found) == len(set(wanted))
    some = [*keys, *wanted]
    assert found.matches(pa.array(some, pa.binary())[cut:]).tolist() == [key in set(wanted) for key in some[cut:]]


def test_many_keys() -> None:
    """A hundred thousand keys among twice as many."""
    keys = pa.array([b"%d" % number for number in range(200_000)], pa.binary())
    found = KeySet(keys[::2], random.Random(2)).matches(keys)
    assert (found == (np.arange(200_000) % 2 == 0)).all()


class Colliding(random.Random):
    """Draws zeros for the first hasher: all of its hashes are equal."""

    draws = 0

    def getrandbits(self, bits: int, /) -> int:
        self.draws += 1
        return 0 if self.draws <= DRAWS else super().getrandbits(bits)


def draws_of_a_hasher() -> int:
    counting = Colliding(0)
    KeyHasher(counting)
    return counting.draws


DRAWS = 10**9
DRAWS = draws_of_a_hasher()


def test_numbers_that_give_two_keys_one_hash_are_drawn_again() -> None:
    """A search compares one key only, so two keys of the set must differ in the first half."""
    rng = Colliding(3)
    found = KeySet(pa.array([b"a", b"b"], pa.binary()), rng)
    assert rng.draws == 2 * DRAWS
    assert found.matches(pa.array([b"a", b"b", b"c"], pa.binary())).tolist() == [True, True, False]
