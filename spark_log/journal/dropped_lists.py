"""Lists of dropped objects: moves names from the state into list objects, and reads them.

Garbage collection deletes no object whose name is in a list of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spark_log.errors import CorruptObject
from spark_log.journal.context import Context, Proposal
from spark_log.journal.store_operations import OWN_ROOT, Decide, Get, Put, Steps
from spark_log.metadata.commands import Report
from spark_log.metadata.formats.dropped_list_format import SUFFIX, decode_list, encode_list
from spark_log.metadata.records import ListDroppedRecord
from spark_log.metadata.state import State
from spark_log.store.object_names import data_key

LISTS_AT_ONCE = 8
"""Lists that are read together, of some 200 KB each."""


def list_dropped(state: State, context: Context) -> Steps[State]:
    """Move the names of dropped objects into a list object, if the state has many.

    The list is durable before the record that refers to it.  Without the record, it is garbage below the next fence.
    """
    if len(state.dropped) <= context.limits.dropped_inline:
        return state
    name = data_key(state.version, f"{context.unique()}{SUFFIX}")
    yield Put(name, (encode_list(state.dropped, name),), OWN_ROOT)
    record = ListDroppedRecord(upload_epoch=state.version, object=name)
    return (yield Decide([Proposal(Report.of(state, record))]))


def read_lists(lists: Iterable[str], use: Callable[[list[str]], object]) -> Steps[dict[str, str]]:
    """Call `use` with the names in each list.  Returns the lists that cannot be read: name -> reason."""
    lost, names = dict[str, str](), sorted(lists)
    for at in range(0, len(names), LISTS_AT_ONCE):
        few = names[at : at + LISTS_AT_ONCE]
        for name, data in zip(few, (yield [Get(name, root=OWN_ROOT) for name in few]), strict=True):
            try:
                if data is None:
                    raise CorruptObject(f"{name} is missing")
                use(decode_list(data, name))
            except CorruptObject as error:
                lost[name] = str(error)
    return lost
