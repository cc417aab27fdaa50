"""Which objects are garbage, as far as the state tells."""

from __future__ import annotations

import pytest
from immutables import Map

from spark_log.journal.garbage_collection import garbage
from spark_log.journal.store_operations import OWN_ROOT, Get
from spark_log.metadata.state import DroppedList, State
from spark_log.store.object_names import data_key


def test_a_list_that_is_known_to_have_none_of_the_names_is_not_read_again() -> None:
    """A process looks once more at the newest state before it deletes, which may have new lists."""
    known = Map({data_key(1, f"{1:016x}.dropped"): DroppedList(9, 3)})
    newest = State(
        version=9, fence=5, dropped_lists=known.set(new := data_key(2, f"{2:016x}.dropped"), DroppedList(9, 3))
    )
    name = data_key(3, "0.seg")
    with pytest.raises(StopIteration) as end:
        next(garbage(newest, [name], newest.dropped_lists))
    assert end.value.value == [name]
    assert next(garbage(newest, [name], known)) == [Get(new, root=OWN_ROOT)]
