"""The commands on a log that compaction has thinned."""

from __future__ import annotations

import pytest

from spark_log import connect
from tests.cli.commands import Pylog
from tests.thinning import thin


@pytest.fixture
def thinned(pylog: Pylog) -> Pylog:
    """The records 2, 3 and 7 of partition 1 are left."""
    with connect(pylog.url) as log:
        assert thin(log, "orders", {2, 3, 7}.__contains__, partition=1)
    return pylog


def test_consume_prints_the_records_that_are_left(thinned: Pylog) -> None:
    """From any offset, up to a number of records, and once for a group."""
    assert thinned.ok("consume", "orders", "-f", "%o %k %v %h") == "2 k2 v2 h=x\n3 k3 v3 h=x\n7 k7 v7 h=x\n"
    assert thinned.ok("consume", "orders", "-p", "1", "-o", "4") == "v7\n"
    assert thinned.ok("consume", "orders", "-p", "1", "-o", "8") == ""
    assert thinned.ok("consume", "orders", "-n", "2") == "v2\nv3\n"
    assert thinned.ok("consume", "orders", "-g", "g", "-n", "1") == "v2\n"
    assert thinned.ok("consume", "orders", "-g", "g") == "v3\nv7\n"
    assert thinned.ok("consume", "orders", "-g", "g") == ""
    assert {row["lag"] for row in thinned.json("group", "lag", "g")} == {0}


def test_a_segment_shows_its_holes(thinned: Pylog) -> None:
    """First and last offset of a batch, and fewer rows than offsets."""
    with connect(thinned.url) as log:
        (read,) = log.plan("orders")
    found = thinned.json("segment", "dump", read.slice.object)
    assert (found["records"], found["batches"]) == (3, 1)
    assert [(row["first"], row["last"], row["rows"]) for row in found["index"]] == [(2, 7, 3)]


def test_a_log_with_holes_is_sound(thinned: Pylog) -> None:
    """For `verify` and after maintenance."""
    thinned.ok("verify", "--deep")
    thinned.ok("maintain")
    thinned.ok("verify", "--deep")
    assert thinned.ok("consume", "orders") == "v2\nv3\nv7\n"
